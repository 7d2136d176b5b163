"""What is no rule, or can never fire, is refused: with a reason, and at once."""

from __future__ import annotations

import contextlib
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horarium.errors import InvalidTrigger, TooExpensive
from horarium.triggers.recurrence.parts import BY_ITEMS_MAX, COUNT_MAX, INTERVAL_MAX
from horarium.triggers.rrule_text import DATES_MAX, RULES_MAX, TEXT_MAX
from horarium.triggers.rrule_trigger import rrule
from tests.searching import tries

UNREADABLE = [
    ("", "no rule"),
    ("hello", "no part"),
    ("FREQ=SOMETIMES", "one of YEARLY"),
    ("INTERVAL=2", "no FREQ"),
    ("FREQ=DAILY;", "no part"),
    ("FREQ=DAILY;FREQ=DAILY", "given twice"),
    ("FREQ=DAILY;BYFOO=1", "no part"),
    ("FREQ=DAILY;INTERVAL=0", "from 1"),
    ("FREQ=DAILY;INTERVAL=-1", "from 1"),
    ("FREQ=DAILY;INTERVAL=1.5", "from 1"),
    (f"FREQ=DAILY;INTERVAL={10**20}", "from 1"),
    (f"FREQ=DAILY;INTERVAL={INTERVAL_MAX + 1}", "from 1"),
    ("FREQ=DAILY;INTERVAL=²", "from 1"),
    ("FREQ=DAILY;COUNT=0", "from 1"),
    ("FREQ=DAILY;COUNT=-3", "from 1"),
    (f"FREQ=DAILY;COUNT={COUNT_MAX + 1}", "from 1"),
    ("FREQ=DAILY;COUNT=3;UNTIL=20300101T000000Z", "exclude each other"),
    ("FREQ=DAILY;UNTIL=tomorrow", "a date such as"),
    ("FREQ=DAILY;UNTIL=20301301T000000Z", "no such date"),
    ("FREQ=DAILY;UNTIL=99991231", "a year from"),
    ("FREQ=DAILY;BYHOUR=24", "from 0 to 23"),
    ("FREQ=DAILY;BYMINUTE=60", "from 0 to 59"),
    ("FREQ=DAILY;BYSECOND=61", "from 0 to 60"),
    ("FREQ=DAILY;BYMONTH=13", "from 1 to 12"),
    ("FREQ=DAILY;BYMONTH=0", "from 1 to 12"),
    ("FREQ=MONTHLY;BYMONTHDAY=0", "from 1 to 31"),
    ("FREQ=MONTHLY;BYMONTHDAY=32", "from 1 to 31"),
    ("FREQ=YEARLY;BYYEARDAY=367", "from 1 to 366"),
    ("FREQ=YEARLY;BYWEEKNO=54", "from 1 to 53"),
    ("FREQ=YEARLY;BYDAY=54MO", "weekdays"),
    ("FREQ=YEARLY;BYDAY=0MO", "weekdays"),
    ("FREQ=WEEKLY;BYDAY=XX", "weekdays"),
    ("FREQ=WEEKLY;BYDAY=", "weekdays"),
    ("FREQ=DAILY;BYHOUR=1,,2", "whole numbers"),
    ("FREQ=WEEKLY;WKST=1", "one of MO"),
    ("FREQ=MONTHLY;BYWEEKNO=3", "YEARLY alone"),
    ("FREQ=DAILY;BYYEARDAY=3", "BYYEARDAY"),
    ("FREQ=WEEKLY;BYMONTHDAY=3", "BYMONTHDAY"),
    ("FREQ=WEEKLY;BYDAY=1MO", "a number before a weekday"),
    ("FREQ=HOURLY;BYDAY=-1FR", "a number before a weekday"),
    ("FREQ=YEARLY;BYWEEKNO=3;BYDAY=1MO", "a number before a weekday"),
    ("FREQ=MONTHLY;BYSETPOS=1", "another BYxxx part"),
    ("FREQ=MONTHLY;BYDAY=MO;BYSETPOS=0", "from 1 to 366"),
    ("FREQ=MONTHLY;RSCALE=HEBREW", "one of GREGORIAN"),
    ("FREQ=MONTHLY;SKIP=SIDEWAYS", "one of OMIT"),
    ("DTSTART:20260101T000000Z\nDTSTART:20260101T000000Z\nRRULE:FREQ=DAILY", "given twice"),
    ("DTSTART:20260101T000000Z", "no rule"),
    ("DTSTART:2026-01-01\nRRULE:FREQ=DAILY", "a date such as"),
    ("DTSTART:20260230T000000Z\nRRULE:FREQ=DAILY", "no such date"),
    ("DTSTART:19691231T000000Z\nRRULE:FREQ=DAILY", "a year from 1970"),
    ("DTSTART;X=Y:20260101T000000Z\nRRULE:FREQ=DAILY", "TZID"),
    ("DTSTART;TZID=Europe/Berln:20260101T000000\nRRULE:FREQ=DAILY", "did you mean Europe/Berlin"),
    ("SUMMARY:hello\nRRULE:FREQ=DAILY", "not known"),
    ("FREQ=DAILY;BYMONTHDAY=" + ",".join(["1"] * (BY_ITEMS_MAX + 1)), "at most 400"),
    ("FREQ=DAILY;BYHOUR=" + "1" * TEXT_MAX, "at most 8192"),
    ("\n".join(["RRULE:FREQ=DAILY"] * (RULES_MAX + 1)), "more than 20"),
]

IMPOSSIBLE = [
    "FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=30",
    "FREQ=MONTHLY;BYMONTH=2;BYMONTHDAY=30",
    "FREQ=DAILY;BYMONTH=2;BYMONTHDAY=30,31",
    "FREQ=MINUTELY;BYMONTH=2;BYMONTHDAY=30",
    "FREQ=SECONDLY;BYMONTH=4;BYMONTHDAY=31",
    "FREQ=MONTHLY;BYMONTH=4;BYMONTHDAY=31",
    "FREQ=YEARLY;BYYEARDAY=1;BYMONTH=2",
    "FREQ=YEARLY;BYDAY=53MO;BYMONTH=3",
    "FREQ=YEARLY;BYWEEKNO=30;BYMONTH=1",
    "FREQ=MONTHLY;BYDAY=1MO;BYMONTHDAY=8,9,10",
    "FREQ=SECONDLY;INTERVAL=2;BYSECOND=1",
    "FREQ=MINUTELY;INTERVAL=60;BYMINUTE=5",
    "FREQ=HOURLY;INTERVAL=24;BYHOUR=3",
    "FREQ=HOURLY;INTERVAL=168;BYDAY=WE",
    "FREQ=SECONDLY;INTERVAL=604800;BYDAY=SU",
    "FREQ=DAILY;INTERVAL=7;BYDAY=TU",
    "FREQ=MONTHLY;INTERVAL=12;BYMONTH=5",
    "FREQ=YEARLY;INTERVAL=2;BYMONTH=2;BYMONTHDAY=29",
    "FREQ=MONTHLY;BYDAY=MO;BYSETPOS=6",
    "FREQ=WEEKLY;BYDAY=MO,TU;BYSETPOS=3",
    "FREQ=DAILY;BYHOUR=9,10;BYSETPOS=-3",
    "FREQ=HOURLY;BYMINUTE=1;BYSETPOS=2",
    "FREQ=DAILY;UNTIL=20200101T000000Z",
]

START = "DTSTART:20210104T000000Z\n"  # a Monday, in an odd year


@pytest.mark.parametrize(("text", "reason"), UNREADABLE, ids=range(len(UNREADABLE)))
def test_what_is_no_rule_is_refused_with_a_reason(text: str, reason: str) -> None:
    with pytest.raises(InvalidTrigger, match=reason):
        rrule(text)


@pytest.mark.parametrize("rule", IMPOSSIBLE)
def test_an_impossible_rule_is_refused_within_milliseconds(rule: str) -> None:
    text = f"{START}RRULE:{rule}"
    best = 1.0
    for _ in range(3):
        begun = time.process_time()
        with pytest.raises(InvalidTrigger, match="never fires"):
            rrule(text)
        best = min(best, time.process_time() - begun)
    assert best < 0.050  # 5 ms at the worst on a machine at rest


def test_the_position_of_a_fault_is_told() -> None:
    with pytest.raises(InvalidTrigger) as caught:
        rrule("DTSTART:20260101T000000Z\nRRULE:FREQ=DAILY;BYHOUR=99")
    assert caught.value.position == len("DTSTART:20260101T000000Z\nRRULE:FREQ=DAILY;BYHOUR=")
    assert caught.value.field == "rrule"


def test_limits_hold_at_their_edge() -> None:
    rrule(f"DTSTART:20260101T000000Z\nRRULE:FREQ=YEARLY;INTERVAL={INTERVAL_MAX}")
    rrule("FREQ=DAILY;BYHOUR=" + ",".join(["1"] * BY_ITEMS_MAX))
    dates = [f"2026{month:02}{day:02}" for month in range(1, 13) for day in range(1, 29)] * 3
    lines = [f"RDATE;VALUE=DATE:{','.join(dates[at : at + 250])}" for at in range(0, DATES_MAX, 250)]
    with pytest.raises(InvalidTrigger, match="at most 8192"):
        rrule("\n".join(lines))


@pytest.mark.parametrize(
    "lines",
    [
        "RRULE:FREQ=MINUTELY\nEXRULE:FREQ=MINUTELY",
        "RRULE:FREQ=DAILY;COUNT=2\nEXDATE:20210104T000000Z,20210105T000000Z",
        "RDATE:20210104T000000Z\nEXDATE:20210104T000000Z",
    ],
)
def test_a_rule_of_which_nothing_is_left_is_refused(lines: str) -> None:
    with pytest.raises(InvalidTrigger, match="nothing is left"):
        rrule(START + lines)


@pytest.mark.slow
def test_a_rule_of_which_too_much_is_left_out_is_refused() -> None:
    """Nothing is left of it, but to see that would take a look at each minute up to the year 2200."""
    with pytest.raises(TooExpensive, match="leave out more than 100000 fire times in a row"):
        rrule(START + "RRULE:FREQ=MINUTELY\nEXRULE:FREQ=SECONDLY")


@pytest.mark.slow
@pytest.mark.parametrize(
    "rule",
    [
        "FREQ=SECONDLY;COUNT=1000000",
        "FREQ=SECONDLY;COUNT=1000000;BYHOUR=9,10;BYDAY=MO",
        "FREQ=SECONDLY;COUNT=1000000;INTERVAL=61;BYSECOND=1,3,5,7,9;BYHOUR=9",
        "FREQ=SECONDLY;COUNT=1000000;INTERVAL=10007;BYHOUR=1,3,5,7",
        "FREQ=MINUTELY;COUNT=1000000;INTERVAL=7;BYMONTHDAY=13;BYDAY=FR",
        "FREQ=DAILY;COUNT=1000000;BYDAY=MO,TU,WE,TH,FR",
        "FREQ=DAILY;COUNT=1000000;BYHOUR=0,1,2;BYMINUTE=0,1;INTERVAL=3",
        "FREQ=WEEKLY;COUNT=1000000;BYDAY=MO,TU",
        "FREQ=MONTHLY;COUNT=1000000;BYDAY=2TU",
        "FREQ=YEARLY;COUNT=1000000",
    ],
)
def test_a_large_count_is_resolved_in_bounded_time(rule: str) -> None:
    begun = time.process_time()
    trigger = rrule(f"DTSTART;TZID=Europe/Berlin:20210104T000000\nRRULE:{rule}")
    assert trigger.next_fire(0) is not None
    assert time.process_time() - begun < 2


FREQS = ("YEARLY", "MONTHLY", "WEEKLY", "DAILY", "HOURLY", "MINUTELY", "SECONDLY")
WEEKDAYS = ("MO", "TU", "FR", "SU", "1MO", "-1SU", "5WE")


def some(low: int, high: int, *, signed: bool = False) -> st.SearchStrategy[str]:
    numbers = st.integers(low, high) | st.integers(-high, -low) if signed else st.integers(low, high)
    return st.lists(numbers, min_size=1, max_size=5).map(lambda items: ",".join(map(str, items)))


RULES = st.fixed_dictionaries(
    {"FREQ": st.sampled_from(FREQS)},
    optional={
        "INTERVAL": st.integers(1, 9).map(str) | st.integers(0, 10**10).map(str),
        "COUNT": st.integers(0, 2 * 10**6).map(str),
        "UNTIL": st.sampled_from(["20300101", "20300101T000000Z", "20290101T120000", "x"]),
        "BYSECOND": some(0, 60),
        "BYMINUTE": some(0, 59),
        "BYHOUR": some(0, 23),
        "BYDAY": st.lists(st.sampled_from(WEEKDAYS), min_size=1).map(",".join),
        "BYMONTHDAY": some(1, 31, signed=True),
        "BYYEARDAY": some(1, 366, signed=True),
        "BYWEEKNO": some(1, 53, signed=True),
        "BYMONTH": some(1, 12),
        "BYSETPOS": some(1, 9, signed=True),
        "WKST": st.sampled_from(["SU", "WE"]),
        "SKIP": st.sampled_from(["FORWARD", "BACKWARD"]),
    },
).map(lambda parts: ";".join(f"{name}={value}" for name, value in parts.items()))
ZONES = st.sampled_from(["UTC", "Europe/Berlin", "Australia/Lord_Howe"])


@pytest.mark.slow
@tries(700)
@given(RULES, ZONES, st.integers(-(10**15), 8 * 10**15), st.sampled_from(["shift", "skip", "run_at_transition"]))
def test_any_rule_answers_in_time_and_fire_times_rise(rule: str, zone: str, after: int, gap: str) -> None:
    try:
        trigger = rrule(f"DTSTART;TZID={zone}:20240229T013000\nRRULE:{rule}", gap=gap)
    except InvalidTrigger:
        return
    assert trigger.words()
    first = trigger.next_fire(after)
    if first is not None:
        second = trigger.next_fire(first)
        assert first > after
        assert first % 1_000_000 == 0
        assert trigger.next_fire(first - 1) == first
        assert second is None or second > first


@tries(300)
@given(st.text(max_size=200) | st.text("FREQ=DAILYBYMONTH;:,0123456789\nTZDSR", max_size=120))
def test_any_text_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(InvalidTrigger):
        assert rrule(text).words()
