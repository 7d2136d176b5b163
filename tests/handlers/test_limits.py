"""How many runs of one handler, and of all, are performed at one time; and that nothing more is claimed than that."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from typing import Any

import pytest

from horarium import InvalidJob, InvalidRequest, InvalidSetting, RunContext, Scheduler
from horarium.model import Outcome, State, Succeeded
from horarium.policies import Limit
from horarium.ports import Assignment, Control, Delivery
from horarium.services.leases.leases import Leases
from horarium.services.loop.service import Wake
from horarium.services.performing.dispatcher import Dispatcher
from horarium.services.performing.performing import Performing
from tests.handlers.conftest import done
from tests.services.conftest import Setting, a_collector
from tests.waiting import PATIENCE, until


class Work:
    """Begins, and goes on until it is told."""

    def __init__(self) -> None:
        self.begun: Counter[str] = Counter()
        self.go_on = asyncio.Event()

    async def deliver(self, assignment: Assignment, control: Control) -> Outcome | None:
        self.begun[assignment.run.queue] += 1
        await self.go_on.wait()
        return Succeeded()

    async def close(self) -> None:
        """Nothing to close."""


def dispatcher(setting: Setting, work: Work, places: int, **limits: int) -> Dispatcher:
    collector = a_collector(setting)
    leases = Leases(setting.store, setting.clock)
    deliveries: dict[str, Delivery] = {"a": work, "b": work, "c": work}
    performing = Performing(setting.clock, leases, collector, deliveries, Wake(), places=places)
    return Dispatcher(
        "handlers", setting.operations.claiming, setting.clock, leases, setting.telemetry, performing,
        tuple(deliveries), "w", limits=limits,
    )  # fmt: skip


async def add(setting: Setting, queue: str, count: int) -> None:
    for index in range(count):
        await setting.add_run(f"{queue}-{index}", queue)


async def running(setting: Setting, queue: str, count: int) -> int:
    states = [await setting.state(f"{queue}-{index}") for index in range(count)]
    return states.count(State.RUNNING)


@pytest.fixture
def setting() -> Setting:
    return Setting()


async def test_a_full_handler_claims_nothing_and_the_others_go_on(setting: Setting) -> None:
    work = Work()
    node = dispatcher(setting, work, 10, a=2)
    await add(setting, "a", 20)
    await add(setting, "b", 3)
    for _ in range(3):
        await node.step(setting.now)
    await until(lambda: work.begun.total() == 5)
    assert (await running(setting, "a", 20), await running(setting, "b", 3)) == (2, 3)
    await add(setting, "c", 1)
    await node.step(setting.now)
    await until(lambda: work.begun["c"] == 1)
    assert work.begun == {"a": 2, "b": 3, "c": 1}


async def test_what_a_full_handler_leaves_is_free_for_another_node(setting: Setting) -> None:
    here, there = Work(), Work()
    first, second = dispatcher(setting, here, 10, a=2), dispatcher(setting, there, 10, a=2)
    await add(setting, "a", 4)
    await first.step(setting.now)
    await second.step(setting.now)
    await until(lambda: here.begun["a"] == there.begun["a"] == 2)


async def test_a_place_that_becomes_free_is_given_to_the_next_of_its_handler(setting: Setting) -> None:
    work = Work()
    node = dispatcher(setting, work, 10, a=1)
    await add(setting, "a", 3)
    await node.step(setting.now)
    await until(lambda: work.begun["a"] == 1)
    node.wake.clear()
    work.go_on.set()
    await until(lambda: node.wake.is_set and not node._performing.attempts)
    await node.step(setting.now)
    await until(lambda: work.begun["a"] == 2)


async def test_no_handler_keeps_the_few_places_for_itself(setting: Setting) -> None:
    work = Work()
    node = dispatcher(setting, work, 2, a=1, b=1, c=1)
    for queue in "abc":
        await add(setting, queue, 50)
    work.go_on.set()
    for number in range(12):
        await node.step(setting.now)
        await until(lambda number=number: work.begun.total() == 2 * number + 2 and not node._performing.attempts)  # type: ignore[misc]
    assert min(work.begun[queue] for queue in "abc") >= 6, work.begun


async def test_together_they_have_no_more_than_the_places(setting: Setting) -> None:
    work = Work()
    node = dispatcher(setting, work, 3, a=2, b=2)
    for queue in "abc":
        await add(setting, queue, 5)
    for _ in range(5):
        await node.step(setting.now)
    await until(lambda: work.begun.total() == 3)
    assert sum([await running(setting, queue, 5) for queue in "abc"]) == 3


async def test_the_next_due_run_is_told_though_a_handler_is_full(setting: Setting) -> None:
    work = Work()
    node = dispatcher(setting, work, 10, a=1)
    await add(setting, "a", 2)
    later = setting.now + 5_000_000
    await setting.add_run("later", "b", due_at=later, fire_at=later)
    await node.step(setting.now)
    assert await node.step(setting.now) == later


# ---- with real threads ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_a_handler_has_no_more_runs_at_one_time_than_its_concurrency(scheduler: Scheduler, kind: str) -> None:
    now, most, lock = 0, 0, threading.Lock()

    def count(change: int) -> None:
        nonlocal now, most
        with lock:
            now += change
            most = max(most, now)

    if kind == "async":

        @scheduler.handler("work", concurrency=2)
        async def perform(run: RunContext) -> None:
            count(1)
            await asyncio.sleep(0.005)
            count(-1)
    else:

        @scheduler.handler("work", concurrency=2)
        def work(run: RunContext) -> None:
            count(1)
            run.cancelled.wait(0.005)
            count(-1)

    await scheduler.enqueue_many("work", [{}] * 30)
    await scheduler.start()
    await until(lambda: scheduler._runtime.telemetry._settled("completed")._value.get() == 30)
    assert most == 2


async def test_a_plain_handler_never_waits_for_a_thread_while_its_time_runs(scheduler: Scheduler) -> None:
    """As many threads as places, also where these are more than the usual pools have."""
    async with Scheduler(scheduler._runtime.store, handler_concurrency=150) as busy:
        together = threading.Barrier(150)

        @busy.handler()
        def meet(run: RunContext) -> None:
            together.wait(PATIENCE)

        await busy.enqueue_many("meet", [None] * 150, timeouts={"execution_seconds": 600}, retry={"attempts_max": 1})
        await busy.start()
        await until(lambda: busy._runtime.telemetry._settled("completed")._value.get() == 150)


async def test_wrong_limits_are_refused(scheduler: Scheduler) -> None:
    for wrong in (0, -1, 10_001):
        with pytest.raises(InvalidJob, match="concurrency must be from 1 to 10,000"):
            scheduler.handler("x", concurrency=wrong)(lambda run: None)
        with pytest.raises(InvalidSetting, match="handler_concurrency: must be from 1 to 10,000"):
            Scheduler("memory://", handler_concurrency=wrong)
    with pytest.raises(InvalidSetting, match="grace_seconds"):
        Scheduler("memory://", grace_seconds=-1)


async def test_a_handler_is_registered_with_parentheses_and_once(scheduler: Scheduler) -> None:
    def report(run: RunContext) -> None: ...

    with pytest.raises(InvalidJob, match="with parentheses"):
        scheduler.handler(report)  # type: ignore[arg-type]
    with pytest.raises(InvalidJob, match="letters"):
        scheduler.add_handler("a b", report)
    scheduler.handler()(report)
    with pytest.raises(InvalidJob, match="registered already"):
        scheduler.add_handler("report", report)
    await scheduler.start()
    with pytest.raises(InvalidJob, match="before the scheduler is started"):
        scheduler.add_handler("other", report)
    assert (await done(scheduler, "report")).state is State.COMPLETED


@pytest.mark.parametrize("wrong", [0, -1, 1.5, True, "5", float("nan"), 10**30])
async def test_a_number_that_can_not_be_meant_is_refused_and_harms_no_key(wrong: object) -> None:
    async with Scheduler("memory://") as scheduler:
        with pytest.raises(InvalidRequest, match="max"):
            await scheduler.set_rate("api", Limit(wrong, 60.0))  # type: ignore[arg-type]
        with pytest.raises(InvalidRequest, match="burst"):
            await scheduler.set_rate("api", "5/1m", burst=wrong)  # type: ignore[arg-type]
        with pytest.raises(InvalidRequest, match="weights"):
            await scheduler.set_fair_weights("images", {"gold": wrong})  # type: ignore[dict-item]
        assert (await scheduler.set_rate("api", "5/1m", burst=2))["burst"] == 2
        assert [key["max"] for key in await scheduler.list_rates()] == [5]


@pytest.mark.parametrize("wrong", [True, "soon", float("nan")])
async def test_no_time_at_all_to_wait_is_refused(wrong: Any) -> None:
    """A time that is not a number would put the timers of the event loop out of order."""
    async with Scheduler("memory://") as scheduler:
        run_id = (await scheduler.enqueue("later", delay=3600)).id
        batch = (await scheduler.batch("b").__aenter__()).id
        for waiting in (scheduler.wait_for(run_id, timeout=wrong), scheduler.wait_for_batch(batch, timeout=wrong)):
            with pytest.raises(InvalidRequest, match="timeout"):
                await waiting
        with pytest.raises(TimeoutError):
            await scheduler.wait_for(run_id, timeout=0)
