"""The Gregorian calendar on integers.

A day is the number of days since 1970-01-01, a weekday counts from Monday = 0. No `datetime` object is made: the
engine asks for these a few times per fire time. Tables cover the years in which Horarium lives, and a margin.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Final, NamedTuple

DAY_SECONDS: Final = 86_400
YEAR_MIN: Final = 1970
YEAR_MAX: Final = 2200

_MARGIN = 3
_YEAR_0: Final = YEAR_MIN - _MARGIN
_MONTH_LENGTHS: Final = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


class Month(NamedTuple):
    """A month inside a span: its number, its first day and its length, in days from the beginning of the span."""

    number: int
    start: int
    length: int


class Span(NamedTuple):
    """The shape of a year or of a month: all that decides which of its days a rule picks.

    There are 28 shapes of years (the weekday it begins with, whether it and its neighbours are leap years) and 28 of
    each month length, so a computation for a shape serves for every year or month that has it.
    """

    weekday: int
    """The weekday of the first day."""
    length: int
    months: tuple[Month, ...]
    length_before: int
    """Days in the year before; 0 where the span is a month."""
    length_after: int


def is_leap(year: int) -> bool:
    return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)


def month_length(year: int, month: int) -> int:
    return 29 if month == 2 and is_leap(year) else _MONTH_LENGTHS[month - 1]


def to_day(year: int, month: int, day: int) -> int:
    """The day of a date; `day` may lie beyond the month."""
    return _JANUARY_1[year - _YEAR_0] + _STARTS[is_leap(year)][month - 1] + day - 1


def to_date(day: int) -> tuple[int, int, int]:
    """Year, month and day of the month."""
    year = year_of(day)
    rest = day - _JANUARY_1[year - _YEAR_0]
    starts = _STARTS[is_leap(year)]
    month = bisect_right(starts, rest)
    return year, month, rest - starts[month - 1] + 1


def year_of(day: int) -> int:
    return bisect_right(_JANUARY_1, day) - 1 + _YEAR_0


def january_1(year: int) -> int:
    return _JANUARY_1[year - _YEAR_0]


def weekday_of(day: int) -> int:
    return (day + 3) % 7


def year_shape(year: int) -> int:
    """The number of the year's shape; `span_of` has the span."""
    return _SHAPES[year - _YEAR_0]


def span_of(shape: int) -> Span:
    return _SPANS[shape]


def month_span(month: int, length: int, weekday: int) -> Span:
    """The span of one month that has `length` days and begins on `weekday`."""
    return Span(weekday, length, (Month(month, 0, length),), 0, 0)


def _starts(leap: bool) -> tuple[int, ...]:
    starts = [0]
    for month, length in enumerate(_MONTH_LENGTHS[:11], 1):
        starts.append(starts[-1] + length + (leap and month == 2))
    return tuple(starts)


def _year_span(year: int) -> Span:
    leap = is_leap(year)
    months = tuple(Month(m, _STARTS[leap][m - 1], month_length(year, m)) for m in range(1, 13))
    before, after = 365 + is_leap(year - 1), 365 + is_leap(year + 1)
    return Span(weekday_of(_JANUARY_1[year - _YEAR_0]), 365 + leap, months, before, after)


def _days_before(year: int) -> int:
    past = year - 1
    return past * 365 + past // 4 - past // 100 + past // 400 - 719_162


_STARTS: Final = (_starts(False), _starts(True))
_YEARS: Final = range(_YEAR_0, YEAR_MAX + _MARGIN + 2)
_JANUARY_1: Final = tuple(_days_before(year) for year in _YEARS)
_SPANS: Final = tuple(sorted({_year_span(year) for year in _YEARS[1:-1]}))
_SHAPES: Final = (-1, *(_SPANS.index(_year_span(year)) for year in _YEARS[1:-1]), -1)

DAY_MAX: Final = january_1(YEAR_MAX + 1)
"""The first day that is beyond."""
WALL_MAX: Final = (DAY_MAX + 2) * DAY_SECONDS
"""Wall seconds that no clock shows before the end of time, in any zone."""
