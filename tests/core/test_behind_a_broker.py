"""Runs that go to a broker: when their time begins, what silence costs, and how they are stopped."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from horarium.clock import MINUTE, SECOND
from horarium.model import (
    Cancelled,
    Disposition,
    EventKind,
    Failed,
    Job,
    QueueTarget,
    Run,
    State,
    Succeeded,
    awaits_worker,
    deadline_of,
    lasting,
    lease_end,
    shown_state,
)
from horarium.policies import CANCEL_GRACE_SECONDS, Retention, Retry
from horarium.rules.settling import begin, cancel, handed_over, heard_at, rescue, settle, wait_seconds

NOW = 1_767_571_200 * SECOND


def a_job(**retry: Any) -> Job:
    return Job(name="job", id="id", trigger={}, target=QueueTarget(queue="q"), retry=Retry(**retry))


def a_run(queue: str = "bus/default", **changes: Any) -> Run:
    run = Run(
        id="run", queue=queue, fire_at=NOW, due_at=NOW, created_at=NOW, job_id="id", state=State.RUNNING, token=1,
        attempt=1, started_at=NOW, worker="w",
    )  # fmt: skip
    run = replace(run, **changes)
    run = replace(run, deadline=deadline_of(run, NOW))
    return replace(run, lease_expires_at=lease_end(run, NOW))


def at_broker(**changes: Any) -> Run:
    return handed_over(a_run(**changes), NOW, NOW)


def test_it_is_pending_until_a_worker_begins() -> None:
    run = at_broker()
    assert (awaits_worker(run), shown_state(run), run.started_at) == (True, State.PENDING, None)
    begun = begin(run, NOW + MINUTE, NOW + MINUTE)
    assert (awaits_worker(begun), shown_state(begun), begun.started_at) == (False, State.RUNNING, NOW + MINUTE)
    assert begun.lease_expires_at == NOW + MINUTE + 30 * SECOND


def test_other_targets_run_from_their_claim_on() -> None:
    assert shown_state(a_run("pull/q")) is State.RUNNING


def test_its_time_limit_counts_from_then_on() -> None:
    begun = begin(at_broker(execution_seconds=5), NOW + MINUTE, NOW + MINUTE)
    assert begun.lease_expires_at == NOW + MINUTE + 5 * SECOND


def test_a_worker_that_begins_before_the_run_is_handed_over_is_known_by_a_later_lease() -> None:
    claimed = a_run()
    for now in (NOW, NOW + 1, NOW - MINUTE):
        assert (begin(claimed, now, now).lease_expires_at or 0) > (claimed.lease_expires_at or 0)


@pytest.mark.parametrize(("lease", "waits"), [(1, 10), (30, 300), (24 * 3600, 3600)])
def test_it_waits_ten_leases_long(lease: float, waits: float) -> None:
    assert wait_seconds(a_run(lease_seconds=lease)) == waits
    assert at_broker(lease_seconds=lease).lease_expires_at == NOW + waits * SECOND
    assert at_broker(start_by=NOW + 3 * SECOND).lease_expires_at == NOW + 3 * SECOND


def test_what_no_worker_took_is_sent_again_and_costs_no_attempt() -> None:
    run = at_broker()
    for _ in range(3):
        after = rescue(run, a_job(attempts_max=1), NOW + 300 * SECOND)
        assert (after.state, after.attempt, after.due_at) == (State.PENDING, 0, NOW + 300 * SECOND)
        assert [event.kind for event in after.history] == [EventKind.UNTAKEN], "said once"
        run = handed_over(replace(after, state=State.RUNNING, attempt=1, token=2), NOW, NOW)


def test_what_is_too_old_by_then_fails() -> None:
    after = rescue(at_broker(), a_job(age_max_seconds=60), NOW + 300 * SECOND)
    assert (after.state, after.disposition) == (State.FAILED, Disposition.NOT_STARTED)


# ---- silence ----------------------------------------------------------------------------------------------------


def silent(run: Run, job: Job) -> Run:
    return rescue(begin(run, NOW, NOW), job, NOW + MINUTE)


def again(run: Run) -> Run:
    """Claimed once more."""
    taken = replace(run, state=State.RUNNING, attempt=run.attempt + 1, token=run.token + 1, started_at=NOW)
    return replace(taken, lease_expires_at=lease_end(taken, NOW))


def test_silence_costs_an_attempt_unless_it_has_a_budget_of_its_own() -> None:
    assert silent(a_run(), a_job(attempts_max=2)).attempt == 1
    assert silent(a_run(), a_job(attempts_max=1)).state is State.FAILED
    put_back = silent(a_run(), a_job(attempts_max=1, silences_max=1))
    assert (put_back.state, put_back.attempt) == (State.PENDING, 0)
    assert silent(again(put_back), a_job(attempts_max=1, silences_max=1)).state is State.FAILED


def test_silence_may_go_on_for_ever() -> None:
    job = a_job(attempts_max=1, silences_max="unlimited")
    run = a_run()
    for _ in range(300):
        put_back = silent(run, job)
        assert put_back.state is State.PENDING
        run = again(put_back)
    assert settle(begin(run, NOW, NOW), job, Failed("no"), NOW).state is State.FAILED, "a failure is final all the same"


def test_a_budget_for_silence_holds_for_every_target() -> None:
    put_back = rescue(a_run("pull/q"), a_job(attempts_max=1, silences_max=2), NOW + MINUTE)
    assert (put_back.state, put_back.attempt) == (State.PENDING, 0)


def test_a_run_that_began_in_time_has_begun_in_time() -> None:
    put_back = silent(a_run(start_by=NOW + SECOND), a_job(silences_max=3))
    assert put_back.start_by is None


# ---- over its time ----------------------------------------------------------------------------------------------


def overtime(**retry: Any) -> Run:
    run = begin(a_run(execution_seconds=5), NOW, NOW)
    return rescue(run, a_job(**retry), NOW + 5 * SECOND)


def test_its_worker_is_told_to_stop_and_waited_for() -> None:
    run = overtime()
    assert run.state is State.CANCELLING
    assert run.lease_expires_at == lasting(CANCEL_GRACE_SECONDS)


@pytest.mark.parametrize("outcome", [Cancelled("as told"), Failed("broke off")])
def test_then_it_has_timed_out(outcome: Cancelled | Failed) -> None:
    again = settle(overtime(), a_job(attempts_max=2), outcome, NOW + MINUTE)
    assert (again.state, again.attempt) == (State.PENDING, 1)
    last = settle(overtime(), a_job(attempts_max=1), outcome, NOW + MINUTE)
    assert (last.state, last.error) == (State.FAILED, "timed out: not done within 5 s")


def test_or_is_done_after_all() -> None:
    assert settle(overtime(), a_job(), Succeeded(), NOW + MINUTE).state is State.COMPLETED


def test_a_worker_that_does_not_answer_is_not_waited_for_without_end() -> None:
    assert rescue(overtime(), a_job(attempts_max=1), NOW + 2 * MINUTE).state is State.FAILED


def test_a_cancel_by_request_makes_it_cancelled() -> None:
    asked = cancel(overtime(), Retention(), NOW + 6 * SECOND, "enough")
    after = settle(asked, a_job(attempts_max=5), Cancelled("as told"), NOW + MINUTE)
    assert (after.state, after.error) == (State.CANCELLED, "as told")


def test_what_no_worker_began_in_time_is_taken_back() -> None:
    late = rescue(at_broker(start_by=NOW + SECOND), a_job(attempts_max=5), NOW + SECOND)
    assert late.state is State.CANCELLING
    for after in (settle(late, a_job(), Cancelled("as told"), NOW + MINUTE), rescue(late, a_job(), NOW + MINUTE)):
        assert (after.state, after.disposition) == (State.FAILED, Disposition.NOT_STARTED)


def test_a_cancel_of_what_waits_at_a_broker_does_not_wait_as_long_as_that() -> None:
    asked = cancel(at_broker(), Retention(), NOW, "enough")
    assert (asked.state, asked.lease_expires_at) == (State.CANCELLING, lasting(CANCEL_GRACE_SECONDS))


@pytest.mark.parametrize("limit", [None, 1.0])
def test_a_node_whose_clock_is_behind_never_makes_a_begun_run_look_as_claimed(limit: float | None) -> None:
    """The end of its lease tells a run that has begun from one that waits: it ends later than that of the claim."""
    claimed = a_run(execution_seconds=limit)
    behind = NOW - SECOND
    begun = begin(claimed, behind, behind)
    assert (begun.lease_expires_at or 0) > (claimed.lease_expires_at or 0)
    for read in (claimed, begun):
        assert lease_end(begun, heard_at(read, behind)) > (claimed.lease_expires_at or 0)


def test_a_sign_of_life_counts_from_now_where_nothing_speaks_against_it() -> None:
    assert heard_at(at_broker(), NOW) == NOW
    assert heard_at(begin(at_broker(), NOW, NOW), NOW + SECOND) == NOW + SECOND
