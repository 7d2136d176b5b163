"""The common part of the walks of one list of runs in SQL: what their statements are given, and which part of what a
walk by fire time found is known to be complete.

Runs of one job are found by their fire times, and pages go by ids. Ids follow fire times, but not within a millisecond:
a walk that fills the page reads its last millisecond to the end, and one that was broken off is cut after the
millisecond in which it was. Finished runs of a queue are found in the same way, by the ten seconds of the fire time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from horarium.clock import Instant
from horarium.model import State
from horarium.ports import RunFilter
from horarium.stores.encoding import STATE_NUMBERS, encode_id
from horarium.stores.listing import (
    MILLISECOND,
    SCAN_MAX,
    TEN_SECONDS,
    Walk,
    id_bounds,
    lowest_id_after,
    rest_of_page,
    tens_of,
)

LOWEST_ID, HIGHEST_ID = b"", b"\xff" * 17
UUID_BYTES, MILLIS_BYTES = 16, 6
LATEST: Instant = (1 << 63) - 1

Values = tuple[Any, ...]


class Scope(Struct, frozen=True):
    """All runs of a namespace, a queue or a job: how the names of its statements end, and its number."""

    ending: str
    number: int


class Search(Struct, frozen=True):
    """One list, from the first id (included) to the last (excluded)."""

    where: RunFilter
    queue_id: int | None
    lowest: bytes
    below: bytes
    limit: int

    def values(self, number: int, state: State | None) -> Values:
        """What every statement is given; each finds one run more than the page holds."""
        state_number = None if state is None else STATE_NUMBERS[state]
        bounds = self.below, self.lowest, SCAN_MAX, self.limit + 1
        return number, *bounds, self.queue_id, state_number, self.where.since, self.where.until

    def values_by_fire(self, number: int, state: State | None) -> Values:
        """What a statement that walks down the fire times is given: the highest one too."""
        return *self.values(number, state), _last_fire_below(self.below)

    def values_of_rest(self, values: Values, fires: Sequence[Instant]) -> Values | None:
        """What the same statement is given to read the last millisecond to its end, if it found these fire times and
        the page may end within one."""
        if (rest := rest_of_page(fires, self.limit)) is None:
            return None
        first, last = rest
        since = first if self.where.since is None else max(first, self.where.since)
        return *values[:4], SCAN_MAX, *values[5:7], since, values[8], last

    def values_by_time(self, number: int, state: State | None) -> Values:
        """What a statement that walks down tens of seconds is given: the highest and the lowest ones too."""
        last, first = tens_of(_last_fire_below(self.below)), tens_of(_first_fire_from(self.lowest))
        return *self.values(number, state), last, first

    def cut_above(self, tens: int) -> Instant | None:
        """At which fire time a walk by tens of seconds is cut that was broken off in these. None: too early for the
        page to get any further."""
        end = (tens + 1) * TEN_SECONDS - 1
        return end if encode_id(lowest_id_after(end)) < self.below else None

    def cut_at(self, found: Sequence[tuple[bytes, Any]], end: Instant | None) -> Walk[bytes]:
        """A walk by fire time, which was broken off at `end` (None: it came to its end)."""
        frontier = None if end is None else encode_id(lowest_id_after(end))
        ids = sorted(found, key=id_of, reverse=True)
        return Walk([pair for pair in ids if frontier is None or pair[0] >= frontier][: self.limit + 1], frontier)


def search_of(where: RunFilter, queue_id: int | None, after: str | None, limit: int) -> Search:
    """The list of this filter below the id `after`."""
    lowest, below = id_bounds(where, after)
    return Search(
        where,
        queue_id,
        LOWEST_ID if lowest is None else encode_id(lowest),
        HIGHEST_ID if below is None else encode_id(below),
        limit,
    )


def bounds_between(since: Instant, until: Instant) -> tuple[bytes, bytes, Instant, Instant]:
    """Runs with fire times from `since` to below `until` have ids below the first of these, from the second on;
    and runs with such ids have fire times from the third on, below the fourth."""
    ids = search_of(RunFilter(since=since, until=until), None, None, 0)
    first, beyond = since - since % MILLISECOND, (max(until - 1, 0) // MILLISECOND + 1) * MILLISECOND
    return ids.below, ids.lowest, first, beyond


def id_of(pair: tuple[bytes, Any]) -> bytes:
    """The id of the find."""
    return pair[0]


def _first_fire_from(lowest: bytes) -> Instant:
    """The lowest fire time that an id not below this one can have."""
    return int.from_bytes(lowest[:MILLIS_BYTES], "big") * MILLISECOND


def _last_fire_below(below: bytes) -> Instant:
    """The highest fire time that an id below this one can have."""
    if len(below) != UUID_BYTES:
        return LATEST
    return (int.from_bytes(below[:MILLIS_BYTES], "big") + 1) * MILLISECOND - 1
