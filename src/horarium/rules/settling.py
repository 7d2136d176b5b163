"""From outcomes to the next state of a run: `settle`, `rescue`, `cancel` and `terminate` decide, and touch nothing.

Each takes the run as it was read and returns it as it is to be. Whether it still is as it was read is checked by the
store: it writes only if token, state and lease are as the RunChange says.

Attempts are counted when they are claimed, so that a run which kills its worker can't do so for ever.
"""

from __future__ import annotations

from math import isnan

from msgspec.structs import replace

from horarium.clock import INSTANT_MAX, SECOND, Instant, to_micros, to_text
from horarium.errors import StateConflict
from horarium.model import (
    BUS_QUEUES,
    CLAIMED,
    ERROR_CHARS_MAX,
    HISTORY_MAX,
    TRACE_CHARS_MAX,
    TRACES_MAX,
    Cancelled,
    Deferred,
    Disposition,
    Event,
    EventKind,
    ExternalTarget,
    Failed,
    Job,
    Outcome,
    Refused,
    Released,
    Run,
    RunPolicy,
    State,
    Succeeded,
    awaits_worker,
    deadline_of,
    due_then,
    fraction,
    lasting,
    lease_end,
    prune_instant,
)
from horarium.policies import CANCEL_GRACE_SECONDS, Retention, Retry
from horarium.rules.compiled import retention_of_job
from horarium.rules.fairness import turn_later, without_turn
from horarium.rules.refusals import refused_seconds
from horarium.rules.silences import next_try_at

RETRY_AFTER_SECONDS_MAX = 24 * 3600
"""A target may ask for a longer pause than this; it is not given."""

LEASES_WAITED = 10
"""How many leases long a run waits at a broker for a worker before it is sent again: messages may get lost there."""
WAIT_SECONDS_MAX = 3600
"""And how long at most."""
DEFER_MIN = SECOND
"""How far ahead a run is deferred at least: one that keeps saying `not now` must not keep all workers busy."""
STOPPED = "stopped after a cancel was asked"
TOO_OLD = " (too old for another attempt)"
_COMPLETED, _RAN = State.COMPLETED, Disposition.RAN  # each time they would take as long as three fields
_DEFAULT = RunPolicy()


def retry_of(run: Run, job: Job | None) -> Retry:
    """The retry policy in force: the job's, or a one-off run's own. Work that is done elsewhere has one attempt."""
    if job is not None and isinstance(job.target, ExternalTarget):
        return replace(job.retry, attempts_max=1)
    return job.retry if job is not None else (run.policy or _DEFAULT).retry


def retention_of(run: Run, job: Job | None) -> Retention:
    """The retention in force: the job's, or a one-off run's own."""
    return retention_of_job(job) if job is not None else (run.policy or _DEFAULT).retention


# ---- settle -----------------------------------------------------------------------------------------------------


def settle(run: Run, job: Job | None, outcome: Outcome, now: Instant) -> Run:
    """The claimed run after its attempt ended with this outcome. A run of a deleted job gets no further attempt."""
    if isinstance(outcome, Succeeded):
        return replace(
            run,
            state=_COMPLETED,
            finished_at=now,
            lease_expires_at=None,
            deadline=None,
            result=outcome.result,
            error=None,
            disposition=_RAN,
            prune_at=prune_instant(now, retention_of(run, job)),
        )
    return _unless_deleted(run, job, _settled(run, job, outcome, now), now)


def _unless_deleted(run: Run, job: Job | None, after: Run, now: Instant) -> Run:
    if after.state is not State.PENDING or job is None or job.deleted_at is None:
        return after
    return _finished(run, State.CANCELLED, Disposition.CANCELLED, "the job was deleted", job.retention, now)


def _settled(
    run: Run, job: Job | None, outcome: Failed | Deferred | Released | Refused | Cancelled, now: Instant
) -> Run:
    retention = retention_of(run, job)
    if ends_overdue(run):
        return _stopped(run, job, now)
    if run.state is State.CANCELLING or isinstance(outcome, Cancelled):
        reason = outcome.reason if isinstance(outcome, Cancelled) else STOPPED
        return _finished(run, State.CANCELLED, Disposition.CANCELLED, reason, retention, now)
    match outcome:
        case Deferred(until=until, reason=reason):
            return _deferred(run, job, until, reason, now, EventKind.DEFERRED)
        case Refused(reason=reason) if (pause := refused_seconds(run, now)) is not None:
            return _deferred(run, job, now + to_micros(pause), reason, now, EventKind.REFUSED)
        case Refused(reason=reason):
            return _failed(run, job, Failed(reason, retryable=False), now)
        case Released(reason=reason):
            return _pending(run, run.due_at, clipped(reason), now, run.attempt - 1, EventKind.RELEASED)
        case Failed():
            return _traced(_failed(run, job, outcome, now), outcome, now)


def _traced(after: Run, failed: Failed, now: Instant) -> Run:
    """With the traceback at the event of the failure, and only the last few of those before."""
    if failed.trace is None:
        return after
    events = list(after.history)
    if after.finished:
        events.append(Event(now, after.state, after.error or "", EventKind.FAILED))
    trace = clipped(failed.trace[-TRACE_CHARS_MAX:], TRACE_CHARS_MAX)
    events[-1] = replace(events[-1], detail=trace)
    traced = [index for index, event in enumerate(events) if event.trace]
    for index in traced[:-TRACES_MAX]:
        events[index] = replace(events[index], detail=None)
    return replace(after, history=_clipped_history(tuple(events)))


def _deferred(run: Run, job: Job | None, until: Instant, reason: str, now: Instant, kind: EventKind) -> Run:
    """Not now. It may be put off again and again, but not faster than once a second, nor beyond the age at which its
    policy gives up. The limit for starting in time counts from the new instant."""
    until = min(max(until, now + DEFER_MIN), INSTANT_MAX)
    if _too_old(run, job, until):
        error = clipped(f"deferred to {to_text(until)}, when it would be too old: {reason}")
        return _finished(run, State.FAILED, Disposition.RAN, error, retention_of(run, job), now)
    reason = clipped(f"deferred to {to_text(until)}: {reason}")
    return _pending(due_then(run, until), until, reason, now, run.attempt - 1, kind)


def _too_old(run: Run, job: Job | None, due_at: Instant) -> bool:
    age_max = retry_of(run, job).age_max_seconds
    return age_max is not None and due_at > run.due_at_first + to_micros(age_max)


def _failed(run: Run, job: Job | None, outcome: Failed, now: Instant) -> Run:
    error = clipped(outcome.error)
    run = replace(run, result=outcome.result)
    if not outcome.retryable:
        return _finished(run, State.FAILED, Disposition.RAN, error, retention_of(run, job), now)
    due_at = now + to_micros(retry_delay_seconds(run, retry_of(run, job), outcome.retry_after_seconds))
    if outcome.throttled and run.rates and not _too_old(run, job, due_at):
        return _pending(run, due_at, f"{error}: its rate limits are shut", now, run.attempt - 1, EventKind.THROTTLED)
    return _again(run, job, due_at, error, now, EventKind.FAILED)


def was_left_by(run: Run, token: int, outcome: Outcome) -> bool:
    """Whether the run is as this outcome, under this token, left it: the report is a repeated one."""
    if run.token != token or run.state in CLAIMED:
        return False
    if run.state is State.PENDING:
        put_back = _last_put_back(run)
        same = not isinstance(outcome, Failed) or outcome.throttled or run.error == clipped(outcome.error)
        return same and put_back is not None and put_back.kind in _PUT_BACK_BY.get(type(outcome), ())
    match outcome:
        case Succeeded(result=result):
            return run.state is State.COMPLETED and run.result == result
        case Cancelled(reason=reason):
            return run.state is State.CANCELLED and run.error == clipped(reason)
        case Failed(error=error) | Refused(reason=error) if run.state is State.FAILED:
            return run.error in (clipped(error), clipped(clipped(error) + TOO_OLD))
        case _:
            return run.state is State.CANCELLED and run.error == STOPPED


_PUT_BACK_BY: dict[type, set[EventKind]] = {
    Failed: {EventKind.FAILED, EventKind.THROTTLED}, Deferred: {EventKind.DEFERRED}, Released: {EventKind.RELEASED},
    Refused: {EventKind.REFUSED}}  # fmt: skip


def _again(run: Run, job: Job | None, due_at: Instant, error: str, now: Instant, kind: EventKind) -> Run:
    """Another attempt if the policy has one left, else failed."""
    retry = retry_of(run, job)
    too_old = _too_old(run, job, due_at)
    if kind is EventKind.LOST and retry.silences_max is not None and not too_old:
        return _after_silence(run, job, due_at, error, now)
    if run.attempt >= retry.attempts_max or too_old:
        why = f"{error}{TOO_OLD}" if too_old and run.attempt < retry.attempts_max else error
        return _finished(run, State.FAILED, Disposition.RAN, why, retention_of(run, job), now)
    return replace(_pending(run, due_at, f"attempt {run.attempt} failed: {error}", now, run.attempt, kind), error=error)


def _after_silence(run: Run, job: Job | None, due_at: Instant, error: str, now: Instant) -> Run:
    """Silences have a budget of their own, and cost no attempt."""
    most = retry_of(run, job).silences_max
    silences = sum(event.kind is EventKind.LOST for event in run.history)
    if isinstance(most, int) and silences >= most:
        return _finished(run, State.FAILED, Disposition.RAN, error, retention_of(run, job), now)
    return replace(_pending(run, due_at, error, now, run.attempt - 1, EventKind.LOST), error=error)


def retry_delay_seconds(run: Run, retry: Retry, retry_after_seconds: float | None = None) -> float:
    """Seconds until the next attempt. What the target asked for is honoured (at most 24 h); else exponential
    back-off, of which up to half is subtracted by a jitter that depends on run and attempt only."""
    if retry_after_seconds is not None and not isnan(retry_after_seconds):
        return min(max(retry_after_seconds, 0.0), RETRY_AFTER_SECONDS_MAX)
    exponent = min(run.attempt - 1, 64)
    delay = min(retry.backoff_seconds * retry.backoff_factor**exponent, retry.backoff_max_seconds)
    return delay * (1 - 0.5 * fraction(run.id, run.attempt))


# ---- rescue -----------------------------------------------------------------------------------------------------


def rescue(run: Run, job: Job | None, now: Instant, said: str = "") -> Run:
    """A run whose lease expired, or that was not started in time. A lost attempt counts. The next one begins at once
    (but see `silences`), or after its back-off where the work itself took too long. A deleted job's run gets none."""
    return _unless_deleted(run, job, _rescued(run, job, now, said), now)


def _rescued(run: Run, job: Job | None, now: Instant, said: str) -> Run:
    retention = retention_of(run, job)
    if run.state is State.PENDING:
        return _finished(run, State.FAILED, Disposition.NOT_STARTED, "no worker started it in time", retention, now)
    if ends_overdue(run):
        return _stopped(run, job, now)
    if run.state is State.CANCELLING:
        return _finished(run, State.CANCELLED, Disposition.CANCELLED, "terminated: it did not stop", retention, now)
    if awaits_worker(run):
        return _untaken(run, job, now)
    limit = run.execution_seconds
    on_bus = run.queue.startswith(BUS_QUEUES)
    if limit is not None and run.deadline is not None and (run.lease_expires_at or 0) >= run.deadline:
        if on_bus:
            return _told_to_stop(run, now, f"not done within {limit:g} s", EventKind.OVERTIME)
        end = f": {said}" if said else ""
        return _timed_out(run, job, f"timed out: not done within {limit:g} s; its lease was given up{end}", now)
    # What claimed a run for a bus is our own node, which is not the one that was lost.
    who = f"a worker on {run.queue}" if on_bus else run.worker or "its worker"
    error = f"lost: no heartbeat from {who} within {run.lease_seconds:g} s"
    due_at = next_try_at(run, retry_of(run, job).attempts_max, now)
    return _again(run, job, now if _too_old(run, job, due_at) else due_at, error, now, EventKind.LOST)


def _timed_out(run: Run, job: Job | None, error: str, now: Instant) -> Run:
    due_at = now + to_micros(retry_delay_seconds(run, retry_of(run, job)))
    return _again(run, job, due_at, error, now, EventKind.TIMED_OUT)


def after_silence(run: Run) -> bool:
    """Whether the attempt before the present one was lost: its worker may still report."""
    put_back = _last_put_back(run)
    return put_back is not None and put_back.kind is EventKind.LOST


def _last_put_back(run: Run) -> Event | None:
    return next((event for event in reversed(run.history) if event.state is State.PENDING), None)


# ---- behind a broker --------------------------------------------------------------------------------------------


def wait_seconds(run: Run) -> float:
    """How long a run waits at a broker for a worker."""
    return min(run.lease_seconds * LEASES_WAITED, WAIT_SECONDS_MAX)


def handed_over(run: Run, now: Instant, steady: Instant) -> Run:
    """The claimed run after the broker took it: it waits there for a worker, for as long as it may begin."""
    until = steady + to_micros(wait_seconds(run))
    if (run := without_turn(run)).start_by is not None:
        until = min(until, run.start_by + steady - now)
    return replace(run, started_at=None, deadline=None, lease_expires_at=until)


def begin(run: Run, now: Instant, steady: Instant, progress: bytes | None = None) -> Run:
    """The run after the first sign of life of its worker: its lease and its time begin. A lease that is still that of
    the claim gets a later end, by any node: by that a node that would hand the run over knows of the worker."""
    started_at = now if run.started_at is None else max(now, run.started_at + 1)
    deadline = deadline_of(run, steady)
    if deadline is not None and run.deadline is not None:
        deadline = max(deadline, run.deadline + 1)
    begun = replace(
        run,
        started_at=started_at,
        deadline=deadline,
        progress=run.progress if progress is None else progress,
    )
    said = f"attempt {run.attempt} begun by a worker on {run.queue}"
    history = _with(run, started_at, State.RUNNING, said, EventKind.BEGUN)
    end, claimed_until = lease_end(begun, steady), run.lease_expires_at or steady
    later = end if run.started_at is None else max(end, claimed_until + 1)
    return replace(begun, lease_expires_at=later, history=history)


def heard_at(run: Run, steady: Instant) -> Instant:
    """By which instant a sign of life renews the lease of a run behind a broker: that of a node whose reading is a
    little behind would else make it end as early as that of the claim, and it would seem not to have begun."""
    if run.started_at is None or run.lease_expires_at is None:
        return steady
    return max(steady, run.lease_expires_at - to_micros(run.lease_seconds) + 1)


def ends_overdue(run: Run) -> bool:
    """Whether its worker was told to stop since the run is over its time, and by no one else."""
    last = next((event for event in reversed(run.history) if event.state is State.CANCELLING), None)
    return run.state is State.CANCELLING and last is not None and last.kind in _OVERDUE


_OVERDUE = frozenset({EventKind.LATE_START, EventKind.OVERTIME})


def _untaken(run: Run, job: Job | None, now: Instant) -> Run:
    """No worker reported. A message lost on the way is sent again, which costs no attempt."""
    if run.start_by is not None and run.start_by <= now:
        return _told_to_stop(run, now, "no worker started it in time", EventKind.LATE_START)
    if _too_old(run, job, now):
        error = f"no worker took it{TOO_OLD}"
        return _finished(run, State.FAILED, Disposition.NOT_STARTED, error, retention_of(run, job), now)
    if run.history and run.history[-1].kind is EventKind.UNTAKEN:
        run = replace(run, history=run.history[:-1])
    return _pending(run, now, "no worker took it; it is sent again", now, run.attempt - 1, EventKind.UNTAKEN)


def _told_to_stop(run: Run, now: Instant, why: str, kind: EventKind) -> Run:
    """Its worker gets a cancel, and has a grace period to answer it."""
    history = _with(run, now, State.CANCELLING, f"{why}: its worker is told to stop", kind)
    return replace(run, state=State.CANCELLING, lease_expires_at=lasting(CANCEL_GRACE_SECONDS), history=history)


def _stopped(run: Run, job: Job | None, now: Instant) -> Run:
    """The end of a run that was over its time, once its worker has answered or its grace has run out."""
    if any(event.kind is EventKind.LATE_START for event in run.history):
        error = "no worker started it in time"
        return _finished(run, State.FAILED, Disposition.NOT_STARTED, error, retention_of(run, job), now)
    return _timed_out(run, job, f"timed out: not done within {run.execution_seconds or 0:g} s", now)


# ---- cancel -----------------------------------------------------------------------------------------------------


def cancel(run: Run, retention: Retention, now: Instant, reason: str) -> Run:
    """A pending run is cancelled at once. A claimed one is asked to stop and has a grace period for it, as long as a
    lease at least: its lease is not extended any more. Raises StateConflict for one that is finished."""
    if run.state is State.PENDING:
        return _finished(run, State.CANCELLED, Disposition.CANCELLED, reason, retention, now)
    if run.state is State.CANCELLING and not ends_overdue(run):
        return run
    if run.state in CLAIMED:
        seconds = CANCEL_GRACE_SECONDS if awaits_worker(run) else max(run.lease_seconds, CANCEL_GRACE_SECONDS)
        return replace(
            run,
            state=State.CANCELLING,
            lease_expires_at=lasting(seconds),
            history=_with(run, now, State.CANCELLING, f"cancel asked: {reason}"),
        )
    raise StateConflict(f"run {run.id} is {run.state}; only a run that is not finished can be cancelled")


def terminate(run: Run, retention: Retention, now: Instant, reason: str) -> Run:
    """Cancelled at once, even if its worker goes on: the lease is void, and its reports are refused."""
    return _finished(run, State.CANCELLED, Disposition.CANCELLED, f"terminated: {reason}", retention, now)


def noted(run: Run, now: Instant, message: str, kind: EventKind | None = None) -> Run:
    """The unfinished run with one more line in its history; nothing else changes."""
    return replace(run, history=_with(run, now, run.state, clipped(message), kind))


# ---- shared -----------------------------------------------------------------------------------------------------


def _pending(run: Run, due_at: Instant, message: str, now: Instant, attempt: int, kind: EventKind) -> Run:
    history = run.history
    said = awaits_worker(run) or any(event.kind is EventKind.BEGUN and event.at == run.started_at for event in history)
    if run.state in CLAIMED and run.started_at is not None and not said:
        history = _with(run, run.started_at, State.RUNNING, f"attempt {run.attempt} claimed by {run.worker}")
    history = _clipped_history((*history, Event(now, State.PENDING, message, kind)))
    after = replace(
        run,
        state=State.PENDING,
        due_at=due_at,
        attempt=attempt,
        worker=None,
        lease_expires_at=None,
        deadline=None,
        started_at=None,
        start_by=run.start_by if attempt == 0 and kind is not EventKind.LOST else None,
        history=history,
    )
    return after if kind is EventKind.RELEASED else turn_later(after)


def _finished(run: Run, state: State, disposition: Disposition, error: str, retention: Retention, now: Instant) -> Run:
    return replace(
        run,
        state=state,
        finished_at=now,
        lease_expires_at=None,
        deadline=None,
        error=clipped(error),
        disposition=disposition,
        prune_at=prune_instant(now, retention),
    )


def _with(run: Run, at: Instant, state: State, message: str, kind: EventKind | None = None) -> tuple[Event, ...]:
    return _clipped_history((*run.history, Event(at, state, message, kind)))


def _clipped_history(events: tuple[Event, ...]) -> tuple[Event, ...]:
    """The first events and the last: what began it, and what it came to."""
    return events if len(events) <= HISTORY_MAX else (*events[:10], *events[-(HISTORY_MAX - 10) :])


def clipped(error: str, chars_max: int = ERROR_CHARS_MAX) -> str:
    """An error text short enough to keep, in characters that every store can keep: no NUL, no lone surrogate."""
    text = error.replace("\x00", "\ufffd").encode("utf-8", "replace").decode()
    return text if len(text) <= chars_max else text[: chars_max - 12] + " [truncated]"


def brought_back(run: Run, job: Job | None, now: Instant) -> Run:
    """A finished run as though it had ended now: it ended by a clock that was ahead. Where a number of runs is kept,
    one whose fire time lies ahead is not kept: it would count as the newest until its time comes."""
    retention = retention_of(run, job)
    beyond = run.fire_at > now and retention.runs_max is not None
    return replace(
        run,
        started_at=None if run.started_at is None else min(run.started_at, now),
        finished_at=now,
        prune_at=0 if beyond else prune_instant(now, retention),
        history=tuple(event if event.at <= now else replace(event, at=now) for event in run.history),
    )
