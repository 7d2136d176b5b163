"""The dispatcher, its keeper and its collector: leases, limits, cancels, held runs and the end of a node."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from horarium.clock import SECOND, Instant
from horarium.errors import LeaseLost, StoreUnavailable
from horarium.model import Failed, Outcome, Run, RunChange, State, Succeeded
from horarium.policies import Retention
from horarium.ports import Claimed, Control, Delivery
from horarium.services.attempt import CANCEL_AGAIN_SECONDS, Stop
from horarium.services.collector import Collector
from horarium.services.dispatcher import Dispatcher, Keeper
from horarium.settling import cancel
from horarium.stores.memory import MemoryStore
from horarium.testing import Fault, FaultyStore, by_script
from tests.services.conftest import START, Setting, until

Perform = Callable[[Delivery, Control], Awaitable[Outcome | None]]


class Work:
    """A Target that does as it is told, and remembers what it was given."""

    def __init__(self, perform: Perform | None = None) -> None:
        self.begun: list[tuple[str, int]] = []
        self.go_on = asyncio.Event()
        self._perform = perform

    async def deliver(self, delivery: Delivery, control: Control) -> Outcome | None:
        self.begun.append((delivery.run.id, delivery.run.token))
        if self._perform is not None:
            return await self._perform(delivery, control)
        await self.go_on.wait()
        return Succeeded()

    async def close(self) -> None:
        """Nothing to close."""


class Node:
    """A dispatcher with its keeper and collector."""

    def __init__(self, setting: Setting, work: Work, **options: Any) -> None:
        self.setting = setting
        self.collector = Collector(setting.store, setting.clock, setting.signal, setting.telemetry)
        self.dispatcher = Dispatcher(
            setting.store, setting.clock, setting.signal, self.collector, setting.telemetry, {"pull/q": work}, "w",
            **options,
        )  # fmt: skip
        self.keeper = Keeper((self.dispatcher,))

    async def claim(self) -> int | None:
        return await self.dispatcher.step(self.setting.now)

    async def settle(self) -> None:
        await until(lambda: self.collector.waiting > 0)
        await self.collector.step(self.setting.now)


def answer(outcome: Outcome | None) -> Work:
    async def perform(delivery: Delivery, control: Control) -> Outcome | None:
        return outcome

    return Work(perform)


async def test_a_due_run_is_performed_and_settled(setting: Setting) -> None:
    await setting.add_run()
    node = Node(setting, answer(Succeeded(b"1")))
    await node.claim()
    await node.settle()
    run = await setting.run()
    assert (run.state, run.result, run.attempt) == (State.COMPLETED, b"1", 1)


async def test_no_more_runs_are_claimed_than_there_are_places(setting: Setting) -> None:
    for index in range(5):
        await setting.add_run(f"run-{index}")
    work = Work()
    node = Node(setting, work, places=2)
    await node.claim()
    await until(lambda: len(work.begun) == 2)
    assert (node.dispatcher.free, await node.claim()) == (0, None)


async def test_a_run_taken_while_the_last_place_closes_is_begun(setting: Setting) -> None:
    for turns in range(8):
        work = answer(None)
        node = Node(setting, work, places=1)
        await setting.add_run(f"first-{turns}")
        await node.claim()
        for _ in range(turns):
            await asyncio.sleep(0)
        await setting.add_run(f"second-{turns}")
        await node.claim()
        await until(lambda node=node: node.dispatcher.free == 1)  # type: ignore[misc]
        await node.claim()
        await until(lambda work=work: len(work.begun) == 2)  # type: ignore[misc]


async def test_an_exception_of_the_target_is_a_retryable_failure(setting: Setting) -> None:
    async def perform(delivery: Delivery, control: Control) -> Outcome | None:
        raise RuntimeError("broken")

    await setting.add_run()
    node = Node(setting, Work(perform))
    await node.claim()
    await node.settle()
    run = await setting.run()
    assert (run.state, run.error) == (State.PENDING, "RuntimeError: broken")


async def test_work_that_cancels_itself_has_failed(setting: Setting) -> None:
    async def perform(delivery: Delivery, control: Control) -> Outcome | None:
        raise asyncio.CancelledError

    await setting.add_run()
    node = Node(setting, Work(perform))
    await node.claim()
    await node.settle()
    assert (await setting.run()).error == "cancelled by its own doing"


async def test_what_goes_on_elsewhere_is_not_settled_here(setting: Setting) -> None:
    await setting.add_run()
    node = Node(setting, answer(None))
    await node.claim()
    await until(lambda: not node.dispatcher.attempts and node.dispatcher.free == 100)
    assert (node.collector.waiting, await setting.state()) == (0, State.RUNNING)


# ---- leases and limits ------------------------------------------------------------------------------------------


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


async def test_the_keeper_renews_at_once_when_the_clock_went_back(setting: Setting) -> None:
    await setting.add_run(lease_seconds=30)
    work = Work()
    node = Node(setting, work)
    await node.claim()
    await until(lambda: bool(work.begun))
    setting.clock.step(-3_600)
    await node.keeper.step(setting.now)
    assert (await setting.run()).lease_expires_at == START - 3_600 * SECOND + 30 * SECOND


async def test_an_attempt_ends_at_its_time_limit_and_is_left_to_the_rescuer(setting: Setting) -> None:
    await setting.add_run(execution_seconds=5)
    work = Work()
    node = Node(setting, work)
    await node.claim()
    await until(lambda: bool(work.begun))
    setting.clock.advance(5)
    await node.keeper.step(setting.now)
    await until(lambda: not node.dispatcher.attempts)
    assert node.collector.waiting == 0


async def test_work_that_ignores_its_end_keeps_nobody_busy(setting: Setting) -> None:
    release = asyncio.Event()

    async def perform(delivery: Delivery, control: Control) -> Outcome | None:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue
        return Succeeded()

    await setting.add_run(execution_seconds=5)
    node = Node(setting, Work(perform))
    await node.claim()
    await until(lambda: bool(node.dispatcher.attempts))
    setting.clock.advance(5)
    assert await node.keeper.step(setting.now) == setting.now + CANCEL_AGAIN_SECONDS * SECOND
    release.set()
    await until(lambda: not node.dispatcher.attempts)


async def test_work_that_swallows_its_cancellation_is_cancelled_again(
    setting: Setting, caplog: pytest.LogCaptureFixture
) -> None:
    swallowed: list[int] = []

    async def perform(delivery: Delivery, control: Control) -> Outcome | None:
        while len(swallowed) < 2:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                swallowed.append(setting.now)
        return Succeeded()

    await setting.add_run(execution_seconds=5)
    node = Node(setting, Work(perform))
    await node.claim()
    await until(lambda: bool(node.dispatcher.attempts))
    setting.clock.advance(5)
    await node.keeper.step(setting.now)
    await until(lambda: len(swallowed) == 1)
    setting.clock.advance(CANCEL_AGAIN_SECONDS - 1)
    await node.keeper.step(setting.now)
    assert len(swallowed) == 1
    setting.clock.advance(1)
    await node.keeper.step(setting.now)
    await until(lambda: not node.dispatcher.attempts)
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
    await node.dispatcher.beat_all()
    await until(lambda: not node.dispatcher.attempts)
    assert node.collector.waiting == 0


@pytest.mark.parametrize("ends_at_once", [True, False])
async def test_work_that_finds_its_lease_lost_leaves_the_next_run_alone(setting: Setting, ends_at_once: bool) -> None:
    """The place that performed the first takes the second: the end of the one must not strike the other."""
    cancelled: list[str] = []

    async def perform(delivery: Delivery, control: Control) -> Outcome | None:
        try:
            if delivery.run.id == "first":
                setting.clock.advance(2)
                with pytest.raises(LeaseLost):
                    await control.heartbeat()
                if ends_at_once:
                    return Succeeded()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            cancelled.append(delivery.run.id)
            raise
        return Succeeded()

    await setting.add_run("first", lease_seconds=1)
    await setting.add_run("second", lease_seconds=100)
    work = Work(perform)
    node = Node(setting, work)
    await node.claim()
    await until(lambda: len(work.begun) == 2 and not node.dispatcher.attempts)
    await node.settle()
    assert cancelled == ([] if ends_at_once else ["first"])
    assert await setting.state("second") is State.COMPLETED


def taken_away(run: Run) -> RunChange:
    """Somebody else ended the lease, and the run waits again."""
    waiting = replace(run, state=State.PENDING, lease_expires_at=None, started_at=None)
    return RunChange(waiting, run.token, run.state)


async def test_a_run_that_waited_beyond_its_lease_is_not_begun(setting: Setting) -> None:
    await setting.add_run(lease_seconds=1)
    work = Work()
    node = Node(setting, work)
    await node.claim()
    setting.clock.advance(1)
    await until(lambda: node.dispatcher.free == 100)
    assert work.begun == []


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
    assert sorted(node.dispatcher.attempts) == [("run", 1), ("run", 2)]
    node.dispatcher.attempts["run", 1].end(Stop.LOST, setting.now)
    await until(lambda: list(node.dispatcher.attempts) == [("run", 2)])
    work.go_on.set()
    await node.settle()
    assert await setting.state() is State.COMPLETED


# ---- cancel -----------------------------------------------------------------------------------------------------


async def test_a_cancel_reaches_the_work(setting: Setting) -> None:
    async def perform(delivery: Delivery, control: Control) -> Outcome | None:
        await control.wait_cancelled()
        return Failed("stopped")

    await setting.add_run()
    node = Node(setting, Work(perform))
    await node.claim()
    await until(lambda: bool(node.dispatcher.attempts))
    run = await setting.run()
    asked = RunChange(cancel(run, Retention(), setting.now, "why"), run.token, run.state)
    await setting.store.settle_runs([asked], setting.now)
    node.keeper.signalled()
    await node.keeper.step(setting.now)
    await node.settle()
    await node.collector.step(setting.now)
    assert await setting.state() is State.CANCELLED


async def test_a_result_that_meets_a_cancel_is_kept(setting: Setting) -> None:
    await setting.add_run()
    work = Work()
    node = Node(setting, work)
    await node.claim()
    await until(lambda: bool(work.begun))
    run = await setting.run()
    asked = RunChange(cancel(run, Retention(), setting.now, "why"), run.token, run.state)
    await setting.store.settle_runs([asked], setting.now)
    work.go_on.set()
    await node.settle()
    assert await setting.state() is State.COMPLETED


# ---- held runs --------------------------------------------------------------------------------------------------


async def test_a_run_claimed_ahead_begins_at_its_instant(setting: Setting) -> None:
    await setting.add_run(due_at=START + SECOND, fire_at=START + SECOND)
    work = Work()
    node = Node(setting, work, window_seconds=1)
    assert await node.claim() == START + SECOND
    assert work.begun == []
    setting.clock.advance(1)
    await node.claim()
    await until(lambda: bool(work.begun))


async def test_a_full_claim_does_not_forget_what_is_held(setting: Setting) -> None:
    await setting.add_run("held", due_at=START + SECOND)
    await setting.add_run("now")
    node = Node(setting, Work(), window_seconds=1, places=2)
    assert await node.claim() == START + SECOND


async def test_a_held_run_that_was_taken_away_does_not_begin(setting: Setting) -> None:
    await setting.add_run(due_at=START + SECOND)
    work = Work()
    node = Node(setting, work, window_seconds=1)
    await node.claim()
    run = await setting.run()
    await setting.store.settle_runs([taken_away(run)], setting.now)
    cancelled = cancel(await setting.run(), Retention(), setting.now, "why")
    await setting.store.settle_runs([RunChange(cancelled, run.token, State.PENDING)], setting.now)
    setting.clock.advance(1)
    await node.claim()
    await until(lambda: node.dispatcher.free == 100)
    assert work.begun == []


async def test_held_runs_outlast_an_outage_at_their_instant(setting: Setting) -> None:
    await setting.add_run(due_at=START + SECOND)
    work = Work()
    setting.store = FaultyStore(setting.store, by_script(("heartbeat_runs", Fault.BEFORE)))
    node = Node(setting, work, window_seconds=1)
    await node.claim()
    setting.clock.advance(1)
    with pytest.raises(StoreUnavailable):
        await node.claim()
    await node.claim()
    await until(lambda: bool(work.begun))


class SlowClaims(MemoryStore):
    """The answer to a claim takes this long, as in an outage in the middle of it."""

    def __init__(self, setting: Setting, seconds: float) -> None:
        super().__init__()
        self._setting, self._seconds = setting, seconds

    async def claim_runs(self, queues: Sequence[str], limit: int, worker: str, now: Instant, until: Instant) -> Claimed:
        claimed = await super().claim_runs(queues, limit, worker, now, until)
        self._setting.clock.advance(self._seconds)
        return claimed


async def test_a_run_whose_claim_was_answered_late_begins_under_a_renewed_lease(setting: Setting) -> None:
    setting.store = SlowClaims(setting, 25)
    await setting.add_run(lease_seconds=30)
    work = Work()
    node = Node(setting, work)
    assert await node.claim() == START
    assert work.begun == []
    await node.claim()
    await until(lambda: bool(work.begun))
    assert (await setting.run()).lease_expires_at == START + 55 * SECOND


async def test_a_run_whose_claim_was_answered_too_late_does_not_begin(setting: Setting) -> None:
    setting.store = SlowClaims(setting, 35)
    await setting.add_run(lease_seconds=30)
    work = Work()
    node = Node(setting, work)
    await node.claim()
    await node.claim()
    await until(lambda: node.dispatcher.free == 100)
    assert work.begun == []


# ---- the end of a node ------------------------------------------------------------------------------------------


async def test_draining_lets_work_finish_and_gives_back_the_rest(setting: Setting) -> None:
    await setting.add_run("running")
    await setting.add_run("held", due_at=START + SECOND)
    work = Work()
    node = Node(setting, work, window_seconds=1)
    await node.claim()
    await until(lambda: bool(work.begun))
    draining = asyncio.create_task(node.dispatcher.drain(5))
    await asyncio.sleep(0)
    work.go_on.set()
    await draining
    await node.collector.step(setting.now)
    assert (await setting.state("running"), await setting.state("held")) == (State.COMPLETED, State.PENDING)
    assert (await setting.run("held")).attempt == 0


async def test_a_claim_that_arrives_during_the_drain_is_given_back(setting: Setting) -> None:
    await setting.add_run()
    work = Work()
    node = Node(setting, work)
    claimed = await setting.store.claim_runs(["pull/q"], 1, "w", setting.now, setting.now)
    await node.dispatcher.drain(0)
    node.dispatcher._take(claimed.runs, claimed.jobs, setting.now)
    await node.collector.step(setting.now)
    assert (await setting.state(), work.begun) == (State.PENDING, [])


async def test_work_that_outlasts_the_grace_is_interrupted_and_released(setting: Setting) -> None:
    await setting.add_run()
    work = Work()
    node = Node(setting, work)
    await node.claim()
    await until(lambda: bool(work.begun))
    await node.dispatcher.drain(0)
    await node.collector.step(setting.now)
    run = await setting.run()
    assert (run.state, run.attempt, run.history[-1].message) == (State.PENDING, 0, "interrupted: the node stopped")


# ---- the collector ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["settle_runs", "get_runs"])
async def test_an_outcome_outlasts_an_outage(setting: Setting, call: str) -> None:
    await setting.add_run()
    claimed = await setting.store.claim_runs(["pull/q"], 1, "w", setting.now, setting.now)
    (run,) = claimed.runs
    asked = RunChange(cancel(run, Retention(), setting.now, "why"), run.token, run.state)
    await setting.store.settle_runs([asked], setting.now)
    store = FaultyStore(setting.store, by_script((call, Fault.BEFORE)))
    collector = Collector(store, setting.clock, setting.signal, setting.telemetry)
    collector.add(run, None, Succeeded())
    with pytest.raises(StoreUnavailable):
        await collector.step(setting.now)
    await collector.step(setting.now)
    assert (await setting.state(), collector.waiting) == (State.COMPLETED, 0)


async def test_a_write_whose_answer_was_lost_is_repeated_without_harm(setting: Setting) -> None:
    await setting.add_run()
    (run,) = (await setting.store.claim_runs(["pull/q"], 1, "w", setting.now, setting.now)).runs
    store = FaultyStore(setting.store, by_script(("settle_runs", Fault.AFTER)))
    collector = Collector(store, setting.clock, setting.signal, setting.telemetry)
    collector.add(run, None, Succeeded())
    with pytest.raises(StoreUnavailable):
        await collector.step(setting.now)
    await collector.step(setting.now)
    assert (await setting.state(), collector.waiting) == (State.COMPLETED, 0)


async def test_flush_returns_when_everything_is_written(setting: Setting) -> None:
    await setting.add_run()
    (run,) = (await setting.store.claim_runs(["pull/q"], 1, "w", setting.now, setting.now)).runs
    collector = Collector(setting.store, setting.clock, setting.signal, setting.telemetry)
    collector.add(run, None, Succeeded())
    flushing = asyncio.create_task(collector.flush())
    await asyncio.sleep(0)
    await collector.step(setting.now)
    await flushing
    assert await setting.state() is State.COMPLETED


async def test_an_outcome_whose_answer_was_lost_counts_as_written(
    setting: Setting, caplog: pytest.LogCaptureFixture
) -> None:
    await setting.add_run()
    setting.store = FaultyStore(setting.store, by_script(("settle_runs", Fault.AFTER)))
    node = Node(setting, answer(Succeeded()))
    await node.claim()
    await until(lambda: node.collector.waiting > 0)
    with pytest.raises(StoreUnavailable):
        await node.collector.step(setting.now)
    await node.collector.step(setting.now)
    assert (await setting.run()).state is State.COMPLETED
    assert node.collector.waiting == 0
    assert "lease was lost" not in caplog.text
