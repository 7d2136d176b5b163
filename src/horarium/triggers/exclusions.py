"""The exclusions of `except`: dates, weekdays, windows of time, and the fire times of another trigger.

Owns the four kinds of exclusion and their JSON forms. Each answers one question, `end_of(fire)`: where does the
exclusion that covers this fire time end? An answer at or before the fire time means that it is not excluded. So a
window costs one step of the search, however many fire times lie in it.

    {"dates": ["2026-12-25", "2026-12-24/2027-01-01", "12-25"], "timezone"?}   whole days; MM-DD is yearly
    {"weekdays": ["sat", "sun"], "timezone"?}                                  whole days
    {"from": "22:00", "until": "06:00", "weekdays"?, "timezone"?}              daily; may pass midnight
    {"from": "2026-12-24T00:00:00Z", "until": "2026-12-27T00:00:00Z"}          once; either end may be open
    {"trigger": {...}, "for_seconds": 7200}                                    from each fire time of the trigger on
    {"type": "cron", ...}                                                      exactly the fire times of the trigger
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from typing import Any

from horarium.clock import INSTANT_MAX, SECOND, Instant, to_text
from horarium.errors import InvalidTrigger
from horarium.triggers.base import Trigger
from horarium.triggers.spec import Spec
from horarium.triggers.words import MONTHS, WEEKDAYS, nearest, quote, say_duration, say_list
from horarium.triggers.zones import Gap, Repeat, Zone, get_zone

DATES_MAX = 1_000
"""Dates and ranges in one exclusion."""

FOR_MAX_SECONDS = 366 * 86_400
_DAY = 86_400
_EPOCH = date(1970, 1, 1).toordinal()
_DATE = re.compile(r"(\d{4})-(\d\d)-(\d\d)", re.ASCII)
_YEARLY = re.compile(r"(\d\d)-(\d\d)", re.ASCII)
_TIME = re.compile(r"([01]\d|2[0-4]):([0-5]\d)(?::([0-5]\d))?", re.ASCII)
_WEEKDAY_KEYS = {name[:3].lower(): index for index, name in enumerate(WEEKDAYS)}


class Exclusion(ABC):
    """One thing that `except` takes away. An immutable value."""

    @abstractmethod
    def end_of(self, fire: Instant) -> Instant:
        """The end (excluded) of the excluded stretch around `fire`; `fire` itself if it is not excluded."""

    @abstractmethod
    def spec(self) -> dict[str, Any]:
        """The JSON form."""

    @abstractmethod
    def words(self) -> str:
        """In plain English, to follow `except`."""

    def anchored(self, anchor: Instant) -> Exclusion:
        """As `Trigger.anchored`."""
        return self

    def seeded(self, seed: str) -> Exclusion:
        """As `Trigger.seeded`."""
        return self


@dataclass(frozen=True, slots=True)
class Dates(Exclusion):
    """Whole days of a zone's calendar: single ones, ranges (both ends included), and yearly ones (`MM-DD`)."""

    dates: tuple[str, ...]
    timezone: str = "UTC"
    _zone: Zone = field(init=False, compare=False, repr=False)
    _starts: tuple[int, ...] = field(init=False, compare=False, repr=False)
    _ends: tuple[int, ...] = field(init=False, compare=False, repr=False)
    _yearly: frozenset[tuple[int, int]] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        if not 1 <= len(self.dates) <= DATES_MAX:
            raise InvalidTrigger(f"dates: expected 1 to {DATES_MAX} dates, not {len(self.dates)}", field="dates")
        ranges, yearly = [], set()
        for index, text in enumerate(self.dates):
            place = f"dates[{index}]"
            if isinstance(text, str) and _YEARLY.fullmatch(text):
                day = _read_date(f"2000-{text}", place)
                yearly.add((day.month, day.day))
            else:
                ranges.append(_read_range(text, place))
        merged = _merge(ranges)
        object.__setattr__(self, "_zone", get_zone(self.timezone))
        object.__setattr__(self, "_starts", tuple(start for start, _ in merged))
        object.__setattr__(self, "_ends", tuple(end for _, end in merged))
        object.__setattr__(self, "_yearly", frozenset(yearly))

    def end_of(self, fire: Instant) -> Instant:
        day = self._zone.to_wall(fire // SECOND) // _DAY
        index = bisect_right(self._starts, day) - 1
        if index >= 0 and day <= self._ends[index]:
            return _day_start(self._zone, self._ends[index] + 1, fire)
        if self._yearly:
            today = date.fromordinal(day + _EPOCH)
            if (today.month, today.day) in self._yearly:
                return _day_start(self._zone, day + 1, fire)
        return fire

    def spec(self) -> dict[str, Any]:
        return {"dates": list(self.dates), "timezone": self.timezone}

    def words(self) -> str:
        shown = [_say_date(text) for text in self.dates[:5]]
        more = [f"{len(self.dates) - 5} more dates"] if len(self.dates) > 5 else []
        return f"on {say_list(shown + more)} ({self.timezone})"


@dataclass(frozen=True, slots=True)
class DailyWindow(Exclusion):
    """Wall times from `start` (included) to `end` (excluded), seconds of the day, on some weekdays (bits, Sunday is 0).

    A window whose end is not after its start passes midnight; it is then named by the day on which it starts.
    """

    start: int
    end: int
    weekdays: int = 0x7F
    timezone: str = "UTC"
    _zone: Zone = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        if not (0 <= self.start < _DAY and 0 < self.end <= _DAY and self.start != self.end):
            raise InvalidTrigger("until: expected a time of day that differs from from", field="until")
        object.__setattr__(self, "_zone", get_zone(self.timezone))

    def end_of(self, fire: Instant) -> Instant:
        day, time = divmod(self._zone.to_wall(fire // SECOND), _DAY)
        length = self.end - self.start if self.end > self.start else self.end - self.start + _DAY
        for first, since in ((day, time - self.start), (day - 1, time + _DAY - self.start)):
            if 0 <= since < length and self.weekdays >> (first + 4) % 7 & 1:
                return _wall_instant(self._zone, first * _DAY + self.start + length, fire)
        return fire

    def spec(self) -> dict[str, Any]:
        named = [key for key, index in _WEEKDAY_KEYS.items() if self.weekdays >> index & 1]
        spec: dict[str, Any] = {} if self._whole_days() else {"from": _clock(self.start), "until": _clock(self.end)}
        if self.weekdays != 0x7F or self._whole_days():
            spec["weekdays"] = named
        return {**spec, "timezone": self.timezone}

    def _whole_days(self) -> bool:
        return self.start == 0 and self.end == _DAY

    def words(self) -> str:
        named = [f"{WEEKDAYS[n]}s" for n in (1, 2, 3, 4, 5, 6, 0) if self.weekdays >> n & 1]
        days = "" if self.weekdays == 0x7F else f" on {say_list(named)}"
        if self._whole_days():
            return f"{days.strip() or 'every day'} ({self.timezone})"
        return f"from {_clock(self.start)} to {_clock(self.end)}{days} ({self.timezone})"


@dataclass(frozen=True, slots=True)
class Window(Exclusion):
    """One stretch of time, from `start` (included) to `end` (excluded); either may be open."""

    start: Instant | None = None
    end: Instant | None = None

    def __post_init__(self) -> None:
        if self.start is None and self.end is None:
            raise InvalidTrigger("expected from, until or both", field="from")
        if self.start is not None and self.end is not None and self.start >= self.end:
            raise InvalidTrigger("until: expected an instant after from", field="until")

    def end_of(self, fire: Instant) -> Instant:
        end = INSTANT_MAX if self.end is None else self.end
        return end if (self.start is None or fire >= self.start) and fire < end else fire

    def spec(self) -> dict[str, Any]:
        ends = (("from", self.start), ("until", self.end))
        return {name: to_text(instant) for name, instant in ends if instant is not None}

    def words(self) -> str:
        start = "" if self.start is None else f"from {to_text(self.start)}"
        return f"{start}{' ' if start and self.end else ''}{f'until {to_text(self.end)}' if self.end else ''}"


@dataclass(frozen=True, slots=True)
class TriggerTimes(Exclusion):
    """The fire times of another trigger; with `for_micros`, each together with as much time after it."""

    trigger: Trigger
    for_micros: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.for_micros <= FOR_MAX_SECONDS * SECOND:
            raise InvalidTrigger(f"for_seconds: expected more than 0, at most {FOR_MAX_SECONDS}", field="for_seconds")

    def end_of(self, fire: Instant) -> Instant:
        first = self.trigger.next_fire(fire - self.for_micros)
        return fire if first is None or first > fire else first + self.for_micros

    def anchored(self, anchor: Instant) -> Exclusion:
        return TriggerTimes(self.trigger.anchored(anchor), self.for_micros)

    def seeded(self, seed: str) -> Exclusion:
        return TriggerTimes(self.trigger.seeded(seed), self.for_micros)

    def spec(self) -> dict[str, Any]:
        if self.for_micros == 1:
            return self.trigger.spec()
        seconds = self.for_micros // SECOND if self.for_micros % SECOND == 0 else self.for_micros / SECOND
        return {"trigger": self.trigger.spec(), "for_seconds": seconds}

    def words(self) -> str:
        after = "" if self.for_micros == 1 else f" for {say_duration(self.for_micros)} each"
        return f"({self.trigger.words()}){after}"


def read_exclusion(given: object, zone: str, outer: Spec | None) -> Exclusion:
    """One item of `except`, whose days and times are in `zone` unless it names its own. Raises InvalidTrigger."""
    if not isinstance(given, Mapping):
        raise InvalidTrigger(f"expected an object such as {{'dates': ['2026-12-25']}}, not {quote(given)}")
    if "type" in given:
        return TriggerTimes(_parse_nested(given, outer))
    spec = Spec(given, 1, lambda nested, _: _parse_nested(nested, outer))
    found = _read(spec, zone)
    spec.done()
    return found


def _read(spec: Spec, zone: str) -> Exclusion:
    if spec.has("trigger"):
        return TriggerTimes(spec.trigger("trigger"), _for_micros(spec.get("for_seconds")))
    if spec.has("dates"):
        return Dates(tuple(spec.list("dates", "a list of dates", DATES_MAX)), _timezone(spec, zone))
    if spec.has("weekdays") and not spec.has("from") and not spec.has("until"):
        return DailyWindow(0, _DAY, _weekdays(spec), _timezone(spec, zone))
    if not spec.has("from") and not spec.has("until"):
        spec.done()
        raise InvalidTrigger("expected a trigger, or an object with dates, weekdays, trigger, from or until")
    if any(_TIME.fullmatch(text) for name in ("from", "until") if isinstance(text := spec.get(name), str)):
        weekdays = _weekdays(spec) if spec.has("weekdays") else 0x7F
        start, end = _time(spec, "from") % _DAY, _time(spec, "until")
        return DailyWindow(start, end or _DAY, weekdays, _timezone(spec, zone))
    return Window(spec.optional_instant("from"), spec.optional_instant("until"))


def _parse_nested(given: object, outer: Spec | None) -> Trigger:
    if outer is not None:
        return outer.parse_deeper(given)
    from horarium.triggers.registry import parse_at  # the registry imports this module, through compose

    return parse_at(given, 2)


def _timezone(spec: Spec, zone: str) -> str:
    return spec.text("timezone", "an IANA time zone such as 'Europe/Berlin'", zone)


def _for_micros(given: object) -> int:
    if isinstance(given, bool) or not isinstance(given, int | float) or not 1 <= given <= FOR_MAX_SECONDS:
        raise InvalidTrigger(
            f"for_seconds: expected a number of seconds from 1 to {FOR_MAX_SECONDS}, not {quote(given)}",
            field="for_seconds",
        )
    return round(given * SECOND)


def _time(spec: Spec, name: str) -> int:
    found = _TIME.fullmatch(spec.text(name, "a time of day such as 22:00"))
    seconds = sum(int(n or 0) * size for n, size in zip(found.groups(), (3600, 60, 1), strict=True)) if found else -1
    if not 0 <= seconds <= _DAY:
        raise InvalidTrigger(f"{name}: {quote(spec.get(name))}: expected a time of day such as 22:00", field=name)
    return seconds


def _weekdays(spec: Spec) -> int:
    mask = 0
    for index, given in enumerate(spec.list("weekdays", "a list of weekdays such as 'sat'", 7)):
        known = [*_WEEKDAY_KEYS, *(name.lower() for name in WEEKDAYS)]
        if not isinstance(given, str) or given.lower() not in known:
            hint = nearest(given, known) if isinstance(given, str) else ""
            place = f"weekdays[{index}]"
            raise InvalidTrigger(f"{place}: expected a weekday such as 'sat', not {quote(given)}{hint}", field=place)
        mask |= 1 << _WEEKDAY_KEYS[given.lower()[:3]]
    return mask


def _read_range(given: object, place: str) -> tuple[int, int]:
    first, slash, last = given.partition("/") if isinstance(given, str) else (given, "", "")
    start = _read_date(first, place).toordinal() - _EPOCH
    end = _read_date(last, place).toordinal() - _EPOCH if slash else start
    if end < start:
        raise InvalidTrigger(f"{place}: {quote(given)} ends before it starts", field=place)
    return start, end


def _read_date(given: object, place: str) -> date:
    found = _DATE.fullmatch(given) if isinstance(given, str) else None
    try:
        if found is None:
            raise ValueError
        return date(*map(int, found.groups()))
    except ValueError:
        raise InvalidTrigger(
            f"{place}: {quote(given)}: expected a date such as 2026-12-25, a range 2026-12-24/2027-01-01, or 12-25"
            " for every year",
            field=place,
        ) from None


def _merge(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for start, end in sorted(ranges):
        if merged and start <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def _day_start(zone: Zone, day: int, fire: Instant) -> Instant:
    return _wall_instant(zone, day * _DAY, fire)


def _wall_instant(zone: Zone, wall: int, fire: Instant) -> Instant:
    """Where the wall clock first reaches `wall` after `fire`; a little after `fire` where a change has hidden that."""
    found = [utc * SECOND for utc in zone.to_utc(wall, Gap.RUN_AT_TRANSITION, Repeat.BOTH) if utc * SECOND > fire]
    return min(found, default=fire + SECOND)


def _say_date(text: str) -> str:
    if _YEARLY.fullmatch(text):
        return f"{int(text[3:])} {MONTHS[int(text[:2]) - 1]} of every year"
    return " to ".join(text.split("/"))


def _clock(seconds: int) -> str:
    minute, second = divmod(seconds, 60)
    return f"{minute // 60:02}:{minute % 60:02}" + (f":{second:02}" if second else "")
