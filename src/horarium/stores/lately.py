"""A bounded cache of a store, by key, with eviction of entries that are not asked for any more.

A dict that is emptied once it is full keeps deleted things until then, which may be days: it looks like a leak. Here
are two halves. An entry that is asked for is in the young one, or moves there. Now and then (the young one is full, or
was asked often) the old half is dropped, and the young one is the old one from then on. Entries in use stay, at the
price of one move a turn.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")

ASKED_MAX = 5_000
"""Questions after which the old half is dropped: an entry that was not asked for in twice as many is evicted."""
NAMES_MAX = 2_000
"""Names of queues, or of workers, in one half; one takes about 300 bytes."""
OWNERS_MAX = 5_000
"""Ids and names of jobs in one half; one takes about 400 bytes."""
JOBS_BYTES_MAX = 8 * 1024 * 1024
"""Bytes of definitions of jobs in one half: some 6,000 small ones."""


class Lately(dict[K, V]):
    """Memory of one thread. Up to `weight_max` in each half, and what one question brought; each value weighs 1 unless
    it is said."""

    __slots__ = ("_asked", "_before", "_each", "_weight", "_weight_max")

    def __init__(self, weight_max: int) -> None:
        self._weight_max = weight_max
        self._weight = self._asked = 0
        self._before: dict[K, V] = {}
        self._each = 1  # what a value of the old half weighs, on average

    def __missing__(self, key: K) -> V:
        value = self[key] = self._before.pop(key)
        self._weight += self._each
        return value

    @property
    def size(self) -> int:
        """How many values there are in both halves."""
        return len(self) + len(self._before)

    def recall(self, key: K) -> V | None:
        """The value of this key, if it is known."""
        self._turn_if_due()
        return self[key] if key in self or key in self._before else None

    def unknown(self, wanted: Iterable[K | None]) -> set[K]:
        """Those that are not known. The others are at hand until the next question but one, at least."""
        self._turn_if_due()
        unknown = {one for one in wanted if one is not None and one not in self}
        if unknown and self._before:
            for one in [one for one in unknown if one in self._before]:
                self[one]
                unknown.discard(one)
        return unknown

    def split(self, wanted: Iterable[K | None]) -> tuple[dict[K, V], set[K]]:
        """The known ones of these, to keep while others ask; and those that are not known."""
        names = {one for one in wanted if one is not None}
        unknown = self.unknown(names)
        return {one: self[one] for one in names if one not in unknown}, unknown

    def learn(self, found: Mapping[K, V], weight: int | None = None) -> None:
        """Remember these, which weigh so much together."""
        self.update(found)
        self._weight += len(found) if weight is None else weight

    def _turn_if_due(self) -> None:
        self._asked += 1
        if self._weight >= self._weight_max or self._asked > ASKED_MAX:
            self._before = dict(self)
            self._each = -(-self._weight // max(len(self), 1))
            self.clear()
            self._weight = self._asked = 0


def weight_of_jobs(count: int, encoded: int) -> int:
    """About how many bytes of memory jobs take that were this long, encoded, together."""
    return 600 * count + 3 * encoded


__all__ = ["ASKED_MAX", "JOBS_BYTES_MAX", "NAMES_MAX", "OWNERS_MAX", "Lately", "weight_of_jobs"]
