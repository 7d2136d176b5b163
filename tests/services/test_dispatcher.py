"""The dispatcher: begun runs, cancels, held runs and the end of a node."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from horarium.clock import MINUTE, SECOND, Instant
from horarium.errors import StoreUnavailable
from horarium.model import Event, EventKind, Failed, Outcome, RunChange, State, Succeeded
from horarium.model.holds import HoldScope
from horarium.model.records import Record, RecordFilter
from horarium.policies import Rate, Retention
from horarium.ports import Assignment, Claimed, Control, Page
from horarium.rules.settling import cancel
from horarium.services.performing.performing import OWN_DOING
from horarium.stores.memory import MemoryStore
from horarium.testing import Fault, FaultyStore, ManualClock, by_script
from horarium.testing.values import a_run
from horarium.wire.holds import HoldDefinition
from tests.services.conftest import START, Setting, a_rescuer
from tests.services.node import Node, Work, answer, taken_away
from tests.waiting import until


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
    assert (node.performing.free, await node.claim()) == (0, None)


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
        await until(lambda node=node: node.performing.free == 1)  # type: ignore[misc]
        await node.claim()
        await until(lambda work=work: len(work.begun) == 2)  # type: ignore[misc]


async def test_an_exception_of_the_target_is_a_retryable_failure(setting: Setting) -> None:
    async def perform(assignment: Assignment, control: Control) -> Outcome | None:
        raise RuntimeError("broken")

    await setting.add_run()
    node = Node(setting, Work(perform))
    await node.claim()
    await node.settle()
    run = await setting.run()
    assert (run.state, run.error) == (State.PENDING, "RuntimeError: broken")


async def test_work_that_cancels_itself_has_failed(setting: Setting) -> None:
    async def perform(assignment: Assignment, control: Control) -> Outcome | None:
        raise asyncio.CancelledError

    await setting.add_run()
    node = Node(setting, Work(perform))
    await node.claim()
    await node.settle()
    assert (await setting.run()).error == OWN_DOING


async def test_what_goes_on_elsewhere_is_not_settled_here(setting: Setting) -> None:
    await setting.add_run()
    node = Node(setting, answer(None))
    await node.claim()
    await until(lambda: not node.performing.attempts and node.performing.free == 100)
    assert (node.collector.waiting, await setting.state()) == (0, State.RUNNING)


# ---- cancel -------------------------------------------------------------------------------------------------------


async def test_a_cancel_reaches_the_work(setting: Setting) -> None:
    async def perform(assignment: Assignment, control: Control) -> Outcome | None:
        await until(lambda: control.cancelled)
        return Failed("stopped")

    await setting.add_run()
    node = Node(setting, Work(perform))
    await node.claim()
    await until(lambda: bool(node.performing.attempts))
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


# ---- held runs ----------------------------------------------------------------------------------------------------


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
    await until(lambda: node.performing.free == 100)
    assert work.begun == []


@pytest.mark.parametrize("shut", [False, True])
async def test_a_run_claimed_ahead_of_a_pause_that_its_target_asked_for_waits_for_its_end(
    setting: Setting, shut: bool
) -> None:
    """However long before its instant it was claimed."""
    rate = Rate(100, 60.0, key="api")
    await setting.add_run(due_at=START + 30 * SECOND, rates=(rate,))
    work = Work()
    node = Node(setting, work, window_seconds=30)
    await node.claim()
    if shut:
        told = Event(START, State.PENDING, "answered 429", EventKind.THROTTLED)
        paused = a_run(rates=(rate,), due_at=START + 2 * MINUTE, history=(told,))
        await setting.operations.claiming.rating.shut([paused])
    setting.clock.advance(30)
    await node.claim()
    if not shut:
        await until(lambda: bool(work.begun))
        return
    await until(lambda: node.performing.free == 100)
    await node.collector.step(setting.now)
    await node.claim()
    run = await setting.run()
    assert (work.begun, run.state, run.attempt) == ([], State.PENDING, 0)
    assert run.due_at >= START + 2 * MINUTE


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


async def one_waits_behind_another(setting: Setting) -> tuple[Node, Work]:
    """A node with one place, where a run is under way and a second one is ready."""
    for id in ("first", "second"):
        await setting.add_run(id)
    work = Work()
    node = Node(setting, work, places=1, holding=setting.operations.reconciler.holding)
    claimed = await setting.operations.claiming.claim(["pull/q"], 2, "w", setting.now, setting.now)
    node.dispatcher.take(claimed.runs, claimed.jobs, setting.now)
    await until(lambda: len(work.begun) == 1)
    return node, work


async def test_a_node_that_stood_still_begins_nothing_under_a_hold_that_it_has_not_read(setting: Setting) -> None:
    node, work = await one_waits_behind_another(setting)
    elsewhere = Setting()
    elsewhere.clock, elsewhere.store = setting.clock, setting.store
    await elsewhere.operations.holds.add(HoldDefinition(scope=HoldScope(queue="q"), reason="moving"))
    setting.clock.advance(2)
    work.go_on.set()
    await node.settle()
    await node.claim()
    await node.settle()
    assert len(work.begun) == 1
    states = {id: await setting.state(id) for id in ("first", "second")}
    assert sorted(states.values()) == [State.COMPLETED, State.PENDING]


async def test_a_ready_run_begins_once_a_node_that_stood_still_has_read_the_holds(setting: Setting) -> None:
    node, work = await one_waits_behind_another(setting)
    setting.clock.advance(2)
    work.go_on.set()
    await node.settle()
    assert len(work.begun) == 1
    await node.claim()
    await until(lambda: len(work.begun) == 2)


class SlowRecords(MemoryStore):
    """Each list of records takes three seconds."""

    clock: ManualClock

    async def list_records(self, where: RecordFilter, after: str | None, limit: int) -> Page[Record]:
        page = await super().list_records(where, after, limit)
        self.clock.advance(3)
        return page


async def test_work_begins_on_a_store_that_takes_longer_for_its_holds_than_they_may_be_old(setting: Setting) -> None:
    store = SlowRecords()
    store.clock, setting.store = setting.clock, store
    await setting.add_run("first")
    work = Work()
    node = Node(setting, work, holding=setting.operations.reconciler.holding)

    async def begun() -> bool:
        await node.claim()
        return bool(work.begun)

    await until(begun)


class SlowClaims(MemoryStore):
    """The answer to a claim takes this long, as in an outage in the middle of it."""

    def __init__(self, setting: Setting, seconds: float) -> None:
        super().__init__()
        self._setting, self._seconds = setting, seconds

    async def claim_runs(
        self, queues: Sequence[str], limit: int, worker: str, now: Instant, until: Instant, steady: Instant
    ) -> Claimed:
        claimed = await super().claim_runs(queues, limit, worker, now, until, steady)
        self._setting.clock.advance(self._seconds if claimed.runs else 0)
        return claimed


@pytest.mark.parametrize("seconds", [25, 35])
async def test_a_run_whose_claim_was_answered_late_begins_under_a_renewed_lease(setting: Setting, seconds: int) -> None:
    setting.store = SlowClaims(setting, seconds)
    await setting.add_run(lease_seconds=30)
    work = Work()
    node = Node(setting, work)
    assert await node.claim() == START
    assert work.begun == []
    await node.claim()
    await until(lambda: bool(work.begun))
    assert (await setting.run()).lease_expires_at == START + (seconds + 30) * SECOND


async def test_a_run_whose_claim_was_answered_after_a_rescue_does_not_begin(setting: Setting) -> None:
    setting.store = SlowClaims(setting, 35)
    await setting.add_run(lease_seconds=30)
    work = Work()
    node = Node(setting, work)
    await node.claim()
    await a_rescuer(setting).step(setting.now)
    await node.claim()
    run = await setting.run()
    assert (work.begun, run.token, run.attempt) == ([], 2, 1)


class Answering(MemoryStore):
    """Just before this call is answered, something happens."""

    def __init__(self, call: str) -> None:
        super().__init__()
        self.before_answer: Callable[[], Awaitable[None]] | None = None
        asked = getattr(self, call)

        async def answering(*given: Any) -> Any:
            answer = await asked(*given)
            happens, self.before_answer = self.before_answer, None
            if happens is not None:
                await happens()
            return answer

        setattr(self, call, answering)


@pytest.mark.parametrize("call", ["claim_runs", "heartbeat_runs"])
async def test_a_cancel_that_is_asked_while_the_store_answers_reaches_the_work(setting: Setting, call: str) -> None:
    """The answer is older than the cancel: that of a claim, or that about the lease of a run claimed ahead."""
    store = setting.store = Answering(call)
    await setting.add_run(due_at=START + (SECOND if call == "heartbeat_runs" else 0))
    stopped: list[bool] = []

    async def perform(assignment: Assignment, control: Control) -> Outcome | None:
        await until(lambda: control.cancelled)
        stopped.append(True)
        return Succeeded()

    work = Work(perform)
    node = Node(setting, work, window_seconds=2)

    async def cancelled() -> None:
        run = await setting.run()
        asked = cancel(run, Retention(), setting.now, "enough")
        assert await store.settle_runs([RunChange(asked, run.token, run.state)], setting.now) == [True]
        node.keeper.signalled()
        await node.keeper.step(setting.now)

    if call == "heartbeat_runs":
        await node.claim()
        setting.clock.advance(1)
    store.before_answer = cancelled
    await node.claim()
    await until(lambda: work.begun)
    assert node.keeper.wake.is_set
    await node.keeper.step(setting.now)
    await until(lambda: stopped)


# ---- the end of a node --------------------------------------------------------------------------------------------


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
    claimed = await setting.store.claim_runs(["pull/q"], 1, "w", setting.now, setting.now, setting.steady)
    await node.dispatcher.drain(0)
    node.dispatcher.take(claimed.runs, claimed.jobs, setting.now)
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
