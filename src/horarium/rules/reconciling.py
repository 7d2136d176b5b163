"""The invariant of a job's unfinished runs, as the job now is: `reconcile` returns the writes that restore it.

- Deleted: nothing goes on. Pending runs are cancelled, running ones asked to stop.
- Paused: runs planned for after the pause that have not begun are withdrawn.
- `cancel_other`, `terminate_other`: the newest run goes on, those before it end.
- Everything that is pending waits in the queue of the job's target. A run with a payload of its own does not follow it
  to a target of another type, which was not meant to have that payload: it is cancelled.
- A run that was approved, and would do other work by now, waits for another decision.
- A run that waits for a hold which no longer covers it, since its job has other labels or another host, is due again.

A claim does not raise a job's version, so a change of a job can lose to a claim: its plan finds a run changed and
leaves it out. The code that makes the change need not handle that, because the rule is applied again: after every
change, whenever a run is put back to pending, and to every claimed run before it is handed out (`belongs`). It depends
on the present state alone, so it can be applied any number of times.
"""

from __future__ import annotations

from collections.abc import Sequence, Set

from msgspec.structs import replace

from horarium.clock import INSTANT_MIN, Instant
from horarium.errors import InvalidRequest
from horarium.model import CLAIMED, EXTERNAL, Cause, Disposition, Job, Plan, Run, RunChange, State
from horarium.model.holds import Hold
from horarium.policies import Overlap
from horarium.rules.applying import Newest, newest_of, owed_by
from horarium.rules.approving import asked_again, asker_of, is_outdated
from horarium.rules.asking import Question
from horarium.rules.compiled import retention_of_job
from horarium.rules.holds import NOT_HELD, PLANNED_CAUSES, JobHold, brought_back, hold_on, host_of
from horarium.rules.planning import CURSOR_AHEAD, ENDS_OTHERS, owed_run, plan
from horarium.rules.settling import cancel, noted, terminate

OTHER_TYPE = "the job's target is of another type now, and this run has a payload of its own"

ENDED_AT_ONCE = 200
"""How many runs a plan ends that makes one in their place: the rest are ended later."""


def reconcile(
    job: Job, unfinished: Sequence[Run], now: Instant, newest: Newest | None = None, holds: Sequence[Hold] | None = None
) -> Plan | None:
    """The writes after which these unfinished runs of the job are as they must be; None: they are. Each run is judged
    for itself, except under a policy that ends others: there `unfinished` should be all of them. (Of some of them, all
    but the newest of those end: none that the newest of all would leave.) `newest`: a run that ends older ones, whether
    it is among these or not. `holds`: all that there are, where they were read."""
    changes: list[RunChange] = []
    withdrawals: list[Run] = []
    moved: list[Run] = []
    superseded = _superseded(job, unfinished, now)
    for run in unfinished:
        if job.deleted_at is not None or run.id in superseded:
            changes += _ended(run, job, now, job.overlap)
        elif newest is not None and newest.ends(run):
            changes += _ended(run, job, now, newest.overlap)
        elif _outlives_pause(run, job):
            if run.token == 0 and run.fire_at > job.planned_until:
                withdrawals.append(run)
            else:
                changes.append(_change(run, taken_back(run, job, now, "the job was paused")))
        elif is_misplaced(run, job) and run.payload is not None and _type(run.queue) != _type(job.queue):
            changes.append(_change(run, cancel(run, retention_of_job(job), now, OTHER_TYPE)))
        elif is_misplaced(run, job):
            withdrawals.append(run)
            moved.append(_moved(run, job, now))
        elif run.state is State.PENDING and is_outdated(run, job):
            changes.append(_asked_again(run, job, now))
        elif holds is not None and (back := brought_back(run, now)) and _is_free(holds, back, job, now):
            changes.append(_change(run, back))
    if not changes and not withdrawals:
        return None
    return Plan(job, tuple(moved), tuple(changes), tuple(withdrawals))


def reconciled(planned: Plan, unfinished: Sequence[Run], now: Instant) -> Plan:
    """The plan, and with it what the job that it leaves asks of those unfinished runs that the plan does not touch."""
    touched = {run.id for run in planned.withdrawals} | {change.run.id for change in planned.changes}
    more = reconcile(planned.job, [run for run in unfinished if run.id not in touched], now)
    if more is None:
        return planned
    return replace(
        planned,
        runs=(*planned.runs, *more.runs),
        changes=(*planned.changes, *more.changes),
        withdrawals=(*planned.withdrawals, *more.withdrawals),
    )


def belongs(run: Run, job: Job) -> bool:
    """Whether this run, which has just been claimed, may be handed to a worker of its queue."""
    there = job.deleted_at is None and run.queue == job.queue and not _outlives_pause(run, job)
    return there and not is_outdated(run, job)


def look_from(before: Job, after: Job, planned: Plan | None) -> Instant | None:
    """From which fire time on the unfinished runs of a job may differ from what they must be after a change of it;
    None: none of them."""
    if after.deleted_at is not None or before.queue != after.queue or before.labels != after.labels:
        return INSTANT_MIN
    if before.target != after.target and (after.approval is not None or host_of(before) != host_of(after)):
        return INSTANT_MIN
    if not after.enabled:
        return after.paused_at
    ends = planned is not None and planned.changes and after.overlap in ENDS_OTHERS
    return INSTANT_MIN if ends else None


def plan_bounded(
    job: Job,
    unfinished: Sequence[Run],
    now: Instant,
    ahead: int,
    *,
    steps: int,
    last: Run | None = None,
    ran: Sequence[Instant] = (),
    held: JobHold = NOT_HELD,
) -> Plan:
    """As `planning.plan`, but that no more than `ENDED_AT_ONCE` of the unfinished runs, which come by fire time, are
    ended with it. The plan says what it owes to the others."""
    if job.overlap not in ENDS_OTHERS or len(unfinished) <= ENDED_AT_ONCE:
        return plan(job, unfinished, now, ahead, steps=steps, last=last, ran=ran, held=held)
    few = unfinished[-ENDED_AT_ONCE:]
    return leaving(job, plan(job, few, now, ahead, steps=steps, last=last, ran=ran, held=held))


def leaving(job: Job, planned: Plan) -> Plan:
    """The plan of a change that did not look at all unfinished runs of the job, with what it owes to the others."""
    moved = {run.id for run in planned.withdrawals}
    made = [run for run in planned.runs if run.id not in moved]
    newest = newest_of(planned.job, made) if planned.job.overlap in ENDS_OTHERS else None
    since = INSTANT_MIN if newest is not None else look_from(job, planned.job, planned)
    if since is None:
        return planned
    return replace(planned, records=(*planned.records, owed_by(job, job.version + planned.versions, since, newest)))


def asks_to_stop(planned: Plan) -> bool:
    """Whether the plan asks anything to stop that is claimed, or ends it."""
    return any(change.state in CLAIMED for change in planned.changes)


# ---- each rule --------------------------------------------------------------------------------------------------


def is_misplaced(run: Run, job: Job) -> bool:
    """Whether it waits where it would not be delivered as its job now says."""
    return run.state is State.PENDING and run.queue != job.queue and job.deleted_at is None


def _type(queue: str) -> str:
    """Of which type the target of a queue's runs is (`pull`: a queue, or a command of one)."""
    return queue.partition("/")[0]


def is_ahead(run: Run, at: Instant) -> bool:
    """Whether it was planned for after `at`, and had not begun by then. (One that was moved may be due before its fire
    time.)"""
    return run.fire_at > at and run.due_at > at and run.cause in PLANNED_CAUSES and not _has_begun(run, at)


def taken_back(run: Run, job: Job, now: Instant, reason: str) -> Run:
    """The run ended as withdrawn, held or not."""
    return replace(terminate(run, job.retention, now, reason), disposition=Disposition.WITHDRAWN)


def _has_begun(run: Run, at: Instant) -> bool:
    if run.state is State.PENDING:
        return run.attempt > 0
    return run.attempt > 1 or run.started_at is None or run.started_at <= at


def _outlives_pause(run: Run, job: Job) -> bool:
    paused_at = job.paused_at
    return not job.enabled and paused_at is not None and is_ahead(run, paused_at)


def _superseded(job: Job, unfinished: Sequence[Run], now: Instant) -> Set[str]:
    """Those that the newest run ends. It must have been made under the present policy: since the last edit. One from a
    future that turned out to be wrong is older than any that was made since. One that a ping made ends no other: it
    came at no fire time."""
    if job.overlap not in ENDS_OTHERS:
        return frozenset()
    going_on = [run for run in unfinished if run.state is not State.CANCELLING and run.cause is not Cause.PING]
    possible = [run for run in going_on if run.created_at <= now + CURSOR_AHEAD] or going_on
    newest = max(possible, key=lambda run: (run.created_at, run.fire_at, run.id), default=None)
    if newest is None or newest.created_at < job.updated_at:
        return frozenset()
    later = {run.id for run in unfinished if run.cause is Cause.PING and run.created_at > newest.created_at}
    return {run.id for run in unfinished if run is not newest} - later


def _ended(run: Run, job: Job, now: Instant, overlap: Overlap) -> list[RunChange]:
    """The change that ends a run of a deleted job, or one that a newer run ends."""
    if job.deleted_at is not None:
        reason = "the job was deleted"
    else:
        reason = f"overlap: {overlap}; the next fire time came"
        if overlap is Overlap.TERMINATE_OTHER:
            return [_change(run, terminate(run, retention_of_job(job), now, reason))]
    if run.state is State.CANCELLING:
        return []
    return [_change(run, cancel(run, retention_of_job(job), now, reason))]


def _moved(run: Run, job: Job, now: Instant) -> Run:
    """The run in its job's queue. A store never changes the queue of a run: it is taken out and put in again as it is,
    token and all, in one transaction; one that is claimed meanwhile stays where it is. What holds lie over it there the
    next claim says."""
    said = f"moved from {run.queue} to {job.queue}: the job's target was changed"
    moved = replace(brought_back(run, now) or run, queue=job.queue)
    if (run.queue == EXTERNAL) is not (job.queue == EXTERNAL):
        moved = _on_other_side(moved, job, now)
    moved = noted(moved, now, said)
    return asked_again(moved, job, now) if is_outdated(run, job) else moved


def _asked_again(run: Run, job: Job, now: Instant) -> RunChange:
    after = asked_again(brought_back(run, now) or run, job, now)
    question = Question(run.id, after.due_at, *asker_of(run))
    return RunChange(after, run.token, run.state, records=(question.record,))


def _is_free(holds: Sequence[Hold], back: Run, job: Job, now: Instant) -> bool:
    """Whether nothing holds the run, that is brought back, when it is due. (One that is claimed ahead may have met a
    hold that is yet to begin.)"""
    return hold_on(holds, back, job, max(now, back.due_at)) is None


def _on_other_side(run: Run, job: Job, now: Instant) -> Run:
    """The run as it comes from work that is done elsewhere, or goes there. Such work is not claimed: nothing holds it
    back, its lease is the time that it may take, and it is given up if it does not report. So what a run keeps
    otherwise of the policies that it was planned with means nothing on the other side, but for a limit for its begin on
    the way there."""
    at = max(run.due_at, now)
    try:
        as_new = owed_run(job, at, at, Cause.MANUAL, run.payload)
    except InvalidRequest:  # it was made under other keys, and goes on without
        as_new = owed_run(replace(job, rate=(), concurrency=None, fair=None), at, at, Cause.MANUAL)
    keeps_limit = job.queue == EXTERNAL and run.start_by is not None
    return replace(
        run,
        concurrency_key=as_new.concurrency_key,
        concurrency_max=as_new.concurrency_max,
        rates=as_new.rates,
        serial=as_new.serial,
        lease_seconds=as_new.lease_seconds,
        start_by=run.start_by if keeps_limit else as_new.start_by,
    )


def _change(run: Run, after: Run) -> RunChange:
    return RunChange(after, run.token, run.state)
