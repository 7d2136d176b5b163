"""Two nodes on one real database: runs follow their jobs whatever dies, and a storm on one job loses nothing."""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from horarium.clock import Instant, SystemClock
from horarium.errors import NotFound, StoreUnavailable
from horarium.model import Cause, Failed, Plan, Run, RunChange, State
from horarium.node.backends import make_store
from horarium.operations.facade import Operations
from horarium.operations.settling.settling import Settlement
from horarium.ports import Claimed, RunFilter, Store
from horarium.services.polling.claims import Claims
from horarium.stores.wakeups import LocalSignal
from horarium.wire.definitions import read_definition
from tests.waiting import PATIENCE

pytestmark = pytest.mark.slow

CLIENTS = 64


class Through:
    """A store of which a test changes single methods."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


class Node:
    """What one process does on the database."""

    def __init__(self, store: Any) -> None:
        self.store: Store = store
        self.operations = Operations(store, SystemClock(), LocalSignal(), os.urandom, lambda target: None)
        self.claims = Claims(self.operations.claiming, SystemClock(), LocalSignal())

    async def add(self, **changes: Any) -> None:
        fields = {
            "name": "job",
            "trigger": {"type": "interval", "every_seconds": 86_400},
            "target": {"type": "queue", "queue": "old"},
            **changes,
        }
        await self.operations.jobs.put_job(read_definition(fields))

    async def claim(self, queue: str, within_seconds: float = 0.0) -> list[Run]:
        """What comes out of this queue in that time."""
        ends = time.monotonic() + within_seconds
        while True:
            claimed = await self.claims.claim([queue], 10, "worker")
            if claimed.runs or time.monotonic() >= ends:
                return list(claimed.runs)
            await asyncio.sleep(0.02)


@pytest.fixture
async def nodes(url: str) -> AsyncIterator[tuple[Node, Node]]:
    namespace = f"following-{secrets.token_hex(4)}"
    one = make_store(url, namespace)
    other = one if url == "memory://" else make_store(url, namespace)
    await one.open()
    await other.open()
    yield Node(one), Node(other)
    await one.close()
    await other.close()


class HoldsAnswers(Through):
    """Keeps back the answer to a claim."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.claimed, self.go_on = asyncio.Event(), asyncio.Event()

    async def claim_runs(self, *args: Any) -> Claimed:
        claimed = await self._store.claim_runs(*args)
        self.claimed.set()
        await self.go_on.wait()
        return claimed


async def test_a_run_whose_worker_left_while_the_target_changed_is_claimed_from_the_new_queue(
    nodes: tuple[Node, Node],
) -> None:
    one, other = nodes
    await one.add()
    run = await one.operations.jobs.trigger_job("job")
    store = HoldsAnswers(one.store)
    leaving = asyncio.create_task(Node(store).claims.claim(["pull/old"], 1, "leaves"))
    await store.claimed.wait()
    await other.operations.jobs.patch_job("job", {"target": {"queue": "new"}})
    leaving.cancel()
    store.go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    assert [each.id for each in await other.claim("pull/new", within_seconds=PATIENCE)] == [run.id]
    assert await other.claim("pull/old") == []


class DiesAfterTheDelete(Through):
    """A run is claimed as the delete is being written, and when it is written the node is gone."""

    async def commit_plans(self, plans: Sequence[Plan], now: Instant) -> list[bool]:
        self.claimed = (await self._store.claim_runs(["pull/old"], 1, "worker", now, now, now)).runs
        assert await self._store.commit_plans(plans, now) == [True]
        raise StoreUnavailable("the node was killed")


@pytest.mark.parametrize("put_back", ["by its worker", "by a node that knows nothing of it"])
async def test_a_node_killed_after_a_delete_leaves_nothing_that_is_claimed_again(
    nodes: tuple[Node, Node], put_back: str
) -> None:
    one, other = nodes
    await one.add(retry={"attempts_max": 5, "backoff_seconds": 0})
    await one.operations.jobs.trigger_job("job")
    store = DiesAfterTheDelete(one.store)
    with pytest.raises(StoreUnavailable):
        await Node(store).operations.jobs.delete_job("job")
    (run,) = store.claimed
    if put_back == "by its worker":
        await other.operations.settling.settle_one(Settlement(run.id, run.token, Failed("no")))
    else:
        pending = replace(run, state=State.PENDING, lease_expires_at=None, started_at=None, worker=None, attempt=0)
        written = await other.store.settle_runs([RunChange(pending, run.token, run.state)], SystemClock().now())
        assert written == [True]
    assert await other.claim("pull/old", within_seconds=0.2) == []
    assert (await other.operations.runs.get_run(run.id)).state is State.CANCELLED


async def test_a_trigger_that_meets_a_delete_leaves_nothing_behind(nodes: tuple[Node, Node]) -> None:
    one, other = nodes
    await one.add()
    job = await one.operations.jobs.get_job("job")

    class Deleted(Through):
        async def add_runs(self, runs: Sequence[Run], *along: Any) -> list[bool]:
            await other.operations.jobs.delete_job("job")
            return await self._store.add_runs(runs, *along)

    with pytest.raises(NotFound):
        await Node(Deleted(one.store)).operations.jobs.trigger_job("job")
    assert (await other.store.unfinished_runs([job.id]))[job.id] == []


async def test_a_storm_of_triggers_makes_as_many_runs_and_no_conflict(nodes: tuple[Node, Node]) -> None:
    await nodes[0].add()
    asked = [nodes[number % 2].operations.jobs.trigger_job("job", b"%d" % number) for number in range(CLIENTS)]
    made = await asyncio.gather(*asked)
    runs = (await nodes[0].store.list_runs(RunFilter(job="job"), None, 200)).items
    assert {run.id: run.payload for run in made} == {run.id: run.payload for run in runs}
    assert sorted(int(run.payload or b"") for run in made) == list(range(CLIENTS))


async def test_a_storm_of_triggers_under_one_key_makes_one_run(nodes: tuple[Node, Node]) -> None:
    await nodes[0].add()
    asked = [nodes[number % 2].operations.jobs.trigger_job("job", None, "key") for number in range(CLIENTS)]
    assert len({run.id for run in await asyncio.gather(*asked)}) == 1


async def test_a_storm_of_other_changes_has_no_conflict(nodes: tuple[Node, Node]) -> None:
    await nodes[0].add(overlap="skip")
    asked: list[Any] = []
    for number in range(CLIENTS // 4):
        operations = nodes[number % 2].operations
        asked += [
            operations.jobs.trigger_job("job"),
            operations.jobs.patch_job("job", {"labels": {"number": str(number)}}),
            operations.jobs.pause_job("job"),
            operations.jobs.resume_job("job"),
        ]
    await asyncio.gather(*asked)
    runs = (await nodes[0].store.list_runs(RunFilter(job="job"), None, 200)).items
    states = [run.state for run in runs if run.cause is Cause.MANUAL]
    assert (len(states), states.count(State.PENDING)) == (CLIENTS // 4, 1)
