"""Planning as a pure function: tables for each policy, properties for the whole."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from horarium.clock import DAY, HOUR, MINUTE, SECOND, Instant, to_text
from horarium.editing import delete, pause, plan_backfill, plan_now, reanchor, resume, revise
from horarium.model import Cause, Disposition, Job, Plan, QueueTarget, Run, State, run_id
from horarium.planning import BUFFERED_RUNS_MAX, CATCH_UP_RUNS_MAX, MISFIRE_GRACE, next_fire, owed_run, plan, trigger_of
from horarium.policies import CatchUp, CatchUpPolicy, Concurrency, Overlap, Timeouts

NOW = 1_767_571_200 * SECOND
EACH = 10 * SECOND


def a_job(**changes: Any) -> Job:
    """Fires every ten seconds on the tens; all before NOW is accounted for."""
    fields: dict[str, Any] = {
        "name": "job",
        "id": "id",
        "trigger": {"type": "interval", "every_seconds": EACH // SECOND, "anchor": to_text(NOW - 100 * EACH)},
        "target": QueueTarget(queue="q"),
        "planned_until": NOW,
        "created_at": NOW - DAY,
        "anchor_at": NOW - DAY,
        **changes,
    }
    job = Job(**fields)
    return replace(job, next_fire_at=next_fire(job, job.planned_until))


def a_run(job: Job, fire_at: Instant, state: State = State.PENDING, **changes: Any) -> Run:
    claimed = state in (State.RUNNING, State.CANCELLING)
    held = {"token": 1, "attempt": 1, "started_at": fire_at, "lease_expires_at": fire_at + MINUTE} if claimed else {}
    return replace(owed_run(job, fire_at, fire_at, Cause.SCHEDULE), state=state, **{**held, **changes})


def pending(planned: Plan) -> list[Instant]:
    return [run.fire_at for run in planned.runs if run.state is State.PENDING]


def skipped(planned: Plan) -> list[tuple[Disposition | None, Instant, int]]:
    return [(run.disposition, run.fire_at, run.fires) for run in planned.runs if run.state is State.SKIPPED]


# ---- on time ----------------------------------------------------------------------------------------------------


def test_a_due_fire_time_becomes_one_pending_run() -> None:
    planned = plan(a_job(), [], NOW + EACH)
    (run,) = planned.runs
    assert (run.fire_at, run.due_at, run.state, run.cause) == (NOW + EACH, NOW + EACH, State.PENDING, Cause.SCHEDULE)
    assert run.id == run_id("id", NOW + EACH)
    assert (planned.job.planned_until, planned.job.next_fire_at) == (NOW + EACH, NOW + 2 * EACH)


def test_nothing_is_planned_before_its_time() -> None:
    assert plan(a_job(), [], NOW + EACH - 1).runs == ()


def test_planning_twice_plans_nothing_new() -> None:
    first = plan(a_job(), [], NOW + EACH)
    assert plan(first.job, [], NOW + EACH).runs == ()


def test_the_look_ahead_includes_its_last_instant() -> None:
    assert pending(plan(a_job(), [], NOW, 2 * EACH)) == [NOW + EACH, NOW + 2 * EACH]


@pytest.mark.parametrize("overlap", [overlap for overlap in Overlap if overlap is not Overlap.ALLOW])
def test_what_depends_on_earlier_runs_is_not_planned_ahead(overlap: Overlap) -> None:
    assert plan(a_job(overlap=overlap), [], NOW, 2 * EACH).runs == ()


def test_a_cursor_ahead_of_the_clock_stays_where_it_is() -> None:
    job = a_job(planned_until=NOW + EACH)
    assert plan(job, [], NOW).job.planned_until == NOW + EACH


def test_jitter_is_reproducible_and_within_its_bound() -> None:
    job = a_job(jitter_seconds=5)
    (run,), (again,) = plan(job, [], NOW + EACH).runs, plan(job, [], NOW + EACH + SECOND).runs
    assert NOW + EACH <= run.due_at == again.due_at < NOW + EACH + 5 * SECOND


def test_a_run_carries_what_a_store_needs_to_know_of_its_policies() -> None:
    limits = Timeouts(start_seconds=7, execution_seconds=60, heartbeat_seconds=9)
    job = a_job(timeouts=limits, concurrency=Concurrency("key", 3), overlap=Overlap.BUFFER_ALL, priority=4)
    (run,) = plan(job, [], NOW + EACH).runs
    assert (run.concurrency_key, run.concurrency_max, run.serial, run.priority) == ("key", 3, True, 4)
    assert (run.start_by, run.execution_seconds, run.lease_seconds) == (run.due_at + 7 * SECOND, 60, 9)


# ---- window and count -------------------------------------------------------------------------------------------


def test_starts_at_is_included_and_ends_at_is_not() -> None:
    job = a_job(starts_at=NOW + 2 * EACH, ends_at=NOW + 4 * EACH)
    planned = plan(job, [], NOW, 10 * EACH)
    assert pending(planned) == [NOW + 2 * EACH, NOW + 3 * EACH]
    assert planned.job.next_fire_at is None


@pytest.mark.parametrize(("limit", "expected"), [(1, 1), (2, 2), (3, 3), (9, 5)])
def test_fires_max_bounds_the_number_of_runs(limit: int, expected: int) -> None:
    planned = plan(a_job(fires_max=limit), [], NOW, 5 * EACH)
    assert len(pending(planned)) == planned.job.fires_count == expected
    assert (planned.job.next_fire_at is None) is (limit <= 5)


def test_a_skipped_fire_time_does_not_count_towards_fires_max() -> None:
    job = a_job(fires_max=1, overlap=Overlap.SKIP)
    planned = plan(job, [a_run(job, NOW, State.RUNNING)], NOW + EACH)
    assert (planned.job.fires_count, planned.job.next_fire_at) == (0, NOW + 2 * EACH)


# ---- catch-up ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "window", "runs", "missed"),
    [
        (CatchUpPolicy.NONE, None, [], 6),
        (CatchUpPolicy.NONE, 25, [], 6),
        (CatchUpPolicy.LATEST, None, [6], 5),
        (CatchUpPolicy.LATEST, 25, [6], 5),
        (CatchUpPolicy.LATEST, 3, [], 6),
        (CatchUpPolicy.ALL, None, [1, 2, 3, 4, 5, 6], 0),
        (CatchUpPolicy.ALL, 25, [4, 5, 6], 3),
        (CatchUpPolicy.ALL, 3, [], 6),
    ],
)
def test_after_an_absence_the_catch_up_policy_says_what_runs(
    policy: CatchUpPolicy, window: float | None, runs: list[int], missed: int
) -> None:
    now = NOW + 6 * EACH + 5 * SECOND
    planned = plan(a_job(catch_up=CatchUp(policy, window)), [], now)
    assert pending(planned) == [NOW + index * EACH for index in runs]
    expected = [(Disposition.MISSED, NOW + EACH, missed)] if missed else []
    assert skipped(planned) == expected
    assert all(run.due_at == now and run.cause is Cause.CATCH_UP for run in planned.runs if run.state is State.PENDING)


@pytest.mark.parametrize("policy", list(CatchUpPolicy))
def test_a_fire_time_within_the_grace_is_on_time_under_every_policy(policy: CatchUpPolicy) -> None:
    planned = plan(a_job(catch_up=CatchUp(policy)), [], NOW + EACH + MISFIRE_GRACE - 1)
    assert [run.cause for run in planned.runs] == [Cause.SCHEDULE]


def test_all_keeps_the_newest_thousand_and_counts_the_rest() -> None:
    now = NOW + 5_000 * EACH + 5 * SECOND
    planned = plan(a_job(catch_up=CatchUp(CatchUpPolicy.ALL)), [], now)
    fires = pending(planned)
    assert len(fires) == CATCH_UP_RUNS_MAX
    assert (fires[0], fires[-1]) == (NOW + 4_001 * EACH, NOW + 5_000 * EACH)
    assert skipped(planned) == [(Disposition.MISSED, NOW + EACH, 4_000)]


def test_ten_years_of_absence_are_one_run_and_one_row() -> None:
    planned = plan(a_job(), [], NOW + 3_650 * DAY)
    assert (len(pending(planned)), len(skipped(planned))) == (1, 1)


def test_a_limit_on_catching_up_takes_the_oldest_that_are_kept() -> None:
    planned = plan(a_job(catch_up=CatchUp(CatchUpPolicy.ALL), fires_max=2), [], NOW + 6 * EACH + 5 * SECOND)
    assert pending(planned) == [NOW + EACH, NOW + 2 * EACH]
    assert planned.job.next_fire_at is None


# ---- overlap ----------------------------------------------------------------------------------------------------

SKIPPED, RAN = "skipped", "ran"


@pytest.mark.parametrize(
    ("overlap", "unfinished", "expected"),
    [
        (Overlap.ALLOW, 0, RAN), (Overlap.ALLOW, 3, RAN),
        (Overlap.SKIP, 0, RAN), (Overlap.SKIP, 1, SKIPPED), (Overlap.SKIP, 2, SKIPPED),
        (Overlap.BUFFER_ONE, 0, RAN), (Overlap.BUFFER_ONE, 1, RAN), (Overlap.BUFFER_ONE, 2, SKIPPED),
        (Overlap.BUFFER_ALL, 2, RAN), (Overlap.BUFFER_ALL, BUFFERED_RUNS_MAX - 1, RAN),
        (Overlap.BUFFER_ALL, BUFFERED_RUNS_MAX, SKIPPED),
        (Overlap.CANCEL_OTHER, 2, RAN), (Overlap.TERMINATE_OTHER, 2, RAN),
    ],
)  # fmt: skip
def test_the_overlap_policy_says_whether_a_fire_time_runs(overlap: Overlap, unfinished: int, expected: str) -> None:
    job = a_job(overlap=overlap)
    runs = [a_run(job, NOW - index * EACH) for index in range(unfinished)]
    planned = plan(job, runs, NOW + EACH)
    assert [run.state for run in planned.runs] == [State.PENDING if expected == RAN else State.SKIPPED]
    assert expected == RAN or planned.runs[0].disposition is Disposition.SKIPPED_OVERLAP


@pytest.mark.parametrize(
    ("overlap", "was", "becomes"),
    [
        (Overlap.CANCEL_OTHER, State.PENDING, State.CANCELLED),
        (Overlap.CANCEL_OTHER, State.RUNNING, State.CANCELLING),
        (Overlap.CANCEL_OTHER, State.CANCELLING, None),
        (Overlap.TERMINATE_OTHER, State.PENDING, State.CANCELLED),
        (Overlap.TERMINATE_OTHER, State.RUNNING, State.CANCELLED),
        (Overlap.TERMINATE_OTHER, State.CANCELLING, State.CANCELLED),
    ],
)
def test_the_next_fire_time_ends_the_others(overlap: Overlap, was: State, becomes: State | None) -> None:
    job = a_job(overlap=overlap)
    changes = plan(job, [a_run(job, NOW, was)], NOW + EACH).changes
    assert [change.run.state for change in changes] == ([] if becomes is None else [becomes])


@pytest.mark.parametrize(
    ("overlap", "runs", "dropped"),
    [
        (Overlap.SKIP, [1], 3), (Overlap.BUFFER_ONE, [1, 2], 2), (Overlap.BUFFER_ALL, [1, 2, 3, 4], 0),
        (Overlap.CANCEL_OTHER, [4], 3), (Overlap.TERMINATE_OTHER, [4], 3),
    ],
)  # fmt: skip
def test_overlap_binds_the_fire_times_of_one_plan_among_themselves(
    overlap: Overlap, runs: list[int], dropped: int
) -> None:
    job = a_job(overlap=overlap, catch_up=CatchUp(CatchUpPolicy.ALL))
    planned = plan(job, [], NOW + 4 * EACH + 5 * SECOND)
    assert pending(planned) == [NOW + index * EACH for index in runs]
    assert sum(fires for _, _, fires in skipped(planned)) == dropped


# ---- what people ask for ----------------------------------------------------------------------------------------


def test_a_manual_run_moves_neither_cursor_nor_count() -> None:
    job = a_job(fires_max=1)
    planned, run = plan_now(job, [], NOW + SECOND, b"1")
    assert planned.job == job
    assert (run.cause, run.payload, run.due_at) == (Cause.MANUAL, b"1", NOW + SECOND)


def test_a_manual_run_gets_an_instant_that_is_not_taken() -> None:
    job = a_job()
    _, run = plan_now(job, [a_run(job, NOW)], NOW, taken={NOW + 1})
    assert run.fire_at == NOW + 2


def test_a_manual_run_is_due_now_whatever_the_jitter() -> None:
    _, run = plan_now(a_job(jitter_seconds=60), [], NOW + SECOND, taken={NOW + SECOND})
    assert run.due_at == NOW + SECOND


def test_a_manual_run_may_be_skipped() -> None:
    job = a_job(overlap=Overlap.SKIP)
    _, run = plan_now(job, [a_run(job, NOW)], NOW + SECOND)
    assert (run.state, run.disposition) == (State.SKIPPED, Disposition.SKIPPED_OVERLAP)


def test_a_backfill_runs_what_has_no_run_yet() -> None:
    planned = plan_backfill(a_job(), [], NOW - 3 * EACH, NOW, NOW, {NOW - 2 * EACH})
    assert pending(planned) == [NOW - 3 * EACH, NOW - EACH]


def test_a_backfill_under_skip_counts_only_what_it_skips() -> None:
    job = a_job(overlap=Overlap.SKIP)
    planned = plan_backfill(job, [], NOW - 4 * EACH, NOW, NOW, {NOW - 4 * EACH})
    assert pending(planned) == [NOW - 3 * EACH]
    assert skipped(planned) == [(Disposition.SKIPPED_OVERLAP, NOW - 2 * EACH, 2)]


def test_a_range_of_skipped_fire_times_covers_nothing_that_ran() -> None:
    job = a_job(overlap=Overlap.SKIP)
    planned = plan_backfill(job, [a_run(job, NOW)], NOW - 5 * EACH, NOW, NOW, {NOW - 3 * EACH})
    first, second = Disposition.SKIPPED_OVERLAP, Disposition.SKIPPED_OVERLAP
    assert skipped(planned) == [(first, NOW - 5 * EACH, 2), (second, NOW - 2 * EACH, 2)]


def test_a_backfill_stays_within_the_window_of_the_job() -> None:
    job = a_job(starts_at=NOW - 2 * EACH)
    assert pending(plan_backfill(job, [], NOW - DAY, NOW, NOW)) == [NOW - 2 * EACH, NOW - EACH]


def test_a_backfill_into_a_pause_accounts_for_the_pause_up_to_its_end() -> None:
    paused = pause(a_job(), [], NOW, None).job
    planned = plan_backfill(paused, [], NOW + 2 * EACH, NOW + 4 * EACH, NOW + 9 * EACH)
    assert skipped(planned) == [(Disposition.SKIPPED_PAUSED, NOW + EACH, 1)]
    assert pending(planned) == [NOW + 2 * EACH, NOW + 3 * EACH]
    resumed = resume(planned.job, NOW + 9 * EACH)
    assert skipped(resumed) == [(Disposition.SKIPPED_PAUSED, NOW + 4 * EACH, 6)]


# ---- pause, resume, revise at the slot --------------------------------------------------------------------------

SLOT = NOW + EACH


@pytest.mark.parametrize(("at", "kept"), [(SLOT - SECOND, False), (SLOT, True), (SLOT + SECOND, True)])
def test_a_pause_withdraws_what_was_planned_ahead_of_it(at: Instant, kept: bool) -> None:
    ahead = plan(a_job(), [], NOW, EACH)
    paused = pause(ahead.job, ahead.runs, at, None)
    assert (paused.withdrawals == ()) is kept
    assert paused.job.next_fire_at is None


@pytest.mark.parametrize("change", ["resume", "revise"])
@pytest.mark.parametrize("at", [SLOT - SECOND, SLOT, SLOT + SECOND])
def test_after_a_change_the_next_fire_is_that_of_the_rule(change: str, at: Instant) -> None:
    ahead = plan(a_job(), [], NOW, EACH)
    if change == "resume":
        planned = resume(pause(ahead.job, ahead.runs, at, None).job, at)
    else:
        planned = revise(ahead.job, replace(ahead.job, labels={"a": "b"}), ahead.runs, at)
    assert planned.job.next_fire_at == trigger_of(planned.job).next_fire(at)


def test_what_was_withdrawn_is_given_back_to_fires_max() -> None:
    ahead = plan(a_job(fires_max=1), [], NOW, EACH)
    assert ahead.job.next_fire_at is None
    paused = pause(ahead.job, ahead.runs, NOW + SECOND, None)
    assert resume(paused.job, NOW + 2 * SECOND).job.next_fire_at == SLOT


def test_a_run_claimed_ahead_of_its_time_is_ended_and_not_deleted() -> None:
    job = a_job()
    planned = pause(job, [a_run(job, SLOT, State.RUNNING)], SLOT - 1, None)
    assert planned.withdrawals == ()
    (change,) = planned.changes
    assert (change.run.state, change.run.disposition) == (State.CANCELLED, Disposition.WITHDRAWN)


def test_the_row_for_a_pause_begins_behind_a_run_that_was_claimed_ahead() -> None:
    job = a_job()
    unfinished = [a_run(job, SLOT), replace(a_run(job, SLOT + EACH, State.RUNNING), token=1)]
    paused = pause(job, unfinished, NOW, None)
    assert [change.run.fire_at for change in paused.changes] == [SLOT, SLOT + EACH], "both keep their rows"
    assert paused.withdrawals == ()
    assert skipped(resume(paused.job, SLOT + 3 * EACH)) == [(Disposition.SKIPPED_PAUSED, SLOT + 2 * EACH, 2)]
    assert resume(paused.job, NOW).job.next_fire_at == SLOT + 2 * EACH


@pytest.mark.parametrize("changes", [{"cause": Cause.MANUAL}, {"attempt": 1, "token": 1}, {"fire_at": NOW}])
def test_a_run_that_was_not_merely_planned_ahead_stays(changes: dict[str, Any]) -> None:
    job = a_job()
    planned = pause(job, [replace(a_run(job, SLOT), **changes)], NOW, None)
    assert (planned.withdrawals, planned.changes) == ((), ())


def test_what_passed_in_a_pause_is_one_skipped_row() -> None:
    paused = pause(a_job(), [], NOW, "holiday")
    planned = resume(paused.job, NOW + 4 * EACH + SECOND)
    assert skipped(planned) == [(Disposition.SKIPPED_PAUSED, NOW + EACH, 4)]
    assert planned.job.planned_until == NOW + 4 * EACH + SECOND


def test_a_new_rule_for_a_paused_job_closes_the_account_of_the_old_one() -> None:
    paused = pause(a_job(), [], NOW, None).job
    revised = replace(paused, trigger={"type": "interval", "every_seconds": 60})
    planned = revise(paused, revised, [], NOW + 3 * EACH)
    assert skipped(planned) == [(Disposition.SKIPPED_PAUSED, NOW + EACH, 3)]


def test_a_new_target_reaches_what_was_planned_ahead() -> None:
    ahead = plan(a_job(), [], NOW, EACH)
    revised = revise(ahead.job, replace(ahead.job, target=QueueTarget(queue="other")), ahead.runs, NOW + SECOND)
    assert [run.fire_at for run in revised.withdrawals] == [SLOT]
    assert [run.queue for run in plan(revised.job, [], NOW + SECOND, EACH).runs] == ["pull/other"]


def test_raising_fires_max_does_not_bring_back_what_passed() -> None:
    done = replace(a_job(fires_max=1, fires_count=1), next_fire_at=None)
    later = NOW + DAY
    assert revise(done, replace(done, fires_max=2), [], later).job.next_fire_at == later + EACH


def test_deleting_cancels_pending_runs_and_asks_running_ones_to_stop() -> None:
    job = a_job()
    unfinished = [a_run(job, NOW - EACH, State.RUNNING), a_run(job, NOW), a_run(job, NOW - 2 * EACH, State.CANCELLING)]
    planned = delete(job, unfinished, NOW)
    assert [change.run.state for change in planned.changes] == [State.CANCELLING, State.CANCELLED]
    assert planned.job.deleted_at == NOW


def test_a_job_planned_by_a_wrong_clock_goes_on_from_now() -> None:
    wrong = NOW + 3_650 * DAY
    planned = plan(a_job(), [], wrong)
    back = reanchor(planned.job, planned.runs[1:], NOW + SECOND)
    assert back.job.next_fire_at == SLOT
    assert [run.fire_at for run in back.withdrawals] == [wrong]


def test_a_retry_put_off_by_a_wrong_clock_is_put_off_from_now() -> None:
    job = a_job(planned_until=NOW + HOUR)
    run = a_run(job, NOW, created_at=NOW + HOUR, due_at=NOW + HOUR + EACH)
    (change,) = reanchor(job, [run], NOW + SECOND).changes
    assert change.run.due_at == NOW + SECOND + EACH


# ---- the whole --------------------------------------------------------------------------------------------------

jobs = st.builds(
    lambda every, overlap, policy, window, starts, ends, limit: a_job(
        trigger={"type": "interval", "every_seconds": every, "anchor": to_text(NOW - MINUTE)},
        overlap=overlap,
        catch_up=CatchUp(policy, window),
        starts_at=starts,
        ends_at=ends,
        fires_max=limit,
    ),
    st.sampled_from([1, 7, 10, 61]),
    st.sampled_from(Overlap),
    st.sampled_from(CatchUpPolicy),
    st.none() | st.integers(0, 100),
    st.none() | st.integers(NOW, NOW + 60 * SECOND),
    st.none() | st.integers(NOW + 61 * SECOND, NOW + 300 * SECOND),
    st.none() | st.integers(1, 5),
)


@settings(max_examples=150, deadline=None)
@given(job=jobs, steps=st.lists(st.integers(1, 90 * SECOND), min_size=1, max_size=6), ahead=st.integers(0, 5 * SECOND))
def test_every_fire_time_is_accounted_for_exactly_once(job: Job, steps: list[int], ahead: int) -> None:
    first, now, rows = job, NOW, list[Run]()
    for step in steps:
        now += step
        while job.next_fire_at is not None and job.next_fire_at <= now + ahead * (job.overlap is Overlap.ALLOW):
            planned = plan(job, [], now, ahead)
            assert planned.job.planned_until > job.planned_until
            rows += planned.runs
            job = planned.job
    until = job.planned_until
    expected = list_fires(first, NOW, until)
    covered = [fire for row in rows for fire in list_fires(first, row.fire_at - 1, row.last_fire_at or row.fire_at)]
    assert sorted(covered) == expected
    assert [row.fires for row in rows if row.last_fire_at] == [
        len(list_fires(first, row.fire_at - 1, row.last_fire_at)) for row in rows if row.last_fire_at
    ]
    assert job.fires_max is None or len([row for row in rows if row.state is State.PENDING]) <= job.fires_max


def list_fires(job: Job, after: Instant, until: Instant) -> list[Instant]:
    """The rule's own fire times in the job's window, one by one."""
    start = max(after, (job.starts_at or 0) - 1)
    end = until if job.ends_at is None else min(until, job.ends_at - 1)
    return trigger_of(job).list_fires(start, end, 10_000) if start < end else []


@settings(max_examples=100, deadline=None)
@given(job=jobs, early=st.integers(0, 100 * SECOND), late=st.integers(0, 100 * SECOND))
def test_two_planners_make_the_same_runs_for_the_same_fire_times(job: Job, early: int, late: int) -> None:
    one = {run.fire_at: run.id for run in plan(job, [], NOW + early).runs}
    other = {run.fire_at: run.id for run in plan(job, [], NOW + late).runs}
    assert all(one[fire] == other[fire] for fire in one.keys() & other.keys())


@settings(max_examples=100, deadline=None)
@given(job=jobs, at=st.integers(0, 200 * SECOND), then=st.integers(0, 200 * SECOND), ahead=st.integers(0, 20 * SECOND))
def test_pause_and_resume_lose_nothing_and_double_nothing(job: Job, at: int, then: int, ahead: int) -> None:
    planned = plan(job, [], NOW + at, ahead)
    paused = pause(planned.job, [run for run in planned.runs if run.state is State.PENDING], NOW + at, None)
    kept = [run for run in planned.runs if run not in paused.withdrawals]
    resumed = resume(paused.job, NOW + at + then)
    assert resumed.job.next_fire_at == next_fire(resumed.job, NOW + at + then)
    rows = [*kept, *resumed.runs]
    covered = [fire for row in rows for fire in list_fires(job, row.fire_at - 1, row.last_fire_at or row.fire_at)]
    assert len(covered) == len(set(covered))
