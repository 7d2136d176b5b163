"""Lists of runs: how finds of several walks down the ids become one page.

A list is answered from indexes that are sorted by id, one walk for each: pending runs, claimed ones, those that failed,
and so on. A walk that has to filter looks at a bounded number of runs. One that was broken off there, or that found all
that the page can hold, knows nothing of what lies below: so the page ends at the highest such place. It may then be
short, or empty, and still be followed by another.

An id begins with the millisecond of the run's fire time (`model.uuid7`), so bounds on the one are bounds on the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import merge
from typing import Any, Generic, TypeVar

from msgspec import Struct

from horarium.clock import SECOND, Instant
from horarium.model import Run, uuid7
from horarium.ports import RunFilter

SCAN_MAX = 4_000
"""How many runs one walk looks at for a page."""

MILLISECOND = 1_000
MILLIS_MAX = (1 << 48) - 1

TEN_SECONDS = 10 * SECOND
"""Finished runs of a queue are indexed by these."""
TENS_MAX = (1 << 31) - 1

T = TypeVar("T")
Id = TypeVar("Id", str, bytes)


class Walk(Struct, Generic[Id], frozen=True):
    """The finds of a walk: (id, anything else) in descending order; and the id at which it was broken off (None: it
    came to its end)."""

    found: Sequence[tuple[Id, Any]]
    broken_off: Id | None = None


def rest_of_page(fires: Sequence[Instant], limit: int) -> tuple[Instant, Instant] | None:
    """A walk down a job's fire times found these, newest first, for a page of `limit`. Ids follow fire times, but not
    within a millisecond: if the page may end within one, the first and last of its fire times still to be read."""
    if limit <= 0 or len(fires) <= limit:
        return None
    last = fires[-1]
    begin = last - last % MILLISECOND
    return None if fires[-2] >= begin + MILLISECOND else (begin, last - 1)


def tens_of(fire_at: Instant) -> int:
    """In which ten seconds that is."""
    return min(fire_at // TEN_SECONDS, TENS_MAX)


def joined(walks: Iterable[Walk[Id]], limit: int) -> tuple[list[Any], Id | None]:
    """The page of walks that looked for `limit` + 1 runs each: what else was found with each id, and below which id the
    next page begins (None: there is none)."""
    walks = list(walks)
    frontiers = [frontier for walk in walks if (frontier := _known_down_to(walk, limit)) is not None]
    frontier = max(frontiers, default=None)
    found = list(merge(*(walk.found for walk in walks), key=_first, reverse=True))
    known = found if frontier is None else [one for one in found if one[0] >= frontier]
    page = [value for _, value in known[:limit]]
    if limit <= 0:
        return [], None
    return page, known[limit - 1][0] if len(known) > limit else frontier


def _known_down_to(walk: Walk[Id], limit: int) -> Id | None:
    return walk.found[-1][0] if len(walk.found) > limit else walk.broken_off


def _first(pair: tuple[Id, Any]) -> Id:
    return pair[0]


def id_bounds(where: RunFilter, after: str | None) -> tuple[str | None, str | None]:
    """Which ids runs of this filter can have: from the first one (None: any) to below the second."""
    lowest = None if where.since is None else lowest_id(where.since // MILLISECOND)
    beyond = None if where.until is None else lowest_id_after(max(where.until - 1, 0))
    if beyond is None or after is None:
        return lowest, beyond if after is None else after
    return lowest, min(beyond, after)


def newest_of(jobs: Sequence[str], runs: Iterable[Run], limit: int) -> dict[str, list[Run]]:
    """Of each job the newest of these runs."""
    answer: dict[str, list[Run]] = {job: [] for job in jobs}
    for run in sorted(runs, key=_id_of, reverse=True):
        of_job = answer.get(run.job or "")
        if of_job is not None and len(of_job) < limit:
            of_job.append(run)
    return answer


def _id_of(run: Run) -> str:
    return run.id


def lowest_id(millis: int) -> str:
    """The lowest id that a run with this fire time can have."""
    return uuid7(min(max(millis, 0), MILLIS_MAX) * MILLISECOND, bytes(10))


def lowest_id_after(fire_at: Instant) -> str:
    """The lowest id that a run of a later millisecond can have."""
    return lowest_id(fire_at // MILLISECOND + 1)


def ahead_after(planned_until: Instant, job_id: str) -> str:
    """Where a page of jobs whose cursors lie ahead goes on."""
    return f"{planned_until}/{job_id}"


def ahead_cursor(after: str) -> tuple[Instant, str]:
    """The same, read."""
    planned_until, _, job_id = after.partition("/")
    return int(planned_until), job_id
