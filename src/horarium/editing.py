"""What people ask of a job, as plans: run it now, backfill it, pause, resume, change or end it.

Each of these is a plan like the planner's own, written only if the job is still as it was read. The hard thing is what
was planned ahead and has not begun: an edit or a pause takes it back, as though it had never been planned.
"""

from __future__ import annotations

from collections.abc import Sequence, Set

from msgspec.structs import replace

from horarium.clock import Instant
from horarium.model import (
    Cause,
    Disposition,
    Job,
    Plan,
    Run,
    RunChange,
    State,
)
from horarium.planning import (
    BACKFILL_RUNS_MAX,
    CURSOR_AHEAD,
    PLANNED_CAUSES,
    Owed,
    apply_overlap,
    dropped_range,
    dropped_run,
    exhausted,
    fires_in_window,
    next_fire,
)
from horarium.settling import cancel, noted, terminate

MOVED_MAX = 1_000
"""Runs that one plan moves to another queue at the most."""


def plan_now(
    job: Job,
    unfinished: Sequence[Run],
    now: Instant,
    payload: bytes | None = None,
    taken: Set[Instant] = frozenset(),
) -> tuple[Plan, Run]:
    """A run asked for by hand, under the job's overlap policy. It moves neither the cursor nor the count. The run may
    come back `skipped`. `taken`: instants close to `now` for which the job has a run already, finished ones too."""
    taken = taken | {run.fire_at for run in unfinished}
    fire_at = next(instant for instant in range(now, now + len(taken) + 1) if instant not in taken)
    runs, changes, skipped = apply_overlap(job, [Owed(fire_at, Cause.MANUAL)], unfinished, now)
    run = replace(runs[0], payload=payload) if runs else dropped_run(job, skipped[0], now, Cause.MANUAL)
    return Plan(job, (run,), tuple(changes)), run


def backfill_fires(job: Job, start: Instant, end: Instant) -> list[Instant]:
    """The fire times in [start, end) within the job's own window, the first 1,000 at the most."""
    return fires_in_window(job, start - 1, end - 1, BACKFILL_RUNS_MAX)


def plan_backfill(
    job: Job, unfinished: Sequence[Run], start: Instant, end: Instant, now: Instant, taken: Set[Instant] = frozenset()
) -> Plan:
    """Runs for the fire times in [start, end), under the job's overlap policy. `taken`: those that have a row already.
    What the policy skips is recorded in ranges, and a range must not cover what ran. `end` may not lie after `now`.

    Where the job is paused, this accounts for the pause up to `end`: what lies before `start` is skipped for good.
    """
    fires = backfill_fires(job, start, end)
    owed = [Owed(fire, Cause.BACKFILL) for fire in fires if fire not in taken]
    runs, changes, skipped = apply_overlap(job, owed, unfinished, now, sorted(taken))
    passed: tuple[Run, ...] = ()
    if not job.enabled and end - 1 > job.planned_until:
        passed = _passed_while_paused(job, start - 1, now)
        job = replace(job, planned_until=fires[-1] if len(fires) == BACKFILL_RUNS_MAX else end - 1)
    dropped = (dropped_run(job, range_, now, Cause.BACKFILL) for range_ in skipped)
    return Plan(job, (*passed, *dropped, *runs), tuple(changes))


def pause(job: Job, unfinished: Sequence[Run], now: Instant, reason: str | None) -> Plan:
    """No fire time after `now` runs. What was planned ahead is withdrawn, as though it had never been planned."""
    paused = replace(
        job, enabled=False, paused_at=now, pause_reason=reason, planned_until=now, next_fire_at=None, updated_at=now
    )
    return _withdrawing(_past_claims(paused, unfinished, now), unfinished, now, "the job was paused")


def _past_claims(paused: Job, unfinished: Sequence[Run], now: Instant) -> Job:
    """The job with its cursor behind the last run that was claimed ahead of its time. Such a run keeps its row, and a
    row that stands for the fire times that pass while paused must not begin at one that has a row already."""
    claimed = [run.fire_at for run in unfinished if run.token and _is_ahead(run, now)]
    return replace(paused, planned_until=max((now, *claimed)))


def resume(job: Job, now: Instant) -> Plan:
    """Go on with the fire times after `now`. Those that passed meanwhile are recorded as skipped, in one row."""
    cursor = max(now, min(job.planned_until, now + CURSOR_AHEAD))
    resumed = replace(job, enabled=True, paused_at=None, pause_reason=None, planned_until=cursor, updated_at=now)
    resumed = replace(resumed, next_fire_at=next_fire(resumed, cursor))
    return Plan(resumed, _passed_while_paused(job, now, now))


def delete(job: Job, unfinished: Sequence[Run], now: Instant) -> Plan:
    """The job ends: pending runs are cancelled, running ones are asked to stop. Its history stays until pruned."""
    gone = replace(job, deleted_at=now, next_fire_at=None, updated_at=now)
    changes = [
        RunChange(cancel(run, job.retention, now, "the job was deleted"), run.token, run.state)
        for run in unfinished
        if run.state is not State.CANCELLING
    ]
    return Plan(gone, changes=tuple(changes))


def revise(job: Job, revised: Job, unfinished: Sequence[Run], now: Instant) -> Plan:
    """Put the owner's fields of `revised` in place. `job` must have been planned up to `now` under the old rule.

    Only a change of what decides *when* (trigger, window) moves the next fire time. Whatever was planned ahead is
    withdrawn in any case, and planned anew as the job now is: its queue, its policies and its limits stand on each run.
    """
    retimed = any(getattr(job, name) != getattr(revised, name) for name in ("trigger", "starts_at", "ends_at"))
    anchor = now if job.trigger != revised.trigger else job.anchor_at
    passed = _passed_while_paused(job, now, now) if retimed and not job.enabled else ()
    cursor = now if retimed or job.enabled else job.planned_until
    revised = replace(revised, anchor_at=anchor, updated_at=now, planned_until=cursor)
    planned = _withdrawing(revised, unfinished, now, "the job was changed")
    return replace(planned, runs=passed)


def follow(planned: Plan, unfinished: Sequence[Run], now: Instant) -> Plan:
    """The plan, and with it what waits in the queue of a target that the job no longer has: it goes over to the queue
    of the present one, `MOVED_MAX` runs at the most. What is claimed ends under the target that it was given to.

    A store never changes the queue of a run. So the run is taken out and put in again, as it is, token and all, in one
    transaction; one that is claimed meanwhile stays where it is."""
    spoken_for = {run.id for run in planned.withdrawals} | {change.run.id for change in planned.changes}
    astray = [run for run in unfinished if is_astray(run, planned.job) and run.id not in spoken_for][:MOVED_MAX]
    queue = planned.job.queue
    moved = [
        noted(replace(run, queue=queue), now, f"moved from {run.queue} to {queue}: the job's target was changed")
        for run in astray
    ]
    return replace(planned, withdrawals=(*planned.withdrawals, *astray), runs=(*planned.runs, *moved))


def is_astray(run: Run, job: Job) -> bool:
    """Whether it waits where nobody would deliver it as its job now says."""
    return run.state is State.PENDING and run.queue != job.queue and job.deleted_at is None


def _passed_while_paused(job: Job, until: Instant, now: Instant) -> tuple[Run, ...]:
    if exhausted(job):
        return ()
    passed = dropped_range(
        job, job.planned_until, until, Disposition.SKIPPED_PAUSED, f"paused: {job.pause_reason or 'by hand'}"
    )
    return (dropped_run(job, passed, now),) if passed else ()


# ---- what was planned ahead -------------------------------------------------------------------------------------


def _withdrawing(job: Job, unfinished: Sequence[Run], now: Instant, reason: str) -> Plan:
    """The plan that takes back what was planned for after `now` and has not begun, its share of `fires_max` too.

    A run that nobody ever claimed is deleted, as though it had never been planned. One that somebody claimed ahead of
    its time is ended instead: were it deleted and planned again, its tokens would begin anew, and a stale claim could
    pass for the present one.
    """
    ahead = [run for run in unfinished if _is_ahead(run, now)]
    deleted = tuple(run for run in ahead if run.token == 0 and run.fire_at > job.planned_until)
    kept = [run for run in ahead if run.token or run.fire_at <= job.planned_until]
    ended = tuple(RunChange(_taken_back(run, job, now, reason), run.token, run.state) for run in kept)
    job = replace(job, fires_count=max(0, job.fires_count - len(ahead)))
    return Plan(replace(job, next_fire_at=next_fire(job, job.planned_until)), changes=ended, withdrawals=deleted)


def _is_ahead(run: Run, now: Instant) -> bool:
    return run.fire_at > now and run.cause in PLANNED_CAUSES and not _has_begun(run, now)


def _has_begun(run: Run, now: Instant) -> bool:
    if run.state is State.PENDING:
        return run.attempt > 0
    return run.started_at is None or run.started_at <= now


def _taken_back(run: Run, job: Job, now: Instant, reason: str) -> Run:
    return replace(terminate(run, job.retention, now, reason), disposition=Disposition.WITHDRAWN)


def reanchor(job: Job, unfinished: Sequence[Run], now: Instant) -> Plan:
    """Bring back a job whose cursor was carried into the future by a wall clock that was wrong for a while. What was
    planned there is withdrawn, and what was put off from there is put off from `now`."""
    planned = _withdrawing(replace(job, planned_until=now), unfinished, now, "the clock had been wrong")
    late = tuple(
        RunChange(replace(run, due_at=now + max(0, run.due_at - decided_at)), run.token, run.state)
        for run in unfinished
        if (decided_at := _decided_at(run)) > now + CURSOR_AHEAD and run not in planned.withdrawals
        if run.state is State.PENDING
    )
    return replace(planned, changes=(*planned.changes, *late))


def _decided_at(run: Run) -> Instant:
    """When it was decided that it shall wait until `due_at`."""
    return run.history[-1].at if run.history else run.created_at
