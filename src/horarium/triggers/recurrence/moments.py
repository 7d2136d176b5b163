"""Sorted sets of seconds, counted from the beginning of a period, that need not be written out.

A rule with BYHOUR, BYMINUTE and BYSECOND lists can mean 86,400 times a day on 366 days. Such products are kept as
their factors and searched digit by digit; only what BYSETPOS picks is written out, and that is as short as its list.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from typing import Protocol

from horarium.triggers.recurrence.civil import DAY_SECONDS


class Moments(Protocol):
    """A sorted set of seconds from the beginning of a period."""

    size: int

    def at(self, index: int) -> int:
        """The moment with this index, 0 <= index < size."""
        ...

    def index(self, second: int) -> int:
        """How many moments lie before `second` (>= 0): the index of the first that does not."""
        ...


class Times:
    """Times of day (or of an hour, a minute): every combination of hours, minutes and seconds."""

    __slots__ = ("_hours", "_minutes", "_seconds", "size")

    def __init__(self, hours: tuple[int, ...], minutes: tuple[int, ...], seconds: tuple[int, ...]) -> None:
        self._hours, self._minutes, self._seconds = hours, minutes, seconds
        self.size = len(hours) * len(minutes) * len(seconds)

    def at(self, index: int) -> int:
        rest, second = divmod(index, len(self._seconds))
        hour, minute = divmod(rest, len(self._minutes))
        return self._hours[hour] * 3600 + self._minutes[minute] * 60 + self._seconds[second]

    def index(self, second: int) -> int:
        hour, rest = divmod(second, 3600)
        hours, minutes, seconds = self._hours, self._minutes, self._seconds
        found = bisect_left(hours, hour)
        if found == len(hours) or hours[found] != hour:
            return found * len(minutes) * len(seconds)
        minute, rest = divmod(rest, 60)
        found, at = found * len(minutes), bisect_left(minutes, minute)
        if at == len(minutes) or minutes[at] != minute:
            return (found + at) * len(seconds)
        return (found + at) * len(seconds) + bisect_left(seconds, rest)


class Timed:
    """Every combination of days and times."""

    __slots__ = ("_days", "_times", "size")

    def __init__(self, days: tuple[int, ...], times: Moments) -> None:
        self._days, self._times = days, times
        self.size = len(days) * times.size

    def at(self, index: int) -> int:
        day, time = divmod(index, self._times.size)
        return self._days[day] * DAY_SECONDS + self._times.at(time)

    def index(self, second: int) -> int:
        day, rest = divmod(second, DAY_SECONDS)
        days, times = self._days, self._times
        found = bisect_left(days, day)
        if found < len(days) and days[found] == day:
            return found * times.size + times.index(rest)
        return found * times.size


class Listed:
    """Moments written out."""

    __slots__ = ("_seconds", "size")

    def __init__(self, seconds: Iterable[int]) -> None:
        self._seconds = sorted(seconds)
        self.size = len(self._seconds)

    def at(self, index: int) -> int:
        return self._seconds[index]

    def index(self, second: int) -> int:
        return bisect_left(self._seconds, second)


def pick(moments: Moments, positions: tuple[int, ...]) -> Moments:
    """The rest of a set after BYSETPOS; all of it where there is no BYSETPOS."""
    if not positions:
        return moments if moments.size > 1 else Listed([moments.at(0)] if moments.size else [])
    size = moments.size
    indexes = {position - 1 if position > 0 else size + position for position in positions}
    return Listed(moments.at(index) for index in indexes if 0 <= index < size)
