"""Every example of RFC 5545 section 3.8.5.3, with the fire times that it lists, in its zone (America/New_York)."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from datetime import time as clock_time
from itertools import product
from zoneinfo import ZoneInfo

import pytest

from horarium.triggers.rrule_trigger import rrule

ZONE = ZoneInfo("America/New_York")
MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
START = "19970902T090000"


def read(text: str, time: str = "09:00") -> list[datetime]:
    """`1997 Sep 2 4-6 | Oct 1 9:20,9:40`: a day stands for `time`, unless times follow it; `2-5` is 2 3 4 5."""
    year, month = 0, 0
    found: list[tuple[tuple[int, int, int], str]] = []
    for word in text.replace("|", " ").split():
        if word in MONTHS:
            month = MONTHS.index(word) + 1
        elif ":" in word:
            day = found.pop()[0]
            found.append((day, word))
        elif len(word) == 4 and word.isdigit():
            year = int(word)
        else:
            first, _, last = word.partition("-")
            found += [((year, month, day), time) for day in range(int(first), int(last or first) + 1)]
    return [
        datetime.combine(date(*day), clock_time.fromisoformat(clock.zfill(5)), ZONE)
        for day, clocks in found
        for clock in clocks.split(",")
    ]


def days(first: str, last: str, step: int = 1) -> list[datetime]:
    """Each `step`th day from one to another, at nine."""
    day, end = datetime.fromisoformat(first), datetime.fromisoformat(last)
    found = []
    while day <= end:
        found.append(day.replace(hour=9, tzinfo=ZONE))
        day += timedelta(step)
    return found


COMPLETE: list[tuple[str, str, str | list[datetime]]] = [
    ("daily for 10 occurrences", "FREQ=DAILY;COUNT=10", "1997 Sep 2-11"),
    ("daily until", "FREQ=DAILY;UNTIL=19971224T000000Z", days("1997-09-02", "1997-12-23")),
    ("every 10 days, 5 occurrences", "FREQ=DAILY;INTERVAL=10;COUNT=5", "1997 Sep 2 12 22 Oct 2 12"),
    ("weekly for 10 occurrences", "FREQ=WEEKLY;COUNT=10", "1997 Sep 2 9 16 23 30 Oct 7 14 21 28 Nov 4"),
    (
        "weekly until",
        "FREQ=WEEKLY;UNTIL=19971224T000000Z",
        "1997 Sep 2 9 16 23 30 Oct 7 14 21 28 Nov 4 11 18 25 Dec 2 9 16 23",
    ),
    (
        "Tuesday and Thursday for five weeks, by date",
        "FREQ=WEEKLY;UNTIL=19971007T000000Z;WKST=SU;BYDAY=TU,TH",
        "1997 Sep 2 4 9 11 16 18 23 25 30 Oct 2",
    ),
    (
        "Tuesday and Thursday for five weeks, by count",
        "FREQ=WEEKLY;COUNT=10;WKST=SU;BYDAY=TU,TH",
        "1997 Sep 2 4 9 11 16 18 23 25 30 Oct 2",
    ),
    (
        "every other week on Tuesday and Thursday, 8 occurrences",
        "FREQ=WEEKLY;INTERVAL=2;COUNT=8;WKST=SU;BYDAY=TU,TH",
        "1997 Sep 2 4 16 18 30 Oct 2 14 16",
    ),
    (
        "monthly on the second last Monday",
        "FREQ=MONTHLY;COUNT=6;BYDAY=-2MO",
        "1997 Sep 22 Oct 20 Nov 17 Dec 22 1998 Jan 19 Feb 16",
    ),
    (
        "monthly on the 2nd and 15th",
        "FREQ=MONTHLY;COUNT=10;BYMONTHDAY=2,15",
        "1997 Sep 2 15 Oct 2 15 Nov 2 15 Dec 2 15 1998 Jan 2 15",
    ),
    (
        "every Tuesday, every other month, begun",
        "FREQ=MONTHLY;INTERVAL=2;BYDAY=TU;COUNT=18",
        "1997 Sep 2 9 16 23 30 Nov 4 11 18 25 1998 Jan 6 13 20 27 Mar 3 10 17 24 31",
    ),
    (
        "the third instance of Tuesday, Wednesday or Thursday",
        "FREQ=MONTHLY;COUNT=3;BYDAY=TU,WE,TH;BYSETPOS=3",
        "1997 Sep 4 Oct 7 Nov 6",
    ),
]
"""Examples that start on 2 September 1997 and end (those for ever stand below)."""

OTHER_STARTS: list[tuple[str, str, str, str]] = [
    (
        "monthly on the first Friday",
        "19970905T090000",
        "FREQ=MONTHLY;COUNT=10;BYDAY=1FR",
        "1997 Sep 5 Oct 3 Nov 7 Dec 5 1998 Jan 2 Feb 6 Mar 6 Apr 3 May 1 Jun 5",
    ),
    (
        "monthly on the first Friday until",
        "19970905T090000",
        "FREQ=MONTHLY;UNTIL=19971224T000000Z;BYDAY=1FR",
        "1997 Sep 5 Oct 3 Nov 7 Dec 5",
    ),
    (
        "every other month on the first and last Sunday",
        "19970907T090000",
        "FREQ=MONTHLY;INTERVAL=2;COUNT=10;BYDAY=1SU,-1SU",
        "1997 Sep 7 28 Nov 2 30 1998 Jan 4 25 Mar 1 29 May 3 31",
    ),
    (
        "monthly on the second last Monday",
        "19970922T090000",
        "FREQ=MONTHLY;COUNT=6;BYDAY=-2MO",
        "1997 Sep 22 Oct 20 Nov 17 Dec 22 1998 Jan 19 Feb 16",
    ),
    (
        "monthly on the first and last day",
        "19970930T090000",
        "FREQ=MONTHLY;COUNT=10;BYMONTHDAY=1,-1",
        "1997 Sep 30 Oct 1 31 Nov 1 30 Dec 1 31 1998 Jan 1 31 Feb 1",
    ),
    (
        "every 18 months on the 10th to 15th",
        "19970910T090000",
        "FREQ=MONTHLY;INTERVAL=18;COUNT=10;BYMONTHDAY=10,11,12,13,14,15",
        "1997 Sep 10-15 1999 Mar 10-13",
    ),
    (
        "yearly in June and July",
        "19970610T090000",
        "FREQ=YEARLY;COUNT=10;BYMONTH=6,7",
        "1997 Jun 10 Jul 10 1998 Jun 10 Jul 10 1999 Jun 10 Jul 10 2000 Jun 10 Jul 10 2001 Jun 10 Jul 10",
    ),
    (
        "every other year in January, February and March",
        "19970310T090000",
        "FREQ=YEARLY;INTERVAL=2;COUNT=10;BYMONTH=1,2,3",
        "1997 Mar 10 1999 Jan 10 Feb 10 Mar 10 2001 Jan 10 Feb 10 Mar 10 2003 Jan 10 Feb 10 Mar 10",
    ),
    (
        "every third year on days 1, 100 and 200",
        "19970101T090000",
        "FREQ=YEARLY;INTERVAL=3;COUNT=10;BYYEARDAY=1,100,200",
        "1997 Jan 1 Apr 10 Jul 19 2000 Jan 1 Apr 9 Jul 18 2003 Jan 1 Apr 10 Jul 19 2006 Jan 1",
    ),
    ("WKST=MO", "19970805T090000", "FREQ=WEEKLY;INTERVAL=2;COUNT=4;BYDAY=TU,SU;WKST=MO", "1997 Aug 5 10 19 24"),
    ("WKST=SU", "19970805T090000", "FREQ=WEEKLY;INTERVAL=2;COUNT=4;BYDAY=TU,SU;WKST=SU", "1997 Aug 5 17 19 31"),
    (
        "invalid dates are left out",
        "20070115T090000",
        "FREQ=MONTHLY;BYMONTHDAY=15,30;COUNT=5",
        "2007 Jan 15 30 Feb 15 Mar 15 30",
    ),
    (
        "every other week on Monday, Wednesday and Friday until",
        "19970901T090000",
        "FREQ=WEEKLY;INTERVAL=2;UNTIL=19971224T000000Z;WKST=SU;BYDAY=MO,WE,FR",
        "1997 Sep 1 3 5 15 17 19 29 Oct 1 3 13 15 17 27 29 31 Nov 10 12 14 24 26 28 Dec 8 10 12 22",
    ),
]

FOR_EVER: list[tuple[str, str, str, str]] = [
    ("every other day", START, "FREQ=DAILY;INTERVAL=2", "1997 Sep 2 4 6 8 10 12 14 16 18 20 22 24 26 28 30 Oct 2 4"),
    (
        "every other week",
        START,
        "FREQ=WEEKLY;INTERVAL=2;WKST=SU",
        "1997 Sep 2 16 30 Oct 14 28 Nov 11 25 Dec 9 23 1998 Jan 6 20 Feb 3 17",
    ),
    (
        "the third-to-last day",
        "19970928T090000",
        "FREQ=MONTHLY;BYMONTHDAY=-3",
        "1997 Sep 28 Oct 29 Nov 28 Dec 29 1998 Jan 29 Feb 26",
    ),
    (
        "every Tuesday, every other month",
        START,
        "FREQ=MONTHLY;INTERVAL=2;BYDAY=TU",
        "1997 Sep 2 9 16 23 30 Nov 4 11 18 25 1998 Jan 6 13 20 27 Mar 3 10 17 24 31",
    ),
    (
        "every 20th Monday of the year",
        "19970519T090000",
        "FREQ=YEARLY;BYDAY=20MO",
        "1997 May 19 1998 May 18 1999 May 17",
    ),
    ("Monday of week 20", "19970512T090000", "FREQ=YEARLY;BYWEEKNO=20;BYDAY=MO", "1997 May 12 1998 May 11 1999 May 17"),
    (
        "every Thursday in March",
        "19970313T090000",
        "FREQ=YEARLY;BYMONTH=3;BYDAY=TH",
        "1997 Mar 13 20 27 1998 Mar 5 12 19 26 1999 Mar 4 11 18 25",
    ),
    (
        "every Thursday in June, July and August",
        "19970605T090000",
        "FREQ=YEARLY;BYDAY=TH;BYMONTH=6,7,8",
        "1997 Jun 5 12 19 26 Jul 3 10 17 24 31 Aug 7 14 21 28 1998 Jun 4 11 18 25 Jul 2 9 16 23 30 Aug 6 13 20 27"
        " 1999 Jun 3 10 17 24 Jul 1 8 15 22 29 Aug 5 12 19 26",
    ),
    (
        "every Friday the 13th",
        START,
        "FREQ=MONTHLY;BYDAY=FR;BYMONTHDAY=13",
        "1998 Feb 13 Mar 13 Nov 13 1999 Aug 13 2000 Oct 13",
    ),
    (
        "the first Saturday after the first Sunday",
        "19970913T090000",
        "FREQ=MONTHLY;BYDAY=SA;BYMONTHDAY=7,8,9,10,11,12,13",
        "1997 Sep 13 Oct 11 Nov 8 Dec 13 1998 Jan 10 Feb 7 Mar 7 Apr 11 May 9 Jun 13",
    ),
    (
        "election day",
        "19961105T090000",
        "FREQ=YEARLY;INTERVAL=4;BYMONTH=11;BYDAY=TU;BYMONTHDAY=2,3,4,5,6,7,8",
        "1996 Nov 5 2000 Nov 7 2004 Nov 2",
    ),
    (
        "the second-to-last weekday",
        "19970929T090000",
        "FREQ=MONTHLY;BYDAY=MO,TU,WE,TH,FR;BYSETPOS=-2",
        "1997 Sep 29 Oct 30 Nov 27 Dec 30 1998 Jan 29 Feb 26 Mar 30",
    ),
]


def fires_of(start: str, rule: str, count: int, *more: str) -> list[datetime]:
    lines = (f"DTSTART;TZID=America/New_York:{start}", f"RRULE:{rule}", *more)
    return rrule("\n".join(lines)).fires(datetime(1996, 1, 1, tzinfo=UTC), count)


@pytest.mark.parametrize(("name", "rule", "expected"), COMPLETE)
def test_a_rule_that_ends(name: str, rule: str, expected: str | list[datetime]) -> None:
    wanted = read(expected) if isinstance(expected, str) else expected
    assert fires_of(START, rule, 1000) == wanted


@pytest.mark.parametrize(("name", "start", "rule", "expected"), OTHER_STARTS)
def test_a_rule_that_ends_and_starts_elsewhere(name: str, start: str, rule: str, expected: str) -> None:
    assert fires_of(start, rule, 1000) == read(expected)


@pytest.mark.parametrize(("name", "start", "rule", "expected"), FOR_EVER)
def test_a_rule_for_ever(name: str, start: str, rule: str, expected: str) -> None:
    wanted = read(expected)
    assert fires_of(start, rule, len(wanted)) == wanted


@pytest.mark.parametrize(
    "rule",
    [
        "FREQ=YEARLY;UNTIL=20000131T140000Z;BYMONTH=1;BYDAY=SU,MO,TU,WE,TH,FR,SA",
        "FREQ=DAILY;UNTIL=20000131T140000Z;BYMONTH=1",
    ],
)
def test_every_day_in_january_for_three_years(rule: str) -> None:
    wanted = read("1998 Jan 1-31 1999 Jan 1-31 2000 Jan 1-31")
    assert fires_of("19980101T090000", rule, 1000) == wanted


def test_every_friday_the_13th_leaves_out_its_start() -> None:
    wanted = read("1998 Feb 13 Mar 13 Nov 13 1999 Aug 13 2000 Oct 13")
    rule = "FREQ=MONTHLY;BYDAY=FR;BYMONTHDAY=13"
    assert fires_of(START, rule, 5, "EXDATE;TZID=America/New_York:19970902T090000") == wanted


def test_every_three_hours_of_one_day() -> None:
    """The RFC's UNTIL is 17:00 UTC, its list (9, 12 and 15 o'clock) means local time (erratum 3883)."""
    assert fires_of(START, "FREQ=HOURLY;INTERVAL=3;UNTIL=19970902T210000Z", 9) == read("1997 Sep 2 9:00,12:00,15:00")
    assert fires_of(START, "FREQ=HOURLY;INTERVAL=3;UNTIL=19970902T170000Z", 9) == read("1997 Sep 2 9:00,12:00")


def test_every_15_minutes_6_times() -> None:
    assert fires_of(START, "FREQ=MINUTELY;INTERVAL=15;COUNT=6", 9) == read("1997 Sep 2 9:00,9:15,9:30,9:45,10:00,10:15")


def test_every_hour_and_a_half_4_times() -> None:
    assert fires_of(START, "FREQ=MINUTELY;INTERVAL=90;COUNT=4", 9) == read("1997 Sep 2 9:00,10:30,12:00,13:30")


@pytest.mark.parametrize(
    "rule",
    [
        "FREQ=DAILY;BYHOUR=9,10,11,12,13,14,15,16;BYMINUTE=0,20,40",
        "FREQ=MINUTELY;INTERVAL=20;BYHOUR=9,10,11,12,13,14,15,16",
    ],
)
def test_every_20_minutes_from_nine_to_five(rule: str) -> None:
    wanted = [
        datetime(1997, 9, day, hour, minute, tzinfo=ZONE)
        for day, hour, minute in product((2, 3, 4), range(9, 17), (0, 20, 40))
    ]
    assert fires_of(START, rule, len(wanted)) == wanted
