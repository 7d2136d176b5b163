"""Settling as a pure function: each outcome in each state, and the properties that hold for all of them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from horarium.clock import DAY, INSTANT_MAX, MINUTE, SECOND
from horarium.errors import StateConflict
from horarium.model import (
    HISTORY_MAX,
    TRANSITIONS,
    Cancelled,
    Deferred,
    Disposition,
    Failed,
    Job,
    Outcome,
    QueueTarget,
    Refused,
    Released,
    Run,
    State,
    Succeeded,
    lasting,
)
from horarium.policies import CANCEL_GRACE_SECONDS, Retention, Retry
from horarium.rules.refusals import PAUSE_SECONDS_MAX, REFUSALS_SECONDS
from horarium.rules.settling import (
    DEFER_MIN,
    RETRY_AFTER_SECONDS_MAX,
    begin,
    cancel,
    clipped,
    rescue,
    retry_delay_seconds,
    settle,
    terminate,
)
from horarium.rules.silences import APART_SECONDS_MAX
from horarium.rules.unbegun import unbegun
from tests.searching import tries

NOW = 1_767_571_200 * SECOND


def a_job(**changes: Any) -> Job:
    return Job(name="job", id="id", trigger={}, target=QueueTarget(queue="q"), **changes)


def a_run(state: State = State.RUNNING, **changes: Any) -> Run:
    claimed = {"token": 1, "attempt": 1, "started_at": NOW, "lease_expires_at": NOW + 30 * SECOND, "worker": "w"}
    held = claimed if state in (State.RUNNING, State.CANCELLING) else {}
    fields = {"id": "run", "queue": "pull/q", "fire_at": NOW, "due_at": NOW, "created_at": NOW, "job_id": "id"}
    return Run(**{**fields, "state": state, **held, **changes})


THREE = a_job(retry=Retry(attempts_max=3, backoff_seconds=10))
ONE = a_job(retry=Retry(attempts_max=1))


@pytest.mark.parametrize(
    ("state", "job", "outcome", "becomes", "disposition"),
    [
        (State.RUNNING, THREE, Succeeded(b"1"), State.COMPLETED, Disposition.RAN),
        (State.RUNNING, THREE, Failed("no"), State.PENDING, None),
        (State.RUNNING, ONE, Failed("no"), State.FAILED, Disposition.RAN),
        (State.RUNNING, THREE, Failed("no", retryable=False), State.FAILED, Disposition.RAN),
        (State.RUNNING, ONE, Deferred(NOW + MINUTE), State.PENDING, None),
        (State.RUNNING, ONE, Released(), State.PENDING, None),
        (State.RUNNING, ONE, Refused("no"), State.PENDING, None),
        (State.CANCELLING, ONE, Refused("no"), State.CANCELLED, Disposition.CANCELLED),
        (State.RUNNING, THREE, Cancelled("stop"), State.CANCELLED, Disposition.CANCELLED),
        (State.CANCELLING, THREE, Succeeded(), State.COMPLETED, Disposition.RAN),
        (State.CANCELLING, THREE, Failed("no"), State.CANCELLED, Disposition.CANCELLED),
        (State.CANCELLING, THREE, Deferred(NOW + MINUTE), State.CANCELLED, Disposition.CANCELLED),
        (State.CANCELLING, THREE, Released(), State.CANCELLED, Disposition.CANCELLED),
        (State.CANCELLING, THREE, Cancelled(), State.CANCELLED, Disposition.CANCELLED),
    ],
)
def test_an_outcome_ends_the_attempt(
    state: State, job: Job, outcome: Outcome, becomes: State, disposition: Disposition | None
) -> None:
    after = settle(a_run(state), job, outcome, NOW + SECOND)
    assert (after.state, after.disposition, after.lease_expires_at) == (becomes, disposition, None)
    assert (after.finished_at is None) is (becomes is State.PENDING)


@pytest.mark.parametrize("outcome", [Deferred(NOW + MINUTE), Released(), Refused("no")])
def test_what_was_not_performed_costs_no_attempt(outcome: Outcome) -> None:
    assert settle(a_run(attempt=2), ONE, outcome, NOW).attempt == 1


@pytest.mark.parametrize(
    ("until", "due_at"),
    [(0, NOW + DEFER_MIN), (NOW, NOW + DEFER_MIN), (NOW + MINUTE, NOW + MINUTE), (INSTANT_MAX * 9, INSTANT_MAX)],
)
def test_a_deferral_is_neither_too_short_nor_beyond_all_time(until: int, due_at: int) -> None:
    assert settle(a_run(), THREE, Deferred(until), NOW).due_at == due_at


def test_a_deferred_run_has_as_long_to_be_started_as_before() -> None:
    after = settle(a_run(start_by=NOW + 5 * SECOND), THREE, Deferred(NOW + MINUTE), NOW)
    assert after.start_by == NOW + MINUTE + 5 * SECOND


def refused(run: Run, now: int) -> Run:
    """What a run is that is claimed when it is due, and refused."""
    claimed = replace(run, state=State.RUNNING, attempt=run.attempt + 1) if run.state is State.PENDING else run
    return settle(claimed, THREE, Refused("no argument 'x'"), now)


def test_a_run_that_workers_refuse_waits_ever_longer_and_fails_after_ten_minutes() -> None:
    run, now, pauses = a_run(), NOW, []
    while (run := refused(run, now)).state is State.PENDING:
        pauses.append((run.due_at - now) // SECOND)
        now = run.due_at
    assert pauses[:7] == [1, 2, 4, 8, 10, 10, 10]
    assert REFUSALS_SECONDS <= (now - NOW) // SECOND < REFUSALS_SECONDS + PAUSE_SECONDS_MAX
    assert (run.state, run.attempt, run.error) == (State.FAILED, 1, "no argument 'x'")


def test_refusals_of_another_attempt_do_not_count() -> None:
    run = refused(a_run(), NOW)
    run = settle(replace(run, state=State.RUNNING, attempt=1), THREE, Failed("no", retry_after_seconds=3600), NOW)
    run = refused(run, run.due_at)
    assert (run.state, run.attempt) == (State.PENDING, 1)


@pytest.mark.parametrize("outcome", [Failed("no", retry_after_seconds=61), Deferred(NOW + 61 * SECOND)])
def test_no_attempt_begins_beyond_the_age_of_the_policy(outcome: Outcome) -> None:
    job = a_job(retry=Retry(attempts_max=9, age_max_seconds=60))
    after = settle(a_run(), job, outcome, NOW)
    assert after.state is State.FAILED
    assert "too old" in (after.error or "")


def test_the_age_of_a_backfilled_run_begins_when_it_was_asked_for() -> None:
    job = a_job(retry=Retry(attempts_max=9, age_max_seconds=60))
    assert settle(a_run(fire_at=NOW - DAY), job, Failed("no"), NOW).state is State.PENDING


@pytest.mark.parametrize(
    ("asked", "given"), [(0, 0), (-5, 0), (30, 30), (10**9, RETRY_AFTER_SECONDS_MAX), (float("inf"), 86_400)]
)
def test_the_delay_that_the_target_asks_for_is_honoured_within_a_day(asked: float, given: float) -> None:
    assert retry_delay_seconds(a_run(), Retry(), asked) == given


def test_a_delay_that_is_no_number_is_not_one() -> None:
    assert settle(a_run(), THREE, Failed("no", retry_after_seconds=float("nan")), NOW).due_at > NOW


@tries(200)
@given(
    attempt=st.integers(1, 100),
    backoff=st.floats(0, 1e8),
    factor=st.floats(1, 100),
    longest=st.floats(0, 1e8),
)
def test_back_off_grows_within_its_bounds(attempt: int, backoff: float, factor: float, longest: float) -> None:
    retry = Retry(backoff_seconds=backoff, backoff_factor=factor, backoff_max_seconds=longest)
    delay = retry_delay_seconds(a_run(attempt=attempt), retry)
    full = min(backoff * factor ** min(attempt - 1, 64), longest)
    assert full / 2 <= delay <= full


# ---- rescue -----------------------------------------------------------------------------------------------------


def test_a_lost_attempt_is_made_again_at_once() -> None:
    after = rescue(a_run(), THREE, NOW + MINUTE)
    assert (after.state, after.due_at, after.attempt) == (State.PENDING, NOW + MINUTE, 1)
    assert "lost: no heartbeat from w within 30 s" in (after.error or "")
    on_a_bus = rescue(begin(replace(a_run(), queue="bus/default"), NOW, NOW), THREE, NOW + MINUTE)
    assert on_a_bus.error == "lost: no heartbeat from a worker on bus/default within 30 s", "not from our own node"


def lost_again(number: int, job: Job, attempt: int = 2, **changes: Any) -> Run:
    """A run that fell silent for the second time, rescued."""
    run = rescue(a_run(id=f"run-{number}", token=attempt - 1, attempt=attempt - 1, **changes), job, NOW + MINUTE)
    lease = NOW + MINUTE + 30 * SECOND
    run = replace(run, state=State.RUNNING, token=attempt, attempt=attempt, started_at=NOW + MINUTE, worker="w")
    return rescue(replace(run, lease_expires_at=lease), job, NOW + 2 * MINUTE)


@pytest.mark.parametrize(
    "job", [THREE, a_job(retry=Retry(attempts_max=1, silences_max=5)), a_job(retry=Retry(attempts_max=9))]
)
def test_what_fell_silent_together_twice_is_tried_apart(job: Job) -> None:
    after = [lost_again(number, job) for number in range(100)]
    waits = sorted(run.due_at - (NOW + 2 * MINUTE) for run in after)
    assert {run.state for run in after} == {State.PENDING}
    assert waits[0] >= 0
    assert waits[-1] < APART_SECONDS_MAX * SECOND
    beside = max(sum(begins <= other < begins + SECOND // 10 for other in waits) for begins in waits)
    assert beside <= 6, "of a hundred, those that begin within a tenth of a second"
    assert lost_again(7, job) == lost_again(7, job), "the same on every node"


def test_short_leases_are_short_pauses_and_no_pause_makes_a_run_too_old() -> None:
    for number in range(20):
        assert lost_again(number, THREE, lease_seconds=1).due_at < NOW + 2 * MINUTE + SECOND
        old = a_job(retry=Retry(attempts_max=3, age_max_seconds=120.000_001))
        assert lost_again(number, old).due_at <= NOW + 2 * MINUTE + 1


def test_the_last_attempt_is_apart_even_after_a_first_silence() -> None:
    two = a_job(retry=Retry(attempts_max=2))
    due = {rescue(a_run(id=f"run-{number}"), two, NOW + MINUTE).due_at for number in range(20)}
    assert len(due) == 20


def test_what_was_never_begun_waits_for_nothing() -> None:
    lost = lost_again(1, THREE)
    assert lost.due_at > NOW + 2 * MINUTE
    given_back = unbegun(lost, lost.token, THREE, NOW + 2 * MINUTE)
    assert given_back is not None
    assert (given_back.due_at, given_back.attempt) == (NOW + 2 * MINUTE, 1)


def test_an_attempt_that_took_too_long_is_made_again_after_its_back_off() -> None:
    run = a_run(execution_seconds=10, deadline=NOW + 10 * SECOND, lease_expires_at=NOW + 10 * SECOND)
    after = rescue(run, THREE, NOW + 11 * SECOND)
    assert after.due_at >= NOW + 16 * SECOND
    assert "timed out: not done within 10 s" in (after.error or "")


def test_a_run_that_kills_its_workers_does_so_a_bounded_number_of_times() -> None:
    assert rescue(a_run(attempt=3), THREE, NOW + MINUTE).state is State.FAILED


def test_a_run_that_was_not_started_in_time_fails() -> None:
    after = rescue(a_run(State.PENDING, start_by=NOW), THREE, NOW)
    assert (after.state, after.disposition) == (State.FAILED, Disposition.NOT_STARTED)


def test_a_cancel_whose_grace_ran_out_is_enforced() -> None:
    assert rescue(a_run(State.CANCELLING), THREE, NOW + MINUTE).state is State.CANCELLED


# ---- cancel -----------------------------------------------------------------------------------------------------


def test_cancelling_a_pending_run_ends_it() -> None:
    after = cancel(a_run(State.PENDING), Retention(), NOW, "why")
    assert (after.state, after.error, after.finished_at) == (State.CANCELLED, "why", NOW)


def test_cancelling_a_running_run_asks_it_to_stop_within_the_grace() -> None:
    """As long as a lease at least: its worker hears of it with its next heartbeat."""
    for seconds in (1, CANCEL_GRACE_SECONDS, 100):
        after = cancel(a_run(lease_seconds=seconds), Retention(), NOW, "why")
        assert (after.state, after.lease_expires_at) == (
            State.CANCELLING,
            lasting(max(seconds, CANCEL_GRACE_SECONDS)),
        )


def test_asking_twice_changes_nothing() -> None:
    run = a_run(State.CANCELLING)
    assert cancel(run, Retention(), NOW, "why") == run


@pytest.mark.parametrize("state", [State.COMPLETED, State.FAILED, State.CANCELLED, State.SKIPPED])
def test_what_is_finished_cannot_be_cancelled(state: State) -> None:
    with pytest.raises(StateConflict):
        cancel(a_run(state), Retention(), NOW, "why")


@pytest.mark.parametrize("state", [State.PENDING, State.RUNNING, State.CANCELLING])
def test_terminating_ends_it_at_once(state: State) -> None:
    assert terminate(a_run(state), Retention(), NOW, "why").state is State.CANCELLED


# ---- the whole --------------------------------------------------------------------------------------------------

outcomes = st.one_of(
    st.builds(Succeeded, st.none() | st.just(b"1")),
    st.builds(Failed, st.text(max_size=20), st.booleans(), st.none() | st.floats(allow_nan=True)),
    st.builds(Deferred, st.integers(-(2**62), 2**62), st.text(max_size=20)),
    st.builds(Released),
    st.builds(Refused, st.text(max_size=20)),
    st.builds(Cancelled),
)


@tries(300)
@given(
    state=st.sampled_from([State.RUNNING, State.CANCELLING]),
    attempt=st.integers(1, 5),
    outcome=outcomes,
    later=st.integers(0, DAY),
    kept=st.none() | st.integers(0, 100),
)
def test_every_outcome_leads_where_the_table_of_states_allows(
    state: State, attempt: int, outcome: Outcome, later: int, kept: int | None
) -> None:
    job = replace(THREE, retention=Retention(finished_seconds=kept))
    after = settle(a_run(state, attempt=attempt), job, outcome, NOW + later)
    assert after.state in TRANSITIONS[state]
    assert after.finished == (after.finished_at is not None)
    assert after.prune_at == (None if kept is None or not after.finished else NOW + later + kept * SECOND)
    assert after.state is not State.PENDING or (after.attempt < 3 or attempt > 3)
    assert (after.token, after.id) == (1, "run")


def test_history_is_bounded_and_keeps_its_ends() -> None:
    run = a_run()
    for index in range(HISTORY_MAX):
        after = settle(run, ONE, Released(f"no {index}"), NOW + index)
        run = replace(after, state=State.RUNNING, started_at=NOW + index, lease_expires_at=NOW + DAY, attempt=1)
    assert len(run.history) == HISTORY_MAX
    assert (run.history[1].message, run.history[-1].message) == ("no 0", f"no {HISTORY_MAX - 1}")


@pytest.mark.parametrize("text", ["a\x00b", "\ud800", "x" * 10_000])
def test_an_error_text_can_be_kept_anywhere(text: str) -> None:
    kept = clipped(text)
    assert "\x00" not in kept
    assert len(kept.encode()) <= 16_000
    assert len(kept) <= 4_000
