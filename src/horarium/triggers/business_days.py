"""Business days: which days of a calendar are, and how a date moves to one.

A calendar is a weekend, holidays (dates, or rules that yield them) and days of work in spite of both. `Days` has the
business days of 1970 to 2200 as one sorted array, so that a step of any number of them is a search and an addition. The
conventions are those of ISDA (2006 Definitions, 4.12) and QuantLib: each maps a date to a date and never a later one to
an earlier one.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from datetime import date
from enum import StrEnum
from functools import lru_cache
from itertools import compress
from typing import Any, Final

import msgspec
from msgspec import Struct

from horarium.clock import DAY, INSTANT_MAX
from horarium.errors import InvalidTrigger
from horarium.triggers.budget import spend
from horarium.triggers.rrule import RRule

WEEKDAYS: Final = ("MON", "TUE", "WED", "THU", "FRI", "SAT", "SUN")
_EPOCH: Final = date(1970, 1, 1).toordinal()
LAST_DAY: Final = INSTANT_MAX // DAY
_RULE_STEPS: Final = 20
KEPT: Final = 32
"""Calendars whose business days are kept, 150 kB each."""


class Convention(StrEnum):
    """Where a fire time goes whose day is no business day."""

    UNADJUSTED = "unadjusted"
    """It stays."""
    SKIP = "skip"
    """It does not fire."""
    FOLLOWING = "following"
    PRECEDING = "preceding"
    MODIFIED_FOLLOWING = "modified_following"
    """The following one; where that is in another month, the preceding one."""
    MODIFIED_PRECEDING = "modified_preceding"
    NEAREST = "nearest"
    """The nearer of both; of two that are as near, the following one."""


class Content(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A calendar as far as it decides anything: no names. Dates are texts such as `2027-01-01`; `rules` are those of
    RFC 5545 and yield dates. After the day `ends_on` only the weekend counts."""

    weekend: tuple[str, ...] = ("SAT", "SUN")
    dates: tuple[str, ...] = ()
    rules: tuple[str, ...] = ()
    business_days: tuple[str, ...] = ()
    ends_on: str | None = None


MONDAY_TO_FRIDAY: Final = Content()


def day_of(text: str) -> int:
    """A date as days since 1970-01-01. Raises ValueError for what is none."""
    return date.fromisoformat(text).toordinal() - _EPOCH


def date_of(day: int) -> date:
    """The date of a day, as which days are counted here."""
    return date.fromordinal(day + _EPOCH)


def rule_days(rule: str) -> RRule:
    """The rule of a holiday, of which the dates count. Raises InvalidTrigger."""
    return RRule(rule if "DTSTART" in rule.upper() else f"DTSTART:19700101T000000Z\nRRULE:{_bare(rule)}")


def _bare(rule: str) -> str:
    return rule.strip().removeprefix("RRULE:")


class Days:
    """The business days of a calendar, and the steps between them."""

    __slots__ = ("_bits", "_days")

    def __init__(self, content: Content) -> None:
        week = bytes(name not in content.weekend for name in WEEKDAYS)
        turned = week[3:] + week[:3]  # 1970-01-01 was a Thursday
        bits = bytearray(turned * (LAST_DAY // 7 + 2))[: LAST_DAY + 1]
        last = LAST_DAY if content.ends_on is None else min(day_of(content.ends_on), LAST_DAY)
        for day in map(day_of, content.dates):
            if 0 <= day <= last:
                bits[day] = 0
        for rule in content.rules:
            for fire in rule_days(rule).list_fires(-1, (last + 1) * DAY - 1, last + 1):
                bits[fire // DAY] = 0
        for day in map(day_of, content.business_days):
            if 0 <= day <= LAST_DAY:
                bits[day] = 1
        self._bits = bytes(bits)
        self._days = array("i", compress(range(len(bits)), bits))

    def __len__(self) -> int:
        return len(self._days)

    def is_business(self, day: int) -> bool:
        """True if that day is a business day; none beyond 1970 to 2200 is."""
        return 0 <= day <= LAST_DAY and bool(self._bits[day])

    def is_plain(self, day: int) -> bool:
        """True if the day and both beside it are business days: then nothing moves to it or away from it."""
        return 0 < day < LAST_DAY and self._bits[day - 1 : day + 2] == b"\1\1\1"

    def move(self, day: int, convention: Convention, offset: int) -> int:
        """Where a day goes: by the convention, then `offset` business days on (or back, if negative). A day that goes
        beyond 1970 to 2200 is -1, or one after the last. (`skip` moves as `following` does: who asks leaves it out.)"""
        at = bisect_left(self._days, day)
        if convention is not Convention.UNADJUSTED:
            if not self.is_business(day):
                at = self._index(day, at, convention)
        elif not offset or not self.is_business(day):
            if not offset:
                return day
            at -= offset > 0  # the first of the business days after it is one step away
        at += offset
        if at < 0:
            return -1
        return self._days[at] if at < len(self._days) else LAST_DAY + 1

    def _index(self, day: int, following: int, convention: Convention) -> int:
        """The index of the business day to which a day that is none goes. `following`: that of the first after it."""
        match convention:
            case Convention.FOLLOWING | Convention.SKIP:
                return following
            case Convention.PRECEDING:
                return following - 1
            case Convention.MODIFIED_FOLLOWING:
                return following if self._in_month_of(day, following) else following - 1
            case Convention.MODIFIED_PRECEDING:
                return following - 1 if self._in_month_of(day, following - 1) else following
        if following == len(self._days):
            return following - 1
        near = following > 0 and day - self._days[following - 1] < self._days[following] - day
        return following - 1 if near else following

    def _in_month_of(self, day: int, index: int) -> bool:
        if not 0 <= index < len(self._days):
            return False
        one, other = date_of(day), date_of(self._days[index])
        return (one.year, one.month) == (other.year, other.month)

    def first_source(self, target: int, convention: Convention, offset: int) -> int:
        """The first day that goes to `target` or beyond: a business day, or one of those between it and the one before.
        (Of `unadjusted`, with an offset.)"""
        at = bisect_left(self._days, target) - offset
        if at >= len(self._days):
            return LAST_DAY + 1
        low, high = (self._days[at - 1] if at > 0 else -1), self._days[max(at, 0)]
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self.move(middle, convention, offset) >= target else (middle, high)
        return high


@lru_cache(maxsize=KEPT)
def _made(body: bytes) -> Days:
    content = msgspec.json.decode(body, type=Content)
    spend(_RULE_STEPS * (1 + len(content.rules)))
    return Days(content)


def days_of(content: Content) -> Days:
    """The business days of a calendar; equal calendars share them."""
    return _made(msgspec.json.encode(content))


def plain(content: Content) -> Any:
    """The content as JSON has it."""
    return msgspec.json.decode(msgspec.json.encode(content))


def read_content(given: Any) -> Content:
    """The content of a calendar, as a stored trigger has it. Raises InvalidTrigger."""
    try:
        return msgspec.convert(given, Content)
    except msgspec.ValidationError as error:
        raise InvalidTrigger(f"days: {error}", field="days") from None
