"""Fire times within a job's own window (`starts_at`, `ends_at`), and ranges of them that one decision drops.

A rule may owe millions of fire times, so a range is one row: its first fire time, its last, and how many they are. The
row stands at its first fire time, where no other row may be. So a range neither begins at a fire time that has a row
already, nor covers one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from horarium.clock import Instant
from horarium.model import Disposition, Job
from horarium.rules.compiled import trigger_of
from horarium.triggers import Trigger
from horarium.triggers.budget import LIST_STEPS, PLAN_STEPS, bounded, limited

MISSED_COUNT_MAX = 20_000
"""How far missed fire times are counted one by one where the trigger can't count them by arithmetic."""
PROBE_FIRES = 100
"""Counted first, to see what counting costs."""
LISTED_STEPS = 20_000
"""Steps that a list of fire times may take where nothing else limits it, as for a backfill."""


class Dropped(NamedTuple):
    """A range of fire times that are not to run."""

    first: Instant
    last: Instant
    fires: int
    disposition: Disposition
    reason: str


def next_in_window(job: Job, after: Instant) -> Instant | None:
    start = after if job.starts_at is None else max(after, job.starts_at - 1)
    with bounded(PLAN_STEPS):
        fire = trigger_of(job).next_fire(start)
    return None if fire is None or (job.ends_at is not None and fire >= job.ends_at) else fire


def last_in_window(job: Job, after: Instant, until: Instant) -> Instant | None:
    start = after if job.starts_at is None else max(after, job.starts_at - 1)
    end = until if job.ends_at is None else min(until, job.ends_at - 1)
    with bounded(PLAN_STEPS):
        return trigger_of(job).last_fire(start, end) if start < end else None


def fires_in_window(job: Job, after: Instant, until: Instant, limit: int) -> list[Instant]:
    start = after if job.starts_at is None else max(after, job.starts_at - 1)
    end = until if job.ends_at is None else min(until, job.ends_at - 1)
    with bounded(LISTED_STEPS):
        return trigger_of(job).list_fires(start, end, limit) if start < end else []


def dropped_ranges(
    job: Job, after: Instant, until: Instant, disposition: Disposition, reason: str, apart: Sequence[Instant] = ()
) -> list[Dropped]:
    """One row for all fire times in (after, until], or one for each stretch between those in `apart`, ascending, which
    have a row already."""
    apart = [fire for fire in apart if after < fire <= until]
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
