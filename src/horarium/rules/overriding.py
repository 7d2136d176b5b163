"""One fire time of a job is skipped or moved, or goes back to its rule: the plans of these changes.

A run that was planned ahead and has not begun is withdrawn with the change, and planned again when the override falls
due. `rules.overridden` says what becomes of it then.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from horarium.clock import Instant
from horarium.model import Cause, Job, Plan, Run, State
from horarium.model.overrides import Override
from horarium.rules.finishing import looked_at
from horarium.rules.overridden import Owed, of_fire, one, stood_still
from horarium.rules.planning import CURSOR_AHEAD, apply_overlap, dropped_run, plan, timed
from horarium.rules.windows import exhausted, is_yielded
from horarium.triggers.budget import LIST_STEPS


def has_begun(run: Run | None, override: Override | None) -> bool:
    """Whether it is too late to skip or move a fire time, of which this is the run and this the override in force."""
    if override is not None and override.done:
        return True
    return run is not None and (run.state is not State.PENDING or run.attempt > 0)


def override(job: Job, wanted: Override, run: Run | None, now: Instant) -> Plan:
    """The fire time is skipped or moved from now on; a new word takes the place of an older one. `run`: the pending run
    of it, if there is one. A skipped fire time that has come is dealt with at once. One that was moved to an instant
    which has come meanwhile is due, and planned beside the job's unfinished runs."""
    before = of_fire(job, wanted.fire_at)
    token = max(0 if before is None else before.token, 0 if run is None else run.token)
    kept = [each for each in job.overrides if each.fire_at != wanted.fire_at]
    overrides = tuple(sorted((*kept, replace(wanted, token=token)), key=lambda each: each.fire_at))
    count = job.fires_count if run is None or run.cause is Cause.BACKFILL else max(0, job.fires_count - 1)
    changed = timed(replace(job, overrides=overrides, fires_count=count))
    withdrawn = () if run is None else (run,)
    if wanted.to is None and wanted.due_at <= now and job.enabled and job.held_until is None:
        planned = plan(changed, (), now, steps=LIST_STEPS)
        return replace(planned, withdrawals=withdrawn)
    return Plan(changed, withdrawals=withdrawn, records=looked_at(changed, now))


def lift(job: Job, fire_at: Instant, run: Run | None, unfinished: Sequence[Run], now: Instant) -> Plan:
    """The fire time is as its rule has it again. One that the cursor has passed is owed at once; in a pause, it was
    skipped for that. `run`: its own, if a claim of that was quicker than the override: it counts again, and no other
    ends for it."""
    back = replace(job, overrides=tuple(each for each in job.overrides if each.fire_at != fire_at))
    before = of_fire(job, fire_at)
    token = 0 if before is None else before.token
    if run is not None:
        changed = timed(replace(back, fires_count=job.fires_count + (run.cause is not Cause.BACKFILL)))
        return Plan(changed, records=looked_at(changed, now))
    if fire_at > job.planned_until or not job.enabled or exhausted(job):
        changed = timed(back)
        passed = fire_at <= min(now + CURSOR_AHEAD, job.planned_until) and not exhausted(job)
        rows = (replace(dropped_run(back, one(fire_at, *stood_still(job)), now), token=token),) if passed else ()
        return Plan(changed, rows, records=looked_at(changed, now))
    runs, changes, skipped = apply_overlap(job, [Owed(fire_at, Cause.SCHEDULE)], unfinished, now)
    changed = timed(replace(back, fires_count=job.fires_count + len(runs)))
    dropped = (dropped_run(back, each, now) for each in skipped)
    made = tuple(replace(run, token=token) for run in (*runs, *dropped))
    return Plan(changed, made, tuple(changes), records=looked_at(changed, now))


def still_yielded(changed: Job, now: Instant) -> Job:
    """The job, which was edited, without the overrides of fire times that its rule yields no longer. A fire time that
    had come is owed by the rule of then, wherever it was moved to."""
    if not changed.overrides:
        return changed
    dropped = tuple(
        each.fire_at for each in changed.overrides if each.fire_at > now and not is_yielded(changed, each.fire_at)
    )
    kept = tuple(each for each in changed.overrides if each.fire_at not in dropped)
    return replace(changed, overrides=kept, overrides_dropped=dropped)
