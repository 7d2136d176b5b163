"""The keeper and the attempts: leases, and limits of time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from horarium.buses.memory import MemoryBroker, MemoryBus
from horarium.clock import SECOND
from horarium.delivery.bus import BusDelivery
from horarium.delivery.context import RunContext
from horarium.delivery.handler import Handler, HandlerDelivery
from horarium.errors import LeaseLost
from horarium.model import Completion, HttpTarget, Outcome, Run, RunPolicy, State, Succeeded
from horarium.ports import Assignment, Control, Pulse
from horarium.services.leases.attempt import CANCEL_AGAIN_SECONDS, Stop
from horarium.stores.memory import MemoryStore
from tests.delivery.receiver import answer, delivering, receiving
from tests.services.conftest import START, Setting
from tests.services.node import Node, Work, taken_away
from tests.waiting import PATIENCE, TURNS, until


async def test_the_keeper_renews_a_lease_that_is_a_third_gone(setting: Setting) -> None:
    await setting.add_run(lease_seconds=30)
    work = Work()
    node = Node(setting, work)
    await node.claim()
    await until(lambda: bool(work.begun))
    assert await node.keeper.step(setting.now) == START + 10 * SECOND
    setting.clock.advance(10)
    await node.keeper.step(setting.now)
    assert (await setting.run()).lease_expires_at == START + 40 * SECOND


async def test_an_attempt_ends_at_its_time_limit_and_is_left_to_the_rescuer(setting: Setting) -> None:
    await setting.add_run(execution_seconds=5)
    work = Work()
    node = Node(setting, work)
    await node.claim()
    await until(lambda: bool(work.begun))
    setting.clock.advance(5)
    await node.keeper.step(setting.now)
    await until(lambda: not node.performing.attempts)
    assert node.collector.waiting == 0


async def test_work_that_ignores_its_end_keeps_nobody_busy(setting: Setting) -> None:
    release = asyncio.Event()

    async def perform(assignment: Assignment, control: Control) -> Outcome | None:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue
        return Succeeded()

    await setting.add_run(execution_seconds=5)
    node = Node(setting, Work(perform))
    await node.claim()
    await until(lambda: bool(node.performing.attempts))
    setting.clock.advance(5)
    assert await node.keeper.step(setting.now) == setting.now + CANCEL_AGAIN_SECONDS * SECOND
    release.set()
    await until(lambda: not node.performing.attempts)


async def test_work_that_swallows_its_cancellation_is_cancelled_again(
    setting: Setting, caplog: pytest.LogCaptureFixture
) -> None:
    swallowed: list[int] = []

    async def perform(assignment: Assignment, control: Control) -> Outcome | None:
        while len(swallowed) < 2:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                swallowed.append(setting.now)
        return Succeeded()

    await setting.add_run(execution_seconds=5)
    node = Node(setting, Work(perform))
    await node.claim()
    await until(lambda: bool(node.performing.attempts))
    setting.clock.advance(5)
    await node.keeper.step(setting.now)
    await until(lambda: len(swallowed) == 1)
    setting.clock.advance(CANCEL_AGAIN_SECONDS - 1)
    await node.keeper.step(setting.now)
    assert len(swallowed) == 1
    setting.clock.advance(1)
    await node.keeper.step(setting.now)
    await until(lambda: not node.performing.attempts)
    assert "it was cancelled 5 s ago (timeout), its lease is given up, and it goes on" in caplog.text
    assert node.collector.waiting == 0


async def test_an_attempt_whose_lease_was_lost_is_ended_and_not_settled(setting: Setting) -> None:
    await setting.add_run()
    work = Work()
    node = Node(setting, work)
    await node.claim()
    await until(lambda: bool(work.begun))
    run = await setting.run()
    await setting.store.settle_runs([taken_away(run)], setting.now)
    await node.leases.beat(node.performing.lively())
    await until(lambda: not node.performing.attempts)
    assert node.collector.waiting == 0


@pytest.mark.parametrize("ends_at_once", [True, False])
async def test_work_that_finds_its_lease_lost_leaves_the_next_run_alone(setting: Setting, ends_at_once: bool) -> None:
    """The place that performed the first takes the second: the end of the one must not strike the other."""
    cancelled: list[str] = []

    async def perform(assignment: Assignment, control: Control) -> Outcome | None:
        try:
            if assignment.run.id == "first":
                setting.clock.advance(2)
                await setting.store.settle_runs([taken_away(assignment.run)], setting.now)
                with pytest.raises(LeaseLost):
                    await control.heartbeat()
                if ends_at_once:
                    return Succeeded()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            cancelled.append(assignment.run.id)
            raise
        return Succeeded()

    await setting.add_run("first", lease_seconds=1)
    await setting.add_run("second", lease_seconds=100)
    work = Work(perform)
    node = Node(setting, work)
    await node.claim()
    await until(lambda: len(work.begun) == 2 and not node.performing.attempts)
    await node.settle()
    assert cancelled == ([] if ends_at_once else ["first"])
    assert await setting.state("second") is State.COMPLETED


async def test_the_next_attempt_may_begin_where_the_lost_one_is_still_ending(setting: Setting) -> None:
    await setting.add_run(lease_seconds=1)
    work = Work()
    node = Node(setting, work)
    await node.claim()
    await until(lambda: bool(work.begun))
    run = await setting.run()
    await setting.store.settle_runs([taken_away(run)], setting.now)
    await node.claim()
    await until(lambda: len(work.begun) == 2)
    assert sorted(node.performing.attempts) == [("run", 1), ("run", 2)]
    node.performing.attempts["run", 1].end(Stop.LOST, setting.now)
    await until(lambda: list(node.performing.attempts) == [("run", 2)])
    work.go_on.set()
    await node.settle()
    assert await setting.state() is State.COMPLETED


class SlowLogs:
    """Of a store that takes its time with the last lines of a run."""

    def __init__(self) -> None:
        self.asked, self.go_on = asyncio.Event(), asyncio.Event()

    def add(self, run: Run, stream: str, text: str) -> None:
        """Kept elsewhere."""

    async def written(self, run: Run) -> None:
        self.asked.set()
        await self.go_on.wait()


@pytest.mark.parametrize("ends", ["its time limit", "its node"])
async def test_work_that_is_done_is_not_undone_while_its_last_lines_are_written(setting: Setting, ends: str) -> None:
    async def work(run: RunContext) -> str:
        run.log("done")
        return "done"

    await setting.add_run(execution_seconds=5)
    logs = SlowLogs()
    delivery = HandlerDelivery({"pull/q": Handler("work", work)}, logs)
    node = Node(setting, delivery)
    await node.claim()
    await logs.asked.wait()
    if ends == "its time limit":
        setting.clock.advance(5)
        await node.keeper.step(setting.now)
    ending = asyncio.ensure_future(node.performing.end(0.0 if ends == "its time limit" else PATIENCE))
    for _ in range(TURNS):
        await asyncio.sleep(0)
    logs.go_on.set()
    await ending
    await node.settle()
    assert await setting.state() is State.COMPLETED
    await delivery.close()


async def test_an_action_whose_sending_the_end_of_its_node_cuts_is_not_sent_again_at_once(setting: Setting) -> None:
    """The broker may have it: a worker that is at work has the rest of the lease to say so."""

    class HangingBus(MemoryBus):
        async def publish(self, job: str, body: bytes, wait_seconds: float) -> None:
            await super().publish(job, body, wait_seconds)
            sent.set()
            await asyncio.Event().wait()

    sent = asyncio.Event()
    bus = HangingBus(MemoryBroker())
    bus.open(lambda: None)
    await setting.add_run(job="job")
    node = Node(setting, BusDelivery(bus, setting.clock, lambda run, at: None))
    await node.claim()
    await sent.wait()
    await node.performing.end(PATIENCE)
    assert node.performing.unoccupied
    assert node.collector.waiting == 0
    await bus.close()


async def test_what_an_endpoint_has_taken_over_is_not_given_back_by_the_end_of_its_node(setting: Setting) -> None:
    class SlowBeats(MemoryStore):
        async def heartbeat_runs(self, *given: Any) -> list[Pulse | None]:
            asked.set()
            await go_on.wait()
            return await super().heartbeat_runs(*given)

    asked, go_on = asyncio.Event(), asyncio.Event()
    setting.store = SlowBeats()
    async with receiving(answer("202 Accepted")) as receiver, delivering() as delivery:
        target = HttpTarget(receiver.url(), completion=Completion.CALLBACK)
        await setting.add_run(policy=RunPolicy(target=target))
        node = Node(setting, delivery)
        await node.claim()
        await asked.wait()
        ending = asyncio.ensure_future(node.performing.end(PATIENCE))
        for _ in range(TURNS):
            await asyncio.sleep(0)
        go_on.set()
        await ending
    assert node.performing.unoccupied
    assert node.collector.waiting == 0
