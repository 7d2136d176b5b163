"""`phrase`: a rule in plain English, compiled to one of the other triggers.

Owns the value that keeps the text, and the moment that relative phrases (`in 20 minutes`, `every other tuesday`) count
from. A job fixes that moment when it is defined; until then they count from the `after` of each question. `words`
always shows the understood meaning.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, ClassVar
from zoneinfo import ZoneInfo

from horarium.clock import INSTANT_MAX, INSTANT_MIN, SECOND, Instant, to_datetime, to_text
from horarium.errors import InvalidTrigger, TooExpensive
from horarium.triggers.base import Trigger
from horarium.triggers.business_days import Content, plain, read_content
from horarium.triggers.phrase_compile import compile_parts, months_of
from horarium.triggers.phrase_grammar import read_phrase
from horarium.triggers.phrase_parts import MIDNIGHT, WORKDAYS, DayRef, Moment, Parts
from horarium.triggers.spec import Spec, read_instant
from horarium.triggers.words import MONTHS, WEEKDAYS, ordinal, quote, say_count, say_every, say_list, say_time
from horarium.triggers.zones import get_zone

_NTH = {1: "first", 2: "second", 3: "third", 4: "fourth", 5: "fifth", -1: "last", -2: "second to last"} | {
    -3: "third to last",
    -4: "fourth to last",
}
_ONE_DAY = {0: "today", 1: "tomorrow", 2: "the day after tomorrow"}


def say_parts(parts: Parts) -> str:
    """The understood meaning, without the zone."""
    if parts.also is not None:
        return f"{say_parts(replace(parts, also=None))}; and {say_parts(parts.also)}"
    calendar = "" if parts.calendar is None else f", on business days only (calendar {parts.calendar})"
    if parts.calendar is not None and parts.weekdays == WORKDAYS:
        parts = replace(parts, weekdays=set())
    said = (_once(parts) if parts.once else _recurring(parts)) + calendar
    if parts.except_weekdays:
        said += f", except on {say_list([f'{WEEKDAYS[day]}s' for day in sorted(parts.except_weekdays)])}"
    if parts.except_dates:
        said += f", except on {say_list(parts.except_dates[:5])}"
        said += f" and {len(parts.except_dates) - 5} more" if len(parts.except_dates) > 5 else ""
    for days in parts.except_days:
        said += f", except{_on_days(days)}" + ("" if _of_months(days) else f" of every {days.unit or 'month'}")
    said += "" if parts.count is None else f", {say_count(parts.count, 'time')}"
    said += "" if parts.lasting is None else f", for {say_count(*parts.lasting)}"
    said += "" if parts.start is None else f", starting {_moment(parts.start)}"
    if parts.until is None:
        return said
    return f"{said}, until {'before ' if parts.until.open else ''}{_moment(parts.until)}"


def _once(parts: Parts) -> str:
    if parts.offset is not None:
        later = say_list([say_count(count, unit) for count, unit in parts.offset])
        return f"once, {later} later{_at(parts) if parts.times else ''}"
    day = parts.day or DayRef(weekday=next(iter(parts.weekdays)))
    return f"once, {_day(day)}{_at(parts)}"


def _recurring(parts: Parts) -> str:
    on_days = _on_days(parts)
    rare = "year" if parts.months else "month"
    said = say_every(parts.step, parts.unit or (rare if on_days else "day"))
    if parts.from_end:
        return f"{said} after the end of the last run"
    if parts.minutes_past:
        said += f" at minute {say_list([str(minute) for minute in sorted(parts.minutes_past)])}"
    if parts.phase is not None:
        said += f" counted from {say_time(*parts.phase)}"
    weekdays = parts.weekdays or ({1} if parts.unit == "week" and not parts.from_start else set())
    if weekdays:
        days = say_list([WEEKDAYS[day] for day in sorted(weekdays, key=lambda day: day or 7)])
        said = f"every {days}" if parts.unit is None else f"{said} on {days}"
    said += on_days if parts.day is None else f" {_day(parts.day)}"
    said += _of_months(parts) if parts.day is None else ""
    if parts.window is not None:
        said += f", from {say_time(*parts.window[0])} to {say_time(*parts.window[1])}"
    return said if parts.sub_daily else said + _at(parts)


def _on_days(parts: Parts) -> str:
    """The days of a month, quarter or year."""
    days = [f"the {_NTH[which]} {WEEKDAYS[day]}" for which, day in sorted(parts.nth)]
    days += [f"the {_NTH.get(which, ordinal(which))} working day" for which in sorted(parts.workdays)]
    implied = {1} if parts.unit in ("month", "quarter", "year") and not days and not parts.from_start else set()
    days += [f"the {ordinal(day)}" if day > 0 else _from_last(day) for day in sorted(parts.month_days or implied)]
    return f" on {say_list(days)}" if days else ""


def _of_months(parts: Parts) -> str:
    months = parts.months if parts.unit == "quarter" or parts.from_start else months_of(parts)
    return f" of {say_list([MONTHS[month - 1] for month in sorted(months)])}" if months else ""


def _from_last(day: int) -> str:
    return "the last day" if day == -1 else f"the {ordinal(-day)} to last day"


def _at(parts: Parts) -> str:
    times = parts.times if parts.once else parts.day_times
    return f" at {say_list([say_time(*time) for time in times or [MIDNIGHT]])}"


def _moment(moment: Moment) -> str:
    return _day(moment.day).removeprefix("on ") + ("" if moment.time is None else f" at {say_time(*moment.time)}")


def _day(day: DayRef) -> str:
    if day.plus:
        beside = "after" if day.plus > 0 else "before"
        return f"{say_count(abs(day.plus), 'day')} {beside} {_day(replace(day, plus=0)).removeprefix('on ')}"
    if day.ends is not None:
        return f"the end of the {day.ends}"
    if day.which is not None:
        noun = "day" if day.weekday is None else WEEKDAYS[day.weekday]
        return f"on the {_NTH.get(day.which, ordinal(day.which))} {noun} of {'next' if day.months else 'this'} month"
    if day.years is not None:
        return f"on {day.day} {MONTHS[day.month - 1]} of next year"
    if day.months is not None:
        return f"on the {ordinal(day.day)} of next month"
    if day.weeks is not None and day.weekday is not None:
        return f"on {WEEKDAYS[day.weekday]} of next week"
    if day.days is not None:
        return _ONE_DAY[day.days]
    if day.weekday is not None:
        return (
            f"on the {'first' if day.strict else 'next'} {WEEKDAYS[day.weekday]}{' after today' if day.strict else ''}"
        )
    return f"on {day.day} {MONTHS[day.month - 1]}{'' if day.year is None else f' {day.year}'}"


ONCE_SHOWN = 5
_TRIAL: Instant = 1_767_225_600 * SECOND
"""2026-01-01: where a relative phrase is compiled once to see that its parts go together."""


@dataclass(frozen=True, slots=True)
class Phrase(Trigger):
    """A phrase in a zone. `timezone` is the one given beside the text; the text may name its own."""

    type: ClassVar[str] = "phrase"
    text: str
    timezone: str = "UTC"
    anchor: Instant | None = None
    content: Content | None = None
    """The days of the calendar that the text names; None: they are not known yet."""
    _parts: Parts = field(init=False, compare=False, repr=False)
    _trigger: Trigger | None = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        get_zone(self.timezone)
        parts = read_phrase(self.text)
        if parts.zone is not None and self.timezone not in ("UTC", parts.zone):
            raise InvalidTrigger(
                f"timezone: {quote(self.timezone)} is given, but the phrase says {parts.zone}; give one",
                field="timezone",
            )
        object.__setattr__(self, "_parts", parts)
        trial = self._compile(_TRIAL if self.anchor is None else self.anchor)
        fixed = self.anchor is not None or not parts.relative
        if self.anchor is not None:
            trial = trial.anchored(self.anchor)
            self._refuse_past(trial)
        if fixed:
            self._refuse_other_weekday(trial)
        object.__setattr__(self, "_trigger", trial if fixed else None)
        if self.content is not None and self.calendar is None:
            raise InvalidTrigger("days: the text names no calendar", field="days")
        known = self.content is not None or self.calendar is None
        if fixed and known and trial.next_fire(INSTANT_MIN - 1) is None:
            raise InvalidTrigger("text: it would never fire", field="text")

    @property
    def calendar(self) -> str | None:
        """The name of the calendar of whose business days the text speaks."""
        return next((each.calendar for each in self._parts.each if each.calendar is not None), None)

    @property
    def zone(self) -> str:
        """The zone in force: the text's own, or the one given beside it."""
        return self._parts.zone or self.timezone

    @classmethod
    def from_spec(cls, spec: Spec) -> Phrase:
        """Reads `{"type": "phrase", "text", "timezone"?, "anchor"?}`; `days` is the content of the calendar that the
        text names, looked up when the trigger is stored."""
        return cls(
            spec.text("text", "a phrase such as 'every day at 9am'"),
            spec.text("timezone", "an IANA time zone such as 'Europe/Berlin'", "UTC"),
            spec.optional_instant("anchor"),
            read_content(spec.get("days")) if spec.has("days") else None,
        )

    @property
    def after_end(self) -> int | None:
        return None if self._trigger is None else self._trigger.after_end

    def anchored(self, anchor: Instant) -> Phrase:
        if self.anchor is not None or (self._trigger is not None and self._trigger.anchored(anchor) == self._trigger):
            return self
        return replace(self, anchor=min(max(anchor, INSTANT_MIN), INSTANT_MAX - 1))

    def compiled(self, reference: Instant) -> Trigger:
        """The meaning of the phrase, seen from `reference` if it is relative and not anchored."""
        return self._compile(reference) if self._trigger is None else self._trigger

    def _refuse_past(self, trigger: Trigger) -> None:
        """`today at 9am`, said at noon, is a slip and no job that never runs."""
        day = self._parts.day
        is_today = day is not None and day.days == 0 and self._parts.once
        if is_today and self.anchor is not None and trigger.next_fire(self.anchor) is None:
            raise InvalidTrigger("text: that is over today; write e.g. 'tomorrow at 9am'", field="text")

    def _refuse_other_weekday(self, trigger: Trigger) -> None:
        """`monday, december 8`, where that is a Tuesday."""
        parts = self._parts
        fire = trigger.next_fire(INSTANT_MIN - 1) if parts.once and parts.weekdays and parts.day is not None else None
        if fire is None:
            return
        day = to_datetime(fire).astimezone(ZoneInfo(self.zone))
        if day.isoweekday() % 7 not in parts.weekdays:
            raise InvalidTrigger(
                f"text: {day:%Y-%m-%d} is a {day:%A}: which is meant? write the date or the weekday alone", field="text"
            )

    def _once_in_words(self) -> str:
        """In its zone, as it was said."""
        zone = ZoneInfo(self.zone)
        fires = [] if self._trigger is None else self._trigger.list_fires(INSTANT_MIN - 1, INSTANT_MAX, ONCE_SHOWN)
        days = [f"{to_datetime(fire).astimezone(zone):%A %Y-%m-%d at %H:%M:%S}".removesuffix(":00") for fire in fires]
        return f"once, on {say_list(days)}, {self.zone}"

    def _compile(self, reference: Instant) -> Trigger:
        try:
            return compile_parts(deepcopy(self._parts), self.zone, max(reference, INSTANT_MIN), self.content)
        except TooExpensive:
            raise
        except InvalidTrigger as error:
            within = error.field or ""
            raise InvalidTrigger(error.message, field="timezone" if within == "timezone" else "text") from None
        except (ValueError, OverflowError):
            raise InvalidTrigger("text: its dates lie outside the years 1970 to 2200", field="text") from None

    def next_fire(self, after: Instant) -> Instant | None:
        return self._seen_from(after).next_fire(after)

    def list_fires(self, after: Instant, until: Instant, limit: int) -> list[Instant]:
        return self._seen_from(after).list_fires(after, until, limit)

    def count_fires(self, after: Instant, until: Instant, limit: int) -> int:
        return self._seen_from(after).count_fires(after, until, limit)

    def last_fire(self, after: Instant, until: Instant) -> Instant | None:
        return self._seen_from(after).last_fire(after, until)

    def _seen_from(self, after: Instant) -> Trigger:
        if self._trigger is not None:
            return self._trigger
        try:
            return self._compile(after)
        except TooExpensive:
            raise
        except InvalidTrigger:
            return _NEVER

    def spec(self) -> dict[str, Any]:
        spec: dict[str, Any] = {"type": self.type, "text": self.text, "timezone": self.timezone}
        if self.anchor is not None:
            spec["anchor"] = to_text(self.anchor)
        if self.content is not None:
            spec["days"] = plain(self.content)
        return spec

    def words(self) -> str:
        if self._trigger is None:
            return f"{say_parts(self._parts)}, {self.zone} (counted from when it is defined)"
        if self._parts.from_end:
            return say_parts(self._parts)
        if self._parts.also is not None:
            return f"{say_parts(self._parts)}, {self.zone}"
        if self._parts.once:
            return self._once_in_words()
        if self._parts.window is not None or (self._parts.step > 1 and not self._parts.sub_daily):
            return f"{say_parts(self._parts)}, {self.zone}"
        return self._trigger.words()


class _Never(Trigger):
    """The result of a relative phrase asked about a time from which its dates lie beyond 2200."""

    type: ClassVar[str] = "never"

    def next_fire(self, after: Instant) -> Instant | None:
        return None

    def spec(self) -> dict[str, Any]:
        return {"type": self.type}

    def words(self) -> str:
        return "never"


_NEVER = _Never()


def when(text: str, timezone: str = "UTC", anchor: datetime | str | None = None) -> Phrase:
    """A rule in plain English, such as `every other tuesday at 9:34am`, in an IANA zone.

    Relative phrases count from `anchor`, an aware datetime or RFC 3339 text, or from when a job is defined. Raises
    InvalidTrigger, with the position of the first word that is not understood.
    """
    return Phrase(text, timezone, None if anchor is None else read_instant(anchor, "anchor"))
