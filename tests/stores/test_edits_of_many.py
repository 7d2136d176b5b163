"""A change of a job with very many waiting runs: little is read and written before it answers, nothing is forgotten."""

from __future__ import annotations

import os
import secrets
from collections.abc import AsyncIterator, Sequence
from typing import Any, cast

import pytest
from msgspec.structs import replace

from horarium.clock import SECOND
from horarium.model import UNFINISHED, Cause, Job, Plan, Run, RunChange, State
from horarium.model.records import RecordFilter
from horarium.node.backends import make_store
from horarium.operations.facade import Operations
from horarium.operations.settling.following import Following
from horarium.policies import Overlap
from horarium.ports import APPLY, Page, RunFilter, Store
from horarium.rules.applying import HELD, PREFIX
from horarium.services.metrics.telemetry import Telemetry
from horarium.services.planning.planner import Planner
from horarium.services.upkeep.applier import LOOK_EVERY, Applier
from horarium.stores.wakeups import LocalSignal
from horarium.testing import ManualClock
from horarium.testing.values import NOW, a_job, a_run

WAITING = 700
LOOKED_AT = 200
"""What an edit may read of them."""


class Counting:
    """Counts the runs that it hands out, and those that are written."""

    def __init__(self, store: Store) -> None:
        self._store, self.read, self.written = store, 0, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def list_runs(self, where: RunFilter, after: str | None, limit: int) -> Page[Run]:
        page = await self._store.list_runs(where, after, limit)
        self.read += len(page.items)
        return page

    async def unfinished_runs(self, job_ids: Sequence[str]) -> dict[str, list[Run]]:
        found = await self._store.unfinished_runs(job_ids)
        self.read += sum(map(len, found.values()))
        return found

    async def settle_runs(self, changes: Sequence[RunChange], now: int) -> list[bool]:
        self.written += len(changes)
        return await self._store.settle_runs(changes, now)

    async def commit_plans(self, plans: Sequence[Plan], now: int) -> list[bool]:
        self.written += sum(len(each.runs) + len(each.changes) for each in plans)
        return await self._store.commit_plans(plans, now)


class Node:
    """What one process has, on a store that others share; it dies by being used no more."""

    def __init__(self, store: Store, clock: ManualClock, name: str) -> None:
        self.clock = clock
        self.counting = Counting(store)
        self.signal = LocalSignal()
        store = cast(Store, self.counting)
        self.operations = Operations(store, clock, self.signal, os.urandom, lambda target: None)
        self.applier = Applier(store, clock, self.operations.reconciler, name)
        self.signal.subscribe(APPLY, self.applier.signalled)

    async def step(self, times: int = 1) -> None:
        for _ in range(times):
            await self.applier.step(self.clock.now())


class World:
    """One job with many waiting runs and a running one, two nodes."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.clock = ManualClock(NOW)
        self.one, self.other = Node(store, self.clock, "one"), Node(store, self.clock, "other")

    async def fill(self, waiting: int) -> Job:
        job = replace(a_job("busy"), next_fire_at=NOW + 3600 * SECOND)
        await self.store.add_jobs([job])
        await self.store.add_runs([a_run(number, of=job) for number in range(waiting + 1)])
        claimed = await self.store.claim_runs([job.queue], 1, "w", NOW, NOW, NOW)
        assert len(claimed.runs) == 1
        return job

    async def owed(self) -> int:
        return len((await self.store.list_records(RecordFilter(PREFIX), None, 10)).items)

    async def states(self, job: Job) -> dict[tuple[State, str], int]:
        count: dict[tuple[State, str], int] = {}
        for run in (await self.store.unfinished_runs([job.id]))[job.id]:
            count[run.state, run.queue] = count.get((run.state, run.queue), 0) + 1
        return count


@pytest.fixture
async def world(url: str) -> AsyncIterator[World]:
    store = make_store(url, f"n{secrets.token_hex(6)}")
    await store.open()
    yield World(store)
    await store.close()


async def test_a_delete_answers_first_and_ends_the_runs_then(world: World) -> None:
    job = await world.fill(WAITING)
    await world.one.operations.jobs.delete_job("busy")
    assert (world.one.counting.read, world.one.counting.written) == (LOOKED_AT, 0)
    assert await world.owed() == 1
    assert (await world.states(job))[State.PENDING, job.queue] == WAITING
    await world.one.step()
    assert (await world.states(job))[State.CANCELLING, job.queue] == 1  # what is performed is asked first
    await world.one.step(10)
    assert await world.states(job) == {(State.CANCELLING, job.queue): 1}
    assert (world.one.counting.written, await world.owed()) == (WAITING + 1, 0)


async def test_few_runs_are_ended_before_the_answer(world: World) -> None:
    job = await world.fill(20)
    await world.one.operations.jobs.delete_job("busy")
    assert await world.states(job) == {(State.CANCELLING, job.queue): 1}
    assert await world.owed() == 0


async def test_nothing_of_a_deleted_job_is_handed_out_before_it_is_applied(world: World) -> None:
    job = await world.fill(WAITING)
    await world.one.operations.jobs.delete_job("busy")
    claimed = await world.other.operations.claiming.claim([job.queue], 10, "w", NOW, NOW)
    assert claimed.runs == ()


async def test_what_waits_follows_the_job_to_another_queue(world: World) -> None:
    job = await world.fill(WAITING)
    await world.one.operations.jobs.patch_job("busy", {"target": {"type": "queue", "queue": "elsewhere"}})
    assert world.one.counting.written == 0
    await world.one.step(10)
    assert await world.states(job) == {(State.RUNNING, job.queue): 1, (State.PENDING, "pull/elsewhere"): WAITING}
    assert await world.owed() == 0


async def test_another_node_goes_on_where_one_died(world: World) -> None:
    job = await world.fill(WAITING)
    await world.one.operations.jobs.delete_job("busy")
    await world.one.step(3)  # and never again
    await world.other.step(3)
    assert world.other.counting.written == 0
    world.clock.advance(max(HELD, LOOK_EVERY) / SECOND)
    await world.other.step(7)
    assert await world.states(job) == {(State.CANCELLING, job.queue): 1}
    assert world.one.counting.written + world.other.counting.written == WAITING + 1
    assert await world.owed() == 0


async def test_a_node_that_was_away_for_long_leaves_the_work_to_the_other(world: World) -> None:
    await world.fill(WAITING)
    await world.one.operations.jobs.delete_job("busy")
    await world.one.step(3)
    world.clock.advance(max(HELD, LOOK_EVERY) / SECOND)
    await world.other.step(2)
    before = world.one.counting.written
    await world.one.step(2)
    assert world.one.counting.written == before
    await world.other.step(6)
    assert not (await world.store.list_runs(RunFilter(states=UNFINISHED - {State.CANCELLING}), None, 1)).items


# ---- under a policy that ends others


async def end_others(world: World, overlap: Overlap, times: int) -> Job:
    """A job under this policy, where many wait that another one let wait, `times` steps after a run by hand."""
    job = await world.fill(WAITING)
    await world.one.operations.jobs.patch_job("busy", {"overlap": overlap.value})
    before = world.one.counting.read
    world.clock.advance(1)
    await world.one.operations.jobs.trigger_job("busy")
    assert world.one.counting.read - before <= LOOKED_AT
    assert world.one.counting.written <= LOOKED_AT + 2
    assert await world.owed() == 1
    await world.one.step(times)
    return job


@pytest.mark.parametrize("overlap", [Overlap.CANCEL_OTHER, Overlap.TERMINATE_OTHER])
async def test_a_run_that_ends_very_many_ends_some_and_the_rest_later(world: World, overlap: Overlap) -> None:
    job = await end_others(world, overlap, 1)
    states = await world.states(job)
    assert states[State.PENDING, job.queue] == WAITING - LOOKED_AT + 1
    assert (State.RUNNING, job.queue) not in states  # what is performed is asked first
    await world.one.step(10)
    claimed = {} if overlap is Overlap.TERMINATE_OTHER else {(State.CANCELLING, job.queue): 1}
    assert await world.states(job) == {(State.PENDING, job.queue): 1, **claimed}
    newest = max((await world.store.unfinished_runs([job.id]))[job.id], key=lambda run: run.fire_at)
    assert (newest.state, newest.cause) == (State.PENDING, Cause.MANUAL)
    assert await world.owed() == 0


async def test_another_node_ends_the_rest_even_if_the_newest_is_over_and_the_policy_another(world: World) -> None:
    job = await end_others(world, Overlap.CANCEL_OTHER, 2)  # and never again
    newest = (await world.store.list_runs(RunFilter(job="busy"), None, 1)).items[0]
    await world.other.operations.runs.cancel_run(newest.id)
    await world.other.operations.jobs.patch_job("busy", {"overlap": "allow"})
    world.clock.advance(max(HELD, LOOK_EVERY) / SECOND)
    await world.other.operations.jobs.trigger_job("busy")
    await world.other.step(8)
    assert await world.states(job) == {(State.PENDING, job.queue): 1, (State.CANCELLING, job.queue): 1}
    assert await world.owed() == 0


async def test_of_very_many_that_should_have_ended_only_the_newest_is_left(world: World) -> None:
    job = await world.fill(WAITING)  # made within the instant of the change, so under the new policy
    changes = {"overlap": "cancel_other", "target": {"type": "queue", "queue": "elsewhere"}}
    await world.one.operations.jobs.patch_job("busy", changes)
    await world.one.step(8)
    assert await world.states(job) == {(State.CANCELLING, job.queue): 1, (State.PENDING, "pull/elsewhere"): 1}


async def test_a_fire_time_that_ends_very_many_ends_some_and_the_rest_later(world: World) -> None:
    job = await world.fill(WAITING)
    operations = world.one.operations
    await operations.jobs.patch_job("busy", {"overlap": "cancel_other"})
    world.clock.advance(2 * 3600)
    store = cast(Store, world.one.counting)
    following = Following(store)
    planner = Planner(store, world.one.signal, operations.reconciler, following, Telemetry())
    await planner.step(world.clock.now())
    assert world.one.counting.written <= LOOKED_AT + 2
    assert await world.owed() == 1
    await world.one.step(8)
    assert await world.states(job) == {(State.PENDING, job.queue): 1, (State.CANCELLING, job.queue): 1}


async def test_what_moves_is_not_taken_for_what_ends_others(world: World) -> None:
    job = await world.fill(WAITING)
    world.clock.advance(1)
    changes = {"overlap": "cancel_other", "target": {"type": "queue", "queue": "elsewhere"}}
    await world.one.operations.jobs.patch_job("busy", changes)
    await world.one.step(10)
    assert await world.states(job) == {(State.RUNNING, job.queue): 1, (State.PENDING, "pull/elsewhere"): WAITING}
