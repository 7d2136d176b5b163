"""Sixty phrases that nobody had in mind when the reader was written, each with its fire times by another way: a rule
for the days of a calendar, and times of day. A phrase is right, or it is asked back; it is never misread.
"""

from __future__ import annotations

import calendar
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo

import pytest

from horarium import InvalidTrigger, when

BERLIN = ZoneInfo("Europe/Berlin")
NOW = datetime(2026, 11, 27, 20, tzinfo=UTC)
MON, TUE, WED, THU, FRI, SAT, SUN = range(7)
WEEKDAYS, WEEKENDS = (MON, TUE, WED, THU, FRI), (SAT, SUN)
Days = Callable[[date], bool]
COUNT = 6


def at(hour: int, minute: int = 0) -> list[time]:
    return [time(hour, minute)]


def hours(*some: int) -> list[time]:
    return [time(hour) for hour in some]


def on(*weekdays: int) -> Days:
    return lambda day: day.weekday() in weekdays


def last(day: date) -> int:
    return calendar.monthrange(day.year, day.month)[1]


def nth(weekday: int, number: int) -> Days:
    return lambda day: day.weekday() == weekday and (day.day - 1) // 7 == number - 1


def nth_last(weekday: int, number: int) -> Days:
    return lambda day: day.weekday() == weekday and (last(day) - day.day) // 7 == number - 1


def none_else_works(day: date, others: Sequence[int]) -> bool:
    return day.weekday() <= FRI and all(date(day.year, day.month, each).weekday() > FRI for each in others)


def every_day(day: date) -> bool:
    return True


def yearly(month: int, day: int) -> Days:
    return lambda each: (each.month, each.day) == (month, day)


RIGHT: dict[str, list[tuple[Days, list[time]]]] = {
    "end of month at 6pm": [(lambda d: d.day == last(d), at(18))],
    "at the end of every month at 23:30": [(lambda d: d.day == last(d), at(23, 30))],
    "end of quarter at noon": [(lambda d: d.month % 3 == 0 and d.day == last(d), at(12))],
    "every tue and thu at 7 am and every sun at 10 am": [(on(TUE, THU), at(7)), (on(SUN), at(10))],
    "weekdays at 6:30 and weekends at 9:15": [(on(*WEEKDAYS), at(6, 30)), (on(*WEEKENDS), at(9, 15))],
    "mondays at 9am and fridays at 5pm": [(on(MON), at(9)), (on(FRI), at(17))],
    "weekdays at 9:00, saturdays at 10:00": [(on(*WEEKDAYS), at(9)), (on(SAT), at(10))],
    "every day at 8am from april to september": [(lambda d: 4 <= d.month <= 9, at(8))],
    "every monday from november to february at 7:00": [
        (lambda d: d.weekday() == MON and d.month in (11, 12, 1, 2), at(7))
    ],
    "daily at 5pm until the end of the year": [(lambda d: d.year == 2026, at(17))],
    "every friday at noon until the end of march": [(lambda d: d.weekday() == FRI and d <= date(2027, 3, 31), at(12))],
    "every day at 9:00 until 2026-12-03": [(lambda d: d <= date(2026, 12, 3), at(9))],
    "every day at 9:00 before 2026-12-03": [(lambda d: d < date(2026, 12, 3), at(9))],
    "the second tuesday of every month at 10am": [(nth(TUE, 2), at(10))],
    "penultimate wednesday of the month at 14:00": [(nth_last(WED, 2), at(14))],
    "last friday of each month at 4:45 pm": [(nth_last(FRI, 1), at(16, 45))],
    "the last weekday of the month at 17:00": [(lambda d: none_else_works(d, range(d.day + 1, last(d) + 1)), at(17))],
    "the first weekday of the month at 08:00": [(lambda d: none_else_works(d, range(1, d.day)), at(8))],
    "the last 2 days of every month at 22:00": [(lambda d: d.day >= last(d) - 1, at(22))],
    "every day at 7am except sundays": [(on(*WEEKDAYS, SAT), at(7))],
    "every weekday at 9am except the first monday of the month": [
        (lambda d: d.weekday() <= FRI and not nth(MON, 1)(d), at(9))
    ],
    "each and every day at 6am": [(every_day, at(6))],
    "1st and 15th of every month at 3am": [(lambda d: d.day in (1, 15), at(3))],
    "on the 1st, 11th and 21st at 04:05": [(lambda d: d.day in (1, 11, 21), at(4, 5))],
    "every december 24 at 6 pm": [(yearly(12, 24), at(18))],
    "yearly on march 1 at 00:30": [(yearly(3, 1), at(0, 30))],
    "first of january at midnight": [(yearly(1, 1), at(0))],
    "noon on saturdays": [(on(SAT), at(12))],
    "midnight every monday": [(on(MON), at(0))],
    "every weekday at half past six pm": [(on(*WEEKDAYS), at(18, 30))],
    "weekdays at quarter to nine in the morning": [(on(*WEEKDAYS), at(8, 45))],
    "every 6 hours starting at 2am": [(every_day, hours(2, 8, 14, 20))],
    "every 2 hours between 8:00 and 16:00 on weekdays": [(on(*WEEKDAYS), hours(8, 10, 12, 14, 16))],
    "every 30 minutes from 9am to 11am on mondays": [
        (on(MON), [time(9), time(9, 30), time(10), time(10, 30), time(11)])
    ],
    "hourly from 9am to 5pm on weekdays": [(on(*WEEKDAYS), hours(*range(9, 18)))],
    "tuesdays in q1 at 11:00": [(lambda d: d.weekday() == TUE and d.month <= 3, at(11))],
    "every thursday in march and april at 13:00": [(lambda d: d.weekday() == THU and d.month in (3, 4), at(13))],
    "three times a day at 8, 14 and 20": [(every_day, hours(8, 14, 20))],
    "twice a day at 6am and 6pm": [(every_day, hours(6, 18))],
    "every quarter on the first day at 1am": [(lambda d: d.day == 1 and d.month in (1, 4, 7, 10), at(1))],
    "quarterly on the 1st at 6am": [(lambda d: d.day == 1 and d.month in (1, 4, 7, 10), at(6))],
    "every day at 10:15 and 22:15": [(every_day, [time(10, 15), time(22, 15)])],
    "wednesdays 9:00": [(on(WED), at(9))],
    "mon-thu at 18:00": [(on(MON, TUE, WED, THU), at(18))],
    "monday through wednesday at 7pm": [(on(MON, TUE, WED), at(19))],
    "every day but monday at 5:00": [(on(TUE, WED, THU, FRI, SAT, SUN), at(5))],
    "once on 2026-12-24 at 15:00": [(lambda d: d == date(2026, 12, 24), at(15))],
    "on 24/12/2026 at 9:00": [(lambda d: d == date(2026, 12, 24), at(9))],
    "tomorrow at 8am": [(lambda d: d == date(2026, 11, 28), at(8))],
    "next monday at 9am": [(lambda d: d == date(2026, 11, 30), at(9))],
    "fortnightly on friday at 4pm": [(lambda d: d.weekday() == FRI and (d - date(2026, 12, 4)).days % 14 == 0, at(16))],
    "at 3am on the 31st": [(lambda d: d.day == 31, at(3))],
    "every first saturday at 20:00": [(nth(SAT, 1), at(20))],
    "third thursday of november at 19:00": [(lambda d: d.month == 11 and nth(THU, 3)(d), at(19))],
    "mornings at 7": [(every_day, at(7))],
    "mon wed fri 6pm": [(on(MON, WED, FRI), at(18))],
}
ASKED = {
    "at quarter past seven on weekdays": ("7:15am", "7:15pm"),
    "on 03/04/2027 at 9:00": ("2027-03-04", "2027-04-03"),
    "every second tuesday at 9am": ("every other", "of the month"),
    "biweekly on monday at 9am": ("every second week", "twice a week"),
    "end of the month at 5pm": ("each month", "this one"),
    "every weekday at 9": ("9am", "9pm"),
    "every friday except the last of the month at 5pm": ("the last monday of the month", "last day"),
    "mondays except the first of the month at 9am": ("the first monday of the month", "first day"),
    "every weekday at 9am except the 1st of the month": ("the 1st monday of the month", "1st day"),
    "semi-monthly at 9am": ("1st and 15th",),
    "every even hour": ("every 2 hours starting at 0:00",),
    "every two hours on the odd hours": ("every 2 hours starting at 1:00",),
    "every leap day at noon": ("february 29",),
    "at the beginning of each month at 8am": ("first day of every month",),
    "start of the month at 8am": ("first day of every month",),
    "every quarter of an hour": ("every 15 minutes",),
}
MISSPELT = {
    "evry monday at 9am": "every",
    "every wendesday at 9am": "wednesday",
    "every mondy at 9am": "monday",
    "weekdys at 9am": "weekdays",
    "every day at 9am in febuary": "february",
    "every 15 minuts": "minutes",
}


def fire_times(parts: Sequence[tuple[Days, list[time]]]) -> list[datetime]:
    """The first ones after NOW, or all that there are in eight years."""
    found: list[datetime] = []
    day = NOW.astimezone(BERLIN).date()
    while len(found) < COUNT and day.year < 2035:
        times = sorted({each for days, some in parts if days(day) for each in some})
        instants = [datetime.combine(day, each, BERLIN).astimezone(UTC) for each in times]
        found += [each for each in instants if each > NOW]
        day += timedelta(days=1)
    return found[:COUNT]


@pytest.mark.parametrize("text", RIGHT)
def test_a_phrase_means_what_it_says(text: str) -> None:
    assert when(text, timezone="Europe/Berlin", anchor=NOW).fires(NOW, COUNT) == fire_times(RIGHT[text])


@pytest.mark.parametrize("text", ASKED)
def test_where_there_are_two_readings_both_are_offered(text: str) -> None:
    with pytest.raises(InvalidTrigger) as asked:
        when(text, timezone="Europe/Berlin")
    assert all(offer in str(asked.value) for offer in ASKED[text]), str(asked.value)


@pytest.mark.parametrize("text", MISSPELT)
def test_the_word_that_was_meant_is_offered(text: str) -> None:
    with pytest.raises(InvalidTrigger, match=f"did you mean.*{MISSPELT[text]}"):
        when(text, timezone="Europe/Berlin")
