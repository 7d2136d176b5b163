"""A phrase said back from its parts, for phrases that have no fixed form yet or whose compiled form is an rrule."""

from __future__ import annotations

from dataclasses import replace

from horarium.triggers.phrase_parts import MIDNIGHT, WORKDAYS, DayRef, Moment, Parts
from horarium.triggers.words import MONTHS, WEEKDAYS, ordinal, say_count, say_every, say_list, say_time

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
        said += f", except{_recurring(replace(days, unit=None)).removeprefix('every day').removesuffix(' at 00:00')}"
    said += "" if parts.count is None else f", {say_count(parts.count, 'time')}"
    said += "" if parts.lasting is None else f", for {say_count(*parts.lasting)}"
    said += "" if parts.start is None else f", starting {_moment(parts.start)}"
    return said if parts.until is None else f"{said}, until {_moment(parts.until)}"


def _once(parts: Parts) -> str:
    if parts.offset is not None:
        later = say_list([say_count(count, unit) for count, unit in parts.offset])
        return f"once, {later} later{_at(parts) if parts.times else ''}"
    day = parts.day or DayRef(weekday=next(iter(parts.weekdays)))
    return f"once, {_day(day)}{_at(parts)}"


def _recurring(parts: Parts) -> str:
    unit = parts.unit or "day"
    said = say_every(parts.step, unit)
    if parts.from_end:
        return f"{said} after the end of the last run"
    weekdays = parts.weekdays or ({1} if unit == "week" else set())
    if weekdays:
        days = say_list([WEEKDAYS[day] for day in sorted(weekdays, key=lambda day: day or 7)])
        said = f"every {days}" if parts.unit is None else f"{said} on {days}"
    if parts.nth:
        said += f" on {say_list([f'the {_NTH[which]} {WEEKDAYS[day]}' for which, day in sorted(parts.nth)])}"
    if parts.month_days or (unit in ("month", "year") and not parts.nth and parts.day is None):
        days_said = [f"the {ordinal(day)}" if day > 0 else _from_last(day) for day in sorted(parts.month_days or {1})]
        said += f" on {say_list(days_said)}"
    if parts.day is not None:
        said += f" {_day(parts.day)}"
    elif parts.months or unit == "year":
        said += f" of {say_list([MONTHS[month - 1] for month in sorted(parts.months or {1})])}"
    if parts.window is not None:
        said += f", from {say_time(*parts.window[0])} to {say_time(*parts.window[1])}"
    return said if parts.sub_daily else said + _at(parts)


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
