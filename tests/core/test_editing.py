"""What people ask for, as pure functions: runs by hand, backfills, pauses and changes of a job."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from horarium.clock import DAY, HOUR, SECOND, Instant
from horarium.model import Cause, Disposition, Plan, QueueTarget, State
from horarium.policies import Overlap
from horarium.rules.compiled import trigger_of
from horarium.rules.editing import delete, edit, pause, plan_backfill, plan_now, reanchor
from horarium.rules.holds import JobHold
from horarium.rules.planning import plan, resume
from horarium.rules.reconciling import reconciled
from tests.core.planned import EACH, NOW, a_job, a_run, pending, skipped

# ---- what people ask for ------------------------------------------------------------------------------------------


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


# ---- pause, resume, revise at the slot ----------------------------------------------------------------------------

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
        planned = edit(ahead.job, replace(ahead.job, labels={"a": "b"}), ahead.runs, at)
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
    planned = edit(paused, revised, [], NOW + 3 * EACH)
    assert skipped(planned) == [(Disposition.SKIPPED_PAUSED, NOW + EACH, 3)]


def test_a_new_target_reaches_what_was_planned_ahead() -> None:
    ahead = plan(a_job(), [], NOW, EACH)
    revised = edit(ahead.job, replace(ahead.job, target=QueueTarget(queue="other")), ahead.runs, NOW + SECOND)
    assert [run.fire_at for run in revised.withdrawals] == [SLOT]
    assert [run.queue for run in plan(revised.job, [], NOW + SECOND, EACH).runs] == ["pull/other"]


def test_raising_fires_max_does_not_bring_back_what_passed() -> None:
    done = replace(a_job(fires_max=1, fires_count=1), next_fire_at=None)
    later = NOW + DAY
    assert edit(done, replace(done, fires_max=2), [], later).job.next_fire_at == later + EACH


def test_deleting_cancels_pending_runs_and_asks_running_ones_to_stop() -> None:
    job = a_job()
    unfinished = [a_run(job, NOW - EACH, State.RUNNING), a_run(job, NOW), a_run(job, NOW - 2 * EACH, State.CANCELLING)]
    planned = reconciled(delete(job, NOW), unfinished, NOW)
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


def ended(planned: Plan) -> list[Instant]:
    return [change.run.fire_at for change in planned.changes if change.run.state is State.CANCELLED]


def test_work_under_way_outlives_the_clock_that_began_it() -> None:
    job = a_job(planned_until=NOW + HOUR, fires_count=2)
    begun = a_run(job, NOW + HOUR, State.RUNNING, started_at=NOW + HOUR + 1)
    ahead = a_run(job, NOW + HOUR + EACH, State.RUNNING)
    back = reanchor(job, [begun, ahead], NOW + SECOND)
    assert ended(back) == [ahead.fire_at]
    assert (back.job.fires_count, back.job.next_fire_at) == (1, SLOT)


def test_work_claimed_ahead_of_its_time_outlives_the_clock_by_which_it_began() -> None:
    job = a_job(planned_until=NOW + HOUR, fires_count=2)
    begun, ahead = (a_run(job, at, State.RUNNING, started_at=at) for at in (NOW + HOUR, NOW + HOUR + EACH))
    back = reanchor(job, [begun, ahead], NOW + SECOND, wrong_at=NOW + HOUR)
    assert ended(back) == [ahead.fire_at]
    (kept,) = (change.run for change in back.changes if change.run.state is State.RUNNING)
    assert ended(pause(back.job, [kept], NOW + 2 * SECOND, None)) == []


def test_a_run_that_was_given_back_under_a_wrong_clock_is_ended_once() -> None:
    job = a_job(planned_until=NOW + HOUR)
    run = a_run(job, NOW + HOUR, token=1, created_at=NOW + HOUR, due_at=NOW + HOUR + EACH)
    assert [change.run.state for change in reanchor(job, [run], NOW + SECOND).changes] == [State.CANCELLED]


@pytest.mark.parametrize("is_held", [True, False])
def test_what_passed_under_a_hold_or_a_pause_has_its_row_where_an_edit_makes_the_last_run_the_last(
    is_held: bool,
) -> None:
    job, now = a_job(fires_max=9, fires_count=1), NOW + 2 * EACH
    job = plan(job, [], now, held=JobHold(until=now + EACH)).job if is_held else pause(job, [], NOW, None).job
    edited = edit(job, replace(job, fires_max=1), [], now)
    kind = Disposition.HELD if is_held else Disposition.SKIPPED_PAUSED
    assert skipped(edited) == [(kind, NOW + EACH, 2)]
    assert edited.job.planned_until == now
