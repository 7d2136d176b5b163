"""The content of a phrase, before it is anything that fires: the parts that the grammar finds and the compiler
joins."""

from __future__ import annotations

import calendar
from dataclasses import dataclass, field
from datetime import date, timedelta

Time = tuple[int, int, int]
"""Hour, minute, second of the day."""
MIDNIGHT: Time = (0, 0, 0)
WORKDAYS, WEEKEND = frozenset((1, 2, 3, 4, 5)), frozenset((0, 6))


@dataclass(frozen=True, slots=True)
class DayRef:
    """A calendar day as a phrase names it. Relative unless it has a year."""

    days: int | None = None
    """`today` is 0, `tomorrow` 1."""
    weekday: int | None = None
    """Sunday is 0."""
    strict: bool = False
    """`next friday` is never today."""
    year: int | None = None
    month: int = 0
    day: int = 0
    months: int | None = None
    """`the 3rd of next month` is 1, with its day."""
    weeks: int | None = None
    """`next week on tuesday` is 1, with its weekday."""
    years: int | None = None
    """`next year on march 3` is 1, with its month and day."""
    which: int | None = None
    """`the last friday of next month`: -1, with its weekday and `months`; without a weekday, the day itself."""
    ends: str | None = None
    """`the end of the month`: its last day."""
    plus: int = 0
    """`two days from tomorrow`: days after what the rest says."""

    @property
    def relative(self) -> bool:
        """Whether it needs a day to count from."""
        return self.year is None

    @property
    def is_weekday(self) -> bool:
        """Whether it is the next day of that name: `friday`, `next friday`."""
        return self.weekday is not None and self.months is None and self.weeks is None and not self.plus

    def resolve(self, today: date, passed: bool) -> date:
        """The day, seen from `today`; `passed` says that its time of day is over today. Raises ValueError for none."""
        return self._named(today, passed and not self.plus) + timedelta(days=self.plus)

    def _named(self, today: date, passed: bool) -> date:
        if self.ends is not None:
            return _last_day(today, self.ends)
        if self.which is not None and self.months is not None:
            return self._nth_of_month(today)
        if self.years is not None:
            return date(today.year + self.years, self.month, self.day)
        if self.days is not None:
            return today + timedelta(days=self.days)
        if self.months is not None:
            year, month = divmod(today.year * 12 + today.month - 1 + self.months, 12)
            return date(year, month + 1, self.day)
        if self.weeks is not None and self.weekday is not None:
            return today + timedelta(days=7 * self.weeks - today.weekday() + (self.weekday - 1) % 7)
        if self.weekday is not None:
            ahead = (self.weekday - today.isoweekday()) % 7
            return today + timedelta(days=ahead or (7 if self.strict or passed else 0))
        if self.year is not None:
            return date(self.year, self.month, self.day)
        return self._next_yearly(today, passed)

    def _nth_of_month(self, today: date) -> date:
        year, month = divmod(today.year * 12 + today.month - 1 + (self.months or 0), 12)
        which = self.which or 1
        days = [date(year, month + 1, 1) + timedelta(days=n) for n in range(_last_day_of(year, month + 1))]
        fitting = [day for day in days if self.weekday is None or day.isoweekday() % 7 == self.weekday]
        if which > len(fitting):
            raise ValueError("there is no such day in that month")
        return fitting[which - 1 if which > 0 else which]

    def _next_yearly(self, today: date, passed: bool) -> date:
        for year in range(today.year, today.year + 9):
            if (self.month, self.day) == (2, 29) and not (year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)):
                continue
            found = date(year, self.month, self.day)
            if found > today or (found == today and not passed):
                return found
        raise ValueError(f"there is no {self.day}.{self.month}.")


def _last_day_of(year: int, month: int) -> int:
    return calendar.monthrange(year, month)[1]


def _last_day(today: date, unit: str) -> date:
    """Of the week (Sunday), the month, the quarter or the year."""
    if unit == "week":
        return today + timedelta(days=7 - today.isoweekday())
    if unit == "day":
        return today
    month = {"month": today.month, "quarter": (today.month + 2) // 3 * 3, "year": 12}[unit]
    return date(today.year, month, _last_day_of(today.year, month))


@dataclass(frozen=True, slots=True)
class Moment:
    """A day, perhaps with a time of day."""

    day: DayRef
    time: Time | None = None
    open: bool = False
    """`before friday at 4pm`: that instant is left out."""


@dataclass(slots=True)
class Parts:
    """Everything that a phrase may say; each at most once, as the grammar sees to."""

    unit: str | None = None
    step: int = 1
    recurring: bool = False
    weekdays: set[int] = field(default_factory=set)
    nth: set[tuple[int, int]] = field(default_factory=set)
    """(which, weekday): (1, 1) is the first Monday, (-1, 5) the last Friday."""
    month_days: set[int] = field(default_factory=set)
    """-1 is the last."""
    workdays: set[int] = field(default_factory=set)
    """1 is the first working day, -1 the last."""
    months: set[int] = field(default_factory=set)
    times: list[Time] = field(default_factory=list)
    minutes_past: list[int] = field(default_factory=list)
    """`every hour at :15 and :45`."""
    window: tuple[Time, Time] | None = None
    zone: str | None = None
    calendar: str | None = None
    """Of whose business days it speaks."""
    day: DayRef | None = None
    offset: list[tuple[int, str]] | None = None
    """`in 2 hours and 30 minutes`: counts and units."""
    count: int | None = None
    """`10 times`."""
    lasting: tuple[int, str] | None = None
    """`for the next 3 days`."""
    from_end: bool = False
    """`after the end of the last run`."""
    start: Moment | None = None
    until: Moment | None = None
    except_weekdays: set[int] = field(default_factory=set)
    except_dates: list[str] = field(default_factory=list)
    except_days: list[Parts] = field(default_factory=list)
    """`except the first monday of the month`: rules of which the days alone count."""
    phase: Time | None = None
    """`every 8 hours starting at 6am`."""
    also: Parts | None = None
    """`every monday at 9am and every saturday at noon`: the second rhythm."""

    @property
    def day_times(self) -> list[Time]:
        """When it fires on a day of its own: the times it names, or the one beside its start or its end."""
        beside = [moment.time for moment in (self.start, self.until) if moment is not None and moment.time is not None]
        return self.times or beside[:1] or [MIDNIGHT]

    @property
    def from_start(self) -> bool:
        """Whether its start alone says on which days: `every 2 weeks starting friday`."""
        named = self.weekdays or self.nth or self.month_days or self.workdays or self.months or self.day
        return self.start is not None and self.unit in ("week", "month", "quarter", "year") and not named

    @property
    def on_business_days(self) -> bool:
        """Whether it speaks of business days, in any words."""
        return bool(self.workdays) or self.weekdays == WORKDAYS

    @property
    def excepts(self) -> bool:
        """Whether it leaves out any days."""
        return bool(self.except_weekdays or self.except_dates or self.except_days)

    @property
    def sub_daily(self) -> bool:
        """Whether it is a rhythm of hours or finer."""
        return self.unit in ("second", "minute", "hour")

    @property
    def once(self) -> bool:
        """Whether it fires once."""
        if self.offset is not None:
            return True
        if self.unit is not None or self.recurring:
            return False
        return self.day is not None or (len(self.weekdays) == 1 and not self.nth and not self.month_days)

    @property
    def each(self) -> list[Parts]:
        """One for each rhythm."""
        return [self] if self.also is None else [self, *self.also.each]

    @property
    def relative(self) -> bool:
        """Whether it means nothing without a moment to count from."""
        if self.also is not None and self.also.relative:
            return True
        if self.from_end:
            return False
        ends = [moment.day.relative for moment in (self.start, self.until) if moment is not None]
        if any(ends) or self.count is not None or self.lasting is not None:
            return True
        if self.once:
            return self.offset is not None or self.day is None or self.day.relative
        return self.step > 1 and not self.sub_daily and self.start is None
