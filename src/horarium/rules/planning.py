"""From fire times to runs: `plan(job, unfinished, now)` decides, and touches nothing.

Every fire time up to the cursor (`job.planned_until`) is accounted for: it became a run, or a skipped run that says
why. A plan moves the cursor on and says what becomes of each fire time that it passes. Two nodes that plan the same job
at about the same time come to the same runs (a run's id is a hash of job and fire time), and the store lets one of
them through. There is no other coordination: no leader, no lock.

After a long absence a rule may owe millions of fire times, so none of this enumerates them: the newest are found by
halving, dropped ones become one row for the range (docs/architecture/planners.md).
"""

from __future__ import annotations

from bisect import bisect, bisect_left
from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from horarium.clock import INSTANT_MAX, INSTANT_MIN, SECOND, Instant, to_micros, to_text
from horarium.errors import InvalidRequest
from horarium.model import (
    Cause,
    Disposition,
    Event,
    ExternalTarget,
    Job,
    Plan,
    Run,
    RunChange,
    State,
    fraction,
    prune_instant,
    run_id,
    shown_state,
)
from horarium.policies import CatchUpPolicy, Overlap
from horarium.rules import missed
from horarium.rules.approving import asked
from horarium.rules.catching_up import CATCH_UP_RUNS_MAX, account
from horarium.rules.compiled import after_end, retention_of_job
from horarium.rules.finishing import looked_at
from horarium.rules.holds import NOT_HELD, PLANNED_CAUSES, JobHold, Skipped, let_go
from horarium.rules.keys import keyed
from horarium.rules.overridden import (
    MISFIRE_GRACE,
    Dropped,
    Owed,
    as_moved,
    left,
    moves,
    next_due,
    of_fire,
    one,
    passed_by,
    settled,
    stood_still,
)
from horarium.rules.settling import cancel, terminate
from horarium.rules.windows import dropped_ranges, exhausted, fires_in_window, next_in_window, without_passed
from horarium.triggers.budget import LIST_STEPS, limited

BACKFILL_RUNS_MAX = 1_000
BUFFERED_RUNS_MAX = 1_000
"""Unfinished runs of one job under `buffer_all`; fire times beyond are skipped."""
CURSOR_AHEAD = 60 * SECOND
"""A cursor further ahead than this, beyond the look-ahead, was set by a clock that was wrong."""
GRACE_SECONDS = 3600.0
"""How long work that is done elsewhere is waited for, where its job does not say."""
SILENCE_SECONDS = 24 * 3600.0
"""How long it may take once it has begun, where its job does not say."""

ENDS_OTHERS = frozenset({Overlap.CANCEL_OTHER, Overlap.TERMINATE_OTHER})
_SERIAL = frozenset({Overlap.BUFFER_ONE, Overlap.BUFFER_ALL, Overlap.CANCEL_OTHER, Overlap.TERMINATE_OTHER})
"""Claimed one at a time. `terminate_other` too: a run that was claimed just before its end was decided goes on for a
moment, and the next one waits for it."""

_UNFINISHED_MAX = {Overlap.SKIP: 1, Overlap.BUFFER_ONE: 2, Overlap.BUFFER_ALL: BUFFERED_RUNS_MAX}


def needs_unfinished(job: Job) -> bool:
    """Whether planning this job depends on its unfinished runs."""
    return job.overlap is not Overlap.ALLOW or job.buffer_max is not None


def counted_runs(job: Job) -> tuple[int, int] | None:
    """How many of its unfinished runs, and of its pending ones, the overlap policy counts at most. None: all."""
    if job.overlap in ENDS_OTHERS:
        return None
    return _UNFINISHED_MAX.get(job.overlap, 0), job.buffer_max or 0


def plans_when_due(job: Job) -> bool:
    """Whether it is planned when it falls due and not ahead: it depends on how earlier runs ended, a pause or a hold
    ends, or the next thing to do is about a fire time that was skipped or moved."""
    if needs_unfinished(job) or after_end(job) is not None or not job.enabled or job.held_until is not None:
        return True
    at = job.next_fire_at if job.overrides or job.missed else None
    return at is not None and at in (next_due(job), missed.over_at(job))


def last_run_id(job: Job) -> str | None:
    """The run from whose end the job counts, if it counts from one; it need not exist."""
    return None if after_end(job) is None else run_id(job.id, job.anchor_at)


def next_fire(job: Job, after: Instant) -> Instant | None:
    """The job's first fire time after `after`, within its own window and count, or when one falls due that was skipped
    or moved, or a question about missed ones is over, if that is earlier. Of one that is paused: the instant at which
    it goes on, or None."""
    if job.deleted_at is not None:
        return None
    if not job.enabled:
        return None if exhausted(job) and job.missed is None else job.paused_until
    own = (next_in_window(job, after), next_due(job)) if not exhausted(job) else (None,)
    if not (job.overrides or job.missed):
        return own[0]
    return min((at for at in (*own, missed.over_at(job)) if at is not None), default=None)


def job_fires(job: Job, after: Instant, count: int, until: Instant = INSTANT_MAX - 1) -> list[Instant]:
    """The next instants up to `until` at which a job runs, `count` at most, one for each run; none of one that is
    deleted or past its last run, nor while it is paused."""
    if job.deleted_at is not None or exhausted(job):
        return []
    if not job.enabled:
        if job.paused_until is None:
            return []
        return job_fires(_resumed(job), max(after, job.paused_until - 1), count, until)
    if after_end(job) is not None and job.next_fire_at is not None and job.next_fire_at > after and count:
        first = job.next_fire_at
        later = fires_in_window(replace(job, anchor_at=first), first, until, count - 1)
        return [first, *later] if first <= until else []
    fires = fires_in_window(job, after, until, count)
    return sorted([*fires, *moves(job, after, until)])[:count] if job.overrides else fires


def next_run_at(job: Job) -> Instant | None:
    """When a job runs next: where fire times were skipped, moved or missed, that may not be its `next_fire_at`."""
    if not (job.overrides or job.missed) or not job.enabled or job.next_fire_at is None:
        return job.next_fire_at if job.enabled else None
    if exhausted(job):
        return None
    found = [*fires_in_window(job, job.planned_until, INSTANT_MAX - 1, 1), *moves(job, INSTANT_MIN, INSTANT_MAX)]
    return min(found, default=None)


def is_fire_time(job: Job, instant: Instant) -> bool:
    """Whether the job's rule yields this instant, whether it is paused or not, skipped or moved or not."""
    return of_fire(job, instant) is not None or bool(fires_in_window(job, instant - 1, instant, 1))


def timed(job: Job) -> Job:
    """The job with its next fire time, from its cursor on."""
    return replace(job, next_fire_at=next_fire(job, job.planned_until), finished_at=None, held_until=None)


# ---- the plan ---------------------------------------------------------------------------------------------------


def plan(
    job: Job,
    unfinished: Sequence[Run],
    now: Instant,
    ahead: int = 0,
    *,
    steps: int = LIST_STEPS,
    last: Run | None = None,
    ran: Sequence[Instant] = (),
    held: JobHold = NOT_HELD,
) -> Plan:
    """What becomes of every fire time of `job` in (cursor, now], and of those up to `now + ahead` where no policy
    makes them wait for how earlier runs end. `unfinished`: the job's unfinished runs, if its overlap policy asks.
    Under a hold the cursor stays, and the job is looked at when the hold ends.

    Raises TooExpensive where the rule takes more than `steps` to evaluate. PLAN_STEPS take some 10 ms; a planner
    plans what needs more in a thread, with PLAN_STEPS_MAX, so that it delays no other job."""
    with limited(steps):
        if not job.enabled:
            over = job.paused_until is not None and job.paused_until <= now
            return resume(job, (job.paused_until or 0) - 1, ran) if over else Plan(job)
        if held.until is not None:
            return Plan(replace(job, held_until=held.until, next_fire_at=held.until))
        if job.missed is not None and (decided := missed.settled(job, now, unfinished, ran)) is not None:
            return _settle(decided, unfinished, now)
        if held.next_at is not None:
            ahead = max(0, min(ahead, held.next_at - 1 - now))
        if after_end(job) is not None:
            planned = _plan_from_end(job, unfinished, now, last, held.skipped)
        else:
            planned = _plan(job, unfinished, now, ahead, ran, held.skipped)
    return replace(planned, runs=tuple(let_go(run, held.over, now) for run in planned.runs)) if held.over else planned


def _plan_from_end(
    job: Job, unfinished: Sequence[Run], now: Instant, last: Run | None, skipped: Sequence[Skipped]
) -> Plan:
    """The same for a job that counts from the end of its last run, which is `last` if it is kept.

    `job.anchor_at` is the fire time of that run until its end is known, then its end. While it is unfinished, its end
    lies ahead, so the next run is not due before `now` and the delay: that is when to look again. So no end is noticed
    too late, and nothing but the job's own row has to be kept. After an absence one run is owed, never more."""
    if last is not None and last.finished_at is None:
        return _looking_after(replace(job, planned_until=max(now, job.planned_until)), now)
    if last is not None and last.finished_at is not None:
        job = replace(job, anchor_at=last.finished_at)
    fire = next_fire(job, job.planned_until)
    if fire is None or fire > now:
        job = timed(job)
        return Plan(job, records=looked_at(job, now))
    fired = replace(job, anchor_at=fire, planned_until=max(now, job.planned_until))
    if (reason := next((each.reason for each in skipped if each.begins_at <= fire < each.ends_at), None)) is not None:
        return _looking_after(fired, now, (dropped_run(job, one(fire, Disposition.HELD, reason), now),))
    window, late = job.catch_up.window_seconds, fire <= now - MISFIRE_GRACE
    if late and (job.catch_up.policy is CatchUpPolicy.NONE or (window is not None and fire < now - to_micros(window))):
        gone = Dropped(fire, fire, 1, Disposition.MISSED, f"catch_up: {job.catch_up.policy}")
        return _looking_after(fired, now, (dropped_run(job, gone, now),))
    owed = [Owed(fire, Cause.CATCH_UP if late else Cause.SCHEDULE)]
    runs, changes, overlapping = apply_overlap(job, owed, unfinished, now)
    fired = replace(fired, fires_count=job.fires_count + len(runs))
    return _looking_after(fired, now, (*(dropped_run(job, each, now) for each in overlapping), *runs), tuple(changes))


def _looking_after(job: Job, now: Instant, runs: tuple[Run, ...] = (), changes: tuple[RunChange, ...] = ()) -> Plan:
    """The plan that leaves this job to be planned again when its next run would be due if its last one ended now."""
    next_at = next_fire(replace(job, anchor_at=now), now)
    job = replace(job, next_fire_at=next_at, finished_at=None, held_until=None)
    return Plan(job, runs, changes, records=looked_at(job, now))


def _plan(
    job: Job, unfinished: Sequence[Run], now: Instant, ahead: int, ran: Sequence[Instant], skipped: Sequence[Skipped]
) -> Plan:
    until = job.planned_until if exhausted(job) else now + (0 if needs_unfinished(job) else ahead)
    owed, dropped, asks = account(job, now, until := max(until, job.planned_until), ran, skipped)
    due = settled(job, now, owed, skipped)
    job, given_up, question = missed.asked_more(job, [*asks, *due.asked], now)
    # After a clock went back a fire time may come again whose run waits: that run must not make way for itself.
    known = {run.fire_at for run in unfinished}.union(ran) if unfinished or ran else ()
    owed = [fire for fire in owed if fire.fire_at not in known]
    counted = replace(job, fires_count=job.fires_count + len(due.owed)) if due.owed else job
    owed, until = _limit(counted, owed, until)
    if due.owed:
        owed = sorted((*owed, *(fire for fire in due.owed if fire.fire_at not in known)), key=lambda each: each.due_at)
    dropped = [*(each for each in dropped if each.first <= until), *given_up, *due.dropped_by(until)]
    apart = sorted({*known, *[range_.first for range_ in dropped]})
    runs, changes, overlapping = apply_overlap(job, owed, unfinished, now, apart)
    moved = replace(job, planned_until=until, fires_count=job.fires_count + len(runs))
    moved = timed(replace(moved, overrides=left(job, due.overrides, until)) if job.overrides else moved)
    return Plan(
        moved,
        (*[dropped_run(job, range_, now) for range_ in (*dropped, *overlapping)], *runs),
        tuple(changes),
        records=(*question, *looked_at(moved, now)),
    )


def _settle(over: missed.Settled, unfinished: Sequence[Run], now: Instant) -> Plan:
    """The fire times about which a person was asked get their rows; what else is owed is planned next."""
    runs, changes, overlapping = apply_overlap(over.job, over.owed, unfinished, now, over.apart)
    rows = (*(dropped_run(over.job, each, now) for each in (*over.dropped, *overlapping)), *runs)
    after = timed(replace(over.job, fires_count=over.job.fires_count + len(runs)))
    return Plan(after, tuple(map(over.told, rows)), tuple(changes), records=looked_at(after, now))


def _limit(job: Job, owed: list[Owed], until: Instant) -> tuple[list[Owed], Instant]:
    """The runs for which one plan and `fires_max` have room, and where the cursor stops: before the others."""
    room = CATCH_UP_RUNS_MAX if job.fires_max is None else job.fires_max - job.fires_count
    room = max(0, min(CATCH_UP_RUNS_MAX, room))
    if len(owed) <= room and len(owed) < CATCH_UP_RUNS_MAX:
        return owed, until
    kept = owed[:room]
    return kept, kept[-1].fire_at if kept else owed[0].fire_at - 1


# ---- pauses ------------------------------------------------------------------------------------------------------


def resume(job: Job, now: Instant, ran: Sequence[Instant] = ()) -> Plan:
    """Go on with the fire times after `now`. Those that passed meanwhile are recorded as skipped, in one row; `ran`:
    fire times that have a row already, ascending, which no range may cover."""
    cursor = max(now, min(job.planned_until, now + CURSOR_AHEAD))
    due = passed_by(job := without_passed(job, now), now)
    overrides = left(job, due.overrides, cursor)
    resumed = timed(replace(_resumed(job), planned_until=cursor, updated_at=now, overrides=overrides))
    passed = (*passed_over(job, now, now, ran), *(dropped_run(job, each, now) for each in due.dropped))
    return Plan(resumed, passed, records=looked_at(resumed, now))


def _resumed(job: Job) -> Job:
    return replace(job, enabled=True, paused_at=None, pause_reason=None, paused_until=None)


def passed_over(job: Job, until: Instant, now: Instant, ran: Sequence[Instant]) -> tuple[Run, ...]:
    """One row for each stretch of fire times in (cursor, until] between those that ran, of a job that stood still."""
    if exhausted(job) or after_end(job) is not None or (job.enabled and job.held_until is None):
        return ()
    passed = dropped_ranges(job, job.planned_until, until, *stood_still(job), ran)
    return tuple(dropped_run(job, range_, now) for range_ in passed)


# ---- overlap ----------------------------------------------------------------------------------------------------


def apply_overlap(
    job: Job, owed: Iterable[Owed], unfinished: Sequence[Run], now: Instant, apart: Sequence[Instant] = ()
) -> tuple[list[Run], list[RunChange], list[Dropped]]:
    """Which of the owed fire times run, in order, given the unfinished runs. `apart`: fire times that no range of
    skipped ones may cover, ascending."""
    if not needs_unfinished(job):
        return [planned_run(job, fire, now) for fire in owed], [], []
    if job.overrides:
        apart = sorted({*apart, *(each.fire_at for each in job.overrides)})
    runs: list[Run] = []
    skipped: list[Dropped] = []
    owed = list(owed)
    if job.overlap in ENDS_OTHERS:
        skipped += [_overlapped(job, fire, "a later fire time took its place") for fire in owed[:-1]]
        changes = _end_others(job, unfinished, now) if owed else []
        runs = [_made_last(planned_run(job, fire, now), unfinished, now) for fire in owed[-1:]]
        return runs, changes, _merged(skipped, apart)
    waiting, pending = len(unfinished), sum(shown_state(run) is State.PENDING for run in unfinished)
    room = _UNFINISHED_MAX.get(job.overlap)
    for fire in owed:
        if room is not None and waiting >= room:
            skipped.append(_overlapped(job, fire, f"{waiting} unfinished"))
        elif job.buffer_max is not None and pending >= job.buffer_max:
            skipped.append(_overlapped(job, fire, f"{pending} pending, buffer_max is {job.buffer_max}"))
        else:
            runs.append(planned_run(job, fire, now))
            waiting, pending = waiting + 1, pending + 1
    return runs, [], _merged(skipped, apart)


def _overlapped(job: Job, fire: Owed, why: str) -> Dropped:
    return one(fire.fire_at, Disposition.SKIPPED_OVERLAP, f"overlap: {job.overlap}; {why}{fire.said}")


def _made_last(run: Run, unfinished: Sequence[Run], now: Instant) -> Run:
    """The run, made after all those that it takes the place of, also where nodes' clocks differ: which is newer is
    asked later. One from a future that turned out to be wrong is no newer in any case."""
    if not unfinished:
        return run
    possible = (other.created_at for other in unfinished if other.created_at <= now + CURSOR_AHEAD)
    return replace(run, created_at=max(run.created_at, 1 + max(possible, default=0)))


def _end_others(job: Job, unfinished: Sequence[Run], now: Instant) -> list[RunChange]:
    end = terminate if job.overlap is Overlap.TERMINATE_OTHER else cancel
    reason = f"overlap: {job.overlap}; the next fire time came"
    return [
        RunChange(end(run, retention_of_job(job), now, reason), run.token, run.state)
        for run in unfinished
        if run.state is not State.CANCELLING or job.overlap is Overlap.TERMINATE_OTHER
    ]


def _merged(dropped: list[Dropped], apart: Sequence[Instant]) -> list[Dropped]:
    """Neighbours of the same kind as one range, unless a fire time in `apart` is one of them or lies between them.
    (They come as they are due: one that was moved stands alone: those after it may have been planned long ago.)"""
    merged: list[Dropped] = []
    for range_ in sorted(dropped):
        before = merged[-1] if merged else None
        alike = before is not None and (before.disposition, before.reason) == (range_.disposition, range_.reason)
        if before is not None and alike and bisect_left(apart, before.first) == bisect(apart, range_.last):
            merged[-1] = before._replace(last=range_.last, fires=before.fires + range_.fires)
        else:
            merged.append(range_)
    return merged


# ---- runs -------------------------------------------------------------------------------------------------------


def due_of(job: Job, fire_at: Instant) -> Instant:
    """When a run for this fire time is due."""
    return fire_at + to_micros(job.jitter_seconds * fraction(job.id, fire_at)) if job.jitter_seconds else fire_at


def planned_run(job: Job, fire: Owed, now: Instant) -> Run:
    """The same; a planned one whose keys can't be made is missed, and says why."""
    try:
        asks = job if fire.moved is None else replace(job, approval=None)
        run = owed_run(asks, fire.fire_at, now, fire.cause, fire.payload)
    except InvalidRequest as error:
        if fire.cause not in PLANNED_CAUSES:
            raise
        return dropped_run(job, one(fire.fire_at, Disposition.MISSED, f"{error.message}{fire.said}"), now)
    if fire.moved is None:
        return run
    run = as_moved(run, fire.moved)
    return run if job.approval is None else asked(job, run)


def owed_run(job: Job, fire_at: Instant, now: Instant, cause: Cause, payload: bytes | None = None) -> Run:
    """The pending run for one fire time. Raises InvalidRequest where a key of the job can't be made for it."""
    due_at = due_of(job, fire_at) if job.jitter_seconds else fire_at
    if cause in (Cause.CATCH_UP, Cause.BACKFILL):
        due_at = max(due_at, now)
    elif cause is Cause.MANUAL:
        due_at = now
    timeouts = job.timeouts
    elsewhere = isinstance(job.target, ExternalTarget)
    start_seconds = GRACE_SECONDS if elsewhere and timeouts.start_seconds is None else timeouts.start_seconds
    lease_seconds = (timeouts.execution_seconds or SILENCE_SECONDS) if elsewhere else timeouts.heartbeat_seconds
    run = Run(
        id=run_id(job.id, fire_at),
        queue=job.queue,
        job_id=job.id,
        job=job.name,
        fire_at=fire_at,
        due_at=due_at,
        created_at=now,
        priority=job.priority,
        cause=cause,
        payload=payload,
        serial=job.overlap in _SERIAL and not elsewhere,
        lease_seconds=lease_seconds,
        execution_seconds=timeouts.execution_seconds,
        start_by=None if start_seconds is None else due_at + to_micros(start_seconds),
    )
    run = run if elsewhere else keyed(run, job)
    return run if job.approval is None else asked(job, run)


def dropped_run(job: Job, dropped: Dropped, now: Instant, cause: Cause = Cause.SCHEDULE) -> Run:
    many = dropped.fires > 1
    message = f"{dropped.disposition} ({dropped.reason})"
    if many:
        message += f": {dropped.fires} fire times up to {to_text(dropped.last)}"
    override = of_fire(job, dropped.first)
    return Run(
        id=run_id(job.id, dropped.first),
        queue=job.queue,
        job_id=job.id,
        job=job.name,
        fire_at=dropped.first,
        due_at=dropped.first,
        created_at=now,
        state=State.SKIPPED,
        cause=cause,
        finished_at=now,
        token=0 if override is None else override.token,  # a claim that came before the override stays void
        disposition=dropped.disposition,
        error=dropped.reason,
        fires=dropped.fires,
        last_fire_at=dropped.last if many else None,
        prune_at=prune_instant(now, retention_of_job(job)),
        history=(Event(now, State.SKIPPED, message, override=override),),
    )
