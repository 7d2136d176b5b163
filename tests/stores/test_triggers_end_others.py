"""Runs by hand under a policy that ends others: those that come together leave what they leave one after the other."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from random import Random
from typing import Any, cast

import pytest
from msgspec.structs import replace

from horarium.access.acting import acting
from horarium.access.audit import Origin
from horarium.access.roles import Role, principal
from horarium.clock import HOUR, SECOND, Instant
from horarium.errors import HorariumError
from horarium.model import Follow, Job, Occasion, Plan, Run, State
from horarium.model.records import Record, RecordFilter
from horarium.node.backends import make_store
from horarium.operations.facade import Operations
from horarium.policies import Overlap, Retention
from horarium.ports import RunFilter, Store
from horarium.stores.memory import MemoryStore
from horarium.stores.wakeups import LocalSignal
from horarium.testing import ManualClock
from horarium.testing.values import NOW, a_job, a_run
from tests.waiting import until

CALLERS = 30
TICKS = 9
"""Turns of the event loop until a call on the memory store waits for those before it."""
POLICIES = (Overlap.CANCEL_OTHER, Overlap.TERMINATE_OTHER)
TELL = {Occasion.CANCELLED: (Follow(notify="ops"), Follow(trigger="other"))}
COUNT = {Occasion.CANCELLED: (Follow(notify="ops", after=2),)}

Call = Callable[["World"], Awaitable[Any]]
Left = tuple[Job | None, list[Run], list[Record], list[Any]]


class World:
    """Operations over a store, and the plans that they committed, once it is `open`. `claims`: another node claims a
    run before the next plan is written."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.plans: list[Plan] = []
        self.open = asyncio.Event()
        self.open.set()
        self.claims = False
        self.operations = Operations(
            cast(Store, self), ManualClock(NOW), LocalSignal(), os.urandom, lambda target: None
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    async def commit_plans(self, plans: Sequence[Plan], now: Instant) -> list[bool]:
        self.plans += plans
        await self.open.wait()
        await asyncio.sleep(0)
        if self.claims:
            self.claims = False
            assert (await self.store.claim_runs([plans[0].job.queue], 1, "quick", NOW, NOW, NOW)).runs
        return await self.store.commit_plans(plans, now)

    async def left(self, answers: list[Any]) -> Left:
        """All that is in the store, and what the callers were answered with."""
        (job,) = await self.store.get_jobs(["busy"])
        runs = await self.store.list_runs(RunFilter(), None, 500)
        records = await self.store.list_records(RecordFilter(""), None, 500)
        assert (runs.next_after, records.next_after) == (None, None)
        return job, list(runs.items), [replace(each, version=0) for each in records.items], answers


def a_busy_job(overlap: Overlap, **changes: Any) -> Job:
    return replace(a_job("busy"), overlap=overlap, next_fire_at=NOW + HOUR, **changes)


async def fill(store: Store, job: Job, claimed: int, waiting: int) -> None:
    await store.add_jobs([job])
    if claimed:
        await store.add_runs([a_run(number, of=job) for number in range(claimed)])
        assert len((await store.claim_runs([job.queue], claimed, "w", NOW - SECOND, NOW, NOW - SECOND)).runs) == claimed
    await store.add_runs([a_run(number, of=job) for number in range(10, 10 + waiting)])


def trigger(number: int, unique_key: str | None = None) -> Call:
    async def call(world: World) -> str:
        caller = Origin(principal=principal(f"key:{number}", "it", "key", [Role.ADMIN]), request_id=str(number))
        with acting(caller):
            run = await world.operations.jobs.trigger_job("busy", b'{"number":%d}' % number, unique_key)
        return run.id

    return call


def change(number: int, **changes: Any) -> Call:
    async def call(world: World) -> int:
        caller = Origin(principal=principal(f"key:{number}", "it", "key", [Role.ADMIN]), request_id=str(number))
        with acting(caller):
            return (await world.operations.jobs.patch_job("busy", changes)).version

    return call


def pause(world: World) -> Awaitable[Any]:
    return world.operations.jobs.pause_job("busy")


def resume(world: World) -> Awaitable[Any]:
    return world.operations.jobs.resume_job("busy")


async def one_by_one(world: World, calls: Sequence[Call]) -> list[Any]:
    answers: list[Any] = []
    for call in calls:
        try:
            answers.append(await call(world))
        except HorariumError as error:
            answers.append(type(error))
    return answers


async def at_once(world: World, calls: Sequence[Call]) -> list[Any]:
    """They wait for the first of them, in the order in which they come."""
    world.open.clear()
    asked = []
    for call in calls:
        asked.append(asyncio.ensure_future(call(world)))
        for _ in range(TICKS):
            await asyncio.sleep(0)
    world.open.set()
    answers = await asyncio.gather(*asked, return_exceptions=True)
    return [type(answer) if isinstance(answer, HorariumError) else answer for answer in answers]


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Store]:
    store = make_store(url, f"n{secrets.token_hex(6)}")
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def both(url: str, job: Job, calls: Sequence[Call], claimed: int = 2, waiting: int = 1) -> tuple[World, World]:
    """The world in which they came together, and the one in which they came one by one, if they left the same."""
    async with opened(url) as first, opened(url) as second:
        gathered, apart = World(first), World(second)
        for world in (gathered, apart):
            await fill(world.store, job, claimed, waiting)
        expected = await apart.left(await one_by_one(apart, calls))
        assert await gathered.left(await at_once(gathered, calls)) == expected
        claims = [
            await store.claim_runs([job.queue], 9, "w", NOW + SECOND, NOW + HOUR, NOW + SECOND)
            for store in (first, second)
        ]
        assert claims[0] == claims[1]
        return gathered, apart


@pytest.mark.parametrize("overlap", POLICIES)
async def test_those_that_gather_leave_what_they_leave_one_by_one(url: str, overlap: Overlap) -> None:
    job = a_busy_job(overlap, on=TELL, retention=Retention(finished_seconds=60.0))
    gathered, apart = await both(url, job, [trigger(number) for number in range(CALLERS)])
    assert len(apart.plans) == CALLERS
    assert len(gathered.plans) <= CALLERS // 3
    assert sum(planned.versions for planned in gathered.plans) == CALLERS
    made = [run for planned in gathered.plans for run in planned.runs if run.job_id == job.id]
    assert [run.state for run in made].count(State.PENDING) == len(gathered.plans)
    asked = [change.run.id for planned in gathered.plans for change in planned.changes]
    assert len(asked) == len(set(asked))


@pytest.mark.parametrize("seed", range(40))
async def test_whatever_comes_with_them(seed: int) -> None:
    chance = Random(seed)
    job = a_busy_job(chance.choice(POLICIES), on=chance.choice(({}, TELL, COUNT)), enabled=chance.random() < 0.8)
    calls: list[Call] = []
    for number in range(chance.randrange(2, 25)):
        key = chance.choice((None, None, None, "a", "b"))
        others = [change(number, priority=chance.randrange(4)), pause, resume]
        calls.append(trigger(number, key) if chance.random() < 0.8 else chance.choice(others))
    gathered, apart = await both("memory://", job, calls, chance.randrange(3), chance.randrange(3))
    assert len(gathered.plans) <= len(apart.plans)


async def test_one_whose_end_counts_with_those_before_it_is_alone() -> None:
    gathered, apart = await both("memory://", a_busy_job(Overlap.CANCEL_OTHER, on=COUNT), list(map(trigger, range(9))))
    told = [run for run in (await gathered.left([]))[1] if run.job_id is None]
    assert len(told) == 8
    assert len(gathered.plans) == len(apart.plans) == 9


async def test_what_a_run_with_a_key_tells_of_its_end_waits_until_the_run_is_there() -> None:
    """Else it could be told of one that never was: the key may be taken by then."""
    calls = [trigger(number, f"key-{number}") for number in range(6)]
    gathered, _ = await both("memory://", a_busy_job(Overlap.CANCEL_OTHER, on=TELL), calls)
    assert len(gathered.plans) == 6
    gathered, _ = await both("memory://", a_busy_job(Overlap.CANCEL_OTHER), calls)
    assert len(gathered.plans) == 2


@pytest.mark.parametrize("overlap", POLICIES)
async def test_a_run_that_is_claimed_before_they_are_written_ends_all_the_same(overlap: Overlap) -> None:
    job, world = a_busy_job(overlap), World(MemoryStore())
    await fill(world.store, job, 0, 2)
    world.claims = True
    await at_once(world, list(map(trigger, range(CALLERS))))
    runs = (await world.left([]))[1]
    quick = next(run for run in runs if run.token)
    assert quick.state is (State.CANCELLING if overlap is Overlap.CANCEL_OTHER else State.CANCELLED)
    (waits,) = (run for run in runs if run.state is State.PENDING)
    assert waits == max(runs, key=lambda run: run.fire_at)
    assert len(runs) == CALLERS + 2


@pytest.mark.parametrize("callers", [1, 5])
async def test_it_ends_even_if_the_one_that_meant_to_end_it_is_gone(callers: int) -> None:
    job, world = a_busy_job(Overlap.CANCEL_OTHER), World(MemoryStore())
    await fill(world.store, job, 0, 1)
    world.claims = True
    world.open.clear()
    calls = [asyncio.ensure_future(trigger(number)(world)) for number in range(callers)]
    await until(lambda: bool(world.plans))
    calls[0].cancel()
    world.open.set()
    await asyncio.gather(*calls, return_exceptions=True)

    async def is_asked() -> bool:
        (quick,) = await world.store.get_runs([a_run(10, of=job).id])
        return quick is not None and quick.state is State.CANCELLING

    await until(is_asked)


async def test_processes_that_meet_lose_none() -> None:
    store = MemoryStore()
    worlds = [World(store) for _ in range(3)]
    await fill(store, a_busy_job(Overlap.CANCEL_OTHER), 1, 1)
    answers = await asyncio.gather(*(trigger(number)(worlds[number % 3]) for number in range(60)))
    runs = {run.id: run for run in (await worlds[0].left([]))[1]}
    assert len(set(answers)) == 60
    assert runs.keys() >= set(answers)
    assert [run.state for run in runs.values()].count(State.PENDING) == 1
    assert runs[a_run(0, of=a_busy_job(Overlap.CANCEL_OTHER)).id].state is State.CANCELLING
    assert sum(record.name.startswith("audit/") for record in (await worlds[0].left([]))[2]) == 60
    assert sum(len(world.plans) for world in worlds) < 60
