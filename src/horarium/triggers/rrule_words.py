"""A recurrence in plain English: `every 2 weeks on Tuesday at 09:34, UTC`.

Common rules get a sentence of their own; a rule with an exotic part is said exactly, part by part, not smoothly.
"""

from __future__ import annotations

from horarium.triggers.recurrence import Freq, Parts, Skip
from horarium.triggers.recurrence.civil import DAY_SECONDS, to_date, weekday_of
from horarium.triggers.rrule_text import BARE_START, Moment, RuleText, read_moment
from horarium.triggers.words import MONTHS, ordinal, say_every, say_list, say_runs, say_time
from horarium.triggers.zones import Zone

_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_UNITS = ("year", "month", "week", "day", "hour", "minute", "second")
_TIMES_MAX = 8  # times of day that are listed; more are said by their parts
_WORKDAYS = tuple((0, day) for day in range(5))
_EVERY_DAY = tuple((0, day) for day in range(7))


def say_rules(content: RuleText, zone: Zone, anchor: int | None) -> str:
    """The words of a whole set of rules. `anchor` is what a rule with COUNT and no start counts from (wall seconds)."""
    wall = content.start.wall if content.start else anchor
    said = [_say_rule(parts, wall, zone) for parts in content.rules]
    if content.dates:
        said.append(f"on {_say_moments(content.dates)}")
    text = f"{'; and '.join(said)}, {zone.key}"
    left_out = [_say_rule(parts, wall, zone) for parts in content.exrules]
    if content.exdates:
        left_out.append(_say_moments(content.exdates))
    return text + (f"; except {'; and '.join(left_out)}" if left_out else "") + _say_start(content, zone)


def _say_rule(parts: Parts, wall: int | None, zone: Zone) -> str:
    if wall is None and not parts.count:
        wall = BARE_START
    said = [_say_days(parts, wall), *_say_limits(parts), _say_times(parts, wall)]
    text = " ".join(part for part in said if part)
    if parts.by_set_pos:
        text += f", only the {_say_positions(parts.by_set_pos)} of each {_UNITS[parts.freq]}"
    if parts.skip is not Skip.OMIT:
        text += f", a day that does not exist moves {parts.skip.lower()}"
    if parts.count:
        text += f", {parts.count} time{'s' if parts.count > 1 else ''}"
    if parts.until:
        text += f", until {_say_until(parts.until, zone)}"
    return text


def _say_days(parts: Parts, wall: int | None) -> str:
    every = say_every(parts.interval, _UNITS[parts.freq])
    if parts.freq is Freq.YEARLY:
        return _say_yearly(parts, wall, every)
    if parts.freq is Freq.MONTHLY:
        return _say_monthly(parts, wall, every)
    if parts.freq is Freq.WEEKLY:
        return _say_weekly(parts, wall, every)
    if parts.freq is Freq.DAILY and parts.by_day and parts.interval == 1:
        return f"every {_say_weekdays(parts)}" + _also_on_dates(parts)
    limits = _say_weekdays_limit(parts) + _also_on_dates(parts)
    return every + limits


def _say_weekly(parts: Parts, wall: int | None, every: str) -> str:
    if wall is None and not parts.by_day:
        return every
    days = parts.by_day or ((0, weekday_of((wall or 0) // DAY_SECONDS)),)
    if parts.interval == 1:
        return "every day" if days == _EVERY_DAY else f"every {_list_weekdays(days)}"
    week = f", weeks beginning on {_DAYS[parts.wkst]}" if parts.wkst else ""
    return f"{every} on {_list_weekdays(days)}{week}"


def _say_monthly(parts: Parts, wall: int | None, every: str) -> str:
    if parts.by_month and parts.interval == 1:
        every = "every " + _say_months(parts)
    if wall is None and not (parts.by_day or parts.by_month_day):
        return every
    return f"on {_say_month_days(parts, wall)} of {every}"


def _say_yearly(parts: Parts, wall: int | None, every: str) -> str:
    if parts.by_week_no:
        days = f" on {_list_weekdays(parts.by_day)}" if parts.by_day else ""
        weeks = f"week{'s' if len(parts.by_week_no) > 1 else ''} {say_list([str(n) for n in parts.by_week_no])}"
        return f"{every} in {weeks}{days}{_also_on_dates(parts)}"
    if parts.by_year_day:
        return f"{every}{_also_on_dates(parts)}{_say_weekdays_limit(parts)}"
    plain = not (parts.by_day or parts.by_month_day)
    if plain and wall is None:
        return every
    if plain and not parts.by_month:
        _, month, day = to_date((wall or 0) // DAY_SECONDS)
        return f"{every} on {day} {MONTHS[month - 1]}"
    if parts.by_month_day and len(parts.by_month) == 1 and not parts.by_day and min(parts.by_month_day) > 0:
        return f"{every} on {say_list([str(day) for day in parts.by_month_day])} {_say_months(parts)}"
    on = _say_month_days(parts, wall)
    if any(number for number, _ in parts.by_day) and not parts.by_month:
        return f"on {on} of {every}"
    within = f"of {_say_months(parts)}" if parts.by_month else "of every month" if parts.by_month_day else ""
    return f"{every} on {on} {within}".rstrip()


def _say_month_days(parts: Parts, wall: int | None) -> str:
    """`the 1st and 15th`, `the last Friday`, `every Friday the 13th`."""
    dates = parts.by_month_day
    if not dates and not parts.by_day:
        dates = (to_date((wall or 0) // DAY_SECONDS)[2],)
    numbered = [f"{_position(n)} {_DAYS[day]}" for n, day in parts.by_day if n]
    plain = tuple(item for item in parts.by_day if not item[0])
    said = [f"the {say_list(numbered)}"] if numbered else []
    said += [f"every {_list_weekdays(plain)}"] if plain else []
    weekdays = " and ".join(said)
    if not dates:
        return weekdays
    on = f"the {_say_positions(dates)}{' day' if min(dates) < 0 else ''}"
    return f"{weekdays.removeprefix('every ')} {on}" if weekdays else on


def _say_limits(parts: Parts) -> list[str]:
    """BYMONTH, where it is only a limit."""
    if not parts.by_month or (parts.freq is Freq.YEARLY and not (parts.by_week_no or parts.by_year_day)):
        return []
    return [] if parts.freq is Freq.MONTHLY and parts.interval == 1 else [f"in {_say_months(parts)}"]


def _say_months(parts: Parts) -> str:
    return say_runs(parts.by_month, ("", *MONTHS))


def _say_weekdays(parts: Parts) -> str:
    return _list_weekdays(parts.by_day)


def _list_weekdays(days: tuple[tuple[int, int], ...]) -> str:
    if days == _WORKDAYS:
        return "Monday to Friday"
    named = [f"{_position(number)} {_DAYS[day]}" if number else _DAYS[day] for number, day in sorted(days)]
    return say_list(named)


def _say_weekdays_limit(parts: Parts) -> str:
    return f" on {_say_weekdays(parts)}" if parts.by_day else ""


def _also_on_dates(parts: Parts) -> str:
    said = f" on the {_say_positions(parts.by_month_day)} of the month" if parts.by_month_day else ""
    return said + (f" on the {_say_positions(parts.by_year_day)} day of the year" if parts.by_year_day else "")


def _position(number: int) -> str:
    """`2nd`, `last`, `3rd to last`."""
    if number > 0:
        return ordinal(number)
    return "last" if number == -1 else f"{ordinal(-number)} to last"


def _say_positions(numbers: tuple[int, ...]) -> str:
    ordered = [n for n in numbers if n > 0] + [n for n in numbers if n < 0]
    return say_list([_position(number) for number in ordered])


def _say_times(parts: Parts, wall: int | None) -> str:
    if parts.freq >= Freq.HOURLY:
        return _say_parts_of_day(parts)
    second = (wall or 0) % DAY_SECONDS
    hours = parts.by_hour or (second // 3600,)
    minutes, seconds = parts.by_minute or (second // 60 % 60,), parts.by_second or (second % 60,)
    if wall is None and not (parts.by_hour or parts.by_minute or parts.by_second):
        return ""
    if len(hours) * len(minutes) * len(seconds) > _TIMES_MAX:
        return _say_parts_of_day(parts)
    times = [say_time(hour, minute, sec) for hour in hours for minute in minutes for sec in seconds]
    return f"at {say_list(times)}"


def _say_parts_of_day(parts: Parts) -> str:
    said = []
    if parts.by_second:
        said.append(f"at second {say_runs(parts.by_second)}")
    if parts.by_minute:
        said.append(f"at minute {say_runs(parts.by_minute)}")
    if parts.by_hour:
        said.append(f"in hour {say_runs(parts.by_hour)}")
    return " ".join(said)


def _say_until(until: str, zone: Zone) -> str:
    wall, given = read_moment(until, None)
    text = _say_moment(wall)
    return f"{text} UTC" if given and zone.key != given else text


def _say_moment(wall: int) -> str:
    day, second = divmod(wall, DAY_SECONDS)
    year, month, month_day = to_date(day)
    time = f" {say_time(second // 3600, second // 60 % 60, second % 60)}" if second else ""
    return f"{month_day} {MONTHS[month - 1]} {year}{time}"


def _say_moments(moments: list[Moment]) -> str:
    shown = [_say_moment(moment.wall) for moment in sorted(moments)[:3]]
    return say_list(shown if len(moments) <= 3 else [*shown, f"{len(moments) - 3} more"])


def _say_start(content: RuleText, zone: Zone) -> str:
    """When it starts, where the rest leaves open in which of the periods."""
    skips = any(parts.interval > 1 for parts in content.rules)
    if content.start is None or not skips:
        return ""
    return f", from {_say_moment(content.start.wall)}"
