"""Four planners on one store, in virtual time: each plan is made once, by one of them, and in time."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Coroutine, Sequence
from typing import Any, cast

import pytest

from horarium.clock import SECOND, Instant, to_text
from horarium.model import Job, Node, Plan, QueueTarget, Run
from horarium.operations.facade import Operations
from horarium.policies import Overlap
from horarium.ports import RunFilter, Store
from horarium.services.loop.service import Health, Loop
from horarium.services.metrics.telemetry import Telemetry
from horarium.services.planning.planner import Planner
from horarium.stores.memory import MemoryStore
from horarium.stores.wakeups import LocalSignal
from horarium.testing.simulate.loop import NodeClock, Time, VirtualLoop

START: Instant = 1_767_571_200 * SECOND
JOBS = 400
NODES = ("one", "two", "three", "four")


class Remote:
    """The store, some way off: a call takes a while. Counts plans, and those that came too late. `chance`: the store
    is busy, and the delay is what its calls take in the middle, some of them much longer."""

    def __init__(self, store: Store, delay: float, chance: random.Random | None = None) -> None:
        self._store, self._delay, self._chance = store, delay, chance
        self.plans = self.lost = 0

    def _time(self) -> float:
        return self._delay if self._chance is None else self._chance.expovariate(1 / self._delay)

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)

        async def call(*given: Any) -> Any:
            await asyncio.sleep(self._time())
            answer = await method(*given)
            await asyncio.sleep(self._time())
            return answer

        return call

    async def commit_plans(self, plans: Sequence[Plan], now: Instant) -> list[bool]:
        await asyncio.sleep(self._time())
        answers = await self._store.commit_plans(plans, now)
        self.plans += len(plans)
        self.lost += answers.count(False)
        return answers


class World:
    """The nodes that are there, and those of them that plan."""

    def __init__(self, *, apart: bool, delay: float = 0.02, chance: random.Random | None = None) -> None:
        self.delay, self.chance = delay, chance
        self.time = Time(START)
        self.loop = VirtualLoop(self.time, lambda task, context: None, pytest.fail)
        self.clock = NodeClock(self.time)
        self.store = MemoryStore()
        self.remotes: list[Remote] = []
        self.apart = apart

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        self.loop.run_until_complete(work)
        self.loop.close()

    async def fill(self, every: int = 1, overlap: str = "allow") -> None:
        jobs = []
        for number in range(JOBS):
            first = START + SECOND + number * (SECOND // JOBS) if self.apart else START + SECOND
            trigger = {"type": "interval", "every_seconds": every, "anchor": to_text(first)}
            given: dict[str, Any] = {"target": QueueTarget(queue="q"), "overlap": Overlap(overlap)}
            jobs.append(
                Job(
                    id=f"job-{number}", name=f"job-{number}", trigger=trigger, planned_until=START,
                    next_fire_at=first, anchor_at=first, created_at=START, **given,
                )
            )  # fmt: skip
        await self.store.add_jobs(jobs)

    async def is_there(self, name: str) -> None:
        now = self.clock.now()
        await self.store.beat_node(Node(name=name, roles=("planner",), started_at=now, beat_at=now))

    def planning(self, name: str, lead: float, jobs_max: int = 500) -> asyncio.Task[None]:
        remote = Remote(self.store, self.delay, self.chance)
        self.remotes.append(remote)
        store, signal = cast(Store, remote), LocalSignal()
        operations = Operations(store, self.clock, signal, os.urandom, lambda target: None)
        planner = Planner(
            store,
            signal,
            operations.reconciler,
            operations.following,
            Telemetry(),
            lead=lead,
            node=name,
            jobs_max=jobs_max,
        )
        return self.loop.create_task(Loop(planner, self.clock, signal, Health()).run())

    @property
    def wasted(self) -> float:
        return sum(remote.lost for remote in self.remotes) / sum(remote.plans for remote in self.remotes)

    async def runs(self) -> list[Run]:
        found: list[Run] = []
        after: str | None = None
        while True:
            page = await self.store.list_runs(RunFilter(), after, 1_000)
            found += page.items
            if (after := page.next_after) is None:
                return found


@pytest.mark.slow
@pytest.mark.parametrize("apart", [True, False])
@pytest.mark.parametrize("overlap", ["allow", "skip"])
def test_four_planners_hardly_ever_make_the_same_plan(overlap: str, apart: bool) -> None:
    world = World(apart=apart)

    async def plan() -> None:
        await world.fill(every=2, overlap=overlap)
        for name in NODES:
            await world.is_there(name)
        tasks = [world.planning(name, 0.5) for name in NODES]
        await asyncio.sleep(12)
        for task in tasks:
            task.cancel()
        runs = await world.runs()
        assert len({run.job for run in runs}) == JOBS
        assert overlap == "skip" or all(run.created_at < run.fire_at for run in runs)

    world.run(plan())
    assert world.wasted < 0.1
    assert sum(remote.plans > remote.lost for remote in world.remotes) == len(NODES)


LEADS = dict(zip(NODES, (0.3, 0.4, 0.6, 0.7), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("delay", "overlap", "apart"),
    [(0.1, "allow", False), (0.05, "skip", True), (0.05, "skip", False), (0.1, "skip", True), (0.1, "skip", False)],
)
def test_planners_on_a_busy_store_leave_each_other_what_is_only_late(delay: float, overlap: str, apart: bool) -> None:
    """A step takes a large part of the look-ahead, or more. That the plan of a job is late does not mean that its
    planner is gone: what others make of it is lost, and makes the store busier still."""
    world = World(apart=apart, delay=delay, chance=random.Random(2))

    async def plan() -> None:
        await world.fill(overlap=overlap)
        for name in NODES:
            await world.is_there(name)
        tasks = [world.planning(name, lead) for name, lead in LEADS.items()]
        await asyncio.sleep(12)
        for task in tasks:
            task.cancel()
        assert len({run.job for run in await world.runs()}) == JOBS

    world.run(plan())
    assert world.wasted < 0.1


@pytest.mark.slow
@pytest.mark.parametrize(("overlap", "late"), [("allow", 0.5), ("skip", 2.0)])
def test_the_jobs_of_a_planner_that_was_late_and_is_gone_are_planned_soon(overlap: str, late: float) -> None:
    """That it was only late for a while does not count for long. What one planner takes over the others leave to it."""
    world = World(apart=True, delay=0.05, chance=random.Random(2))

    async def plan() -> None:
        await world.fill(overlap=overlap)
        for name in NODES:
            await world.is_there(name)
        tasks = [world.planning(name, lead) for name, lead in LEADS.items()]
        await asyncio.sleep(6)
        tasks[0].cancel()
        await asyncio.sleep(6)
        for task in tasks:
            task.cancel()
        runs = await world.runs()
        assert max(run.created_at - run.fire_at for run in runs if run.fire_at > START + 6 * SECOND) <= late * SECOND

    world.run(plan())
    assert world.wasted < 0.15


@pytest.mark.parametrize(("overlap", "late"), [("allow", 0.0), ("skip", 0.5)])
def test_the_jobs_of_a_planner_that_is_gone_are_planned_by_the_others(overlap: str, late: float) -> None:
    world = World(apart=True)

    async def plan() -> None:
        await world.fill(every=2, overlap=overlap)
        for name in NODES:
            await world.is_there(name)
        tasks = [world.planning(name, 0.5) for name in NODES[1:]]
        await asyncio.sleep(6)
        for task in tasks:
            task.cancel()
        runs = await world.runs()
        assert len({run.job for run in runs}) == JOBS
        assert max(run.created_at - run.fire_at for run in runs if run.fire_at > START + 3 * SECOND) <= late * SECOND

    world.run(plan())


@pytest.mark.parametrize("there", [NODES, NODES[1:]])
def test_a_backlog_is_planned_by_all_that_are_there(there: Sequence[str]) -> None:
    world = World(apart=True)

    async def plan() -> None:
        await world.fill(every=3_600)
        world.time.offset += 60 * SECOND
        for name in NODES:
            await world.is_there(name)
        tasks = [world.planning(name, 0.5, jobs_max=20) for name in there]
        await asyncio.sleep(10)
        for task in tasks:
            task.cancel()
        assert len(await world.runs()) == JOBS

    world.run(plan())
    assert world.wasted < (0.1 if there is NODES else 0.5)
