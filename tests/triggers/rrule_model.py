"""A second opinion on recurrence rules: slow, obvious, and sharing no code with the engine.

It walks day by day (second by second, for rules finer than a day) and asks of each whether the rule's own words allow
it. Only `datetime`, `zoneinfo` and the standard library are used.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from itertools import product
from zoneinfo import ZoneInfo

WEEKDAYS = ("MO", "TU", "WE", "TH", "FR", "SA", "SU")
UNITS = {"HOURLY": 3600, "MINUTELY": 60, "SECONDLY": 1}


class Rule:
    """The parts of a rule, read with `split` alone."""

    def __init__(self, text: str) -> None:
        given = dict(part.split("=") for part in text.split(";"))
        self.freq = given["FREQ"]
        self.interval = int(given.get("INTERVAL", 1))
        self.wkst = WEEKDAYS.index(given.get("WKST", "MO"))
        self.count = int(given["COUNT"]) if "COUNT" in given else None
        self.month, self.weekno, self.yearday, self.monthday, self.hour, self.minute, self.second, self.setpos = (
            [int(item) for item in given.get(f"BY{name}", "").split(",") if item]
            for name in ("MONTH", "WEEKNO", "YEARDAY", "MONTHDAY", "HOUR", "MINUTE", "SECOND", "SETPOS")
        )
        self.day = [
            (int(item[:-2] or 0), WEEKDAYS.index(item[-2:])) for item in given.get("BYDAY", "").split(",") if item
        ]


def week_of(day: date, wkst: int) -> tuple[int, int]:
    """The number of the day's week in the year that has most of it, and how many weeks that year has."""
    begin = day - timedelta((day.weekday() - wkst) % 7)
    year = (begin + timedelta(3)).year
    first = next(d for n in range(-3, 4) if (d := date(year, 1, 1) + timedelta(n)).weekday() == wkst)
    following = next(d for n in range(-3, 4) if (d := date(year + 1, 1, 1) + timedelta(n)).weekday() == wkst)
    return (begin - first).days // 7 + 1, (following - first).days // 7


def _length(day: date, by_month: bool) -> tuple[date, date]:
    first = day.replace(day=1) if by_month else date(day.year, 1, 1)
    if not by_month:
        return first, date(day.year, 12, 31)
    return first, (first + timedelta(31)).replace(day=1) - timedelta(1)


def _is_numbered(day: date, ordinal: int, weekday: int, by_month: bool) -> bool:
    first, last = _length(day, by_month)
    all_of_them = [first + timedelta(n) for n in range((last - first).days + 1)]
    such = [other for other in all_of_them if other.weekday() == weekday]
    index = ordinal - 1 if ordinal > 0 else len(such) + ordinal
    return 0 <= index < len(such) and such[index] == day


def allows(rule: Rule, day: date) -> bool:
    """Whether the day parts that are given allow the day."""
    if rule.month and day.month not in rule.month:
        return False
    number, weeks = week_of(day, rule.wkst)
    if rule.weekno and number not in rule.weekno and number - weeks - 1 not in rule.weekno:
        return False
    nth, last = day.timetuple().tm_yday, _length(day, False)[1].timetuple().tm_yday
    if rule.yearday and nth not in rule.yearday and nth - last - 1 not in rule.yearday:
        return False
    end = _length(day, True)[1].day
    if rule.monthday and day.day not in rule.monthday and day.day - end - 1 not in rule.monthday:
        return False
    by_month = rule.freq == "MONTHLY" or bool(rule.month)
    return not rule.day or any(
        _is_numbered(day, n, weekday, by_month) if n else day.weekday() == weekday for n, weekday in rule.day
    )


def _fill(rule: Rule, start: datetime) -> None:
    if not (rule.day or rule.monthday or rule.yearday):
        if rule.freq == "WEEKLY" or rule.weekno:
            rule.day = [(0, start.weekday())]
        elif rule.freq in ("MONTHLY", "YEARLY"):
            if rule.freq == "YEARLY" and not rule.month:
                rule.month = [start.month]
            rule.monthday = [start.day]


def _period(rule: Rule, day: date) -> int:
    """The number of the period around a day."""
    return {
        "YEARLY": day.year,
        "MONTHLY": day.year * 12 + day.month,
        "WEEKLY": (day.toordinal() - 1 - rule.wkst) // 7,
        "DAILY": day.toordinal(),
    }[rule.freq]


def occurrences(text: str, start: datetime, days: int) -> list[datetime]:
    """The wall times of a rule of DAILY or slower in the first `days` days (periods that begin in them)."""
    rule = Rule(text)
    _fill(rule, start)
    times = list(product(rule.hour or [start.hour], rule.minute or [start.minute], rule.second or [start.second]))
    origin = _period(rule, start.date())
    first = start.date() - timedelta(370)
    sets: dict[int, list[datetime]] = {}
    for n in range(days + 370):
        day = first + timedelta(n)
        number = _period(rule, day)
        if number >= origin and (number - origin) % rule.interval == 0 and allows(rule, day):
            for hour, minute, second in times:
                sets.setdefault(number, []).append(datetime(day.year, day.month, day.day, hour, minute, second))
    found: list[datetime] = []
    for members in sets.values():
        found += select(sorted(members), rule.setpos)
    return sorted(moment for moment in found if moment >= start)[: rule.count]


def select(members: list[datetime], positions: list[int]) -> list[datetime]:
    size = len(members)
    wanted = {p - 1 if p > 0 else size + p for p in positions}
    return [member for n, member in enumerate(members) if not positions or n in wanted]


def instants(
    text: str, start: datetime, days: int, zone: str, gap: str = "shift", repeat: str = "first"
) -> list[datetime]:
    """As `occurrences`, in UTC, with what the policies make of skipped and repeated wall times."""
    tz, found = ZoneInfo(zone), set[datetime]()
    for moment in occurrences(text, start, days):
        found.update(_resolve(moment, tz, gap, repeat))
    return sorted(found)


def _resolve(moment: datetime, tz: ZoneInfo, gap: str, repeat: str) -> list[datetime]:
    """PEP 495: fold=0 is the first of two, or a skipped time by the offset before; fold=1 the other way round."""
    first, second = (moment.replace(tzinfo=tz, fold=fold).astimezone(UTC) for fold in (0, 1))
    if first == second:
        return [first]
    if first > second:  # only where the wall time does not exist
        return {"shift": [first], "skip": [], "run_at_transition": [_change(second, first, tz)]}[gap]
    return {"first": [first], "second": [second], "both": [first, second]}[repeat]


def _change(before: datetime, after: datetime, tz: ZoneInfo) -> datetime:
    """The first second with the offset that `after` has."""
    offset = after.astimezone(tz).utcoffset()
    while after - before > timedelta(seconds=1):
        middle = before + (after - before) // 2
        middle = middle.replace(microsecond=0)
        before, after = (before, middle) if middle.astimezone(tz).utcoffset() == offset else (middle, after)
    return after


def moved(day_numbers: list[int], start: datetime, interval: int, months: list[int], skip: str) -> list[datetime]:
    """MONTHLY;BYMONTHDAY with SKIP (RFC 7529) over twelve years, month by month."""
    found = set()
    for count in range(0, 144, interval):
        year, month = divmod(start.year * 12 + start.month - 1 + count, 12)
        first = start.replace(year=year, month=month + 1, day=1)
        length = _length(first.date(), True)[1].day
        for number in day_numbers if not months or month + 1 in months else []:
            place = number if number > 0 else length + 1 + number
            place = min(place, length if skip == "BACKWARD" else length + 1)
            found.add(first + timedelta(place - 1))
    return sorted(moment for moment in found if moment >= start)


def elapsed(text: str, start: datetime, hours: int, zone: str) -> list[datetime]:
    """A rule finer than a day, second by second, in a zone whose offset changes by whole hours."""
    rule, tz = Rule(text), ZoneInfo(zone)
    begin = start.replace(tzinfo=tz).astimezone(UTC)
    unit = UNITS[rule.freq]
    base = int(begin.timestamp()) // unit * unit
    sets: dict[int, list[datetime]] = {}
    for n in range(hours * 3600):
        number, moment = n // unit, datetime.fromtimestamp(base + n, UTC)
        if number % rule.interval == 0 and _fits(rule, moment.astimezone(tz), start):
            sets.setdefault(number, []).append(moment)
    found: list[datetime] = []
    for members in sets.values():
        found += select(members, rule.setpos)
    return [moment for moment in found if moment >= begin][: rule.count]


def _fits(rule: Rule, wall: datetime, start: datetime) -> bool:
    minutes = rule.minute or ([start.minute] if rule.freq == "HOURLY" else [])
    seconds = rule.second or ([start.second] if rule.freq != "SECONDLY" else [])
    in_time = (
        (not rule.hour or wall.hour in rule.hour)
        and (not minutes or wall.minute in minutes)
        and (not seconds or wall.second in seconds)
    )
    return in_time and allows(rule, wall.date())
