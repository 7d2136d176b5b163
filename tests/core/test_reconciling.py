"""What must be true of a job's unfinished runs: the rule as a table, and the loop that applies it when things die."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from horarium.clock import DAY, HOUR, MINUTE, SECOND, Instant
from horarium.errors import StoreUnavailable
from horarium.model import (
    Cause,
    CommandTarget,
    Disposition,
    ExternalTarget,
    Failed,
    HttpTarget,
    Job,
    Node,
    Plan,
    QueueTarget,
    Run,
    RunChange,
    State,
)
from horarium.operations.settling.settling import Settlement
from horarium.policies import Concurrency, Overlap, Timeouts
from horarium.ports import Claimed
from horarium.rules.applying import HELD, held_by, newest_of, owed_by, owed_of
from horarium.rules.editing import pause, plan_now
from horarium.rules.planning import owed_run, resume
from horarium.rules.reconciling import belongs, reconcile
from horarium.services.upkeep.sweeper import DEAD_AFTER, LOOK_EVERY, Sweeper
from horarium.stores.memory import MemoryStore
from tests.core.planned import EACH, skipped
from tests.core.planned import a_job as a_planned_job
from tests.core.test_operations import World

NOW = 1_767_571_200 * SECOND


def a_job(**changes: Any) -> Job:
    fields: dict[str, Any] = {
        "name": "job", "id": "id", "trigger": {"type": "interval", "every_seconds": 10},
        "target": QueueTarget(queue="q"), "planned_until": NOW, "created_at": NOW - DAY, "updated_at": NOW - DAY,
    }  # fmt: skip
    return Job(**(fields | changes))


def a_run(state: State = State.PENDING, fire_at: Instant = NOW, **changes: Any) -> Run:
    claimed = state in (State.RUNNING, State.CANCELLING)
    held = {"token": 1, "attempt": 1, "started_at": fire_at, "lease_expires_at": fire_at + MINUTE} if claimed else {}
    run = owed_run(a_job(), fire_at, NOW - MINUTE, Cause.SCHEDULE)
    return replace(run, **({"state": state} | held | changes))


def ends(planned: Plan | None) -> list[State]:
    return [] if planned is None else [change.run.state for change in planned.changes]


# ---- the rule ---------------------------------------------------------------------------------------------------


def test_a_job_that_is_as_it_was_asks_nothing_of_its_runs() -> None:
    assert reconcile(a_job(), [a_run(), a_run(State.RUNNING), a_run(State.CANCELLING)], NOW) is None


@pytest.mark.parametrize(
    ("state", "after"),
    [(State.PENDING, [State.CANCELLED]), (State.RUNNING, [State.CANCELLING]), (State.CANCELLING, [])],
)
def test_nothing_of_a_deleted_job_goes_on(state: State, after: list[State]) -> None:
    assert ends(reconcile(a_job(deleted_at=NOW), [a_run(state)], NOW)) == after


def test_what_waits_moves_to_the_queue_of_its_job_as_it_is() -> None:
    run = a_run(token=3, attempt=2, queue="pull/old")
    planned = reconcile(a_job(), [run, a_run(State.RUNNING, queue="pull/old")], NOW)
    assert planned is not None
    (moved,) = planned.runs
    assert (planned.withdrawals, moved.queue) == ((run,), "pull/q")
    assert (moved.id, moved.token, moved.attempt) == (run.id, 3, 2)


@pytest.mark.parametrize("target", [ExternalTarget(), HttpTarget(url="https://evil.example")], ids=["external", "http"])
def test_a_payload_of_its_own_does_not_follow_its_job_to_another_type_of_target(target: Any) -> None:
    own = a_run(payload=b'{"a": 1}', token=3)
    plain, begun = a_run(), a_run(State.RUNNING, payload=b"1")
    planned = reconcile(a_job(target=target), [own, plain, begun], NOW)
    assert planned is not None
    assert [run.id for run in planned.runs] == [plain.id]
    (change,) = planned.changes
    assert (change.run.id, change.run.state, change.token) == (own.id, State.CANCELLED, 3)
    assert "has a payload of its own" in (change.run.error or change.run.history[-1].message)
    moved = reconcile(a_job(target=CommandTarget(command=("x",), queue="r")), [own], NOW)
    assert moved is not None
    assert [run.queue for run in moved.runs] == ["pull/r"], "workers of queues may all have it"


GATED = a_job(
    overlap=Overlap.BUFFER_ALL,
    concurrency=Concurrency("k", 2),
    timeouts=Timeouts(start_seconds=6, execution_seconds=90, heartbeat_seconds=20),
)


def test_what_comes_from_elsewhere_is_held_back_and_leased_as_its_job_now_says() -> None:
    run = owed_run(replace(GATED, target=ExternalTarget()), NOW, NOW, Cause.SCHEDULE)
    assert (run.serial, run.concurrency_key, run.lease_seconds) == (False, None, 90)
    planned = reconcile(GATED, [run], NOW + MINUTE)
    assert planned is not None
    (moved,) = planned.runs
    assert (moved.serial, moved.concurrency_key, moved.concurrency_max) == (True, "k", 2)
    assert (moved.lease_seconds, moved.start_by) == (20, NOW + MINUTE + 6 * SECOND)


def test_what_goes_elsewhere_holds_no_place_and_has_the_time_that_its_work_may_take() -> None:
    run = owed_run(GATED, NOW, NOW, Cause.SCHEDULE)
    planned = reconcile(replace(GATED, target=ExternalTarget()), [run], NOW + MINUTE)
    assert planned is not None
    (moved,) = planned.runs
    assert (moved.serial, moved.concurrency_key, moved.concurrency_max) == (False, None, 0)
    assert (moved.lease_seconds, moved.start_by) == (90, run.start_by)


def test_the_limit_that_work_elsewhere_had_by_default_does_not_outlast_it() -> None:
    run = owed_run(a_job(target=ExternalTarget()), NOW, NOW, Cause.SCHEDULE)
    planned = reconcile(a_job(), [run], NOW)
    assert planned is not None
    assert run.start_by == NOW + HOUR
    assert (planned.runs[0].start_by, planned.runs[0].lease_seconds) == (None, 30)


@pytest.mark.parametrize(
    ("changes", "withdrawn"),
    [
        ({"fire_at": NOW + SECOND}, True),
        ({"fire_at": NOW}, False),
        ({"fire_at": NOW + SECOND, "cause": Cause.MANUAL}, False),
        ({"fire_at": NOW + SECOND, "attempt": 1}, False),
        # Made before the pause, by a node whose clock is ahead of the one that paused.
        ({"fire_at": NOW + SECOND, "created_at": NOW + 1}, True),
    ],
)
def test_of_a_paused_job_what_was_planned_ahead_and_has_not_begun_is_withdrawn(
    changes: dict[str, Any], withdrawn: bool
) -> None:
    run = a_run(**changes)
    planned = reconcile(a_job(enabled=False, paused_at=NOW), [run], NOW + 5 * SECOND)
    assert (planned is not None and planned.withdrawals == (run,)) is withdrawn


def test_what_was_claimed_ahead_of_a_pause_is_ended_and_keeps_its_row() -> None:
    run = a_run(State.RUNNING, NOW + SECOND)
    planned = reconcile(a_job(enabled=False, paused_at=NOW), [run], NOW)
    assert planned is not None
    assert [change.run.disposition for change in planned.changes] == [Disposition.WITHDRAWN]
    assert not belongs(run, a_job(enabled=False, paused_at=NOW))


@pytest.mark.parametrize(
    ("overlap", "after"),
    [
        (Overlap.CANCEL_OTHER, [State.CANCELLED, State.CANCELLING]),
        (Overlap.TERMINATE_OTHER, [State.CANCELLED, State.CANCELLED]),
        (Overlap.BUFFER_ALL, []),
    ],
)
def test_where_a_run_ends_others_only_the_newest_goes_on(overlap: Overlap, after: list[State]) -> None:
    others = [a_run(fire_at=NOW - 2), a_run(State.RUNNING, NOW - 1)]
    newest = a_run(fire_at=NOW, created_at=NOW)
    assert ends(reconcile(a_job(overlap=overlap), [*others, newest], NOW)) == after


def test_a_run_from_a_future_that_was_wrong_is_not_the_newest() -> None:
    wrong = a_run(fire_at=NOW + DAY, created_at=NOW + DAY)
    planned = reconcile(a_job(overlap=Overlap.CANCEL_OTHER), [wrong, a_run(fire_at=NOW, created_at=NOW)], NOW)
    assert planned is not None
    assert [change.run.id for change in planned.changes] == [wrong.id]


def test_where_clocks_differ_the_newest_is_the_one_that_was_made_last() -> None:
    """Its node's clock is behind that of the node which made the one before."""
    job = a_job(overlap=Overlap.CANCEL_OTHER)
    before = a_run(State.RUNNING, NOW + SECOND, created_at=NOW + SECOND)
    wrong = a_run(fire_at=NOW + DAY, created_at=NOW + DAY)
    _, run = plan_now(job, [before, wrong], NOW)
    planned = reconcile(job, [before, wrong, run], NOW)
    assert planned is not None
    assert {change.run.id for change in planned.changes} == {before.id, wrong.id}
    assert reconcile(job, [run], NOW, newest_of(job, [replace(before, state=State.PENDING)])) is None


def test_a_run_that_a_ping_made_ends_no_other() -> None:
    """It came at no fire time. The one that waits is due later, and fails when its grace is over."""
    job = a_job(target=ExternalTarget(), overlap=Overlap.CANCEL_OTHER)
    older = a_run(queue=job.queue, created_at=NOW, due_at=NOW + EACH)
    of_ping = a_run(State.RUNNING, NOW + 1, id="ping", queue=job.queue, created_at=NOW + 1, cause=Cause.PING)
    assert reconcile(job, [older, of_ping], NOW + 2) is None
    newest = a_run(fire_at=NOW + EACH, id="newest", queue=job.queue, created_at=NOW + EACH)
    planned = reconcile(job, [older, of_ping, newest], NOW + EACH)
    assert planned is not None
    assert {change.run.id for change in planned.changes} == {older.id, "ping"}


def test_a_policy_that_ends_others_does_nothing_to_what_was_there_when_it_was_set() -> None:
    job = a_job(overlap=Overlap.CANCEL_OTHER, updated_at=NOW)
    assert reconcile(job, [a_run(fire_at=NOW - 2), a_run(fire_at=NOW - 1)], NOW) is None


# ---- nodes that die ---------------------------------------------------------------------------------------------


class Dies(MemoryStore):
    """Claims all that is pending just before a plan is written; after that write, the node is dead."""

    def __init__(self) -> None:
        super().__init__()
        self.armed = False
        self.claimed: tuple[Run, ...] = ()

    async def commit_plans(self, plans: Sequence[Plan], now: Instant) -> list[bool]:
        if not self.armed:
            return await super().commit_plans(plans, now)
        self.armed = False
        self.claimed = (await self.claim_runs(["pull/q"], 100, "w", now, now, now)).runs
        await super().commit_plans(plans, now)
        raise StoreUnavailable("the node is gone")


async def a_run_claimed_while_its_job_changes(world: World, change: Awaitable[Any]) -> Run:
    """As the node that made the change left it."""
    store = world.store
    assert isinstance(store, Dies)
    store.armed = True
    with pytest.raises(StoreUnavailable):
        await change
    (run,) = store.claimed
    return run


@pytest.fixture
async def world() -> World:
    world = World(Dies())
    await world.put()
    await world.operations.jobs.trigger_job("job")
    return world


async def test_a_run_claimed_while_its_job_is_deleted_fails_for_good(world: World) -> None:
    run = await a_run_claimed_while_its_job_changes(world, world.operations.jobs.delete_job("job"))
    assert run.state is State.RUNNING
    settled = await world.operations.settling.settle_one(Settlement(run.id, run.token, Failed("no")))
    assert (settled.state, settled.error) == (State.CANCELLED, "the job was deleted")


async def put_back_by_hand(world: World, run: Run) -> None:
    """As a node would that knows nothing of what became of the job."""
    pending = replace(run, state=State.PENDING, lease_expires_at=None, started_at=None, attempt=0)
    assert await world.store.settle_runs([RunChange(pending, run.token, run.state)], world.clock.now()) == [True]


Change = Callable[[World], Awaitable[Any]]


async def to_another_queue(world: World) -> Any:
    return await world.operations.jobs.patch_job("job", {"target": {"queue": "other"}})


async def deleted(world: World) -> Any:
    return await world.operations.jobs.delete_job("job")


async def claim_from(world: World, queue: str) -> Claimed:
    now = world.clock.now()
    return await world.operations.claiming.claim([queue], 10, "w", now, now)


@pytest.mark.parametrize(("change", "state"), [(deleted, State.CANCELLED), (to_another_queue, State.PENDING)])
async def test_what_was_left_where_it_was_is_not_handed_out(world: World, change: Change, state: State) -> None:
    run = await a_run_claimed_while_its_job_changes(world, change(world))
    await put_back_by_hand(world, run)
    assert (await claim_from(world, "pull/q")).runs == ()
    assert (await world.operations.runs.get_run(run.id)).state is state
    assert len((await claim_from(world, "pull/other")).runs) == (state is State.PENDING)


@pytest.mark.parametrize(("change", "state"), [(deleted, State.CANCELLED), (to_another_queue, State.PENDING)])
async def test_what_was_left_in_a_queue_that_nobody_serves_is_found_once_the_node_is_known_to_be_dead(
    world: World, change: Change, state: State
) -> None:
    sweeper = Sweeper(world.store, world.operations.reconciler)
    now = world.clock.now()
    await world.store.beat_node(Node(name="n", roles=(), started_at=now, beat_at=now))
    assert await sweeper.step(now) == now + LOOK_EVERY  # what waits for this node is claimed first
    assert await sweeper.step(now + LOOK_EVERY) == now + 2 * LOOK_EVERY
    run = await a_run_claimed_while_its_job_changes(world, change(world))
    await put_back_by_hand(world, run)
    world.clock.advance((DEAD_AFTER + LOOK_EVERY) / SECOND)
    await sweeper.step(world.clock.now())
    found = await world.operations.runs.get_run(run.id)
    assert (found.state, found.queue) == (state, "pull/other" if state is State.PENDING else "pull/q")


async def test_a_node_that_died_when_its_clock_was_years_ahead_is_known_to_be_dead(world: World) -> None:
    """Its last sign of life lies in a future that was wrong, and would count for years."""
    sweeper = Sweeper(world.store, world.operations.reconciler)
    now = world.clock.now()
    await sweeper.step(now)
    await sweeper.step(now + LOOK_EVERY)
    run = await a_run_claimed_while_its_job_changes(world, to_another_queue(world))
    await put_back_by_hand(world, run)
    await world.store.beat_node(Node(name="n", roles=(), started_at=now, beat_at=now + 3_650 * DAY))
    world.clock.advance((DEAD_AFTER + LOOK_EVERY) / SECOND)
    await sweeper.step(world.clock.now())
    assert (await world.operations.runs.get_run(run.id)).queue == "pull/other"


async def test_a_node_that_comes_back_from_the_dead_and_dies_is_known_to_be_dead(world: World) -> None:
    """It stood still, and had one beat more between two looks of the others."""
    sweeper = Sweeper(world.store, world.operations.reconciler)
    now = world.clock.now()
    await world.store.beat_node(Node(name="n", roles=(), started_at=0, beat_at=now - DEAD_AFTER))
    await sweeper.step(now)
    await sweeper.step(now + LOOK_EVERY)
    run = await a_run_claimed_while_its_job_changes(world, to_another_queue(world))
    await put_back_by_hand(world, run)
    await world.store.beat_node(Node(name="n", roles=(), started_at=0, beat_at=now + LOOK_EVERY + 1))
    await sweeper.step(now + 2 * LOOK_EVERY + DEAD_AFTER)
    assert (await world.operations.runs.get_run(run.id)).queue == "pull/other"


class LosesTouch(MemoryStore):
    """Jobs can't be read for a while."""

    down = False

    async def get_jobs_by_id(self, ids: Sequence[str]) -> list[Job | None]:
        if self.down:
            raise StoreUnavailable("down")
        return await super().get_jobs_by_id(ids)


async def a_deletion_that_no_run_has_followed(world: World, runs: int) -> tuple[Job, list[RunChange]]:
    """A deleted job, and what puts back runs of it that were claimed before."""
    await world.put()
    for _ in range(runs):
        await world.operations.jobs.trigger_job("job")
    claimed = (await world.claim()).runs
    job = await world.operations.jobs.get_job("job")
    await world.store.commit_plans([Plan(replace(job, deleted_at=NOW))], world.clock.now())
    pending = [replace(run, state=State.PENDING, lease_expires_at=None, started_at=None) for run in claimed]
    return job, [RunChange(each, run.token, run.state) for each, run in zip(pending, claimed, strict=True)]


async def test_a_look_that_an_outage_prevented_is_made_up_for() -> None:
    store = LosesTouch()
    world = World(store)
    job, (change,) = await a_deletion_that_no_run_has_followed(world, 1)
    store.down = True
    assert await world.operations.settling.write([change], {job.id: job}, world.clock.now()) == [True]
    assert (await world.operations.runs.get_run(change.run.id)).state is State.PENDING
    store.down = False
    await world.operations.reconciler.catch_up()
    assert (await world.operations.runs.get_run(change.run.id)).state is State.CANCELLED


async def test_it_is_made_up_for_though_another_run_of_the_job_was_looked_at_since() -> None:
    store = LosesTouch()
    world = World(store)
    job, (first, second) = await a_deletion_that_no_run_has_followed(world, 2)
    store.down = True
    await world.operations.settling.write([first], {job.id: job}, world.clock.now())
    store.down = False
    await world.operations.settling.write([second], {job.id: job}, world.clock.now())
    await world.operations.reconciler.catch_up()
    states = [(await world.operations.runs.get_run(each.run.id)).state for each in (first, second)]
    assert states == [State.CANCELLED] * 2


async def test_a_job_with_more_runs_than_one_batch_ends_them_all() -> None:
    world = World()
    await world.put()
    job = await world.operations.jobs.get_job("job")
    runs = [owed_run(job, NOW + number, NOW, Cause.MANUAL) for number in range(2_500)]
    for start in range(0, 2_500, 500):
        await world.store.add_runs(runs[start : start + 500])
    await world.operations.jobs.delete_job("job")
    assert (await world.store.unfinished_runs([job.id]))[job.id] == []


def test_what_ran_in_spite_of_a_pause_stays_out_of_the_ranges_that_were_skipped() -> None:
    paused = pause(a_planned_job(), [], NOW, "holiday")
    planned = resume(paused.job, NOW + 4 * EACH + SECOND, [NOW + 2 * EACH])
    ranges = [(Disposition.SKIPPED_PAUSED, NOW + EACH, 1), (Disposition.SKIPPED_PAUSED, NOW + 3 * EACH, 2)]
    assert skipped(planned) == ranges


def test_a_run_that_goes_where_it_is_not_waited_for_by_a_worker_gets_a_limit_for_beginning() -> None:
    """It had begun where it was, so it had none any more: without one it would wait for a ping for ever."""
    elsewhere = a_job(target=ExternalTarget())
    again = a_run(attempt=1, token=1, start_by=None)
    planned = reconcile(elsewhere, [again], NOW)
    assert planned is not None
    assert [(run.queue, run.start_by) for run in planned.runs] == [("external", NOW + HOUR)]
    kept = reconcile(elsewhere, [replace(again, start_by=NOW + 5)], NOW)
    assert kept is not None
    assert [run.start_by for run in kept.runs] == [NOW + 5]
    at_a_worker = reconcile(a_job(target=QueueTarget(queue="other")), [again], NOW)
    assert at_a_worker is not None
    assert [run.start_by for run in at_a_worker.runs] == [None]


@pytest.mark.parametrize(
    ("node", "after", "held"),
    [("other", 0, True), ("other", HELD - 1, True), ("other", HELD, False), ("other", -1, False), ("own", 0, False)],
)
def test_the_rest_of_an_edit_is_one_node_s_for_a_time(node: str, after: int, held: bool) -> None:
    """A time further ahead than any node writes is that of a wrong clock."""
    record = owed_by(a_job(), 3, NOW)
    assert not owed_of(record).held("other", NOW)
    assert owed_of(held_by(record, "own", NOW)).held(node, NOW + after) is held
