"""Edits of a job, as plans: run it now, backfill it, pause, resume, change or end it.

Each of these is a plan like the planner's own, written only if the job is still as it was read. Runs that were planned
ahead and have not begun are taken back by an edit or a pause, as though it had never been planned.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import NamedTuple

from msgspec.structs import replace

from horarium.clock import Instant
from horarium.model import CLAIMED, Cause, Disposition, Job, Plan, Run, RunChange, State, due_then
from horarium.rules import missed
from horarium.rules.calendars import without_days
from horarium.rules.compiled import after_end
from horarium.rules.finishing import looked_at
from horarium.rules.joins import is_join, join_of, repeating
from horarium.rules.overridden import Owed, back_in_force, left, passed_by
from horarium.rules.overriding import still_yielded
from horarium.rules.planning import (
    BACKFILL_RUNS_MAX,
    CURSOR_AHEAD,
    apply_overlap,
    dropped_run,
    is_fire_time,
    passed_over,
    resume,
    timed,
)
from horarium.rules.reconciling import is_ahead, taken_back
from horarium.rules.windows import dropped_range, exhausted, fires_in_window, without_passed


def plan_now(
    job: Job,
    unfinished: Sequence[Run],
    now: Instant,
    payload: bytes | None = None,
    taken: Set[Instant] = frozenset(),
) -> tuple[Plan, Run]:
    """A run asked for by hand, under the job's overlap policy. It moves neither the cursor nor the count. The run may
    come back `skipped`. `taken`: instants close to `now` for which the job has a run already, finished ones too."""
    fire_at = free_instant(job, now, taken | {run.fire_at for run in unfinished})
    runs, changes, skipped = apply_overlap(job, [Owed(fire_at, Cause.MANUAL, payload=payload)], unfinished, now)
    run = runs[0] if runs else dropped_run(job, skipped[0], now, Cause.MANUAL)
    return Plan(job, (run,), tuple(changes)), run


class ManualRun(NamedTuple):
    """A run asked for by hand, one of many: what it carries, its unique key, when it is due, and which fire time's work
    it does again."""

    payload: bytes | None
    unique_key: str
    due_at: Instant
    repeats: Instant | None = None


def plan_many_now(
    job: Job, unfinished: Sequence[Run], now: Instant, asked: Sequence[ManualRun], taken: Set[Instant] = frozenset()
) -> Plan:
    """As `plan_now`, for many runs at once: those of them that the overlap policy lets run. The others leave no row, so
    that they can be asked for again."""
    taken = set(taken | {run.fire_at for run in unfinished})
    by_fire: dict[Instant, ManualRun] = {}
    for each in asked:
        fire_at = free_instant(job, now, taken)
        taken.add(fire_at)
        by_fire[fire_at] = each
    owed = [Owed(fire_at, Cause.MANUAL, payload=each.payload) for fire_at, each in by_fire.items()]
    runs, changes, _ = apply_overlap(job, owed, unfinished, now)
    return Plan(job, tuple(_asked_run(run, by_fire[run.fire_at]) for run in runs), tuple(changes))


def _asked_run(run: Run, asked: ManualRun) -> Run:
    run = repeating(run, asked.repeats)
    return replace(put_off(run, asked.due_at), unique_key=asked.unique_key)


def put_off(run: Run, due_at: Instant) -> Run:
    """The new run, not due before this instant."""
    return due_then(run, max(due_at, run.due_at))


def free_instant(job: Job, start: Instant, taken: Set[Instant]) -> Instant:
    """The first instant from `start` on for which the job has no run, and will owe none: a run asked for by hand takes
    the place of no fire time."""
    planned = job.enabled and job.held_until is None and not job.overrides  # one that was moved on is owed
    planned = planned and (job.next_fire_at is None or job.next_fire_at > start + len(taken))
    instant = start
    while instant in taken or (not planned and is_fire_time(job, instant)) or _begins_window(job, instant):
        instant += 1
    return instant


def _begins_window(job: Job, instant: Instant) -> bool:
    return is_join(job) and join_of(job).window_of(instant) == instant


def backfill_fires(job: Job, start: Instant, end: Instant) -> list[Instant]:
    """The fire times in [start, end) within the job's own window, the first 1,000 at most."""
    return fires_in_window(job, start - 1, end - 1, BACKFILL_RUNS_MAX)


def fires_beyond(job: Job, fires: Sequence[Instant], end: Instant) -> int:
    """How many fire times before `end` one backfill did not get to, beyond those that it did; counted to a limit."""
    if len(fires) < BACKFILL_RUNS_MAX:
        return 0
    rest = dropped_range(job, fires[-1], end - 1, Disposition.MISSED, "")
    return 0 if rest is None else rest.fires


def plan_backfill(
    job: Job,
    unfinished: Sequence[Run],
    start: Instant,
    end: Instant,
    now: Instant,
    taken: Set[Instant] = frozenset(),
    ran: Sequence[Instant] = (),
) -> Plan:
    """Runs for the fire times in [start, end), under the job's overlap policy. `taken`: those that have a row already.
    Fire times that the policy skips are recorded in ranges, and a range must not cover one that ran. `end` may not lie
    after `now`.

    Where the job is paused, this accounts for the pause up to `end`: what lies before `start` is skipped for good,
    except the fire times in `ran`, which ran.
    """
    fires = backfill_fires(job, start, end)
    owed = [Owed(fire, Cause.BACKFILL) for fire in fires if fire not in taken]
    runs, changes, skipped = apply_overlap(job, owed, unfinished, now, sorted(taken))
    passed: tuple[Run, ...] = ()
    if not job.enabled and end - 1 > job.planned_until:
        passed = passed_over(job, start - 1, now, ran)
        job = replace(job, planned_until=fires[-1] if len(fires) == BACKFILL_RUNS_MAX else end - 1)
    dropped = (dropped_run(job, range_, now, Cause.BACKFILL) for range_ in skipped)
    return Plan(job, (*passed, *dropped, *runs), tuple(changes))


def stands_still(job: Job) -> bool:
    """Whether its cursor stays where it is: fire times beyond it pass, and some of them may have a row."""
    return not job.enabled or job.held_until is not None


def pause(
    job: Job,
    unfinished: Sequence[Run],
    now: Instant,
    reason: str | None,
    until: Instant | None = None,
    ran: Sequence[Instant] = (),
) -> Plan:
    """No fire time after `now` runs, or none before `until`. Runs planned ahead are withdrawn, as though they had never
    been planned. `ran`: fire times beyond the cursor of a job that is held which have a row already."""
    paused = replace(
        without_passed(job, now),
        enabled=False,
        paused_at=now,
        pause_reason=reason,
        paused_until=until,
        held_until=None,
        planned_until=now,
        next_fire_at=until,
        updated_at=now,
    )
    due = passed_by(job, now) if job.held_until is not None else None
    if due is not None and due.overrides:
        paused = replace(paused, overrides=left(paused, due.overrides, now))
    planned = _withdrawing(_past_claims(paused, unfinished, now), unfinished, now, "the job was paused")
    moved = () if due is None else (dropped_run(job, each, now) for each in due.dropped)
    return replace(planned, runs=(*passed_over(job, now, now, ran), *moved))


def _past_claims(paused: Job, unfinished: Sequence[Run], now: Instant) -> Job:
    """The job with its cursor behind the last run that was claimed ahead of its time. Such a run keeps its row, and a
    row for the range of fire times that pass while paused must not begin at one that has a row already."""
    claimed = [run.fire_at for run in unfinished if run.token and is_ahead(run, now)]
    return replace(paused, planned_until=max((now, *claimed)))


def delete(job: Job, now: Instant, asked_and_ran: Sequence[Instant] = ()) -> Plan:
    """The job ends. What becomes of its runs `reconcile` says; its history stays until pruned. `asked_and_ran`: fire
    times about which a person is asked, and that have a row all the same, ascending."""
    passed = missed.given_up(job, "the job was deleted before it was decided what becomes of them", asked_and_ran)
    ended = replace(job, deleted_at=now, next_fire_at=None, updated_at=now, missed=None)
    return Plan(ended, tuple(dropped_run(job, each, now) for each in passed))


def edit(job: Job, wanted: Job, unfinished: Sequence[Run], now: Instant, ran: Sequence[Instant] = ()) -> Plan:
    """Put the owner's fields of `wanted` in place, whether it is paused among them. `job` must have been planned up to
    `now` under the old rule. `unfinished`: those ahead of `now` at least."""
    job = without_passed(job, now)
    wanted_now = replace(wanted, enabled=job.enabled, overrides=job.overrides)
    changed = _change_fields(job, wanted_now, unfinished, now, ran)
    if wanted.enabled == job.enabled:
        return changed
    if wanted.enabled:
        resumed = resume(changed.job, now, ran)
        return replace(changed, job=resumed.job, runs=(*changed.runs, *resumed.runs), records=resumed.records)
    # Runs planned ahead are withdrawn once, by the pause: it alone accounts for those claimed already.
    paused = pause(replace(changed.job, fires_count=job.fires_count), unfinished, now, None)
    return replace(paused, runs=changed.runs or paused.runs or passed_over(job, now, now, ran))


def is_retimed(job: Job, wanted: Job) -> bool:
    """Whether it counts from now on. One that counts from the end of its last run goes on to do so."""
    same_rule = without_days(wanted.trigger) == without_days(job.trigger)
    return not same_rule and (after_end(job) is None or after_end(wanted) is None)


def _change_fields(job: Job, wanted: Job, unfinished: Sequence[Run], now: Instant, ran: Sequence[Instant]) -> Plan:
    """Only a change of what decides *when* (trigger, window) moves the next fire time. Runs planned ahead are withdrawn
    in any case, and planned again as the job now is: its queue, its policies and its limits are on each run.
    """
    retimed = any(getattr(job, name) != getattr(wanted, name) for name in ("trigger", "starts_at", "ends_at"))
    anchor = now if is_retimed(job, wanted) else job.anchor_at
    over = retimed or exhausted(job) or exhausted(wanted)
    passed = passed_over(job, now, now, ran) if over else ()
    cursor = job.planned_until if stands_still(job) and not over else now
    changed = replace(wanted, anchor_at=anchor, updated_at=now, planned_until=cursor, overrides_dropped=())
    changed = still_yielded(missed.pinned(job, changed) if retimed or anchor != job.anchor_at else changed, now)
    planned = _withdrawing(changed, unfinished, now, "the job was changed")
    return replace(planned, runs=passed)


# ---- runs planned ahead -------------------------------------------------------------------------------------


def _withdrawing(job: Job, unfinished: Sequence[Run], now: Instant, reason: str) -> Plan:
    """The plan that takes back runs planned for after `now` that have not begun, their share of `fires_max` too. One
    that was moved, and is late, may wait for its place beside others: its override is in force again.

    A run that was never claimed is deleted, as though it had never been planned. One that was claimed ahead of its time
    is ended instead: if it were deleted and planned again, its tokens would start over, and a stale claim could pass
    for the present one.
    """
    ahead = [run for run in unfinished if is_ahead(run, now)]
    deleted = tuple(run for run in ahead if run.token == 0 and run.fire_at > job.planned_until)
    kept = [run for run in ahead if run.token or run.fire_at <= job.planned_until]
    ended = tuple(RunChange(taken_back(run, job, now, reason), run.token, run.state) for run in kept)
    count = max(0, job.fires_count - len(ahead))
    job = timed(replace(job, fires_count=count, overrides=back_in_force(job, deleted)))
    return Plan(job, changes=ended, withdrawals=deleted, records=looked_at(job, now))


def withdraw_ahead(
    job: Job, unfinished: Sequence[Run], at: Instant, now: Instant, ended: Sequence[Instant] = ()
) -> Plan:
    """Take back runs planned for after `at`, where a hold begins, as though they had never been planned. Runs
    claimed ahead of their time stay, and the plan up to them: the hold meets them at their begin. So does the row of a
    run that has ended before its time; `ended`: the fire times of these. And so do those of before an edit whose clock
    was ahead: the rule that planned them is no more."""
    ahead = [run for run in unfinished if is_ahead(run, at)]
    edited_at = min(job.updated_at, job.planned_until)
    cursor = max((at, edited_at, *ended, *(run.fire_at for run in ahead if run.token)))
    gone = tuple(run for run in ahead if run.token == 0 and run.fire_at > cursor)
    count, overrides = max(0, job.fires_count - len(gone)), back_in_force(job, gone)
    withdrawn = timed(replace(job, planned_until=cursor, fires_count=count, overrides=overrides))
    return Plan(withdrawn, withdrawals=gone, records=looked_at(withdrawn, now))


def reanchor(job: Job, unfinished: Sequence[Run], now: Instant, wrong_at: Instant = 0) -> Plan:
    """Bring back a job whose cursor was carried into the future by a wall clock that was wrong for a while, up to
    `wrong_at` as far as is known. Runs planned there are withdrawn, and those put off from there are put off from
    `now`. Work under way goes on, as begun now: it is that of its fire time, which gets no other run when the clock
    comes to it again."""
    anchor = now if job.anchor_at > now + CURSOR_AHEAD else job.anchor_at
    back = missed.back_at(job, now)
    back = missed.pinned(back, replace(back, anchor_at=anchor))
    waiting = [run for run in unfinished if not _began_by_its_clock(run, wrong_at)]
    begun = [run for run in unfinished if run.started_at is not None and run.started_at > now and run not in waiting]
    planned = _withdrawing(back, waiting, now, "the clock had been wrong")
    touched = {run.id for run in planned.withdrawals} | {change.run.id for change in planned.changes}
    late = tuple(
        RunChange(due_then(run, now + max(0, run.due_at - decided_at)), run.token, run.state)
        for run in waiting
        if (decided_at := _decided_at(run)) > now + CURSOR_AHEAD and run.id not in touched
        if run.state is State.PENDING
    )
    kept = tuple(RunChange(replace(run, started_at=now), run.token, run.state) for run in begun)
    return replace(planned, changes=(*planned.changes, *late, *kept))


def _began_by_its_clock(run: Run, wrong_at: Instant) -> bool:
    """Whether the claimed run was due by the clock of its claim, or later, until that was set back. (One that is
    claimed ahead is to begin when it is due.)"""
    if run.state not in CLAIMED or run.started_at is None:
        return False
    return run.started_at > run.due_at or run.started_at <= wrong_at


def _decided_at(run: Run) -> Instant:
    """When it was decided that the run is to wait until `due_at`."""
    return run.history[-1].at if run.history else run.created_at
