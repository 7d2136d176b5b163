"""A job that counts from the end of its last run, and many runs at once, on each store: in virtual time."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import AsyncIterator
from typing import Any

import pytest
from msgspec.structs import replace

from horarium.clock import SECOND, Instant, SystemClock
from horarium.model import UNFINISHED, Failed, Run, RunChange, State, Succeeded
from horarium.node.backends import make_store
from horarium.operations.facade import Operations
from horarium.operations.runs.bulk import CANCELLED, Selection
from horarium.operations.runs.one_offs import Added
from horarium.ports import RunFilter, Store
from horarium.rules.settling import settle
from horarium.services.metrics.telemetry import Telemetry
from horarium.services.planning.planner import Planner
from horarium.stores.wakeups import LocalSignal
from horarium.testing import ManualClock
from horarium.wire.definitions import read_definition
from horarium.wire.one_offs import read_run

DELAY = 60 * SECOND
QUEUE = "pull/work"


class World:
    """One node on a store, and a clock that tests move."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.clock = ManualClock(SystemClock().now())
        signal = LocalSignal()
        self.operations = Operations(store, self.clock, signal, os.urandom, lambda target: None)
        self.planner = Planner(store, signal, self.operations.reconciler, self.operations.following, Telemetry())

    async def put(self, **changes: Any) -> None:
        fields = {
            "name": "job",
            "trigger": {"type": "interval", "every_seconds": DELAY // SECOND, "from": "end"},
            "target": {"type": "queue", "queue": "work"},
            **changes,
        }
        await self.operations.jobs.put_job(read_definition(fields))

    async def plan(self, seconds: float = 0) -> None:
        self.clock.advance(seconds)
        await self.planner.step(self.clock.now())

    async def pending(self) -> list[Run]:
        page = await self.store.list_runs(RunFilter(states=frozenset({State.PENDING})), None, 100)
        return list(page.items)

    async def claim(self, limit: int = 1) -> list[Run]:
        now = self.clock.now()
        return list((await self.store.claim_runs([QUEUE], limit, "w", now, now, now)).runs)

    async def end(self, run: Run) -> Instant:
        """The run is done; when."""
        now = self.clock.now()
        change = RunChange(settle(run, None, Succeeded(), now), run.token, run.state)
        assert await self.store.settle_runs([change], now) == [True]
        return now


@pytest.fixture
async def world(url: str) -> AsyncIterator[World]:
    store = make_store(url, f"from-end-{secrets.token_hex(4)}")
    await store.open()
    yield World(store)
    await store.close()


async def test_the_delay_lies_between_the_end_of_a_run_and_the_next(world: World) -> None:
    await world.put(jitter_seconds=10, timeouts={"heartbeat_seconds": 3_600})
    end = world.clock.now()
    await world.plan(DELAY / SECOND - 1)
    for took in (5, 150):
        await world.plan(1)
        (planned,) = await world.pending()
        assert planned.fire_at == end + DELAY
        assert end + DELAY < planned.due_at <= end + DELAY + 10 * SECOND
        world.clock.advance(10)
        (run,) = await world.claim()
        for _ in range(took // 50):
            await world.plan(50)
            assert await world.pending() == [], "the run goes on"
        world.clock.advance(took % 50)
        end = await world.end(run)
        await world.plan(DELAY / SECOND - 1)
        assert await world.pending() == []


async def test_a_change_keeps_the_end_that_it_counts_from(world: World) -> None:
    await world.put()
    await world.plan(60)
    (run,) = await world.claim()
    await world.put(title="another", trigger={"type": "interval", "every_seconds": 20, "from": "end"})
    await world.plan(25)
    assert await world.pending() == [], "the run goes on"
    end = await world.end(run)
    await world.operations.jobs.pause_job("job")
    await world.operations.jobs.resume_job("job")
    for _ in range(2):
        await world.plan(20)
    (following,) = await world.pending()
    assert following.fire_at - end in (20 * SECOND, 40 * SECOND)


async def test_many_runs_are_cancelled_beside_workers_and_retried_once(world: World) -> None:
    runs = [read_run({"target": {"type": "queue", "queue": "work"}, "unique_key": f"k{n}"}) for n in range(40)]
    added = await world.operations.one_offs.add_runs([*runs, *runs[:3]])
    assert [each.new for each in added if isinstance(each, Added)] == [True] * 40 + [False] * 3
    selection = Selection(where=RunFilter(queue=QUEUE, states=CANCELLED))

    async def work() -> int:
        done = 0
        for _ in range(6):
            for run in await world.claim(3):
                now = world.clock.now()
                change = RunChange(settle(run, None, Failed("no", retryable=False), now), run.token, run.state)
                done += (await world.store.settle_runs([change], now))[0]
        return done

    bulk = world.operations.bulk
    settled, batch = await asyncio.gather(work(), bulk.cancel(selection, CANCELLED, None, None, "not now"))
    cancelled = batch.done
    page = await world.store.list_runs(RunFilter(states=UNFINISHED), None, 100)
    for run in page.items:
        assert run.state is State.CANCELLING, "its worker was asked to stop"
    assert batch.matched >= cancelled > 0
    states = frozenset({State.FAILED, State.CANCELLED})
    both = Selection(where=RunFilter(queue=QUEUE, states=states))
    assert (await bulk.count(both, states, None)).matched == 40 - len(page.items)
    again = await bulk.retry(both, states, None, None, 0)
    assert (again.matched, again.done) == (40 - len(page.items), 40 - len(page.items))
    twice = await bulk.retry(both, states, None, None, 0)
    assert (twice.done, twice.left) == (0, {"retried_before": again.done})
    assert settled <= 18


async def test_runs_of_jobs_are_retried_as_their_policies_allow(world: World) -> None:
    grid = {"type": "interval", "every_seconds": 86_400}
    for name, overlap in (("free", "allow"), ("turn", "buffer_one")):
        await world.put(name=name, trigger=grid, overlap="allow")
        for _ in range(3):
            await world.operations.jobs.trigger_job(name, b"1")
        await world.put(name=name, trigger=grid, overlap=overlap)
    everything = Selection(where=RunFilter(queue=QUEUE, states=CANCELLED))
    assert (await world.operations.bulk.cancel(everything, CANCELLED, None, None, "no")).done == 6
    states = frozenset({State.CANCELLED})
    selection = replace(everything, where=RunFilter(queue=QUEUE, states=states))
    batch = await world.operations.bulk.retry(selection, states, None, 2.0, 0)
    assert (batch.matched, batch.done, batch.left) == (6, 5, {"overlap": 1})
    pending = await world.pending()
    assert sorted(run.job or "" for run in pending) == ["free"] * 3 + ["turn"] * 2
    assert {run.payload for run in pending} == {b"1"}
    assert len({run.due_at for run in pending}) == 5, "each in its turn"
