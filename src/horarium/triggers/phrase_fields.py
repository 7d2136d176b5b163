"""The days of a phrase as the fields of cron and as the parts of an rrule."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from horarium.triggers.phrase_parts import Parts, Time
from horarium.triggers.phrase_wall import fail

_RRULE_DAYS = ("SU", "MO", "TU", "WE", "TH", "FR", "SA")
_QUARTER_STARTS, _QUARTER_ENDS = {1, 4, 7, 10}, {3, 6, 9, 12}


def cron_days(parts: Parts) -> str:
    """The last three fields of a cron expression."""
    specific = bool(parts.month_days or parts.nth or parts.workdays)
    if specific and parts.unit in ("day", "week"):
        fail(f"every {parts.unit} and a day of the month don't go together; say 'of the month'")
    if parts.unit == "month" and parts.weekdays:
        fail("which of these weekdays? write e.g. 'first monday of every month'")
    if parts.weekdays and (specific or parts.unit in ("quarter", "year")):
        fail(
            "a weekday and a day of the month don't go together: which is meant?"
            " write e.g. 'first monday of the month', or only one of them"
        )
    if sum(map(bool, (parts.month_days, parts.nth, parts.workdays))) > 1:
        fail("two kinds of days of the month don't go together")
    weekdays = parts.weekdays or ({1} if parts.unit == "week" else set())
    if not specific and parts.unit in ("month", "quarter", "year"):
        parts.month_days.add(1)
    months = ",".join(map(str, sorted(months_of(parts)))) or "*"
    return f"{_day_field(parts)} {months} {_weekday_field(parts, weekdays)}"


def months_of(parts: Parts) -> set[int]:
    """The months of a rule: those named, or those in which a quarter or a year begins or ends."""
    if parts.unit == "quarter" or (parts.unit == "year" and not parts.months):
        whiches = {which for which, _ in parts.nth} | parts.month_days | parts.workdays
        backwards = {which < 0 for which in whiches}
        if parts.months or len(backwards) > 1:
            fail(f"of a {parts.unit}, name days from its beginning or its last day, not both, and no months")
        first, last = (_QUARTER_STARTS, _QUARTER_ENDS) if parts.unit == "quarter" else ({1}, {12})
        return last if backwards == {True} else first
    return parts.months


def by_days(parts: Parts) -> str:
    """The parts of an rrule that say on which days of its period it fires."""
    said = f";BYMONTH={','.join(map(str, sorted(parts.months or {1})))}" if parts.unit == "year" else ""
    if parts.unit == "week":
        days = sorted(parts.weekdays or {1}, key=lambda day: day or 7)
        return f";WKST=MO;BYDAY={','.join(_RRULE_DAYS[day] for day in days)}"
    if parts.nth:
        return f"{said};BYDAY={','.join(f'{which}{_RRULE_DAYS[day]}' for which, day in sorted(parts.nth))}"
    if parts.unit in ("month", "year"):
        return f"{said};BYMONTHDAY={','.join(map(str, sorted(parts.month_days)))}"
    return said


def clocks(times: Iterable[Time]) -> list[str]:
    """The hour, minute and second fields of as few cron expressions as give exactly these times of day."""
    hours: dict[tuple[int, int], set[int]] = defaultdict(set)
    for hour, minute, second in times:
        hours[minute, second].add(hour)
    minutes: dict[tuple[int, frozenset[int]], set[int]] = defaultdict(set)
    for (minute, second), at_hours in hours.items():
        minutes[second, frozenset(at_hours)].add(minute)
    return [
        f"{f'{second} ' if second else ''}{_compact(at, 0, 59)} {_compact(at_hours, 0, 23)}"
        for (second, at_hours), at in minutes.items()
    ]


def _day_field(parts: Parts) -> str:
    named = ["L" if day == -1 else f"L{day + 1}" if day < 0 else str(day) for day in sorted(parts.month_days)]
    named += ["LW" if day == -1 else "1W" for day in sorted(parts.workdays)]
    return ",".join(named) or "*"


def _weekday_field(parts: Parts, weekdays: set[int]) -> str:
    named = _compact(weekdays, 0, 6) if weekdays else ""
    nth = [f"{day}L" if which == -1 else f"{day}#{which}" for which, day in sorted(parts.nth)]
    return ",".join(([named] if named else []) + nth) or "*"


def _compact(numbers: Iterable[int], low: int, high: int) -> str:
    """A cron field, as short as possible: `*`, `*/15`, `9-16`, or a list."""
    found = sorted(numbers)
    step = found[1] - found[0] if len(found) > 1 else 0
    if step and found == list(range(low, high + 1, step)):
        return "*" if step == 1 else f"*/{step}" if len(found) > 2 else ",".join(map(str, found))
    if step and len(found) > 2 and found == list(range(found[0], found[-1] + 1, step)):
        return f"{found[0]}-{found[-1]}" + (f"/{step}" if step > 1 else "")
    return ",".join(map(str, found))
