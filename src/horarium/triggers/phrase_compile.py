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
from datetime import date

from horarium.clock import INSTANT_MAX, SECOND, Instant
from horarium.triggers.base import Trigger
from horarium.triggers.business_days import Content
from horarium.triggers.compose import AnyOf, Between, Except
from horarium.triggers.cron_trigger import Cron
from horarium.triggers.exclusions import DailyWindow, Dates, Exclusion, TriggerTimes
from horarium.triggers.interval import Interval
from horarium.triggers.once import Once
from horarium.triggers.phrase_parts import MIDNIGHT, WORKDAYS, DayRef, Moment, Parts, Time
from horarium.triggers.phrase_wall import DAY_SECONDS, SECONDS, Wall, fail, in_clock, in_seconds
from horarium.triggers.zones import Gap

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
    said = f";BYMONTH={','.join(map(str, sorted(months_of(parts))))}" if parts.unit == "year" else ""
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


ReadRule = Callable[..., Trigger]


def compile_parts(parts: Parts, zone_name: str, reference: Instant, content: Content | None = None) -> Trigger:
    """The trigger of a phrase, as seen from `reference`; `content`: the days of the calendar that it names. Raises
    InvalidTrigger for parts that can't go together."""
    return _union([_Compiler(each, zone_name, reference).compile(content) for each in parts.each])


def _take_days(parts: Parts, day: date) -> None:
    """Those of the start: its weekday, its day of the month, its date."""
    if parts.unit == "week":
        parts.weekdays = {day.isoweekday() % 7}
    elif day.day > 28:
        fail("on which day of shorter months? write e.g. 'on the last day of the month'")
    elif parts.unit == "quarter" and day.month not in _QUARTER_STARTS:
        fail("on which day of each quarter? write e.g. 'every 3 months starting ...'")
    else:
        parts.month_days = {day.day}
        parts.months = {day.month} if parts.unit == "year" else set()


class _Compiler:
    def __init__(self, parts: Parts, zone_name: str, reference: Instant) -> None:
        self.parts = parts
        self.zone_name = zone_name
        self.wall = Wall(zone_name, reference)
        self.reference = reference
        self.start = None if parts.start is None else self.wall.moment(parts.start)
        self.until = None if parts.until is None else self.wall.end(parts.until)
        if parts.start is not None and parts.until is not None:
            self._order_ends(parts.start, parts.until)
        if parts.from_start and self.start is not None:
            _take_days(parts, self.wall.day_of(self.start))

    def _order_ends(self, start: Moment, until: Moment) -> None:
        """Where the end comes first, seen from today: a weekday is then the one after the start (`from monday at 8am
        until friday at 5pm`, said on a thursday), and a date of the year began last year."""
        begin, end = self.wall.moment(start), self.wall.end(until)
        if end > begin:
            return
        if until.day.is_weekday:
            self.until = Wall(self.zone_name, begin).end(until)
        else:
            self.start = self.wall.begun(start)

    def compile(self, content: Content | None) -> Trigger:
        """Once or recurring, then the exceptions, then the window of time."""
        parts = self.parts
        if parts.once:
            return self._once()
        excluded = self._excluded()
        trigger = self._recurring() if parts.calendar is None else _on_business_days(self, parts.calendar, content)
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
            return Between(trigger.anchored(begin), None, self.wall.after(begin, [parts.lasting]) + SECOND)
        if parts.count is None:
            return trigger
        trigger = trigger.anchored(begin)
        fires = trigger.list_fires(begin - (self.start is not None), INSTANT_MAX, parts.count)
        if not fires:
            fail("it never fires from there on")
        return Between(trigger, None, fires[-1] + 1)

    def _excluded(self) -> tuple[Exclusion, ...]:
        parts, found = self.parts, list[Exclusion]()
        if parts.except_weekdays:
            mask = sum(1 << day for day in parts.except_weekdays)
            found.append(DailyWindow(0, DAY_SECONDS, mask, self.zone_name))
        for days in parts.except_days:  # of rhythms of days at the times that they have, of finer ones whole
            times = [MIDNIGHT] if parts.sub_daily else self._day_times()
            rule = _Compiler(days, self.zone_name, self.reference)._of_days(times)
            found.append(TriggerTimes(rule, DAY_SECONDS * SECOND if parts.sub_daily else 1))
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
            (parts.calendar, "a calendar"),
        ):
            if given:
                fail(f"it fires once, so {what} makes no sense; begin with 'every' if it recurs")
        if parts.offset is not None:
            if parts.weekdays or parts.day:
                fail("which day is it? write the date, or e.g. 'a week from monday'")
            return self._offset(parts.offset)
        return _union([Once(self._on_day(time)) for time in self._once_times()])

    def _once_times(self) -> list[Time]:
        if not self.parts.times and self.parts.day is not None and self.parts.day.days == 0:
            fail("at what time today? write e.g. 'today at 5pm'")
        return self.parts.times or [MIDNIGHT]

    def _on_day(self, time: Time) -> Instant:
        day = self.parts.day or DayRef(weekday=next(iter(self.parts.weekdays)))
        return self.wall.resolve(day, time)

    def _offset(self, offsets: list[tuple[int, str]]) -> Trigger:
        times = self.parts.times
        if any(unit in SECONDS for _, unit in offsets) and (times or self.parts.day or self.parts.weekdays):
            fail("'in' hours or finer fixes the time already; leave out the day and the time of day")
        then = self.wall.after(self.reference, offsets)
        if not times:
            return Once(then)
        day = self.wall.day_of(then)
        return _union([Once(self.wall.instant(day, time)) for time in times])

    # --- recurring

    def _after_end(self) -> Trigger:
        """So long after the end of the last run: a length of time and nothing else."""
        parts = self.parts
        seconds = {**SECONDS, "day": DAY_SECONDS, "week": 7 * DAY_SECONDS}
        if parts.unit not in seconds:
            fail("say how long after the last run, in weeks or less, e.g. 'every 5 minutes after the last run'")
        plain = Parts(unit=parts.unit, step=parts.step, recurring=parts.recurring, zone=parts.zone, from_end=True)
        if replace(parts, except_weekdays=set(), except_dates=[]) != plain:
            fail("what is counted from the end of the last run goes together with 'except', and with nothing else")
        return Interval(parts.step * seconds[str(parts.unit)] * SECOND, from_end=True)

    def _recurring(self) -> Trigger:
        parts = self.parts
        if parts.from_end:
            return self._after_end()
        if parts.unit is None and not (parts.recurring or parts.times or parts.weekdays):
            fail("it does not say how often; begin e.g. with 'every day at 9am'")
        if parts.day is not None:
            self._fold_date()
        if parts.sub_daily:
            return self._rhythm()
        if parts.minutes_past:
            fail("a minute of the hour needs 'every hour' or 'every N hours'")
        times = self._day_times()
        return self._of_days(times) if parts.step == 1 else self._stepped(times)

    def _of_days(self, times: list[Time]) -> Trigger:
        parts = self.parts
        if parts.workdays <= {1, -1} and all(which > -2 for which, _ in parts.nth):
            return self._cron(times)
        return self._monthly(times)

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
            fail("it names a single day and recurs too; say either 'on december 24th' or 'every year on december 24th'")
        parts.months, parts.month_days = {day.month}, {day.day}

    def _day_times(self) -> list[Time]:
        parts = self.parts
        if parts.window is not None:
            fail("a window needs a rhythm of hours or minutes, e.g. 'every 15 minutes between 9am and 5pm'")
        return parts.day_times

    def _cron(self, times: Iterable[Time]) -> Trigger:
        days = cron_days(self.parts)
        return _union([Cron(f"{clock} {days}", self.zone_name, gap=Gap.SHIFT) for clock in clocks(times)])

    def _monthly(self, times: list[Time]) -> Trigger:
        """The 3rd working day, the penultimate friday of the month: what no cron field says."""
        parts = self.parts
        kinds = sum(map(bool, (parts.workdays, parts.nth, parts.month_days, parts.weekdays)))
        if parts.step != 1 or kinds > 1 or parts.unit in ("day", "week"):
            fail("such a day of the month goes with nothing else; write e.g. '3rd business day of the month'")
        if parts.nth and parts.unit in ("quarter", "year"):
            fail("write of which months, e.g. 'penultimate friday of march'")
        months = f";BYMONTH={','.join(map(str, sorted(found)))}" if (found := months_of(parts)) else ""
        whiches = ",".join(map(str, sorted(parts.workdays)))
        days = by_days(replace(parts, unit=None)) if parts.nth else f";BYDAY=MO,TU,WE,TH,FR;BYSETPOS={whiches}"
        rules = [f"FREQ=MONTHLY{months}{days};BYHOUR={h};BYMINUTE={m};BYSECOND={s}" for h, m, s in times]
        return _union([_rule_reader()(rule, self.zone_name) for rule in rules])

    # --- every N days, weeks, months, years

    def _stepped(self, times: list[Time]) -> Trigger:
        parts = self.parts
        if parts.unit == "quarter":
            fail(f"write 'every {parts.step * 3} months' instead")
        if parts.unit == "day" and parts.weekdays:
            fail("every N days and a weekday don't go together; write e.g. 'every 2 weeks on monday'")
        if parts.workdays or (parts.months and parts.unit != "year"):
            fail(f"every {parts.step} {parts.unit}s can't be limited to working days or months")
        first = self._cron(times).next_fire(self.reference if self.start is None else self.start - 1)
        if first is None:
            fail("there is no such day up to the year 2200")
        day = self.wall.day_of(first)
        return _union([self._rule(day, time) for time in times])

    def _rule(self, day: date, time: Time) -> Trigger:
        start = f"{day:%Y%m%d}T{time[0]:02}{time[1]:02}{time[2]:02}"
        freq = {"day": "DAILY", "week": "WEEKLY", "month": "MONTHLY", "year": "YEARLY"}[str(self.parts.unit)]
        rule = f"FREQ={freq};INTERVAL={self.parts.step}{by_days(self.parts)}"
        head = f"DTSTART:{start}Z" if self.zone_name == "UTC" else f"DTSTART;TZID={self.zone_name}:{start}"
        return _rule_reader()(f"{head}\nRRULE:{rule}")

    # --- every N hours, minutes, seconds

    def _rhythm(self) -> Trigger:
        parts = self.parts
        unit, step = str(parts.unit), parts.step
        if parts.times:
            fail(
                f"every {step} {unit}s and a time of day don't go together;"
                " use 'starting ... at ...' or 'between ... and ...'"
            )
        limited = parts.weekdays or parts.nth or parts.month_days or parts.workdays or parts.months or parts.window
        if parts.phase is not None and parts.window is not None:
            fail("a start of the day and a window don't go together: write e.g. 'every 2 hours from 6am to 6pm'")
        if (
            not limited
            and not parts.minutes_past
            and parts.phase is None
            and (step > 1 or unit == "second" or self.start is not None)
        ):
            return Interval(step * SECONDS[unit] * SECOND, self.start)
        if unit == "second":
            fail("seconds can't be limited to days or windows")
        if parts.minutes_past and unit != "hour":
            fail("a minute of the hour needs 'every hour' or 'every N hours'")
        parts.unit, parts.step = None, 1
        return self._cron(self._ticks(unit, step * SECONDS[unit]))

    def _ticks(self, unit: str, step: int) -> list[Time]:
        minutes: list[int | None] = [*self.parts.minutes_past]
        return [time for minute in minutes or [None] for time in self._ticks_of(unit, step, minute)]

    def _ticks_of(self, unit: str, step: int, minute_past: int | None) -> list[Time]:
        parts = self.parts
        minute = in_seconds(parts.phase) if parts.phase is not None else (minute_past or 0) * 60
        if parts.window is None:
            if DAY_SECONDS % step:
                fail(f"every {step // SECONDS[unit]} {unit}s does not divide a day; add 'between ... and ...'")
            return [in_clock(second) for second in range(minute, DAY_SECONDS, step)]
        first, last = (in_seconds(time) for time in parts.window)
        days = parts.weekdays or parts.month_days or parts.nth or parts.workdays or parts.months
        if last < first and (days or parts.excepts):
            fail("the window runs past midnight: say which days for each part, e.g. 'from 22:00 to 23:59 on fridays'")
        last += DAY_SECONDS if last < first else 0
        if minute_past is not None:
            first = -(-(first - minute) // 3600) * 3600 + minute
        return [in_clock(second % DAY_SECONDS) for second in range(first, last + 1, step)]


def _on_business_days(compiler: _Compiler, calendar: str, content: Content | None) -> Trigger:
    """On the business days of a calendar: those that it names (`3rd business day of the month` is two after the
    first), else on no day that is none."""
    from horarium.triggers.business import BusinessDay, Convention  # few phrases name one

    parts = compiler.parts
    if parts.weekdays == WORKDAYS:
        parts.weekdays = set(range(7))
    if not parts.workdays:
        return BusinessDay(compiler._recurring(), calendar, content=content)
    found = list[Trigger]()
    for which in sorted(parts.workdays):
        days = replace(parts, workdays=set(), month_days={*parts.month_days, 1 if which > 0 else -1})
        if len(days.month_days) > 1:
            fail("two kinds of days of the month don't go together")
        rule = _Compiler(days, compiler.zone_name, compiler.reference)._recurring()
        way = Convention.FOLLOWING if which > 0 else Convention.PRECEDING
        found.append(BusinessDay(rule, calendar, way, which - 1 if which > 0 else which + 1, content))
    return _union(found)


def _rule_reader() -> ReadRule:
    from horarium.triggers.rrule_trigger import rrule  # only phrases with a step need the engine

    return rrule


def _union(triggers: list[Trigger]) -> Trigger:
    return triggers[0] if len(triggers) == 1 else AnyOf(tuple(triggers))
