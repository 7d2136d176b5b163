"""The fire times of a job that lie ahead: listed in parts, counted, and the last of them. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from horarium.clock import Instant
from horarium.rules.forecasting import Ahead

FIRES_AT_ONCE = 2_000


def listed(wanted: Ahead) -> Iterator[list[Instant]]:
    """Lists of them, in order."""
    after = wanted.after
    if wanted.first is not None and wanted.after < wanted.first <= wanted.until:
        yield [wanted.first]
    left = None if wanted.left is None else wanted.left - counted(wanted)
    while left is None or left > 0:
        count = FIRES_AT_ONCE if left is None else min(left, FIRES_AT_ONCE)
        fires = wanted.trigger.list_fires(after, wanted.until, count)
        yield fires
        left = None if left is None else left - sum(fire > wanted.counted_from for fire in fires)
        if len(fires) < count:
            break
        after = fires[-1]


def last_of(wanted: Ahead, every: int) -> Instant:
    """The last fire time of an interval that may be due."""
    if wanted.left is None:
        return wanted.until
    begins = max(wanted.after, wanted.counted_from)
    left, first = wanted.left - counted(wanted), wanted.trigger.next_fire(begins)
    return begins if left <= 0 or first is None else min(wanted.until, first + (left - 1) * every)


def counted(wanted: Ahead) -> int:
    """How many fire times that count have passed before those that are asked for."""
    if wanted.left is None:
        return 0
    return wanted.trigger.count_fires(wanted.counted_from, wanted.after, wanted.left)
