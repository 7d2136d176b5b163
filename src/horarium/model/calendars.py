"""The calendar: which days are business days, as its owner writes it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from horarium.model.limits import TITLE_CHARS_MAX


def shown_calendar(name: str, calendar: Calendar) -> dict[str, Any]:
    """The calendar as plain data."""
    plain = {field: getattr(calendar, field) for field in calendar.__struct_fields__}
    return {"name": name, **plain, "holidays": tuple(map(msgspec.to_builtins, calendar.holidays))}


WeekdayName = Literal["MON", "TUE", "WED", "THU", "FRI", "SAT", "SUN"]
DateText = Annotated[str, Meta(pattern=r"^\d{4}-\d{2}-\d{2}(?!\n)$", examples=["2027-12-24"])]
DayName = Annotated[str, Meta(max_length=TITLE_CHARS_MAX)]
DATES_MAX = 4_000
RULES_MAX = 64
"""Holidays of one calendar that are rules."""


class Holiday(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """One holiday: a date, or a rule of RFC 5545 that yields dates."""

    date: DateText | None = None
    rrule: Annotated[str, Meta(min_length=1, max_length=1_000)] | None = None
    name: DayName | None = None


class Calendar(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True, kw_only=True):
    """Business days are all days but those of the weekend and holidays; `business_days` are such days in spite of
    both. After `ends_on`, the last day that it knows, only the weekend counts."""

    title: DayName | None = None
    weekend: Annotated[tuple[WeekdayName, ...], Meta(max_length=7)] = ("SAT", "SUN")
    holidays: Annotated[tuple[DateText | Holiday, ...], Meta(max_length=DATES_MAX)] = ()
    business_days: Annotated[tuple[DateText, ...], Meta(max_length=DATES_MAX)] = ()
    ends_on: DateText | None = None

    @property
    def listed(self) -> list[Holiday]:
        """Its holidays, each in the long form."""
        return [Holiday(date=each) if isinstance(each, str) else each for each in self.holidays]
