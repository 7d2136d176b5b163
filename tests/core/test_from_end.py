"""Jobs that count from the end of their last run: one run at a time, and the delay after each end."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from horarium.clock import HOUR, MINUTE, SECOND, Instant
from horarium.model import Cause, Disposition, Failed, Job, Plan, Run, State, Succeeded
from horarium.policies import CatchUp, CatchUpPolicy, Overlap, Retention, Retry
from horarium.rules.compiled import KEPT_BEYOND, retention_of_job
from horarium.rules.editing import edit, pause, reanchor
from horarium.rules.planning import job_fires, last_run_id, next_fire, plan, resume
from horarium.rules.settling import cancel, rescue, retention_of, settle
from tests.core.planned import EACH, NOW, a_run, pending, skipped
from tests.core.planned import a_job as any_job

FROM_END = {"type": "interval", "every_seconds": EACH // SECOND, "from": "end"}


def a_job(**changes: Any) -> Job:
    """Fires ten seconds after NOW, and then ten seconds after each end."""
    return any_job(**{"trigger": FROM_END, "anchor_at": NOW, **changes})


def fired(job: Job) -> tuple[Job, Run]:
    """The job after its first fire time, and its run."""
    planned = plan(job, [], NOW + EACH)
    (run,) = planned.runs
    return planned.job, replace(run, state=State.RUNNING, token=1, attempt=1, started_at=NOW + EACH, worker="w",
                                lease_expires_at=NOW + EACH + MINUTE)  # fmt: skip


def ended(run: Run, at: Instant) -> Run:
    return settle(run, None, Succeeded(), at)


def step(job: Job, last: Run | None, now: Instant) -> Plan:
    return plan(job, [] if last is None or last.finished else [last], now, last=last)


def test_the_first_run_comes_a_delay_after_the_job_was_defined() -> None:
    job = a_job()
    assert job.next_fire_at == NOW + EACH
    assert plan(job, [], NOW + EACH - 1).runs == ()
    assert pending(plan(job, [], NOW + EACH)) == [NOW + EACH]


def test_the_next_run_comes_a_delay_after_the_end_of_the_last() -> None:
    job, run = fired(a_job())
    assert last_run_id(job) == run.id
    end = NOW + EACH + 3 * SECOND
    looked = step(job, ended(run, end), job.next_fire_at or 0)
    assert (looked.runs, looked.job.next_fire_at) == ((), end + EACH)
    assert pending(step(looked.job, None, end + EACH)) == [end + EACH]


@pytest.mark.parametrize("took", [0, 1, 3 * SECOND, EACH, EACH + 1, 25 * SECOND, HOUR])
def test_no_end_is_noticed_too_late(took: int) -> None:
    """However long a run takes: planned at the instants that the job names itself, the next run is never late."""
    job, run = fired(a_job())
    end = NOW + EACH + took
    now = NOW + EACH
    for _ in range(1_000):
        now = job.next_fire_at or 0
        planned = step(job, ended(run, end) if end <= now else run, now)
        job = planned.job
        if planned.runs:
            break
    assert (now, pending(planned)) == (end + EACH, [end + EACH])


@pytest.mark.parametrize(
    "end_of",
    [
        lambda run, job, at: settle(run, job, Failed("no", retryable=False), at),
        lambda run, job, at: settle(replace(run, state=State.CANCELLING), job, Failed("stopped"), at),
        lambda run, job, at: rescue(replace(run, lease_expires_at=at), job, at),
        lambda run, job, at: cancel(replace(run, state=State.PENDING), job.retention, at, "no"),
    ],
    ids=["failed", "cancelled", "lost", "cancelled before it began"],
)
def test_every_end_counts(end_of: Any) -> None:
    job, run = fired(a_job(retry=Retry(attempts_max=1)))
    last = end_of(run, job, NOW + EACH + 7 * SECOND)
    assert last.finished
    assert step(job, last, NOW + 2 * EACH).job.next_fire_at == NOW + 2 * EACH + 7 * SECOND


def test_a_run_that_is_tried_again_is_not_over() -> None:
    job, run = fired(a_job())
    again = settle(run, job, Failed("once more"), NOW + EACH + SECOND)
    assert again.state is State.PENDING
    looked = step(job, again, NOW + 2 * EACH)
    assert (looked.runs, looked.job.next_fire_at) == ((), NOW + 3 * EACH)


def test_jitter_is_added_to_when_it_is_due() -> None:
    (run,) = plan(a_job(jitter_seconds=5), [], NOW + EACH).runs
    assert NOW + EACH < run.due_at < NOW + EACH + 5 * SECOND
    assert run.fire_at == NOW + EACH


@pytest.mark.parametrize(
    ("catch_up", "made", "dropped"),
    [
        (CatchUp(), 1, 0), (CatchUp(CatchUpPolicy.ALL), 1, 0), (CatchUp(CatchUpPolicy.NONE), 0, 1),
        (CatchUp(window_seconds=60), 0, 1),
    ],
)  # fmt: skip
def test_after_an_absence_one_run_is_owed(catch_up: CatchUp, made: int, dropped: int) -> None:
    job, run = fired(a_job(catch_up=catch_up))
    now = NOW + HOUR
    planned = step(job, ended(run, NOW + EACH + SECOND), now)
    assert (len(pending(planned)), len(skipped(planned))) == (made, dropped)
    assert {each.fire_at for each in planned.runs} == {NOW + 2 * EACH + SECOND}
    assert all(each.cause is Cause.CATCH_UP and each.due_at == now for each in planned.runs if made)
    assert planned.job.next_fire_at == now + EACH
    if dropped:
        assert pending(step(planned.job, planned.runs[0], now + EACH)) == [now + EACH], "counted from the dropped one"


def test_a_pause_ends_with_the_next_run_within_one_delay() -> None:
    job, run = fired(a_job())
    later = NOW + HOUR
    paused = pause(job, [run], NOW + EACH + SECOND, None).job
    resumed = resume(paused, later)
    assert resumed.runs == (), "no fire times passed"
    going_on = step(resumed.job, ended(run, NOW + EACH + 2 * SECOND), resumed.job.next_fire_at or 0)
    first = going_on.runs[0].fire_at if going_on.runs else going_on.job.next_fire_at
    assert first is not None
    assert later < first <= later + 2 * EACH
    held = step(resumed.job, run, resumed.job.next_fire_at or 0)
    assert held.runs == (), "a run that goes on holds the next one back all the same"


def test_a_new_delay_counts_from_the_same_end() -> None:
    job, run = fired(a_job())
    shorter = replace(job, trigger={**FROM_END, "every_seconds": 4})
    changed = edit(job, shorter, [run], NOW + EACH + SECOND).job
    assert step(changed, run, changed.next_fire_at or 0).runs == (), "the run that goes on holds it back"
    end = NOW + EACH + 2 * SECOND
    assert step(changed, ended(run, end), changed.next_fire_at or 0).job.next_fire_at == end + 4 * SECOND


def test_overlap_is_judged_by_what_was_asked_for_by_hand() -> None:
    job = a_job(overlap=Overlap.SKIP)
    by_hand = a_run(job, NOW + 1, State.RUNNING)
    planned = plan(job, [by_hand], NOW + EACH)
    assert skipped(planned) == [(Disposition.SKIPPED_OVERLAP, NOW + EACH, 1)]
    assert step(planned.job, planned.runs[0], NOW + 2 * EACH).runs[0].state is State.PENDING


def test_fires_max_counts_its_runs() -> None:
    job, run = fired(a_job(fires_max=1))
    assert job.next_fire_at is None
    assert next_fire(job, NOW) is None
    assert step(job, ended(run, NOW + EACH + 1), NOW + HOUR).runs == ()


def test_the_fire_times_ahead_are_the_earliest_possible() -> None:
    job, run = fired(a_job())
    looked = step(job, ended(run, NOW + EACH + 3 * SECOND), NOW + 2 * EACH).job
    first = NOW + 2 * EACH + 3 * SECOND
    assert job_fires(looked, NOW + 2 * EACH, 3) == [first, first + EACH, first + 2 * EACH]


def test_the_last_run_is_kept_until_the_next_is_due() -> None:
    job = a_job(retention=Retention(finished_seconds=0, runs_max=0))
    _, run = fired(job)
    assert retention_of_job(job) == Retention((EACH + KEPT_BEYOND) / SECOND, 1)
    assert retention_of(run, job) == retention_of_job(job)
    assert settle(run, job, Succeeded(), NOW).prune_at == NOW + EACH + KEPT_BEYOND
    grid = any_job(retention=Retention(finished_seconds=0))
    assert retention_of(a_run(grid, NOW), grid) == Retention(finished_seconds=0)


def test_a_clock_that_was_ahead_for_a_while_silences_no_job() -> None:
    ten_years = 3_650 * 24 * HOUR
    ahead = replace(a_job(), anchor_at=NOW + ten_years, planned_until=NOW + ten_years)
    assert reanchor(ahead, [], NOW).job.next_fire_at == NOW + EACH
