"""From the parts of a phrase to a trigger that fires.

Owns what each phrase means in terms of cron, interval, once, rrule, `any_of`, `except` and `between`, and the defaults:
no time of day means 00:00, no weekday Monday, no day the 1st, no month January. A rhythm of days or longer with a step
(`every 2 weeks`) becomes an rrule that starts at the first day that fits; hours and finer become an interval. Wall
times that the clock skips or repeats are treated as RFC 5545 says, the same for every kind of phrase.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import date, timedelta
from typing import NoReturn

from horarium.clock import INSTANT_MAX, SECOND, Instant
from horarium.errors import InvalidTrigger
from horarium.triggers.base import Trigger
from horarium.triggers.compose import AnyOf, Between, Except
from horarium.triggers.cron import Cron
from horarium.triggers.exclusions import DailyWindow, Dates, Exclusion
from horarium.triggers.interval import Interval
from horarium.triggers.once import Once
from horarium.triggers.phrase_parts import DayRef, Moment, Parts, Time
from horarium.triggers.zones import Gap, Repeat, get_zone

_SECONDS = {"second": 1, "minute": 60, "hour": 3600}
_MIDNIGHT: Time = (0, 0, 0)
_DAY_SECONDS = 86_400
_EPOCH = date(1970, 1, 1).toordinal()
_RRULE_DAYS = ("SU", "MO", "TU", "WE", "TH", "FR", "SA")
_QUARTER_STARTS, _QUARTER_ENDS = {1, 4, 7, 10}, {3, 6, 9, 12}

ReadRule = Callable[..., Trigger]


def compile_parts(parts: Parts, zone_name: str, reference: Instant) -> Trigger:
    """The trigger of a phrase, as seen from `reference`. Raises InvalidTrigger for parts that can't go together."""
    return _Compiler(parts, zone_name, reference).compile()


class _Compiler:
    def __init__(self, parts: Parts, zone_name: str, reference: Instant) -> None:
        self.parts = parts
        self.zone_name = zone_name
        self.zone = get_zone(zone_name)
        self.reference = reference
        self.start = None if parts.start is None else self._moment(parts.start, _MIDNIGHT)
        self.until = None if parts.until is None else self._end(parts.until)
        if self.start is not None and self.until is not None and self.until <= self.start:
            self.start = self._begun(parts.start)

    def compile(self) -> Trigger:
        """Once or recurring, then what is excepted, then the window of time."""
        parts = self.parts
        if parts.once:
            return self._once()
        trigger = self._recurring()
        excluded = self._excluded()
        if excluded:
            trigger = Except(trigger, excluded)
        if self.start is not None or self.until is not None:
            trigger = Between(trigger, self.start, self.until)
        return self._limited(trigger)

    def _limited(self, trigger: Trigger) -> Trigger:
        """`10 times`, `for the next 3 days`: counted from the start, or from the reference."""
        parts = self.parts
        begin = self.reference if self.start is None else max(self.reference, self.start)
        if parts.lasting is not None:
            return Between(trigger.anchored(begin), None, self._after(begin, [parts.lasting]) + SECOND)
        if parts.count is None:
            return trigger
        trigger = trigger.anchored(begin)
        fires = trigger.list_fires(begin - (self.start is not None), INSTANT_MAX, parts.count)
        if not fires:
            _fail("it never fires from there on")
        return Between(trigger, None, fires[-1] + 1)

    def _after(self, begin: Instant, offsets: list[tuple[int, str]]) -> Instant:
        """Some days or longer on by the calendar, hours and finer exactly."""
        day, second = divmod(self.zone.to_wall(begin // SECOND), _DAY_SECONDS)
        then = date.fromordinal(day + _EPOCH)
        for count, unit in offsets:
            then = then if unit in _SECONDS else _later(then, count, unit)
        exact = sum(count * _SECONDS.get(unit, 0) for count, unit in offsets)
        start = (
            begin if then == date.fromordinal(day + _EPOCH) else self._from_wall(_wall(then) + second) + begin % SECOND
        )
        return start + exact * SECOND

    def _excluded(self) -> tuple[Exclusion, ...]:
        parts, found = self.parts, list[Exclusion]()
        if parts.except_weekdays:
            mask = sum(1 << day for day in parts.except_weekdays)
            found.append(DailyWindow(0, _DAY_SECONDS, mask, self.zone_name))
        if parts.except_dates:
            found.append(Dates(tuple(parts.except_dates), self.zone_name))
        return tuple(found)

    # --- once

    def _once(self) -> Trigger:
        parts = self.parts
        for given, what in (
            (parts.window, "a window"),
            (parts.except_weekdays or parts.except_dates, "an exception"),
            (parts.start, "a start"),
            (parts.until, "an end"),
            (parts.minutes_past, "a minute of the hour"),
            (parts.months, "a month"),
            (parts.unit or parts.recurring, "a rhythm"),
            (parts.nth or parts.month_days or parts.workdays, "a day of the month"),
            (parts.count or parts.lasting, "a number of times"),
        ):
            if given:
                _fail(f"it fires once, so {what} makes no sense; begin with 'every' if it recurs")
        if parts.offset is not None:
            if parts.weekdays or parts.day:
                _fail("which day is it? write the date, or e.g. 'a week from monday'")
            return self._offset(parts.offset)
        return _union([Once(self._on_day(time)) for time in self._once_times()])

    def _once_times(self) -> list[Time]:
        if not self.parts.times and self.parts.day is not None and self.parts.day.days == 0:
            _fail("at what time today? write e.g. 'today at 5pm'")
        return self.parts.times or [_MIDNIGHT]

    def _on_day(self, time: Time) -> Instant:
        day = self.parts.day or DayRef(weekday=next(iter(self.parts.weekdays)))
        today, now = self._today()
        return self._instant(day.resolve(today, _seconds(time) <= now), time)

    def _offset(self, offsets: list[tuple[int, str]]) -> Trigger:
        times = self.parts.times
        if any(unit in _SECONDS for _, unit in offsets) and (times or self.parts.day or self.parts.weekdays):
            _fail("'in' hours or finer fixes the time already; leave out the day and the time of day")
        then = self._after(self.reference, offsets)
        if not times:
            return Once(then)
        day = date.fromordinal(self.zone.to_wall(then // SECOND) // _DAY_SECONDS + _EPOCH)
        return _union([Once(self._instant(day, time)) for time in times])

    # --- recurring

    def _after_end(self) -> Trigger:
        """So long after the end of the last run: a length of time and nothing else."""
        parts = self.parts
        seconds = {**_SECONDS, "day": _DAY_SECONDS, "week": 7 * _DAY_SECONDS}
        if parts.unit not in seconds:
            _fail("say how long after the last run, in weeks or less, e.g. 'every 5 minutes after the last run'")
        plain = Parts(unit=parts.unit, step=parts.step, recurring=parts.recurring, zone=parts.zone, from_end=True)
        if replace(parts, except_weekdays=set(), except_dates=[]) != plain:
            _fail("what is counted from the end of the last run goes together with 'except', and with nothing else")
        return Interval(parts.step * seconds[str(parts.unit)] * SECOND, from_end=True)

    def _recurring(self) -> Trigger:
        parts = self.parts
        if parts.from_end:
            return self._after_end()
        if parts.unit is None and not (parts.recurring or parts.times or parts.weekdays):
            _fail("it does not say how often; begin e.g. with 'every day at 9am'")
        if parts.day is not None:
            self._fold_date()
        if parts.sub_daily:
            return self._rhythm()
        if parts.minutes_past:
            _fail("a minute of the hour needs 'every hour' or 'every N hours'")
        times = self._day_times()
        if not parts.workdays <= {1, -1}:
            return self._nth_workdays(times)
        if parts.step == 1:
            return self._cron(times)
        return self._stepped(times)

    def _fold_date(self) -> None:
        """`every year on march 15th`: the date is the day of the year."""
        parts, day = self.parts, self.parts.day
        if (
            parts.unit != "year"
            or day is None
            or not day.month
            or day.year is not None
            or parts.months
            or parts.month_days
        ):
            _fail(
                "it names a single day and recurs too; say either 'on december 24th' or 'every year on december 24th'"
            )
        parts.months, parts.month_days = {day.month}, {day.day}

    def _day_times(self) -> list[Time]:
        parts = self.parts
        if parts.window is not None:
            _fail("a window needs a rhythm of hours or minutes, e.g. 'every 15 minutes between 9am and 5pm'")
        if parts.start is not None and parts.start.time is not None and not parts.times:
            return [parts.start.time]
        return parts.times or [_MIDNIGHT]

    def _cron(self, times: Iterable[Time]) -> Trigger:
        days = self._cron_days()
        return _union([Cron(f"{clock} {days}", self.zone_name, gap=Gap.SHIFT) for clock in _clocks(times)])

    def _cron_days(self) -> str:
        parts = self.parts
        specific = bool(parts.month_days or parts.nth or parts.workdays)
        if specific and parts.unit in ("day", "week"):
            _fail(f"every {parts.unit} and a day of the month don't go together; say 'of the month'")
        if parts.unit == "month" and parts.weekdays:
            _fail("which of these weekdays? write e.g. 'first monday of every month'")
        if parts.weekdays and (specific or parts.unit in ("quarter", "year")):
            _fail(
                "a weekday and a day of the month don't go together: which is meant?"
                " write e.g. 'first monday of the month', or only one of them"
            )
        if sum(map(bool, (parts.month_days, parts.nth, parts.workdays))) > 1:
            _fail("two kinds of days of the month don't go together")
        weekdays = parts.weekdays or ({1} if parts.unit == "week" else set())
        if not specific and parts.unit in ("month", "quarter", "year"):
            parts.month_days.add(1)
        months = ",".join(map(str, sorted(self._months()))) or "*"
        return f"{self._day_field()} {months} {self._weekday_field(weekdays)}"

    def _day_field(self) -> str:
        parts = self.parts
        named = ["L" if day == -1 else f"L{day + 1}" if day < 0 else str(day) for day in sorted(parts.month_days)]
        named += ["LW" if day == -1 else "1W" for day in sorted(parts.workdays)]
        return ",".join(named) or "*"

    def _weekday_field(self, weekdays: set[int]) -> str:
        named = _compact(weekdays, 0, 6) if weekdays else ""
        nth = [f"{day}L" if which == -1 else f"{day}#{which}" for which, day in sorted(self.parts.nth)]
        return ",".join(([named] if named else []) + nth) or "*"

    def _months(self) -> set[int]:
        """The months of a rule: those named, or those in which a quarter or a year begins or ends."""
        parts = self.parts
        if parts.unit == "quarter" or (parts.unit == "year" and not parts.months):
            whiches = {which for which, _ in parts.nth} | parts.month_days | parts.workdays
            backwards = {which < 0 for which in whiches}
            if parts.months or len(backwards) > 1:
                _fail(f"of a {parts.unit}, name days from its beginning or its last day, not both, and no months")
            first, last = (_QUARTER_STARTS, _QUARTER_ENDS) if parts.unit == "quarter" else ({1}, {12})
            return last if backwards == {True} else first
        return parts.months

    def _nth_workdays(self, times: list[Time]) -> Trigger:
        """The 3rd working day of the month: what no cron field says."""
        parts = self.parts
        if parts.step != 1 or parts.month_days or parts.nth or parts.weekdays or parts.unit in ("day", "week"):
            _fail(
                "that many working days of the month go with nothing else; write e.g. '3rd business day of the month'"
            )
        months = f";BYMONTH={','.join(map(str, sorted(found)))}" if (found := self._months()) else ""
        whiches = ",".join(map(str, sorted(parts.workdays)))
        rules = [
            f"FREQ=MONTHLY{months};BYDAY=MO,TU,WE,TH,FR;BYSETPOS={whiches};BYHOUR={h};BYMINUTE={m};BYSECOND={s}"
            for h, m, s in times
        ]
        return _union([_rule_reader()(rule, self.zone_name) for rule in rules])

    # --- every N days, weeks, months, years

    def _stepped(self, times: list[Time]) -> Trigger:
        parts = self.parts
        if parts.unit == "quarter":
            _fail(f"write 'every {parts.step * 3} months' instead")
        if parts.unit == "day" and parts.weekdays:
            _fail("every N days and a weekday don't go together; write e.g. 'every 2 weeks on monday'")
        if parts.workdays or (parts.months and parts.unit != "year"):
            _fail(f"every {parts.step} {parts.unit}s can't be limited to working days or months")
        first = self._cron(times).next_fire(self.reference if self.start is None else self.start - 1)
        if first is None:
            _fail("there is no such day up to the year 2200")
        day = self.zone.to_wall(first // SECOND) // _DAY_SECONDS
        return _union([self._rule(date.fromordinal(day + _EPOCH), time) for time in times])

    def _rule(self, day: date, time: Time) -> Trigger:
        start = f"{day:%Y%m%d}T{time[0]:02}{time[1]:02}{time[2]:02}"
        freq = {"day": "DAILY", "week": "WEEKLY", "month": "MONTHLY", "year": "YEARLY"}[str(self.parts.unit)]
        rule = f"FREQ={freq};INTERVAL={self.parts.step}{self._by_days()}"
        head = f"DTSTART:{start}Z" if self.zone_name == "UTC" else f"DTSTART;TZID={self.zone_name}:{start}"
        return _rule_reader()(f"{head}\nRRULE:{rule}")

    def _by_days(self) -> str:
        parts = self.parts
        said = f";BYMONTH={','.join(map(str, sorted(parts.months or {1})))}" if parts.unit == "year" else ""
        if parts.unit == "week":
            days = sorted(parts.weekdays or {1}, key=lambda day: day or 7)
            return f";WKST=MO;BYDAY={','.join(_RRULE_DAYS[day] for day in days)}"
        if parts.nth:
            return f"{said};BYDAY={','.join(f'{which}{_RRULE_DAYS[day]}' for which, day in sorted(parts.nth))}"
        if parts.unit in ("month", "year"):
            return f"{said};BYMONTHDAY={','.join(map(str, sorted(parts.month_days)))}"
        return said

    # --- every N hours, minutes, seconds

    def _rhythm(self) -> Trigger:
        parts = self.parts
        unit, step = str(parts.unit), parts.step
        if parts.times:
            _fail(
                f"every {step} {unit}s and a time of day don't go together;"
                " use 'starting ... at ...' or 'between ... and ...'"
            )
        limited = parts.weekdays or parts.nth or parts.month_days or parts.workdays or parts.months or parts.window
        if not limited and not parts.minutes_past and (step > 1 or unit == "second" or self.start is not None):
            return Interval(step * _SECONDS[unit] * SECOND, self.start)
        if unit == "second":
            _fail("seconds can't be limited to days or windows")
        if parts.minutes_past and unit != "hour":
            _fail("a minute of the hour needs 'every hour' or 'every N hours'")
        parts.unit, parts.step = None, 1
        return self._cron(self._ticks(unit, step * _SECONDS[unit]))

    def _ticks(self, unit: str, step: int) -> list[Time]:
        minutes: list[int | None] = [*self.parts.minutes_past]
        return [time for minute in minutes or [None] for time in self._ticks_of(unit, step, minute)]

    def _ticks_of(self, unit: str, step: int, minute_past: int | None) -> list[Time]:
        parts = self.parts
        minute = (minute_past or 0) * 60
        if parts.window is None:
            if _DAY_SECONDS % step:
                _fail(f"every {step // _SECONDS[unit]} {unit}s does not divide a day; add 'between ... and ...'")
            return [_time(second) for second in range(minute, _DAY_SECONDS, step)]
        first, last = (_seconds(time) for time in parts.window)
        if last < first and (parts.weekdays or parts.month_days or parts.nth or parts.workdays or parts.months):
            _fail("the window runs past midnight: say which days for each part, e.g. 'from 22:00 to 23:59 on fridays'")
        last += _DAY_SECONDS if last < first else 0
        if minute_past is not None:
            first = -(-(first - minute) // 3600) * 3600 + minute
        return [_time(second % _DAY_SECONDS) for second in range(first, last + 1, step)]

    # --- wall times

    def _today(self) -> tuple[date, int]:
        day, second = divmod(self.zone.to_wall(self.reference // SECOND), _DAY_SECONDS)
        return date.fromordinal(day + _EPOCH), second

    def _instant(self, day: date, time: Time) -> Instant:
        return self._from_wall(_wall(day) + _seconds(time))

    def _from_wall(self, wall: int) -> Instant:
        return self.zone.to_utc(wall, Gap.SHIFT, Repeat.FIRST)[0] * SECOND

    def _moment(self, moment: Moment, default: Time) -> Instant:
        time = moment.time or default
        today, now = self._today()
        return self._instant(moment.day.resolve(today, _seconds(time) <= now and moment.time is not None), time)

    def _begun(self, moment: Moment | None) -> Instant | None:
        """`from december 20 to january 5`, said between the two: it began this year."""
        if moment is None or not moment.day.month or moment.day.year is not None:
            return self.start
        today, _ = self._today()
        year = moment.day.resolve(today, False).year - 1
        return self._instant(date(year, moment.day.month, moment.day.day), moment.time or _MIDNIGHT)

    def _end(self, moment: Moment) -> Instant:
        """The end of a phrase is included: the whole day, or the very second."""
        if moment.time is not None:
            return self._moment(moment, _MIDNIGHT) + SECOND
        today, _ = self._today()
        return self._instant(moment.day.resolve(today, False) + timedelta(days=1), _MIDNIGHT)


def _rule_reader() -> ReadRule:
    from horarium.triggers.rrule import rrule  # only phrases with a step need the engine

    return rrule


def _fail(why: str) -> NoReturn:
    raise InvalidTrigger(f"text: {why}", field="text")


def _union(triggers: list[Trigger]) -> Trigger:
    return triggers[0] if len(triggers) == 1 else AnyOf(tuple(triggers))


def _seconds(time: Time) -> int:
    return time[0] * 3600 + time[1] * 60 + time[2]


def _time(second: int) -> Time:
    return second // 3600, second // 60 % 60, second % 60


def _wall(day: date) -> int:
    return (day.toordinal() - _EPOCH) * _DAY_SECONDS


def _later(day: date, count: int, unit: str) -> date:
    """The same day of the month some months on, or that month's last; some days on."""
    if unit in ("day", "week"):
        return day + timedelta(days=count * (7 if unit == "week" else 1))
    months = day.year * 12 + day.month - 1 + count * (12 if unit == "year" else 1)
    year, month = divmod(months, 12)
    if year > 2199:
        _fail("that lies beyond the year 2199")
    following = date(year + (month == 11), (month + 1) % 12 + 1, 1)
    return date(year, month + 1, min(day.day, (following - timedelta(days=1)).day))


def _clocks(times: Iterable[Time]) -> list[str]:
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


def _compact(numbers: Iterable[int], low: int, high: int) -> str:
    """A cron field, as short as possible: `*`, `*/15`, `9-16`, or a list."""
    found = sorted(numbers)
    step = found[1] - found[0] if len(found) > 1 else 0
    if step and found == list(range(low, high + 1, step)):
        return "*" if step == 1 else f"*/{step}" if len(found) > 2 else ",".join(map(str, found))
    if step and len(found) > 2 and found == list(range(found[0], found[-1] + 1, step)):
        return f"{found[0]}-{found[-1]}" + (f"/{step}" if step > 1 else "")
    return ",".join(map(str, found))
