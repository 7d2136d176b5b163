"""Fire times in plans: when jobs begin that are changed together, the difference a change makes, the busiest minute."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from operator import add

from msgspec import Struct

from horarium.clock import DAY, MINUTE, Instant
from horarium.model import Job
from horarium.operations.looking.starts import StartCounts
from horarium.ports import BATCH_MAX
from horarium.rules.differing import Moved, fires_compared
from horarium.rules.planning import job_fires
from horarium.rules.spreading import spread_changes

Pair = tuple[Job | None, Job | None]
"""A job as it is and as a plan leaves it; None: it is not there."""
FIRES_COMPARED = 100
"""Fire times of one job that are compared, before and after."""
FIRES_SHOWN = 20
DECIDES_FIRES = ("trigger", "enabled", "starts_at", "ends_at", "fires_max", "anchor_at")
NEAR = 2 * DAY
"""How far apart the two instants of a fire time are at most that was moved."""


class FireDifferences(Struct, frozen=True):
    """The fire times within the horizon that a change adds, takes away and moves. `truncated`: there are more."""

    added: list[str] = []
    removed: list[str] = []
    moved: list[Moved] = []
    truncated: bool = False


def begun_together(pairs: Sequence[Pair], others: int, now: Instant) -> list[Pair]:
    """Pairs of jobs with their intervals spread as applying spreads them: as many steps as are written in one
    transaction among each other. `others`: steps before them, which are of calendars and channels."""
    begun = [(job, after) for job, after in pairs if after is not None]
    for start in range(-others, len(begun), BATCH_MAX):
        part = slice(max(start, 0), max(start + BATCH_MAX, 0))
        spread = spread_changes(begun[part], now)
        begun[part] = [(job, after) for (job, _), after in zip(begun[part], spread, strict=True)]
    return [*begun]


def fire_differences(before: Job | None, after: Job | None, now: Instant, until: Instant) -> FireDifferences:
    """Both are looked at as far as each of them is known."""
    if before is not None and after is not None and _fires_alike(before, after):
        return FireDifferences()
    most = FIRES_COMPARED if before and after else FIRES_SHOWN + 1
    lists = [[] if job is None else job_fires(job, now, most, until) for job in (before, after)]
    end = min((until, *(fires[-1] for fires in lists if len(fires) == most)))
    old, new = ([fire for fire in fires if fire <= end] for fires in lists)
    if before and after and not new and lists[1]:
        first = lists[1][0]
        new = [first]  # the next one is told, however far beyond the old ones
        old += [fire for fire in job_fires(before, first - 1, 1) if fire == first]
    changes = fires_compared(old, new, NEAR)
    cut = end < until or any(len(some) > FIRES_SHOWN for some in changes)
    return FireDifferences(*changes.texts(FIRES_SHOWN), cut)


def _fires_alike(before: Job, after: Job) -> bool:
    """Whether an edit leaves all that decides fire times as it is."""
    return all(getattr(before, field) == getattr(after, field) for field in DECIDES_FIRES)


class Peak(Struct, frozen=True):
    """The minute in which the most runs start."""

    at: Instant
    starts: int


def compared(counts: StartCounts, pairs: Sequence[Pair]) -> tuple[Peak | None, Peak | None]:
    """Before and after these changes. `counts`: of all other jobs."""
    (others,) = counts.totals([""])

    def peak(jobs: Iterable[Job | None]) -> Peak | None:
        keys = (counts.key(job) for job in jobs if job is not None)
        total = array("d", map(add, others, counts.total(key for key in keys if key is not None)))
        most = max(total)
        return Peak(counts.span.since + total.index(most) * MINUTE, round(most)) if most else None

    return peak(job for job, _ in pairs), peak(after for _, after in pairs)
