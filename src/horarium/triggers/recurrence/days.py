"""Which days of a year or month a rule picks: one small function for each day part, in the order of RFC 5545.

Each function gives the set of days that its part allows, counted from the beginning of the span; what all given parts
allow together is the answer. So a part that RFC 5545 calls an expander and one that it calls a limit are the same
thing, and no order of evaluation has to be kept. SKIP (RFC 7529) is the exception: it moves a day that a month or year
does not have, possibly to the day after the span.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from horarium.triggers.recurrence.civil import Month, Span
from horarium.triggers.recurrence.parts import Parts, Skip


def days_of(parts: Parts, span: Span) -> tuple[int, ...]:
    """The days of the span that the day parts of the rule pick, in order. No day part at all picks every day."""
    allowed: set[int] | None = None
    for given, pick in _PICKERS:
        if given(parts):
            picked = pick(parts, span)
            allowed = picked if allowed is None else allowed & picked
            if not allowed:
                return ()
    return tuple(range(span.length)) if allowed is None else tuple(sorted(allowed))


def _in_months(parts: Parts, span: Span) -> set[int]:
    days: set[int] = set()
    for month in _months(parts, span):
        days.update(range(month.start, month.start + month.length))
    return days


def _in_weeks(parts: Parts, span: Span) -> set[int]:
    """BYWEEKNO: the days of this year that lie in such a week, also where the week belongs to the year beside it."""
    first = _first_week(span.weekday, parts.wkst)
    count = _count_weeks(span.weekday, span.length, parts.wkst)
    wanted = parts.by_week_no
    days: set[int] = set()
    for week in range(1, count + 1):
        if week in wanted or week - count - 1 in wanted:
            days.update(range(first + 7 * week - 7, first + 7 * week))
    before = _count_weeks(span.weekday - span.length_before, span.length_before, parts.wkst)
    after = _count_weeks(span.weekday + span.length, span.length_after, parts.wkst)
    if before in wanted or -1 in wanted:
        days.update(range(max(first, 0)))
    if 1 in wanted or -after in wanted:
        days.update(range(first + 7 * count, span.length))
    return {day for day in days if 0 <= day < span.length}


def _first_week(weekday: int, wkst: int) -> int:
    """Where week 1 begins, as a day of the year (may be negative): it is the first with four days in the year."""
    start = (wkst - weekday) % 7
    return start - 7 if start >= 4 else start


def _count_weeks(weekday: int, length: int, wkst: int) -> int:
    return (length + _first_week(weekday + length, wkst) - _first_week(weekday, wkst)) // 7


def _on_year_days(parts: Parts, span: Span) -> set[int]:
    days: set[int] = set()
    for number in parts.by_year_day:
        days.update(_place(number, span.length, 366, parts.skip))
    return days


def _on_month_days(parts: Parts, span: Span) -> set[int]:
    days: set[int] = set()
    for month in _months(parts, span):
        for number in parts.by_month_day:
            days.update(month.start + day for day in _place(number, month.length, 31, parts.skip))
    return days


def _on_weekdays(parts: Parts, span: Span) -> set[int]:
    """BYDAY: the union of the plain weekdays and of the numbered ones, which count within the month or the year."""
    days: set[int] = set()
    limit = span.length + bool(parts.by_month_day or parts.by_year_day)  # SKIP=FORWARD may move one day beyond
    for ordinal, weekday in parts.by_day:
        if ordinal:
            days.update(_numbered(ordinal, weekday, parts, span))
        else:
            days.update(range((weekday - span.weekday) % 7, limit, 7))
    return days


def _numbered(ordinal: int, weekday: int, parts: Parts, span: Span) -> Iterator[int]:
    by_month = len(span.months) == 1 or parts.by_month
    for month in _months(parts, span) if by_month else (Month(0, 0, span.length),):
        first = (weekday - span.weekday - month.start) % 7
        count = (month.length - first + 6) // 7
        index = ordinal - 1 if ordinal > 0 else count + ordinal
        if 0 <= index < count:
            yield month.start + first + 7 * index


def _months(parts: Parts, span: Span) -> list[Month]:
    return [month for month in span.months if not parts.by_month or month.number in parts.by_month]


def _place(number: int, length: int, longest: int, skip: Skip) -> tuple[int, ...]:
    """The day with this number in a month or year of `length` days; what it does not have is left out or moved."""
    if 0 < number <= length:
        return (number - 1,)
    if -length <= number < 0:
        return (length + number,)
    if skip is Skip.OMIT or not 0 < number <= longest:
        return ()
    return (length - 1,) if skip is Skip.BACKWARD else (length,)


_PICKERS: tuple[tuple[Callable[[Parts], object], Callable[[Parts, Span], set[int]]], ...] = (
    # BYMONTH is no picker beside BYMONTHDAY: that one counts in these months, and may move a day out of them
    (lambda parts: parts.by_month and not parts.by_month_day, _in_months),
    (lambda parts: parts.by_week_no, _in_weeks),
    (lambda parts: parts.by_year_day, _on_year_days),
    (lambda parts: parts.by_month_day, _on_month_days),
    (lambda parts: parts.by_day, _on_weekdays),
)
