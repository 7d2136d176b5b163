"""Which wall-clock seconds a cron expression matches: bit masks and calendar arithmetic, no zone, no clock.

The days of a month that match depend only on the weekday of its first day and its length: 28 masks at most, computed
when met and kept. The next match is found by shifting masks, one month a step, never a minute or a day a step.
"""

from __future__ import annotations

from datetime import date
from typing import Literal

from horarium.errors import InvalidTrigger
from horarium.triggers.cron_fields import YEAR_MAX, YEAR_MIN, Fields, Values
from horarium.triggers.words import MONTHS

DayMatch = Literal["any", "all"]

_EPOCH_ORDINAL = date(1970, 1, 1).toordinal()
_LENGTHS = (0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_DAY = 86_400


class Matcher:
    """The compiled form of an expression. Treat as immutable: only its cache of masks grows."""

    __slots__ = ("_all", "_day", "_first", "_hours", "_masks", "_minutes", "_months", "_seconds", "_weekday", "_years")

    def __init__(self, fields: Fields, day_match: DayMatch) -> None:
        self._seconds, self._minutes, self._hours = fields.second.mask, fields.minute.mask, fields.hour.mask
        self._first = _low(self._hours) * 3600 + _low(self._minutes) * 60 + _low(self._seconds)
        self._day, self._weekday = fields.day, fields.weekday
        self._all = day_match == "all" or fields.day.starred or fields.weekday.starred
        self._months, self._years = fields.month.mask, fields.year.mask
        self._masks: dict[int, int] = {}
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
        year, month, day = start.year, start.month, start.day
        while year <= YEAR_MAX:
            if self._has_year(year):
                while months := self._months >> month:
                    skipped = _low(months)
                    month, day = month + skipped, 1 if skipped else day
                    first = date(year, month, 1)
                    days = self._mask(year, month, first.isoweekday()) >> day
                    if days:
                        return first.toordinal() - _EPOCH_ORDINAL - 1 + day + _low(days)
                    month, day = month + 1, 1
            year, month, day = year + 1, 1, 1
        return None

    def _mask(self, year: int, month: int, first_weekday: int) -> int:
        """The matching days of a month as bits; `first_weekday` counts from Sunday = 0, modulo 7."""
        length = 29 if month == 2 and _leaps(year) else _LENGTHS[month]
        key = first_weekday % 7 * 32 + length
        mask = self._masks.get(key)
        if mask is None:
            mask = self._masks[key] = self._combine(first_weekday % 7, length)
        return mask

    def _combine(self, first: int, length: int) -> int:
        by_day, by_weekday = _days(self._day, first, length), _weekdays(self._weekday, first, length)
        return by_day & by_weekday if self._all else by_day | by_weekday

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


def _leaps(year: int) -> bool:
    return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)


def _low(mask: int) -> int:
    """The lowest set bit of a mask that is not 0."""
    return (mask & -mask).bit_length() - 1
