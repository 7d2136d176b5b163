"""Business days: which days of a calendar are, and how a date moves to one.

A calendar is a weekend, holidays (dates, or rules that yield them) and days of work in spite of both. `Days` has the
days of 1970 to 2200 as bytes, one a day, and the business days in order, so that each step is a search in memory. The
conventions are those of ISDA (2006 Definitions, 4.12) and QuantLib: each maps a date to a date and never a later one to
an earlier one.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import deque
from datetime import date
from enum import StrEnum
from itertools import compress
from typing import Any, Final
from weakref import WeakValueDictionary

import msgspec
from msgspec import Struct

from horarium.clock import DAY, INSTANT_MAX
from horarium.errors import InvalidTrigger
from horarium.triggers.budget import spend
from horarium.triggers.rrule_trigger import RRule

WEEKDAYS: Final = ("MON", "TUE", "WED", "THU", "FRI", "SAT", "SUN")
_EPOCH: Final = date(1970, 1, 1).toordinal()
LAST_DAY: Final = INSTANT_MAX // DAY
_RULE_STEPS: Final = 20
KEPT: Final = 4
"""Calendars whose business days are kept though no trigger has them: about 0.3 MB each."""


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
    return RRule(rule if "DTSTART" in rule.upper() else f"{rule.strip()}\nDTSTART:19700101T000000Z")


class Days:
    """The business days of a calendar, and the steps between them."""

    __slots__ = ("__weakref__", "_bits", "_business")

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
        self._business = array("i", compress(range(LAST_DAY + 1), bits))

    @property
    def is_empty(self) -> bool:
        """True if there is no business day."""
        return 1 not in self._bits

    def is_business(self, day: int) -> bool:
        """True if that day is a business day; none beyond 1970 to 2200 is."""
        return 0 <= day <= LAST_DAY and bool(self._bits[day])

    def _from(self, day: int) -> int:
        """The first business day from this day on; the day after the last where there is none."""
        found = self._bits.find(1, max(day, 0))
        return LAST_DAY + 1 if found < 0 else found

    def _up_to(self, day: int) -> int:
        """The last business day up to this day; -1 where there is none."""
        return self._bits.rfind(1, 0, max(day + 1, 0))

    def _steps(self, day: int, count: int) -> int:
        """The business day that lies `count` of them after a day, or before it."""
        at = bisect_right(self._business, day) + count - 1 if count > 0 else bisect_left(self._business, day) + count
        if at < 0:
            return -1
        return self._business[at] if at < len(self._business) else LAST_DAY + 1

    def move(self, day: int, convention: Convention, offset: int) -> int:
        """Where a day goes: by the convention, then `offset` business days on (or back, if negative). A day that goes
        beyond 1970 to 2200 is -1, or one after the last. (`skip` moves as `following` does: who asks leaves it out.)"""
        if not self.is_business(day):
            day = self._adjusted(day, convention)
        return self._steps(day, offset) if offset else day

    def _adjusted(self, day: int, convention: Convention) -> int:
        match convention:
            case Convention.UNADJUSTED:
                return day
            case Convention.FOLLOWING | Convention.SKIP:
                return self._from(day)
            case Convention.PRECEDING:
                return self._up_to(day)
        following, preceding = self._from(day), self._up_to(day)
        match convention:
            case Convention.MODIFIED_FOLLOWING:
                return following if _same_month(day, following) else preceding
            case Convention.MODIFIED_PRECEDING:
                return preceding if _same_month(day, preceding) else following
        if following > LAST_DAY:
            return preceding
        return preceding if preceding >= 0 and day - preceding < following - day else following

    def first_source(self, target: int, convention: Convention, offset: int) -> int:
        """The first day that goes to `target` or beyond: a business day, or one of those between it and the one before.
        (Of `unadjusted`, with an offset.)"""
        business = self._from(target)
        return LAST_DAY + 1 if business > LAST_DAY else self.sources(business, convention, offset)[0]

    def sources(self, target: int, convention: Convention, offset: int) -> tuple[int, int]:
        """The days that go to a business day: the first of them, and the one after the last. (Those of `skip` are
        business days; of `unadjusted`, with an offset.)"""
        own = self._steps(target, -offset) if offset else target
        if convention is Convention.SKIP:
            return own, own + 1
        return self._bound(own, convention, offset), self._bound(self._from(own + 1), convention, offset)

    def _bound(self, business: int, convention: Convention, offset: int) -> int:
        """The first of the days up to a business day that go where it goes."""
        low, high = self._up_to(business - 1), max(business, 0)
        match convention:
            case Convention.PRECEDING:
                return high
            case Convention.FOLLOWING:
                return low + 1
            case Convention.UNADJUSTED:
                return high if offset > 0 else low + 1
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self._adjusted(middle, convention) >= business else (middle, high)
        return high


def _same_month(day: int, other: int) -> bool:
    if not 0 <= other <= LAST_DAY:
        return False
    one, two = date_of(day), date_of(other)
    return (one.year, one.month) == (two.year, two.month)


_in_use: WeakValueDictionary[bytes, Days] = WeakValueDictionary()
_last: deque[Days] = deque(maxlen=KEPT)


def days_of(content: Content) -> Days:
    """The business days of a calendar: equal ones share them, for as long as a trigger has them."""
    body = msgspec.json.encode(content)
    found = _in_use.get(body)
    if found is None:
        spend(_RULE_STEPS * (1 + len(content.rules)))
        found = _in_use[body] = Days(content)
        _last.append(found)
    return found


def plain(content: Content) -> Any:
    """The content as JSON has it."""
    return msgspec.json.decode(msgspec.json.encode(content))


def read_content(given: Any) -> Content:
    """The content of a calendar, as a stored trigger has it. Raises InvalidTrigger."""
    try:
        return msgspec.convert(given, Content)
    except msgspec.ValidationError as error:
        raise InvalidTrigger(f"days: {error}", field="days") from None
