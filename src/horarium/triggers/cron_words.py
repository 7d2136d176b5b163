"""A cron expression in plain English.

Says the usual shapes as people say them (`every weekday at 18:00`, `every 5 minutes`) and every other shape exactly, by
listing what each field allows. It reads the masks, not the text: so the words say how the text was understood.
"""

from __future__ import annotations

from horarium.triggers.cron_days import DayMatch
from horarium.triggers.cron_fields import YEAR_MIN, Fields, Values
from horarium.triggers.words import MONTHS, WEEKDAYS, ordinal, say_every, say_list, say_runs, say_time

_TIMES_MAX = 6
"""More times of day than these are said by field."""

_NTH = {1: "first", 2: "second", 3: "third", 4: "fourth", 5: "fifth", -1: "last"}
_ALL_60 = (1 << 60) - 1
_ALL_24 = (1 << 24) - 1
_ALL_WEEKDAYS = 0x7F
_WORKDAYS = 0b0111110
_WEEKEND = 0b1000001
_ALL_DAYS = (1 << 32) - 2
_ALL_MONTHS = (1 << 13) - 2
_ALL_YEARS = (1 << 231) - 1


def say_cron(fields: Fields, day_match: DayMatch) -> str:
    """The whole expression, without its zone."""
    days, months = _say_days(fields, day_match), _say_months(fields)
    time, recurs = _say_time(fields)
    if recurs:
        day = "" if days == "every day" else f", {days}" if days.startswith("on ") else f", on {days}"
        return f"{time}{day}{months}"
    return f"{days}{months} {time}"


def _bits(mask: int) -> list[int]:
    return [bit for bit in range(mask.bit_length()) if mask >> bit & 1]


def _say_time(fields: Fields) -> tuple[str, bool]:
    """The times of day, and whether they are said as a rhythm (`every 5 minutes`)."""
    seconds, minutes, hours = (_bits(values.mask) for values in (fields.second, fields.minute, fields.hour))
    if len(seconds) * len(minutes) * len(hours) <= _TIMES_MAX:
        times = [say_time(h, m, s) for h in hours for m in minutes for s in seconds]
        return f"at {say_list(times)}", False
    if len(seconds) == 1:
        return _say_minutes(minutes, fields.hour.mask, seconds[0]), True
    step = _step(seconds, 60)
    said = say_every(step, "second") if step else f"at second{_s(seconds)} {say_runs(seconds)}"
    if fields.minute.mask == _ALL_60 and fields.hour.mask == _ALL_24:
        return (said if step else f"{said} of every minute"), True
    minute = "every minute" if fields.minute.mask == _ALL_60 else f"minute{_s(minutes)} {say_runs(minutes)}"
    return f"{said} of {minute}{_say_hours(fields.hour.mask)}", True


def _say_minutes(minutes: list[int], hours: int, second: int) -> str:
    tail = f", at second {second}" if second else ""
    hour_step, minute_step = _step(_bits(hours), 24), _step(minutes, 60)
    if len(minutes) == 1 and hour_step:
        at = f" at minute {minutes[0]}" if minutes[0] else " on the hour"
        return f"{say_every(hour_step, 'hour')}{at}{tail}"
    if minute_step:
        within = "" if hours == _ALL_24 else f", during the hours {_hour_runs(hours)}"
        return f"{say_every(minute_step, 'minute')}{within}{tail}"
    return f"at minute{_s(minutes)} {say_runs(minutes)}{_say_hours(hours)}{tail}"


def _say_hours(hours: int) -> str:
    return " of every hour" if hours == _ALL_24 else f", during the hours {_hour_runs(hours)}"


def _hour_runs(hours: int) -> str:
    return say_runs(_bits(hours), [f"{hour:02}" for hour in range(24)])


def _s(numbers: list[int]) -> str:
    return "" if len(numbers) == 1 else "s"


def _step(numbers: list[int], span: int) -> int:
    """The step if the numbers are all multiples of one that divides the span, else 0."""
    step = numbers[1] if len(numbers) > 1 else 0
    return step if step and span % step == 0 and numbers == list(range(0, span, step)) else 0


def _say_days(fields: Fields, day_match: DayMatch) -> str:
    by_day, by_weekday = _say_month_days(fields.day), _say_weekdays(fields.weekday)
    both = day_match == "all" or fields.joined or fields.day.starred or fields.weekday.starred
    if not by_day or not by_weekday:
        return by_weekday or by_day or "every day" if both else "every day"
    if both:
        return (
            f"{by_day} where that is {by_weekday.replace('every', 'a', 1) if ' and ' not in by_weekday else by_weekday}"
        )
    return f"{by_day} and {by_weekday}"


def _say_month_days(day: Values) -> str:
    """`` where every day is allowed."""
    special = bool(day.last_back or day.last_workday or day.near_workdays)
    if day.mask & _ALL_DAYS == _ALL_DAYS:
        return ""
    said = [f"the {ordinal(n)}" for n in _bits(day.mask)]
    if len(said) > _TIMES_MAX:
        said = [f"the days {say_runs(_bits(day.mask))}"]
    if special:
        said += [f"the working day nearest to the {ordinal(n)}" for n in sorted(day.near_workdays)]
        said += [f"{ordinal(n)} day before the last" for n in sorted(day.last_back - {0}, reverse=True)]
        said += ["the last working day"] if day.last_workday else []
        said += ["the last day"] if 0 in day.last_back else []
    return f"on {say_list(said)} of the month"


def _say_weekdays(weekday: Values) -> str:
    """`` where every weekday is allowed."""
    if weekday.mask == _ALL_WEEKDAYS:
        return ""
    said = [WEEKDAYS[n] for n in sorted(_bits(weekday.mask), key=lambda n: n or 7)]
    plain = {_WORKDAYS: "weekday (Monday to Friday)", _WEEKEND: "Saturday and Sunday"}.get(weekday.mask, say_list(said))
    nth = [
        f"the {_NTH[n]} {WEEKDAYS[day]} of the month" for day, n in sorted(weekday.nth, key=lambda p: (p[1] % 9, p[0]))
    ]
    if not nth:
        return f"every {plain}"
    return f"on {say_list(([f'every {plain}'] if said else []) + nth)}"


def _say_months(fields: Fields) -> str:
    months, years = _bits(fields.month.mask), [bit + YEAR_MIN for bit in _bits(fields.year.mask)]
    said = "" if fields.month.mask == _ALL_MONTHS else f" in {say_runs([m - 1 for m in months], MONTHS)}"
    return said if fields.year.mask == _ALL_YEARS else f"{said} in the years {say_runs(years)}"
