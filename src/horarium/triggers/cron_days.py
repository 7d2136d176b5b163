"""Which wall-clock seconds a cron expression matches: bit masks and calendar arithmetic, no zone, no clock.

The days of a month that match depend only on the weekday of its first day and its length. Plain days and weekdays are
a multiplication; what counts from a month's end or by workdays is computed when met and kept, 28 masks at most. The
next match is found by shifting masks, one month a step, never a minute or a day a step.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from datetime import date
from typing import Literal

from horarium.errors import InvalidTrigger
from horarium.triggers.cron_fields import YEAR_MAX, YEAR_MIN, Fields, Values
from horarium.triggers.words import MONTHS

DayMatch = Literal["any", "all"]

_EPOCH_ORDINAL = date(1970, 1, 1).toordinal()
_LENGTHS = (0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_DAY = 86_400
_WEEKS = sum(1 << 7 * week for week in range(5))
_ALL_YEARS = (1 << (YEAR_MAX - YEAR_MIN + 1)) - 1


class Matcher:
    """The compiled form of an expression. Treat as immutable: only its cache of masks grows."""

    __slots__ = (
        "_all", "_days", "_first", "_hours", "_masks", "_minutes", "_months", "_seconds", "_special", "_weekdays",
        "_years",
    )  # fmt: skip

    def __init__(self, fields: Fields, day_match: DayMatch) -> None:
        self._seconds, self._minutes, self._hours = fields.second.mask, fields.minute.mask, fields.hour.mask
        self._first = _low(self._hours) * 3600 + _low(self._minutes) * 60 + _low(self._seconds)
        self._days, self._weekdays = fields.day.mask, fields.weekday.mask
        self._special = (fields.day, fields.weekday) if fields.day.special or fields.weekday.special else None
        self._all = day_match == "all" or fields.joined or fields.day.starred or fields.weekday.starred
        self._months, self._years = fields.month.mask, fields.year.mask
        self._masks: dict[int, int] | None = None
        if self._next_day(date(YEAR_MIN, 1, 1)) is None:
            self._refuse(fields)

    def next_wall(self, wall: int) -> int | None:
        """The first matching wall second at or after `wall`, to the end of 2200."""
        day, time = divmod(wall, _DAY)
        today = date.fromordinal(day + _EPOCH_ORDINAL)
        if self._matches_day(today):
            found = self._next_time(time)
            if found is not None:
                return day * _DAY + found
        next_day = self._next_day(date.fromordinal(day + _EPOCH_ORDINAL + 1))
        return None if next_day is None else next_day * _DAY + self._first

    def walls(self, wall: int, end: int, limit: int) -> list[int]:
        """The matching wall seconds in [wall, end), at most the first `limit`: what `next_wall` gives one by one."""
        found, room = list[int](), limit + 60  # some of the first minute lie before
        hours, minutes, seconds = _bits(self._hours), _bits(self._minutes), _bits(self._seconds)
        for day in self._days_from(date.fromordinal(wall // _DAY + _EPOCH_ORDINAL)):
            if day * _DAY >= end or len(found) >= room:
                break
            for hour in hours:
                begins = day * _DAY + hour * 3600
                if begins + 3600 <= wall:
                    continue
                if begins >= end or len(found) >= room:
                    break
                for minute in minutes:
                    at = begins + minute * 60
                    if at + 60 > wall:
                        found += [at + second for second in seconds]
                        if len(found) >= room:
                            break
        begin = bisect_left(found, wall)
        return found[begin : min(begin + limit, bisect_left(found, end))]

    def _next_time(self, time: int) -> int | None:
        """The first matching second of the day at or after `time`."""
        hour, rest = divmod(time, 3600)
        if self._hours >> hour & 1:
            minute, second = divmod(rest, 60)
            if self._minutes >> minute & 1 and (seconds := self._seconds >> second):
                return time + _low(seconds)
            if minutes := self._minutes >> (minute + 1):
                return hour * 3600 + (minute + 1 + _low(minutes)) * 60 + _low(self._seconds)
        if hours := self._hours >> (hour + 1):
            return self._first + (hour + 1 + _low(hours) - _low(self._hours)) * 3600
        return None

    def _matches_day(self, day: date) -> bool:
        if not self._months >> day.month & 1 or not self._has_year(day.year):
            return False
        return bool(self._mask(day.year, day.month, day.isoweekday() - day.day + 1) >> day.day & 1)

    def _has_year(self, year: int) -> bool:
        return year >= YEAR_MIN and bool(self._years >> (year - YEAR_MIN) & 1)

    def _next_day(self, start: date) -> int | None:
        """The first matching day at or after `start`, in days since 1970."""
        return next(self._days_from(start), None)

    def _days_from(self, start: date) -> Iterator[int]:
        """The matching days at or after `start`, in days since 1970; of each month they are worked out once."""
        year, month, day = start.year, start.month, start.day
        while year <= YEAR_MAX:
            if self._has_year(year):
                while months := self._months >> month:
                    skipped = _low(months)
                    month, day = month + skipped, 1 if skipped else day
                    first = date(year, month, 1)
                    before = first.toordinal() - _EPOCH_ORDINAL - 1
                    days = self._mask(year, month, first.isoweekday()) >> day << day
                    while days:
                        yield before + _low(days)
                        days &= days - 1
                    month, day = month + 1, 1
            year, month, day = year + 1, 1, 1

    def _mask(self, year: int, month: int, first_weekday: int) -> int:
        """The matching days of a month as bits; `first_weekday` counts from Sunday = 0, modulo 7."""
        first, length = first_weekday % 7, month_length(year, month)
        if self._special is None:
            week = (self._weekdays >> first | self._weekdays << (7 - first)) & 0x7F
            weekdays = week * _WEEKS << 1
            days = self._days & weekdays if self._all else self._days | weekdays
            return days & ((2 << length) - 2)
        if self._masks is None:
            self._masks = {}
        mask = self._masks.get(first * 32 + length)
        if mask is None:
            mask = self._masks[first * 32 + length] = self._combine(*self._special, first, length)
        return mask

    def _combine(self, day: Values, weekday: Values, first: int, length: int) -> int:
        by_day, by_weekday = _days(day, first, length), _weekdays(weekday, first, length)
        return by_day & by_weekday if self._all else by_day | by_weekday

    @property
    def times(self) -> tuple[int, int, int]:
        """Seconds, minutes and hours, as bits."""
        return self._seconds, self._minutes, self._hours

    @property
    def names_years(self) -> bool:
        """Whether some year is left out."""
        return self._years != _ALL_YEARS

    def month_days(self, year: int, month: int, first_weekday: int) -> int:
        """The matching days of a month as bits; `first_weekday` is that of its first day, Sunday being 0."""
        if not self._months >> month & 1 or not self._has_year(year):
            return 0
        return self._mask(year, month, first_weekday)

    def _refuse(self, fields: Fields) -> None:
        months = " ".join(MONTHS[m - 1] for m in range(1, 13) if self._months >> m & 1)
        raise InvalidTrigger(
            f"cron: no date up to the year {YEAR_MAX} is day {fields.day.text}, weekday {fields.weekday.text}"
            f" of {months}: it would never fire; change the day of month, the month or the year",
            field="expression",
        )


def _days(values: Values, first: int, length: int) -> int:
    days = values.mask
    for back in values.last_back:
        days |= 1 << max(0, length - back)
    if values.last_workday:
        days |= 1 << _near_workday(length, first, length)
    for day in values.near_workdays:
        if day <= length:
            days |= 1 << _near_workday(day, first, length)
    return days & ((2 << length) - 2)


def _near_workday(day: int, first: int, length: int) -> int:
    """The day itself, or the Monday to Friday nearest to it within the month."""
    weekday = (first + day - 1) % 7
    if weekday == 6:
        return day - 1 if day > 1 else day + 2
    if weekday == 0:
        return day + 1 if day < length else day - 2
    return day


def _weekdays(values: Values, first: int, length: int) -> int:
    days = 0
    for weekday in range(7):
        if values.mask >> weekday & 1:
            days |= sum(1 << day for day in range(1 + (weekday - first) % 7, length + 1, 7))
    for weekday, nth in values.nth:
        dates = range(1 + (weekday - first) % 7, length + 1, 7)
        if nth <= len(dates):
            days |= 1 << (dates[nth] if nth < 0 else dates[nth - 1])
    return days


def month_length(year: int, month: int) -> int:
    """28 to 31."""
    return 29 if month == 2 and year % 4 == 0 and (year % 100 != 0 or year % 400 == 0) else _LENGTHS[month]


def _bits(mask: int) -> list[int]:
    """The places of the bits that are set, in order."""
    found = []
    while mask:
        found.append(_low(mask))
        mask &= mask - 1
    return found


def _low(mask: int) -> int:
    """The lowest set bit of a mask that is not 0."""
    return (mask & -mask).bit_length() - 1
