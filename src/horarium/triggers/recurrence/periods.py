"""DAILY and slower rules on the wall clock: from a wall second straight to the next occurrence.

The period (day, week, month, year) around a wall second has a number, so INTERVAL is a remainder and nothing is ever
counted up from the start. What a period holds depends on its shape alone (see `Span`) and is computed once per shape.
Periods that can't match are left out at once: every walk here is bounded by the years up to 2200, and goes from
candidate to candidate.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left

from horarium.triggers.recurrence.civil import (
    DAY_MAX,
    DAY_SECONDS,
    YEAR_MAX,
    is_leap,
    january_1,
    month_length,
    month_span,
    span_of,
    to_date,
    to_day,
    weekday_of,
    year_of,
    year_shape,
)
from horarium.triggers.recurrence.days import days_of
from horarium.triggers.recurrence.moments import Moments, Timed, Times, pick
from horarium.triggers.recurrence.parts import Freq, Parts, Skip


class Pattern(ABC):
    """The occurrences of a rule as wall seconds, in order, from `first` on."""

    first: int
    """No occurrence lies before it."""

    @abstractmethod
    def after(self, wall: int) -> int | None:
        """The first occurrence strictly after a wall second, or None where there is none up to the year 2200."""

    @abstractmethod
    def nth(self, number: int) -> int | None:
        """The occurrence with this number, counting from 1, or None where it lies beyond the year 2200."""

    @abstractmethod
    def count_within(self, low: int, high: int) -> int:
        """How many occurrences lie in [low, high), a stretch of at most a few days."""


def make_pattern(parts: Parts, start: int, first: int) -> Pattern:
    """The pattern of a filled rule of FREQ=DAILY or slower that counts its periods from the wall second `start`."""
    if parts.freq is Freq.DAILY:
        return Daily(parts, start, first)
    return _PERIODS[parts.freq](parts, start, first)


class DayFilter:
    """The days on which a DAILY or faster rule may fire: BYMONTH, BYYEARDAY, BYMONTHDAY and BYDAY as limits."""

    __slots__ = ("_by_shape", "_parts", "open")

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._by_shape: dict[int, tuple[int, ...]] = {}
        self.open = not (parts.by_month or parts.by_year_day or parts.by_month_day or parts.by_day)

    def next(self, day: int) -> int | None:
        """The first allowed day from `day` on."""
        if self.open:
            return day
        for year in range(year_of(day), YEAR_MAX + 1):
            start = january_1(year)
            days = self._days(year)
            at = bisect_left(days, day - start)
            if at < len(days):
                return start + days[at]
        return None

    def count(self, low: int, high: int) -> int:
        """How many days in [low, high) are allowed."""
        if self.open:
            return max(0, high - low)
        total = 0
        for year in range(year_of(low), min(year_of(high), YEAR_MAX) + 1):
            days, start = self._days(year), january_1(year)
            total += bisect_left(days, high - start) - bisect_left(days, low - start)
        return total

    def _days(self, year: int) -> tuple[int, ...]:
        shape = year_shape(year)
        days = self._by_shape.get(shape)
        if days is None:
            self._by_shape[shape] = days = days_of(self._parts, span_of(shape))
        return days


class Daily(Pattern):
    """FREQ=DAILY: the same times on every allowed day that is in step."""

    __slots__ = ("_days", "_interval", "_start", "_times", "_weekday_clash", "first")

    def __init__(self, parts: Parts, start: int, first: int) -> None:
        self.first = first
        self._start, self._interval = start // DAY_SECONDS, parts.interval
        self._days = DayFilter(parts)
        self._times = pick(Times(parts.by_hour, parts.by_minute, parts.by_second), parts.by_set_pos)
        weekdays = {weekday for _, weekday in parts.by_day}
        steady = self._interval % 7 == 0 and weekdays
        self._weekday_clash = bool(steady and weekday_of(self._start) not in weekdays)

    def after(self, wall: int) -> int | None:
        day, second = divmod(max(wall + 1, self.first), DAY_SECONDS)
        found, times = self._next_day(day), self._times
        if found is None or not times.size:
            return None
        if found == day:
            index = times.index(second)
            if index < times.size:
                return day * DAY_SECONDS + times.at(index)
            found = self._next_day(day + 1)
        return None if found is None else found * DAY_SECONDS + times.at(0)

    def _next_day(self, day: int) -> int | None:
        """The first day from `day` on that is allowed and in step: each hurdle in turn throws the candidate forward."""
        if self._weekday_clash:
            return None
        start, interval, days = self._start, self._interval, self._days
        day = max(day, start)
        while (day := day + (start - day) % interval) < DAY_MAX:
            allowed = days.next(day)
            if allowed is None or allowed == day:
                return allowed
            day = allowed
        return None

    def nth(self, number: int) -> int | None:
        if not self._times.size:
            return None
        day = self._start
        number += self.count_within(day * DAY_SECONDS, self.first)
        whole, rest = divmod(number - 1, self._times.size)
        found = self._nth_day(whole)
        return None if found is None else found * DAY_SECONDS + self._times.at(rest)

    def _nth_day(self, index: int) -> int | None:
        if self._days.open:
            day = self._start + index * self._interval
            return day if day < DAY_MAX else None
        found = self._next_day(self._start)
        while found is not None and index:
            found, index = self._next_day(found + 1), index - 1
        return found

    def count_within(self, low: int, high: int) -> int:
        total, day = 0, self._next_day(low // DAY_SECONDS)
        while day is not None and day * DAY_SECONDS < high:
            base = day * DAY_SECONDS
            total += self._times.index(min(high - base, DAY_SECONDS)) - self._times.index(max(low - base, 0))
            day = self._next_day(day + 1)
        return total


class Periodic(Pattern):
    """WEEKLY, MONTHLY and YEARLY: periods in step, and in each the moments that its shape holds."""

    __slots__ = ("_by_shape", "_interval", "_origin", "_overflows", "_parts", "_times", "first")

    def __init__(self, parts: Parts, start: int, first: int) -> None:
        self.first = first
        self._parts, self._interval = parts, parts.interval
        self._times = Times(parts.by_hour, parts.by_minute, parts.by_second)
        self._by_shape: dict[int, Moments] = {}
        self._origin = self._number(start // DAY_SECONDS)
        self._overflows = parts.skip is Skip.FORWARD and parts.interval == 1

    @abstractmethod
    def _number(self, day: int) -> int:
        """The number of the period around a day."""

    @abstractmethod
    def _begin(self, number: int) -> int:
        """The first day of a period."""

    @abstractmethod
    def _shape(self, number: int) -> int:
        """The key that decides about the days in a period, as a number."""

    @abstractmethod
    def _list_days(self, number: int) -> tuple[int, ...]:
        """The days of a period, from its beginning, that the rule picks."""

    @abstractmethod
    def _skip_empty(self, number: int) -> int:
        """The first period from `number` on that BYMONTH does not rule out."""

    def after(self, wall: int) -> int | None:
        wall = max(wall + 1, self.first)
        number = self._in_step(self._number(wall // DAY_SECONDS))
        found = self._first_in(number, wall)
        if found is None:
            found = self._first_beyond(number + self._interval)
        if self._overflows and number > self._origin:
            late = self._first_in(number - 1, wall)
            return late if found is None else found if late is None else min(late, found)
        return found

    def _in_step(self, number: int) -> int:
        number = max(number, self._origin)
        return number + (self._origin - number) % self._interval

    def _first_in(self, number: int, wall: int) -> int | None:
        day = self._begin(number)
        if day >= DAY_MAX:
            return None
        moments = self._moments(number)
        index = moments.index(max(wall - day * DAY_SECONDS, 0))
        return day * DAY_SECONDS + moments.at(index) if index < moments.size else None

    def _first_beyond(self, number: int) -> int | None:
        """The first moment of the first period from `number` (in step) on that has any."""
        day = self._begin(number)
        while day < DAY_MAX:
            moments = self._moments(number)
            if moments.size:
                return day * DAY_SECONDS + moments.at(0)
            number = self._in_step(self._skip_empty(number + 1))
            day = self._begin(number)
        return None

    def _moments(self, number: int) -> Moments:
        shape = self._shape(number)
        moments = self._by_shape.get(shape)
        if moments is None:
            moments = pick(Timed(self._list_days(number), self._times), self._parts.by_set_pos)
            self._by_shape[shape] = moments
        return moments

    def nth(self, number: int) -> int | None:
        period = self._origin
        begin = self._begin(period) * DAY_SECONDS
        number += self._moments(period).index(max(self.first - begin, 0))
        while begin < DAY_MAX * DAY_SECONDS:
            size = self._moments(period).size
            if number <= size - self._count_repeated(period):
                return begin + self._moments(period).at(number - 1)
            number -= size - self._count_repeated(period)
            period = self._in_step(self._skip_empty(period + 1))
            begin = self._begin(period) * DAY_SECONDS
        return None

    def _count_repeated(self, number: int) -> int:
        """How many moments at the end of a period (moved there by SKIP=FORWARD) are the next period's own as well."""
        if not self._overflows:
            return 0
        length = (self._begin(number + 1) - self._begin(number)) * DAY_SECONDS
        moments, following = self._moments(number), self._moments(number + 1)
        late = [moments.at(i) - length for i in range(moments.index(length), moments.size)]
        own = (following.index(second) for second in late)
        return sum(i < following.size and following.at(i) == s for i, s in zip(own, late, strict=True))

    def count_within(self, low: int, high: int) -> int:
        total = 0
        low = max(low, self.first)
        number = self._in_step(max(self._number(low // DAY_SECONDS) - self._overflows, self._origin))
        while low < high and self._begin(number) * DAY_SECONDS < high:
            base = self._begin(number) * DAY_SECONDS
            moments = self._moments(number)
            total += moments.index(max(high - base, 0)) - moments.index(max(low - base, 0))
            number += self._interval
        return total


class Yearly(Periodic):
    __slots__ = ()

    def _number(self, day: int) -> int:
        return year_of(day)

    def _begin(self, number: int) -> int:
        return january_1(number) if number <= YEAR_MAX else DAY_MAX

    def _shape(self, number: int) -> int:
        return year_shape(number)

    def _list_days(self, number: int) -> tuple[int, ...]:
        return days_of(self._parts, span_of(year_shape(number)))

    def _skip_empty(self, number: int) -> int:
        return number


class Monthly(Periodic):
    """Months are numbered from January of year 0."""

    __slots__ = ()

    def _number(self, day: int) -> int:
        year, month, _ = to_date(day)
        return year * 12 + month - 1

    def _begin(self, number: int) -> int:
        year, month = divmod(number, 12)
        return to_day(year, month + 1, 1) if year <= YEAR_MAX else DAY_MAX

    def _shape(self, number: int) -> int:
        """The month, its first weekday, and whether it is February of a leap year."""
        year, month = divmod(number, 12)
        weekday = weekday_of(to_day(year, month + 1, 1))
        return month * 14 + weekday * 2 + (month == 1 and is_leap(year))

    def _list_days(self, number: int) -> tuple[int, ...]:
        year, month = divmod(number, 12)
        span = month_span(month + 1, month_length(year, month + 1), weekday_of(self._begin(number)))
        return days_of(self._parts, span)

    def _skip_empty(self, number: int) -> int:
        months = self._parts.by_month
        if not months:
            return number
        year, month = divmod(number, 12)
        at = bisect_left(months, month + 1)
        return year * 12 + months[at] - 1 if at < len(months) else (year + 1) * 12 + months[0] - 1


class Weekly(Periodic):
    """Weeks begin on WKST and are numbered from the one around 1970-01-01."""

    __slots__ = ()

    def _number(self, day: int) -> int:
        return (day + 3 - self._parts.wkst) // 7

    def _begin(self, number: int) -> int:
        return number * 7 - 3 + self._parts.wkst

    def _shape(self, number: int) -> int:
        """Where BYMONTH matters: the month on its first day, and how many of its days are still in it."""
        if not self._parts.by_month:
            return 0
        year, month, day = to_date(self._begin(number))
        return month * 8 + min(month_length(year, month) - day + 1, 7)

    def _list_days(self, number: int) -> tuple[int, ...]:
        begin, parts = self._begin(number), self._parts
        days = sorted((weekday - parts.wkst) % 7 for _, weekday in parts.by_day)
        return tuple(day for day in days if not parts.by_month or to_date(begin + day)[1] in parts.by_month)

    def _skip_empty(self, number: int) -> int:
        """The week around the first day from the beginning of this one on that lies in a month of BYMONTH."""
        months = self._parts.by_month
        if not months:
            return number
        day = self._begin(number)
        year, month, _ = to_date(day)
        if month in months or to_date(day + 6)[1] in months:
            return number
        at = bisect_left(months, month)
        year, month = (year, months[at]) if at < len(months) else (year + 1, months[0])
        return self._number(to_day(year, month, 1))


_PERIODS: dict[Freq, type[Periodic]] = {Freq.YEARLY: Yearly, Freq.MONTHLY: Monthly, Freq.WEEKLY: Weekly}
