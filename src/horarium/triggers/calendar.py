"""Crons of one zone as sets: what any of some matches, less what any of others does.

An `except` of `* * * * * *` without `1-59 * * * * *` and `0 1-59 * * * *` fires once an hour; asking member by member
passes over 3,599 seconds to find that. Here a day is a number of 86,400 bits, one a second, so that union and
difference are one operation each. Days of a month that the same members match share one such number, and there are
at most 91 kinds of months: looking at each kind once shows whether anything is left.

Wall time and UTC run in step inside a segment. What fixed times become where the clock changes (the hour that a gap
shifts, the hour that is shown twice) is asked of the crons themselves, one by one.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from datetime import date
from functools import lru_cache
from typing import ClassVar, Final, NamedTuple

from horarium.clock import INSTANT_MAX, SECOND, Instant
from horarium.triggers.budget import spend
from horarium.triggers.cron_days import month_length
from horarium.triggers.cron_fields import YEAR_MAX, YEAR_MIN
from horarium.triggers.cron_trigger import Cron
from horarium.triggers.zones import Segment, Zone

_END: Final = INSTANT_MAX // SECOND
_DAY: Final = 86_400
_EPOCH_ORDINAL: Final = date(1970, 1, 1).toordinal()
_MARGIN: Final = 48 * 3600
_BUILD_STEPS: Final = 8  # making the bits of a day costs as much as eight questions
_KEPT_DAYS: Final = 64  # about 12 KiB each
_MONTHS_A_STEP: Final = 8


class Times(NamedTuple):
    """Seconds, minutes and hours, as bits: every combination of them is a time of day."""

    seconds: int
    minutes: int
    hours: int


class Span(NamedTuple):
    """The times of day in [start, end), in seconds."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Daily:
    """Times of day on some weekdays (bits, Sunday is 0): what a daily window excludes."""

    times: Span
    weekdays: int
    bounded: ClassVar[bool] = False

    def month_days(self, year: int, month: int, first: int) -> int:
        """The days of a month as bits; `first` is the weekday of its first day, Sunday being 0."""
        week = (self.weekdays >> first | self.weekdays << (7 - first)) & 0x7F
        days = sum(week << back for back in range(0, 35, 7))
        return days << 1 & ((2 << month_length(year, month)) - 2)


class CronTimes:
    """The days and times of day of one cron."""

    __slots__ = ("_matcher", "bounded", "times")

    def __init__(self, cron: Cron) -> None:
        self._matcher = cron.matcher
        self.times: Times | Span = Times(*cron.matcher.times)
        self.bounded = cron.matcher.names_years

    def month_days(self, year: int, month: int, first: int) -> int:
        """The days of a month as bits; `first` is the weekday of its first day, Sunday being 0."""
        return self._matcher.month_days(year, month, first)


Term = CronTimes | Daily


class _Group(NamedTuple):
    """Days of a month that the same members match. Their seconds are looked up: they are large, and few are kept."""

    days: int
    included: frozenset[Times | Span]
    excluded: frozenset[Times | Span]

    def seconds(self) -> int:
        return _difference(self.included, self.excluded)


class CronSet:
    """Instants that any of `included` matches and none of `excluded`, nor any of `windows`. All in one zone."""

    __slots__ = ("_bounded", "_elapsed", "_excluded", "_included", "_months", "_parted", "_terms", "_zone")

    def __init__(self, included: Sequence[Cron], excluded: Sequence[Cron] = (), windows: Sequence[Daily] = ()) -> None:
        self._included, self._excluded = tuple(included), tuple(excluded)
        self._zone: Zone = included[0].zone
        self._terms: tuple[Term, ...] = (*map(CronTimes, included), *map(CronTimes, excluded), *windows)
        self._parted = len(included)
        self._bounded = any(term.bounded for term in self._terms)
        self._elapsed = all(cron.follows_elapsed_time for cron in (*included, *excluded))
        self._months: dict[Hashable, tuple[_Group, ...]] = {}

    def next_fire(self, after: Instant) -> Instant | None:
        """The first fire time strictly after `after`."""
        utc, asked, wall = max(0, after // SECOND + 1), 0, -1
        while utc < _END:
            spend()
            segment = self._zone.segment_at(utc)
            low, high = self._steady(segment)
            found = self._ask(utc, min(low, segment.end)) if utc < low else None
            utc = max(utc, low)
            if found is None and utc < high:
                if not asked <= utc + segment.offset <= wall:
                    asked = utc + segment.offset
                    wall = self._next_wall(asked)
                found = wall - segment.offset if wall < high + segment.offset else None
            if found is None:
                found = self._ask(max(utc, high), segment.end)
            if found is not None:
                return found * SECOND if found < _END else None
            utc = self._step(segment, utc, wall)
        return None

    def _step(self, segment: Segment, utc: int, wall: int) -> int:
        """Where to look next. A wall time that is far off is jumped to, but near a change every segment is looked at:
        it may show walls again that have passed."""
        if not self._elapsed or segment.end - utc <= _MARGIN:
            return segment.end
        return max(segment.end, wall - segment.offset - _MARGIN)

    def _steady(self, segment: Segment) -> tuple[int, int]:
        """The UTC seconds of a segment in which a fire time is a wall time that matches, and nothing else."""
        if self._elapsed:
            return segment.start, segment.end
        before = self._zone.segment_at(segment.start - 1).offset if segment.start > 0 else segment.offset
        return segment.start + abs(segment.offset - before), segment.unclear - segment.offset

    def _ask(self, utc: int, end: int) -> int | None:
        """The first fire time in [utc, end), asked of each member: near a change of the clock."""
        at = utc * SECOND - 1
        while at < end * SECOND - 1:
            spend(len(self._included) + len(self._excluded))
            fires = [fire for cron in self._included if (fire := cron.next_fire(at)) is not None]
            at = min(fires, default=INSTANT_MAX)
            if at < end * SECOND and not self._excludes(at):
                return at // SECOND
        return None

    def _excludes(self, fire: Instant) -> bool:
        wall = self._zone.to_wall(fire // SECOND)
        return any(cron.next_fire(fire - 1) == fire for cron in self._excluded) or any(
            self._covers(term, wall) for term in self._terms if isinstance(term, Daily)
        )

    @staticmethod
    def _covers(window: Daily, wall: int) -> bool:
        day, time = divmod(wall, _DAY)
        return bool(window.weekdays >> (day + 4) % 7 & 1) and window.times.start <= time < window.times.end

    def _next_wall(self, wall: int) -> int:
        """The first wall second at or after `wall` that is left; far beyond all time where there is none."""
        day, time = divmod(wall, _DAY)
        today = date.fromordinal(day + _EPOCH_ORDINAL)
        first, looked = today.day, 0
        for year in range(max(today.year, YEAR_MIN), YEAR_MAX + 1):
            for month in range(today.month if year == today.year else 1, 13):
                looked += 1
                if looked % _MONTHS_A_STEP == 0:
                    spend()
                found = _first_of(self._month(year, month), first, time)
                if found is not None:
                    return (date(year, month, 1).toordinal() - 1 - _EPOCH_ORDINAL) * _DAY + found
                first, time = 1, 0
        return _END + _MARGIN * 2

    def _month(self, year: int, month: int) -> tuple[_Group, ...]:
        """The rest of a month. Months that begin on the same weekday and are as long are alike."""
        first = date(year, month, 1).isoweekday() % 7
        key = (month, first, month_length(year, month), year if self._bounded else 0)
        groups = self._months.get(key)
        if groups is None:
            groups = self._months[key] = self._part(year, month, first)
        return groups

    def _part(self, year: int, month: int, first: int) -> tuple[_Group, ...]:
        """The days of a month parted by which members match them, each part with its seconds; empty ones left out."""
        spend(1 + len(self._terms) // 2)
        parts: list[tuple[int, int]] = [((2 << month_length(year, month)) - 2, 0)]
        for index, term in enumerate(self._terms):
            days = term.month_days(year, month, first)
            parts = [
                part
                for mask, matched in parts
                for part in ((mask & days, matched | 1 << index), (mask & ~days, matched))
                if part[0]
            ]
        groups = (self._group(days, matched) for days, matched in parts)
        return tuple(group for group in groups if group.seconds())

    def _group(self, days: int, matched: int) -> _Group:
        times = [(term.times, index < self._parted) for index, term in enumerate(self._terms) if matched >> index & 1]
        included = frozenset(time for time, is_included in times if is_included)
        return _Group(days, included, frozenset(time for time, is_included in times if not is_included))


def _first_of(groups: tuple[_Group, ...], day: int, time: int) -> int | None:
    """The first second at or after a time of a day; counted from the day before the month's first."""
    later = 0
    for group in groups:
        if group.days >> day & 1 and (rest := group.seconds() >> time):
            return day * _DAY + time + _low(rest)
        later |= group.days >> (day + 1)
    if not later:
        return None
    day += 1 + _low(later)
    return day * _DAY + next(_low(group.seconds()) for group in groups if group.days >> day & 1)


@lru_cache(maxsize=_KEPT_DAYS)
def _difference(included: frozenset[Times | Span], excluded: frozenset[Times | Span]) -> int:
    kept = 0
    for times in included:
        kept |= _bits_of(times)
    for times in excluded:
        kept &= ~_bits_of(times)
    return kept


@lru_cache(maxsize=_KEPT_DAYS)
def _bits_of(times: Times | Span) -> int:
    spend(_BUILD_STEPS)
    if isinstance(times, Span):
        return (1 << times.end) - (1 << times.start)
    hour = sum(times.seconds << 60 * minute for minute in range(60) if times.minutes >> minute & 1)
    return sum(hour << 3600 * number for number in range(24) if times.hours >> number & 1)


def _low(mask: int) -> int:
    return (mask & -mask).bit_length() - 1


__all__ = ["CronSet", "Daily", "Span"]
