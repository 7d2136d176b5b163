"""Planning as a pure function: tables for each policy, properties for the whole."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horarium.clock import DAY, MINUTE, SECOND, Instant, to_text
from horarium.model import Cause, Disposition, Job, Run, State, run_id
from horarium.policies import CatchUp, CatchUpPolicy, Concurrency, Overlap, Timeouts
from horarium.rules.catching_up import CATCH_UP_RUNS_MAX
from horarium.rules.compiled import trigger_of
from horarium.rules.editing import pause
from horarium.rules.overridden import MISFIRE_GRACE
from horarium.rules.planning import BUFFERED_RUNS_MAX, next_fire, plan, resume
from tests.core.planned import EACH, NOW, a_job, a_run, pending, skipped
from tests.searching import tries

# ---- on time ------------------------------------------------------------------------------------------------------


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
def test_a_run_does_not_make_way_for_its_own_fire_time_that_comes_again(overlap: Overlap) -> None:
    """The clock went back, and the cursor with it."""
    job = a_job(overlap=overlap)
    planned = plan(job, [a_run(job, NOW + EACH)], NOW + EACH)
    assert (planned.runs, planned.changes, planned.job.fires_count) == ((), (), 0)


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


# ---- window and count ---------------------------------------------------------------------------------------------


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


# ---- catch-up -----------------------------------------------------------------------------------------------------


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


# ---- overlap ------------------------------------------------------------------------------------------------------

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


# ---- the whole ----------------------------------------------------------------------------------------------------

jobs = st.builds(
    lambda every, overlap, policy, window, starts, ends, limit: a_job(
        trigger={"type": "interval", "every_seconds": every, "anchor": to_text(NOW - MINUTE)},
        overlap=overlap,
        catch_up=CatchUp(policy, window, within_seconds=60),
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


@tries(150)
@given(job=jobs, steps=st.lists(st.integers(1, 90 * SECOND), min_size=1, max_size=6), ahead=st.integers(0, 5 * SECOND))
def test_every_fire_time_is_accounted_for_exactly_once(job: Job, steps: list[int], ahead: int) -> None:
    first, now, rows = job, NOW, list[Run]()
    for step in steps:
        now += step
        while job.next_fire_at is not None and job.next_fire_at <= now + ahead * (job.overlap is Overlap.ALLOW):
            planned = plan(job, [], now, ahead)
            assert planned.job.planned_until > job.planned_until or planned.job.missed != job.missed
            rows += planned.runs
            job = planned.job
    until = job.planned_until
    expected = list_fires(first, NOW, until)
    covered = [fire for row in rows for fire in list_fires(first, row.fire_at - 1, row.last_fire_at or row.fire_at)]
    asked = () if job.missed is None else job.missed.stretches
    covered += [fire for each in asked for fire in list_fires(first, each.first - 1, each.last)]
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


@tries(100)
@given(job=jobs, early=st.integers(0, 100 * SECOND), late=st.integers(0, 100 * SECOND))
def test_two_planners_make_the_same_runs_for_the_same_fire_times(job: Job, early: int, late: int) -> None:
    one = {run.fire_at: run.id for run in plan(job, [], NOW + early).runs}
    other = {run.fire_at: run.id for run in plan(job, [], NOW + late).runs}
    assert all(one[fire] == other[fire] for fire in one.keys() & other.keys())


@tries(100)
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


@pytest.mark.parametrize(
    ("overlap", "states", "runs"),
    [
        (Overlap.ALLOW, [], 2), (Overlap.ALLOW, [State.PENDING], 1), (Overlap.ALLOW, [State.PENDING] * 2, 0),
        (Overlap.ALLOW, [State.RUNNING] * 3, 2), (Overlap.BUFFER_ALL, [State.RUNNING, State.PENDING], 1),
        (Overlap.BUFFER_ONE, [State.RUNNING], 1), (Overlap.SKIP, [State.RUNNING], 0),
    ],
)  # fmt: skip
def test_buffer_max_bounds_what_is_pending(overlap: Overlap, states: list[State], runs: int) -> None:
    job = a_job(buffer_max=2, overlap=overlap, catch_up=CatchUp(CatchUpPolicy.ALL))
    unfinished = [a_run(job, NOW - number, state) for number, state in enumerate(states)]
    planned = plan(job, unfinished, NOW + 3 * EACH, 5 * EACH)
    assert len(pending(planned)) == runs
    assert sum(count for _, _, count in skipped(planned)) == 3 - runs
    assert planned.job.planned_until == NOW + 3 * EACH, "what waits for how runs end is not planned ahead"
