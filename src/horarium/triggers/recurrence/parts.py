"""The parts of one recurrence rule: reading them, and refusing what RFC 5545 section 3.3.10 does not allow.

`parse_parts` gives a `Parts` value exactly as written; `fill_parts` adds what the rule takes from its start. Reading is
linear in the length of the text, and an error names the part, its position and the expected form.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import IntEnum, StrEnum
from typing import Any, Final

from horarium.errors import InvalidTrigger
from horarium.triggers.recurrence.civil import DAY_SECONDS, to_date, weekday_of

BY_ITEMS_MAX: Final = 400
"""Items in one BYxxx list."""
INTERVAL_MAX: Final = 1_000_000_000
"""Periods; a billion seconds are 31 years."""
COUNT_MAX: Final = 1_000_000
"""Occurrences. The last of a million is found in well under a second, for any rule."""

WEEKDAYS: Final = ("MO", "TU", "WE", "TH", "FR", "SA", "SU")


class Freq(IntEnum):
    """FREQ, from the slowest to the fastest."""

    YEARLY = 0
    MONTHLY = 1
    WEEKLY = 2
    DAILY = 3
    HOURLY = 4
    MINUTELY = 5
    SECONDLY = 6


class Skip(StrEnum):
    """SKIP of RFC 7529: what becomes of a date that does not exist."""

    OMIT = "OMIT"
    BACKWARD = "BACKWARD"
    FORWARD = "FORWARD"


@dataclass(frozen=True, slots=True)
class Parts:
    """A rule as values: lists are sorted and without duplicates, an empty list is a part that was not given."""

    freq: Freq
    interval: int = 1
    count: int | None = None
    until: str | None = None
    """As written; it needs a zone to become an instant."""
    by_second: tuple[int, ...] = ()
    by_minute: tuple[int, ...] = ()
    by_hour: tuple[int, ...] = ()
    by_day: tuple[tuple[int, int], ...] = ()
    """(ordinal or 0, weekday from Monday = 0)."""
    by_month_day: tuple[int, ...] = ()
    by_year_day: tuple[int, ...] = ()
    by_week_no: tuple[int, ...] = ()
    by_month: tuple[int, ...] = ()
    by_set_pos: tuple[int, ...] = ()
    wkst: int = 0
    skip: Skip = Skip.OMIT


def parse_parts(text: str, offset: int = 0) -> Parts:
    """The parts in a rule such as `FREQ=WEEKLY;BYDAY=MO,FR`. `offset` is where it begins, for the positions in errors.

    Raises InvalidTrigger for an unknown, repeated, malformed or forbidden part, and for parts that exclude each other.
    """
    values: dict[str, Any] = {}
    seen: set[str] = set()
    position = offset
    for item in text.split(";"):
        name, equals, value = item.partition("=")
        name = name.strip().upper()
        if not equals or name not in _READERS:
            raise InvalidTrigger(_unknown_part(item, position), field="rrule", position=position)
        if name in seen:
            raise InvalidTrigger(
                f"{name} is given twice (position {position}): give it once", field="rrule", position=position
            )
        seen.add(name)
        field, read = _READERS[name]
        at = position + len(item) - len(value)
        values[field] = _read(name, value.strip().upper(), read, at)
        position += len(item) + 1
    return _check(values, offset)


def fill_parts(parts: Parts, start: int) -> Parts:
    """The rule with everything that it leaves open taken from its start, in wall seconds."""
    day, second = divmod(start, DAY_SECONDS)
    filled = _fill_days(parts, day)
    fill: dict[str, Any] = {} if parts.freq <= Freq.MONTHLY else {"skip": Skip.OMIT}
    if not parts.by_hour and parts.freq < Freq.HOURLY:
        fill["by_hour"] = (second // 3600,)
    if not parts.by_minute and parts.freq < Freq.MINUTELY:
        fill["by_minute"] = (second // 60 % 60,)
    if not parts.by_second and parts.freq < Freq.SECONDLY:
        fill["by_second"] = (second % 60,)
    return replace(filled, **fill)


def has_day_part(parts: Parts) -> bool:
    """Whether any part but BYMONTH says which days."""
    return bool(parts.by_day or parts.by_month_day or parts.by_year_day)


def _fill_days(parts: Parts, day: int) -> Parts:
    if has_day_part(parts) or parts.freq > Freq.WEEKLY:
        return parts
    if parts.freq is Freq.WEEKLY or parts.by_week_no:
        return replace(parts, by_day=((0, weekday_of(day)),))
    _, month, month_day = to_date(day)
    if parts.freq is Freq.YEARLY and not parts.by_month:
        return replace(parts, by_month=(month,), by_month_day=(month_day,))
    return replace(parts, by_month_day=(month_day,))


def _read(name: str, value: str, read: Callable[[str], Any], position: int) -> Any:
    try:
        return read(value)
    except ValueError as error:
        shown = value if len(value) <= 40 else value[:40] + "..."
        message = f"{name}={shown} (position {position}): expected {error}"
        raise InvalidTrigger(message, field="rrule", position=position) from None


def _unknown_part(item: str, position: int) -> str:
    shown = item.strip()[:40]
    known = ", ".join(_READERS)
    return f"{shown!r} (position {position}) is no part of a recurrence rule: expected NAME=VALUE with one of {known}"


def _number(text: str, low: int, high: int, what: str) -> int:
    if not _DIGITS.fullmatch(text) or not low <= int(text) <= high:
        raise ValueError(f"{what} from {low} to {high}")
    return int(text)


def _interval(text: str) -> int:
    return _number(text, 1, INTERVAL_MAX, "a whole number")


def _count(text: str) -> int:
    return _number(text, 1, COUNT_MAX, "a whole number")


def _items(text: str, expected: str) -> list[str]:
    if text.count(",") >= BY_ITEMS_MAX:
        raise ValueError(f"at most {BY_ITEMS_MAX} items")
    items = text.split(",")
    if "" in items:
        raise ValueError(expected)
    return items


def _list(low: int, high: int, *, signed: bool = False) -> Callable[[str], tuple[int, ...]]:
    """A reader of a list of numbers; with `signed`, also of their negatives, and never of 0."""
    expected = f"{'+ or - ' if signed else ''}whole numbers from {low} to {high}, separated by commas"

    def read(text: str) -> tuple[int, ...]:
        found = set()
        for item in _items(text, expected):
            if not (_SIGNED if signed else _DIGITS).fullmatch(item) or not low <= abs(int(item)) <= high:
                raise ValueError(expected)
            found.add(int(item))
        return tuple(sorted(found))

    return read


def _seconds(text: str) -> tuple[int, ...]:
    """Second 60, the leap second, is read as second 59 (RFC 5545 section 3.3.12)."""
    return tuple(sorted({min(second, 59) for second in _list(0, 60)(text)}))


def _days(text: str) -> tuple[tuple[int, int], ...]:
    expected = "weekdays from MO to SU, each with or without a number from 1 to 53 (or -53 to -1) before it"
    found = set()
    for item in _items(text, expected):
        match = _WEEKDAY.fullmatch(item)
        if not match or (match[1] and not 1 <= abs(int(match[1])) <= 53):
            raise ValueError(expected)
        found.add((int(match[1] or 0), WEEKDAYS.index(match[2])))
    return tuple(sorted(found))


def _one_of(names: tuple[str, ...]) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in names:
            raise ValueError(f"one of {', '.join(names)}")
        return text

    return read


def _freq(text: str) -> Freq:
    return Freq[_one_of(tuple(Freq.__members__))(text)]


def _wkst(text: str) -> int:
    return WEEKDAYS.index(_one_of(WEEKDAYS)(text))


def _skip(text: str) -> Skip:
    return Skip(_one_of(tuple(Skip))(text))


def _until(text: str) -> str:
    if not _MOMENT.fullmatch(text):
        raise ValueError("a date such as 20261231, or a date and time such as 20261231T235959Z")
    return text


_DIGITS: Final = re.compile(r"[0-9]{1,12}")
_SIGNED: Final = re.compile(r"[+-]?[0-9]{1,3}")
_WEEKDAY: Final = re.compile(r"([+-]?[0-9]{1,2})?(MO|TU|WE|TH|FR|SA|SU)")
_MOMENT: Final = re.compile(r"[0-9]{8}(T[0-9]{6}Z?)?")

_READERS: Final[dict[str, tuple[str, Callable[[str], Any]]]] = {
    "FREQ": ("freq", _freq),
    "UNTIL": ("until", _until),
    "COUNT": ("count", _count),
    "INTERVAL": ("interval", _interval),
    "BYSECOND": ("by_second", _seconds),
    "BYMINUTE": ("by_minute", _list(0, 59)),
    "BYHOUR": ("by_hour", _list(0, 23)),
    "BYDAY": ("by_day", _days),
    "BYMONTHDAY": ("by_month_day", _list(1, 31, signed=True)),
    "BYYEARDAY": ("by_year_day", _list(1, 366, signed=True)),
    "BYWEEKNO": ("by_week_no", _list(1, 53, signed=True)),
    "BYMONTH": ("by_month", _list(1, 12)),
    "BYSETPOS": ("by_set_pos", _list(1, 366, signed=True)),
    "WKST": ("wkst", _wkst),
    "RSCALE": ("rscale", _one_of(("GREGORIAN",))),
    "SKIP": ("skip", _skip),
}


def _check(values: dict[str, Any], offset: int) -> Parts:
    values.pop("rscale", None)
    if "freq" not in values:
        names = ", ".join(Freq.__members__)
        raise InvalidTrigger(f"the rule has no FREQ: give one of {names}", field="rrule", position=offset)
    parts = Parts(**values)
    for broken, message in _FORBIDDEN:
        if broken(parts):
            raise InvalidTrigger(message, field="rrule", position=offset)
    return parts


def _has_ordinal(parts: Parts) -> bool:
    return any(ordinal for ordinal, _ in parts.by_day)


def _has_by_part(parts: Parts) -> bool:
    times = parts.by_second or parts.by_minute or parts.by_hour
    return bool(times or has_day_part(parts) or parts.by_week_no or parts.by_month)


_FORBIDDEN: Final[tuple[tuple[Callable[[Parts], object], str], ...]] = (
    (lambda p: p.count and p.until, "COUNT and UNTIL exclude each other: give one of them"),
    (lambda p: p.by_week_no and p.freq is not Freq.YEARLY, "BYWEEKNO is for FREQ=YEARLY alone"),
    (
        lambda p: p.by_year_day and p.freq in (Freq.DAILY, Freq.WEEKLY, Freq.MONTHLY),
        "BYYEARDAY is not for FREQ=DAILY, WEEKLY or MONTHLY: use BYMONTH and BYMONTHDAY, or FREQ=YEARLY",
    ),
    (
        lambda p: p.by_month_day and p.freq is Freq.WEEKLY,
        "BYMONTHDAY is not for FREQ=WEEKLY: use FREQ=MONTHLY, or BYDAY",
    ),
    (
        lambda p: _has_ordinal(p) and p.freq not in (Freq.MONTHLY, Freq.YEARLY),
        "a number before a weekday in BYDAY (such as 1MO) is for FREQ=MONTHLY and YEARLY alone",
    ),
    (
        lambda p: _has_ordinal(p) and p.by_week_no,
        "a number before a weekday in BYDAY (such as 1MO) can't be combined with BYWEEKNO",
    ),
    (
        lambda p: p.by_set_pos and not _has_by_part(p),
        "BYSETPOS picks from what other parts yield: give another BYxxx part too",
    ),
)
