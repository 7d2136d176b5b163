"""Fire times within a job's own window (`starts_at`, `ends_at`), and ranges of them that one decision drops.

A rule may owe millions of fire times, so a range is one row: its first fire time, its last, and how many they are. The
row stands at its first fire time, where no other row may be. So a range neither begins at a fire time that has a row
already, nor covers one.

Fire times that a person skipped or moved are none here: `rules.overridden` deals with them.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from horarium.clock import SECOND, Instant
from horarium.model import Disposition, Job
from horarium.rules.compiled import trigger_of
from horarium.rules.overridden import Dropped, of_fire
from horarium.triggers import Trigger
from horarium.triggers.budget import LIST_STEPS, PLAN_STEPS, bounded, limited
from horarium.triggers.words import counted

MISSED_COUNT_MAX = 20_000
"""How far missed fire times are counted one by one where the trigger can't count them by arithmetic."""
PROBE_FIRES = 100
"""Counted first, to see what counting costs."""
LISTED_STEPS = 20_000
"""Steps that a list of fire times may take where nothing else limits it, as for a backfill."""


def exhausted(job: Job) -> bool:
    """Whether the job has made as many runs as it may (`fires_max`)."""
    return job.fires_max is not None and job.fires_count >= job.fires_max


def words_of_limit(job: Job) -> str:
    """Why a job with a count does not run once more."""
    return f"limit reached: {counted(job.fires_max or 0, 'run')} (fires_max), {job.fires_count:,} of them made by now"


def without_passed(job: Job, now: Instant) -> Job:
    """The job, without the overrides of fire times that passed after its last run: they are owed no more."""
    if not job.overrides or not exhausted(job):
        return job
    gone = [each for each in job.overrides if job.planned_until < each.fire_at <= now and each.due_at <= now]
    return replace(job, overrides=tuple(each for each in job.overrides if each not in gone)) if gone else job


def next_in_window(job: Job, after: Instant) -> Instant | None:
    start = after if job.starts_at is None else max(after, job.starts_at - 1)
    with bounded(PLAN_STEPS):
        fire = trigger_of(job).next_fire(start)
        while fire is not None and job.overrides and of_fire(job, fire) is not None:
            fire = trigger_of(job).next_fire(fire)
    return None if fire is None or (job.ends_at is not None and fire >= job.ends_at) else fire


def last_in_window(job: Job, after: Instant, until: Instant) -> Instant | None:
    start = after if job.starts_at is None else max(after, job.starts_at - 1)
    end = until if job.ends_at is None else min(until, job.ends_at - 1)
    with bounded(PLAN_STEPS):
        fire = trigger_of(job).last_fire(start, end) if start < end else None
        while fire is not None and job.overrides and of_fire(job, fire) is not None:
            fire = trigger_of(job).last_fire(start, fire - 1) if start < fire - 1 else None
        return fire


def fires_in_window(job: Job, after: Instant, until: Instant, limit: int) -> list[Instant]:
    start = after if job.starts_at is None else max(after, job.starts_at - 1)
    end = until if job.ends_at is None else min(until, job.ends_at - 1)
    with bounded(LISTED_STEPS):
        if not job.overrides:
            return trigger_of(job).list_fires(start, end, limit) if start < end else []
        fires = trigger_of(job).list_fires(start, end, limit + len(job.overrides)) if start < end else []
        overridden = {each.fire_at for each in job.overrides}
        return [fire for fire in fires if fire not in overridden][:limit]


def is_yielded(job: Job, instant: Instant) -> bool:
    """Whether the job's rule yields this instant within its window, skipped or moved or not."""
    return bool(fires_in_window(replace(job, overrides=()), instant - 1, instant, 1))


def newest_in_window(job: Job, after: Instant, until: Instant, limit: int) -> list[Instant]:
    """The newest `limit` fire times in (after, until], found by widening a span that ends at `until`."""
    last = last_in_window(job, after, until)
    if last is None:
        return []
    span = SECOND
    while last - span > after:
        found = fires_in_window(job, last - span, last, 2 * limit)
        if len(found) >= limit:
            return found[-limit:] if len(found) < 2 * limit else _newest_dense(job, last - span, last, limit)
        span *= 2
    found = fires_in_window(job, after, last, 2 * limit)
    return found[-limit:] if len(found) < 2 * limit else _newest_dense(job, after, last, limit)


def _newest_dense(job: Job, after: Instant, last: Instant, limit: int) -> list[Instant]:
    """As `newest_in_window`, where the span holds more than twice the limit: halve it until it does not."""
    low, high = after, last
    while True:
        middle = low + (high - low) // 2
        found = fires_in_window(job, middle, last, 2 * limit)
        if limit <= len(found) < 2 * limit:
            return found[-limit:]
        if len(found) >= 2 * limit:
            low = middle
        else:
            high = middle


def dropped_ranges(
    job: Job, after: Instant, until: Instant, disposition: Disposition, reason: str, apart: Sequence[Instant] = ()
) -> list[Dropped]:
    """One row for all fire times in (after, until], or one for each stretch between those in `apart`, ascending, which
    have a row already."""
    overridden = (each.fire_at for each in job.overrides)
    apart = [fire for fire in sorted({*apart, *overridden}) if after < fire <= until]
    stretches = zip([after, *apart], [*(fire - 1 for fire in apart), until], strict=True)
    ranges = (dropped_range(job, start, end, disposition, reason) for start, end in stretches)
    return [range_ for range_ in ranges if range_ is not None]


def dropped_range(job: Job, after: Instant, until: Instant, disposition: Disposition, reason: str) -> Dropped | None:
    """One row for all fire times in (after, until], or None where there are none."""
    first = next_in_window(job, after)
    if first is None or first > until:
        return None
    last = last_in_window(job, after, until)
    assert last is not None
    count, exact = _count(trigger_of(job), first - 1, last)
    if not exact:
        reason = f"{reason}; {count} or more fire times"
    return Dropped(first, last, count, disposition, reason)


def _count(trigger: Trigger, after: Instant, until: Instant) -> tuple[int, bool]:
    """How many fire times lie in (after, until], and whether that is all. What a few cost says how many to count."""
    with limited(LIST_STEPS) as budget:
        few = trigger.count_fires(after, until, PROBE_FIRES)
    if few < PROBE_FIRES:
        return few, True
    limit = min(MISSED_COUNT_MAX, max(PROBE_FIRES, MISSED_COUNT_MAX * PROBE_FIRES // max(1, budget.spent)))
    count = trigger.count_fires(after, until, limit)
    return count, count < limit
