"""The rrule trigger as a value: its text, its anchor, its JSON form, its words, and sets of rules."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from horarium.clock import DAY, HOUR, SECOND, to_instant
from horarium.errors import InvalidTrigger
from horarium.triggers.registry import parse_trigger
from horarium.triggers.rrule_trigger import RRule, rrule

NOW = datetime(2026, 11, 20, tzinfo=UTC)  # a Friday
BERLIN = "DTSTART;TZID=Europe/Berlin:20250101T083000\n"


def fires(trigger: RRule, count: int = 3) -> list[str]:
    return [f"{moment:%m-%d %H:%M}" for moment in trigger.fires(NOW, count)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("FREQ=YEARLY", ["01-01 00:00", "01-01 00:00", "01-01 00:00"]),
        ("FREQ=MONTHLY", ["12-01 00:00", "01-01 00:00", "02-01 00:00"]),
        ("FREQ=WEEKLY", ["11-23 00:00", "11-30 00:00", "12-07 00:00"]),
        ("FREQ=DAILY", ["11-21 00:00", "11-22 00:00", "11-23 00:00"]),
        ("FREQ=HOURLY", ["11-20 01:00", "11-20 02:00", "11-20 03:00"]),
        ("FREQ=DAILY;BYHOUR=9", ["11-20 09:00", "11-21 09:00", "11-22 09:00"]),
        ("freq=daily;byhour=9", ["11-20 09:00", "11-21 09:00", "11-22 09:00"]),
        ("rrule:FREQ=DAILY;BYHOUR=9", ["11-20 09:00", "11-21 09:00", "11-22 09:00"]),
    ],
)
def test_a_bare_rule_starts_at_a_round_time(text: str, expected: list[str]) -> None:
    assert fires(rrule(text)) == expected
    assert rrule(text).anchored(to_instant(NOW)) == rrule(text)


def test_a_bare_rule_keeps_the_time_of_its_zone() -> None:
    assert fires(rrule("FREQ=DAILY;BYHOUR=9", "Europe/Berlin"), 1) == ["11-20 08:00"]


@pytest.mark.parametrize(
    "text",
    [
        BERLIN + "RRULE:FREQ=DAILY",
        BERLIN.replace("\n", "\r\n") + "RRULE:FREQ=DAILY\r\n",
        "RRULE:FREQ=DAILY\n" + BERLIN,
        "DTSTART;TZID=Europe\n /Berlin:20250101T083000\nRRULE:FR\r\n\tEQ=DAILY",
        "dtstart;tzid=Europe/Berlin:20250101t083000\nFREQ=DAILY",
        '\nDTSTART;VALUE=DATE-TIME;TZID="Europe/Berlin":20250101T083000\n\nRRULE:FREQ=DAILY\n',
    ],
)
def test_lines_are_read_in_any_order_and_fold(text: str) -> None:
    assert fires(rrule(text), 2) == ["11-20 07:30", "11-21 07:30"]


def test_a_start_that_the_rule_does_not_match_is_no_fire_time_and_does_not_count() -> None:
    trigger = rrule("DTSTART:20261121T090000Z\nRRULE:FREQ=WEEKLY;BYDAY=MO;COUNT=2")
    assert fires(trigger, 9) == ["11-23 09:00", "11-30 09:00"]


@pytest.mark.parametrize(
    ("until", "expected"),
    [
        ("20261122T083000", 3),  # local in Berlin: the fire time itself is included
        ("20261122T073000Z", 3),
        ("20261122T072959Z", 2),
        ("20261122", 3),  # the whole of that day
        ("20261121", 2),
    ],
)
def test_until_is_included_and_a_date_is_a_whole_day(until: str, expected: int) -> None:
    assert len(fires(rrule(f"{BERLIN}RRULE:FREQ=DAILY;UNTIL={until}"), 9)) == expected


def test_several_rules_and_dates_are_one_set_without_duplicates() -> None:
    trigger = rrule(
        BERLIN + "RRULE:FREQ=DAILY\nRRULE:FREQ=WEEKLY;BYDAY=SA;BYHOUR=8,20\n"
        "RDATE;TZID=Europe/Berlin:20261121T083000,20261120T120000\nRDATE;VALUE=PERIOD:20261120T130000Z/PT1H\n"
        "EXDATE;TZID=Europe/Berlin:20261120T083000\nEXRULE:FREQ=WEEKLY;BYDAY=SU"
    )
    expected = ["11-20 11:00", "11-20 13:00", "11-21 07:30", "11-21 19:30", "11-23 07:30"]
    assert fires(trigger, 5) == expected


def test_dates_alone_are_a_rule_that_ends() -> None:
    assert fires(rrule("RDATE;VALUE=DATE:20261201,20270101")) == ["12-01 00:00", "01-01 00:00"]


@pytest.mark.parametrize(
    ("skip", "expected"),
    [
        ("OMIT", ["12-31", "01-31", "03-31"]),
        ("BACKWARD", ["11-30", "12-31", "01-31", "02-28"]),
        ("FORWARD", ["12-01", "12-31", "01-31", "03-01"]),
    ],
)
def test_a_day_that_does_not_exist_is_left_out_or_moved(skip: str, expected: list[str]) -> None:
    trigger = rrule(f"FREQ=MONTHLY;BYMONTHDAY=31;RSCALE=GREGORIAN;SKIP={skip}")
    assert [fire[:5] for fire in fires(trigger, len(expected))] == expected


@pytest.mark.parametrize(
    ("skip", "expected"), [("OMIT", "2028-02-29"), ("BACKWARD", "2027-02-28"), ("FORWARD", "2027-03-01")]
)
def test_a_leap_day_comes_each_year_or_moves(skip: str, expected: str) -> None:
    trigger = rrule(f"DTSTART:20240229T000000Z\nRRULE:FREQ=YEARLY;SKIP={skip}")
    assert f"{trigger.fires(NOW, 1)[0]:%Y-%m-%d}" == expected


def test_moved_days_meet_others_once_and_count_once() -> None:
    trigger = rrule("DTSTART:20261101T000000Z\nRRULE:FREQ=MONTHLY;BYMONTHDAY=31,1;SKIP=FORWARD;COUNT=5")
    found = [f"{moment:%m-%d}" for moment in trigger.fires(datetime(2026, 1, 1, tzinfo=UTC), 9)]
    assert found == ["11-01", "12-01", "12-31", "01-01", "01-31"]


def test_a_bare_count_counts_after_its_anchor() -> None:
    trigger = rrule("FREQ=SECONDLY;INTERVAL=10;COUNT=3")
    anchor = to_instant(NOW) + 500_000
    fixed = trigger.anchored(anchor)
    whole = anchor - 500_000
    assert fixed.list_fires(0, 10**17, 9) == [whole + 10 * SECOND, whole + 20 * SECOND, whole + 30 * SECOND]
    assert fixed.anchored(anchor + DAY) == fixed
    assert trigger.next_fire(anchor) == whole + 10 * SECOND
    assert trigger.list_fires(anchor, 10**17, 9) == fixed.list_fires(0, 10**17, 9)
    assert fixed.spec() == {"type": "rrule", "rrule": trigger.spec()["rrule"], "anchor": "2026-11-20T00:00:00Z"}


@pytest.mark.parametrize(
    ("text", "more"),
    [
        ("FREQ=DAILY", {}),
        ("FREQ=DAILY;BYHOUR=2", {"timezone": "Europe/Berlin", "gap": "skip", "repeat": "both"}),
        (BERLIN + "RRULE:FREQ=DAILY", {}),
        ("FREQ=DAILY;COUNT=3", {"anchor": "2026-01-01T00:00:00Z"}),
    ],
)
def test_a_spec_gives_the_same_trigger_back(text: str, more: dict[str, str]) -> None:
    spec = {"type": "rrule", "rrule": text, **more}
    trigger = parse_trigger(spec)
    assert trigger.spec() == spec
    assert RRule.from_spec(spec) == trigger
    assert hash(RRule.from_spec(spec)) == hash(trigger)
    assert trigger != rrule("FREQ=YEARLY")


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"type": "rrule"}, "rrule"),
        ({"type": "rrule", "rrule": 3}, "rrule"),
        ({"type": "rrule", "rrule": "FREQ=DAILY", "timezone": "Nowhere"}, "timezone"),
        ({"type": "rrule", "rrule": "FREQ=DAILY", "gap": "jump"}, "gap"),
        ({"type": "rrule", "rrule": "FREQ=DAILY", "repeat": "never"}, "repeat"),
        ({"type": "rrule", "rrule": "FREQ=DAILY", "zone": "UTC"}, "zone"),
        ({"type": "rrule", "rrule": BERLIN + "RRULE:FREQ=DAILY", "timezone": "UTC"}, "timezone"),
    ],
)
def test_a_wrong_field_is_named(spec: dict[str, object], field: str) -> None:
    with pytest.raises(InvalidTrigger) as caught:
        RRule.from_spec(spec)
    assert caught.value.field == field


WORDS = [
    ("FREQ=WEEKLY;BYDAY=MO,WE,FR;BYHOUR=15;BYMINUTE=15", "every Monday, Wednesday and Friday at 15:15, UTC"),
    ("FREQ=WEEKLY;BYDAY=MO,TU,WE,TH,FR;BYHOUR=9", "every Monday to Friday at 09:00, UTC"),
    ("FREQ=DAILY;COUNT=5", "every day, 5 times, UTC"),
    ("FREQ=DAILY;UNTIL=20261231", "every day at 00:00, until 31 December 2026, UTC"),
    ("FREQ=MINUTELY;INTERVAL=15", "every 15 minutes, UTC"),
    ("FREQ=HOURLY;BYHOUR=9,10,11,12", "every hour in hour 9 to 12, UTC"),
    ("FREQ=MONTHLY;BYDAY=-1FR;BYHOUR=8;BYMINUTE=30", "on the last Friday of every month at 08:30, UTC"),
    ("FREQ=MONTHLY;BYMONTHDAY=1,15", "on the 1st and 15th of every month at 00:00, UTC"),
    ("FREQ=MONTHLY;BYDAY=FR;BYMONTHDAY=13", "on Friday the 13th of every month at 00:00, UTC"),
    ("FREQ=YEARLY;BYMONTH=12;BYMONTHDAY=24;BYHOUR=18", "every year on 24 December at 18:00, UTC"),
    ("FREQ=YEARLY;BYMONTH=11;BYDAY=4TH", "every year on the 4th Thursday of November at 00:00, UTC"),
    ("FREQ=DAILY;BYHOUR=8,12,17", "every day at 08:00, 12:00 and 17:00, UTC"),
    (BERLIN + "RRULE:FREQ=DAILY", "every day at 08:30, Europe/Berlin"),
    (
        "DTSTART:20250107T093400Z\nRRULE:FREQ=WEEKLY;INTERVAL=2;BYDAY=TU",
        "every 2 weeks on Tuesday at 09:34, UTC, from 7 January 2025 09:34",
    ),
    (
        BERLIN + "RRULE:FREQ=DAILY\nEXDATE;TZID=Europe/Berlin:20261224T083000",
        "every day at 08:30, Europe/Berlin; except 24 December 2026 08:30",
    ),
    (
        "FREQ=MONTHLY;BYDAY=MO,TU,WE,TH,FR;BYSETPOS=-1",
        "on every Monday to Friday of every month at 00:00, only the last of each month, UTC",
    ),
]


@pytest.mark.parametrize(("text", "words"), WORDS)
def test_the_words_of_a_rule(text: str, words: str) -> None:
    assert str(rrule(text)) == words


def test_counting_a_plain_step_is_arithmetic() -> None:
    trigger = rrule("DTSTART:19700101T000000Z\nRRULE:FREQ=SECONDLY")
    assert trigger.count_fires(0, 200 * 365 * DAY, 10**10) == 200 * 365 * 86_400
    assert trigger.count_fires(0, HOUR, 5) == 5
    assert rrule("FREQ=DAILY").count_fires(to_instant(NOW), to_instant(NOW) + 10 * DAY, 99) == 10


def test_nothing_fires_outside_1970_to_2200() -> None:
    trigger = rrule("DTSTART:19700101T000000Z\nRRULE:FREQ=DAILY")
    assert trigger.next_fire(-(10**30)) == 0
    assert trigger.next_fire(10**30) is None
    assert trigger.fires(datetime(2200, 12, 30, tzinfo=UTC), 5) == [datetime(2200, 12, 31, tzinfo=UTC)]


@pytest.mark.parametrize(
    "text",
    [
        "FREQ=DAILY;COUNT=2;DTSTART=20261123T073000Z",
        "DTSTART=20261123T073000Z;FREQ=DAILY;COUNT=2",
        "FREQ=DAILY;DTSTART=20261123T073000Z;COUNT=2",
        "RRULE:FREQ=DAILY;COUNT=2;DTSTART=20261123T073000Z",
        "FREQ=DAILY;COUNT=2;DTSTART=20261123T083000;TZID=Europe/Berlin",
        "DTSTART;TZID=Europe/Berlin=20261123T083000;FREQ=DAILY;COUNT=2",
        "freq=daily;count=2;dtstart=20261123t073000z",
    ],
)
def test_a_rule_may_carry_its_own_start(text: str) -> None:
    trigger = rrule(text)
    found = trigger.fires(datetime(2026, 11, 20, tzinfo=UTC), 9)
    assert [f"{fire:%m-%d %H:%M}" for fire in found] == ["11-23 07:30", "11-24 07:30"]
    assert rrule(trigger.spec()["rrule"]) == trigger


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("DTSTART:20260101T000000Z\nRRULE:FREQ=DAILY;DTSTART=20260101T000000Z", "twice"),
        ("FREQ=DAILY;DTSTART=20261301T000000Z", "no such date"),
        ("FREQ=DAILY;DTSTART=", "DTSTART"),
        ("DTSTART=20260101T000000Z", "no part"),
        ("FREQ=DAILY;DTSTART=20260101T000000Z;TZID=Europe/Berlin", "Z and has a TZID"),
    ],
)
def test_a_start_inside_a_rule_is_checked(text: str, word: str) -> None:
    with pytest.raises(InvalidTrigger, match=word):
        rrule(text)


@pytest.mark.parametrize(
    ("zone", "until", "last"),
    [
        ("UTC", "20261122", "2026-11-22T23:30:00Z"),
        ("America/New_York", "20261122", "2026-11-23T04:30:00Z"),
        ("Asia/Tokyo", "20261122", "2026-11-22T14:30:00Z"),
        ("America/Sao_Paulo", "20181103", "2018-11-04T02:30:00Z"),  # the next day has no midnight
        ("America/Havana", "20261031", "2026-11-01T03:30:00Z"),  # the next day shows its first hour twice
    ],
)
def test_a_date_as_end_is_the_whole_day_on_the_clock_of_the_rule(zone: str, until: str, last: str) -> None:
    trigger = rrule(f"FREQ=MINUTELY;INTERVAL=30;UNTIL={until}", zone)
    end = to_instant(datetime.fromisoformat(last))
    assert trigger.last_fire(end - 86_400 * SECOND, end + 86_400 * SECOND) == end
