"""The store stands still for longer than the leases: nothing that is done or under way is performed again."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from horarium.clock import SECOND, Instant
from horarium.errors import LeaseLost, StoreUnavailable
from horarium.model import Event, EventKind, Failed, Outcome, Run, RunChange, RunPolicy, State, Succeeded
from horarium.operations.settling.settling import Settlement
from horarium.policies import Retry
from horarium.ports import Claimed
from horarium.services.leases.attempt import Stop
from horarium.services.leases.rescuer import LEFT_SECONDS_MAX, Rescuer
from horarium.stores.memory import MemoryStore
from tests.services.conftest import START, Setting, a_rescuer
from tests.services.node import Node, Work, answer
from tests.waiting import until

GAP_SECONDS = 60
SUCCEEDED = Succeeded(b"1")


def its_rescuer(setting: Setting, node: Node) -> Rescuer:
    """The rescuer of the same process."""
    return a_rescuer(setting, node.own)


async def under_way(setting: Setting, execution_seconds: int | None = None) -> tuple[Node, Work]:
    await setting.add_run(lease_seconds=30, execution_seconds=execution_seconds)
    work = Work()
    node = Node(setting, work)
    await node.claim()
    await until(lambda: bool(work.begun))
    return node, work


async def claimed_by_a_worker(setting: Setting, policy: RunPolicy | None = None) -> Run:
    await setting.add_run(policy=policy)
    (run,) = (await setting.store.claim_runs(["pull/q"], 1, "w", setting.now, setting.now, setting.steady)).runs
    return run


async def test_completed_work_is_not_performed_again(setting: Setting) -> None:
    await setting.add_run(lease_seconds=30)
    node = Node(setting, answer(Succeeded(b"1")))
    await node.claim()
    await until(lambda: node.collector.waiting > 0)
    setting.clock.advance(GAP_SECONDS)
    await its_rescuer(setting, node).step(setting.now)
    await node.collector.step(setting.now)
    run = await setting.run()
    assert (run.state, run.token, run.result) == (State.COMPLETED, 1, b"1")


async def test_work_under_way_goes_on(setting: Setting) -> None:
    node, work = await under_way(setting)
    setting.clock.advance(GAP_SECONDS)
    await its_rescuer(setting, node).step(setting.now)
    await node.keeper.step(setting.now)
    run = await setting.run()
    assert (run.state, run.token, run.lease_expires_at) == (State.RUNNING, 1, setting.now + 30 * SECOND)
    work.go_on.set()
    await node.settle()
    assert await setting.state() is State.COMPLETED


async def test_work_that_another_node_has_claimed_meanwhile_is_ended(setting: Setting) -> None:
    node, _ = await under_way(setting)
    setting.clock.advance(GAP_SECONDS)
    await a_rescuer(setting).step(setting.now)
    await setting.store.claim_runs(["pull/q"], 1, "other", setting.now, setting.now, setting.steady)
    await node.keeper.step(setting.now)
    await until(lambda: not node.performing.attempts)
    run = await setting.run()
    assert (run.state, run.token, run.worker) == (State.RUNNING, 2, "other")


@pytest.mark.parametrize("settled", [True, False])
async def test_work_over_its_time_is_taken_by_its_own_rescuer(setting: Setting, settled: bool) -> None:
    node, _ = await under_way(setting, execution_seconds=5)
    setting.clock.advance(GAP_SECONDS)
    await node.keeper.step(setting.now)
    rescuer = its_rescuer(setting, node)
    if not settled:  # as in the first seconds of a process: leases of others are in doubt, this one is not
        rescuer._scale._moved_at = setting.clock.monotonic()
    await rescuer.step(setting.now)
    assert await setting.state() is State.PENDING


@pytest.mark.parametrize("how", ["refused", "held up"])
async def test_leases_of_others_are_taken_only_after_a_grace(setting: Setting, how: str) -> None:
    store = StandsStill(setting)
    setting.store = store
    await claimed_by_a_worker(setting)
    rescuer = a_rescuer(setting)
    store.fails = how == "refused"
    setting.clock.advance(20)
    store.stands = True
    if store.fails:
        with pytest.raises(StoreUnavailable):
            await rescuer.step(setting.now)
    store.fails = False
    await rescuer.step(setting.now)
    await rescuer.step(setting.now)
    assert await setting.state() is State.RUNNING
    setting.clock.advance(10)
    await rescuer.step(setting.now)
    assert await setting.state() is State.PENDING


async def test_a_lease_in_doubt_is_looked_at_as_soon_as_its_grace_ends(setting: Setting) -> None:
    run = await claimed_by_a_worker(setting)
    rescuer = a_rescuer(setting)
    setting.clock.advance(run.lease_seconds)
    rescuer._scale._moved_at = setting.clock.monotonic()  # as in the first seconds of a process
    seen = setting.now
    again_at = await rescuer.step(seen)
    assert again_at is not None
    assert 0 <= again_at - seen - min(run.lease_seconds, LEFT_SECONDS_MAX) * SECOND <= 1
    setting.clock.advance((again_at - seen) / SECOND)
    await rescuer.step(setting.now)
    assert await setting.state() is State.PENDING


class StandsStill(MemoryStore):
    """Answers late, or refuses for as long."""

    def __init__(self, setting: Setting) -> None:
        super().__init__()
        self._setting = setting
        self.stands = self.fails = False

    async def overdue_runs(self, now: Instant, limit: int, steady: Instant) -> tuple[list[Run], Instant | None]:
        if self.stands:
            self.stands = False
            self._setting.clock.advance(GAP_SECONDS)
        if self.fails:
            raise StoreUnavailable("it is down")
        return await super().overdue_runs(self._setting.now, limit, self._setting.steady)


async def test_a_store_that_is_always_slow_delays_each_rescue_once(setting: Setting) -> None:
    store = StandsStill(setting)
    setting.store = store
    await claimed_by_a_worker(setting)
    rescuer = a_rescuer(setting)
    for _ in range(2):
        store.stands = True
        await rescuer.step(setting.now)
    assert await setting.state() is State.PENDING


@pytest.mark.parametrize("retry", [Retry(), Retry(silences_max=1)], ids=["attempts", "silences"])
@pytest.mark.parametrize("outcome", [Succeeded(b"1"), Failed("no")])
async def test_an_outcome_counts_though_its_run_was_just_put_back(
    setting: Setting, outcome: Outcome, retry: Retry
) -> None:
    run = await claimed_by_a_worker(setting, RunPolicy(retry=retry))
    setting.clock.advance(GAP_SECONDS)
    await a_rescuer(setting).step(setting.now)
    assert (await setting.run()).history[-1].kind is EventKind.LOST
    report = Settlement(run.id, run.token, outcome)
    after = await setting.operations.settling.settle_one(report)
    assert await setting.operations.settling.settle_one(report) == after == await setting.run()
    assert (after.attempt, after.token) == (1, 1)
    if isinstance(outcome, Succeeded):
        assert (after.state, after.started_at, after.worker) == (State.COMPLETED, START, "w")
        assert (after.error, after.history) == (None, ())
    else:
        assert (after.state, after.error) == (State.PENDING, "no")
        claim = Event(START, State.RUNNING, "attempt 1 claimed by w")
        assert after.history[0] == claim
        assert [event.kind for event in after.history] == [None, EventKind.FAILED]


async def test_an_outcome_is_void_once_another_claim_was_made(setting: Setting) -> None:
    run = await claimed_by_a_worker(setting)
    setting.clock.advance(GAP_SECONDS)
    await a_rescuer(setting).step(setting.now)
    await setting.store.claim_runs(["pull/q"], 1, "other", setting.now, setting.now, setting.steady)
    claimed = await setting.run()
    with pytest.raises(LeaseLost):
        await setting.operations.settling.settle_one(Settlement(run.id, run.token, Succeeded()))
    assert await setting.run() == claimed


async def test_the_outcome_of_a_performed_run_counts_though_another_node_put_it_back(setting: Setting) -> None:
    await setting.add_run(lease_seconds=30)
    node = Node(setting, answer(Succeeded()))
    await node.claim()
    await until(lambda: node.collector.waiting > 0)
    setting.clock.advance(GAP_SECONDS)
    await a_rescuer(setting).step(setting.now)
    await node.collector.step(setting.now)
    assert await setting.state() is State.COMPLETED


async def put_back_by_another(
    setting: Setting, outcome: Outcome = SUCCEEDED, policy: RunPolicy | None = None
) -> tuple[Node, Work]:
    """A node that has done its work and then stood still, so that another node took it for lost."""
    await setting.add_run(lease_seconds=30, policy=policy)
    work = answer(outcome)
    node = Node(setting, work)
    await node.claim()
    await until(lambda: node.collector.waiting > 0)
    setting.clock.advance(GAP_SECONDS)
    await a_rescuer(setting).step(setting.now)
    assert await setting.state() is State.PENDING
    return node, work


async def test_a_node_that_claims_again_what_it_has_done_does_not_do_it_again(setting: Setting) -> None:
    node, work = await put_back_by_another(setting)
    await node.claim()
    await until(lambda: node.performing.unoccupied)
    await node.collector.step(setting.now)
    run = await setting.run()
    assert (run.state, run.token, run.attempt, run.result) == (State.COMPLETED, 2, 1, b"1")
    assert work.begun == [("run", 1)]


@pytest.mark.parametrize("call", ["settle_runs", "get_runs"])
async def test_nor_where_the_claim_is_answered_while_the_outcome_is_written(setting: Setting, call: str) -> None:
    node, work = await put_back_by_another(setting)
    written, claim = getattr(setting.store, call), setting.store.claim_runs
    claimed, settled = asyncio.Event(), asyncio.Event()

    async def late(*given: Any) -> Any:
        """The claim comes first."""
        setattr(setting.store, call, written)
        claiming = asyncio.ensure_future(node.claim())
        await claimed.wait()
        if call == "get_runs":
            settled.set()
            await claiming
        return await written(*given)

    async def claims(*given: Any) -> Claimed:
        """Its answer comes after that of the write, or before it."""
        answer = await claim(*given)
        claimed.set()
        await settled.wait()
        return answer

    setattr(setting.store, call, late)
    setting.store.claim_runs = claims  # type: ignore[assignment,method-assign]
    await node.collector.step(setting.now)
    settled.set()
    await until(lambda: node.dispatcher.claiming_since is None and node.performing.unoccupied)
    await node.collector.step(setting.now)
    run = await setting.run()
    assert (run.state, run.token, run.result) == (State.COMPLETED, 2, b"1")
    assert (work.begun, node.collector.looks()) == ([("run", 1)], False)


async def test_a_failure_that_is_claimed_again_counts_once(setting: Setting) -> None:
    retry = Retry(attempts_max=2, backoff_seconds=0)
    node, _ = await put_back_by_another(setting, Failed("no"), RunPolicy(retry=retry))
    await node.claim()
    await node.collector.step(setting.now)
    run = await setting.run()
    assert (run.state, run.attempt, run.error) == (State.PENDING, 1, "no")


@pytest.mark.parametrize("between", ["claimed", "timed out"])
async def test_what_ended_otherwise_in_between_is_done_again(setting: Setting, between: str) -> None:
    node, work = await put_back_by_another(setting)
    run = await setting.run()
    if between == "claimed":
        await setting.store.claim_runs(["pull/q"], 1, "other", setting.now, setting.now, setting.steady)
        setting.clock.advance(GAP_SECONDS)
        await a_rescuer(setting).step(setting.now)
    else:
        late = replace(run.history[-1], kind=EventKind.TIMED_OUT)
        timed_out = RunChange(replace(run, history=(*run.history[:-1], late)), run.token, run.state)
        assert await setting.store.settle_runs([timed_out], setting.steady) == [True]
    setting.clock.advance(3600)  # what is lost twice waits for its turn
    await node.claim()
    await until(lambda: len(work.begun) == 2)


async def test_a_claim_whose_answer_is_slower_than_its_lease_spends_no_attempt(setting: Setting) -> None:
    await setting.add_run(lease_seconds=5, policy=RunPolicy(retry=Retry(attempts_max=1)))
    work = Work()
    node = Node(setting, work)
    claim, slow = setting.store.claim_runs, asyncio.Event()

    async def slowly(
        queues: Sequence[str], limit: int, worker: str, now: Instant, due: Instant, steady: Instant
    ) -> Claimed:
        claimed = await claim(queues, limit, worker, now, due, steady)
        await slow.wait()
        return claimed

    setting.store.claim_runs = slowly  # type: ignore[assignment,method-assign]
    claiming = asyncio.ensure_future(node.claim())
    await asyncio.sleep(0)
    setting.clock.advance(GAP_SECONDS)
    await its_rescuer(setting, node).step(setting.now)
    slow.set()
    await claiming
    await node.claim()
    await until(lambda: bool(work.begun))
    run = await setting.run()
    assert (run.state, run.token, run.attempt) == (State.RUNNING, 1, 1)


@pytest.mark.parametrize("stage", ["ahead", "in line", "under way", "done"])
async def test_a_claim_that_the_store_forgot_and_made_again_is_no_second_attempt(setting: Setting, stage: str) -> None:
    await setting.add_run("first")
    await setting.add_run("second", due_at=START + SECOND if stage == "ahead" else START)
    work = answer(SUCCEEDED) if stage == "done" else Work()
    node = Node(setting, work, places=1 if stage == "in line" else 2, window_seconds=1)
    due = START + SECOND
    claimed = await setting.store.claim_runs(["pull/q"], 2, "w", setting.now, due, setting.steady)
    node.dispatcher.take(claimed.runs, {}, setting.now)
    await until(lambda: len(work.begun) == (2 if stage in ("under way", "done") else 1))
    node.dispatcher.take(claimed.runs, {}, setting.now)
    setting.clock.advance(1)
    work.go_on.set()
    await node.claim()
    await until(lambda: node.performing.unoccupied)
    await node.collector.step(setting.now)
    assert work.begun == [("first", 1), ("second", 1)]
    assert [await setting.state(each) for each in ("first", "second")] == [State.COMPLETED] * 2


async def test_a_claim_that_is_made_again_while_its_attempt_is_ended_begins_another(setting: Setting) -> None:
    node, work = await under_way(setting)
    run = await setting.run()
    (attempt,) = node.performing.attempts.values()
    attempt.stop = Stop.LOST
    node.dispatcher.take([run], {}, setting.now)
    await until(lambda: len(work.begun) == 2)
    work.go_on.set()
    await node.settle()
    assert await setting.state() is State.COMPLETED
    assert not node.performing.attempts
