"""Recurrence rules where the clock changes, under every policy."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from horarium.triggers.rrule_trigger import rrule


def fires(text: str, after: str, count: int, **policies: str) -> list[str]:
    found = rrule(text, **policies).fires(datetime.fromisoformat(after).replace(tzinfo=UTC), count)
    return [f"{moment:%d %H:%M}" for moment in found]


BERLIN = "DTSTART;TZID=Europe/Berlin:20260101T023000\nRRULE:FREQ=DAILY"
BERLIN_TWICE = "DTSTART;TZID=Europe/Berlin:20260101T000000\nRRULE:FREQ=DAILY;BYHOUR=2,3;BYMINUTE=0,30"
EVERY_HOUR = "DTSTART;TZID=America/New_York:20260101T003000\nRRULE:FREQ=HOURLY"
LORD_HOWE = "DTSTART;TZID=Australia/Lord_Howe:20260101T021500\nRRULE:FREQ=DAILY"

TABLE = [
    ("gap: shifted", BERLIN, "2026-03-28T00:00", {}, ["28 01:30", "29 01:30", "30 00:30"]),
    ("gap: left out", BERLIN, "2026-03-28T00:00", {"gap": "skip"}, ["28 01:30", "30 00:30", "31 00:30"]),
    (
        "gap: at the change",
        BERLIN,
        "2026-03-28T00:00",
        {"gap": "run_at_transition"},
        ["28 01:30", "29 01:00", "30 00:30"],
    ),
    ("fold: first", BERLIN, "2026-10-24T00:00", {}, ["24 00:30", "25 00:30", "26 01:30"]),
    ("fold: second", BERLIN, "2026-10-24T00:00", {"repeat": "second"}, ["24 00:30", "25 01:30", "26 01:30"]),
    ("fold: both", BERLIN, "2026-10-24T00:00", {"repeat": "both"}, ["24 00:30", "25 00:30", "25 01:30", "26 01:30"]),
    (
        "shifted onto others: once",
        BERLIN_TWICE,
        "2026-03-29T00:00",
        {},
        ["29 01:00", "29 01:30", "30 00:00", "30 00:30"],
    ),
    (
        "all at the change",
        BERLIN_TWICE,
        "2026-03-29T00:00",
        {"gap": "run_at_transition"},
        ["29 01:00", "29 01:30", "30 00:00"],
    ),
    (
        "both, in order",
        BERLIN_TWICE,
        "2026-10-25T00:00",
        {"repeat": "both"},
        ["25 00:30", "25 01:00", "25 01:30", "25 02:00"],
    ),
    ("hours in spring", EVERY_HOUR, "2026-03-08T05:00", {}, ["08 05:30", "08 06:30", "08 07:30", "08 08:30"]),
    ("hours in autumn", EVERY_HOUR, "2026-11-01T04:00", {}, ["01 04:30", "01 05:30", "01 06:30", "01 07:30"]),
    ("half an hour, gap", LORD_HOWE, "2026-10-02T00:00", {}, ["02 15:45", "03 15:45", "04 15:15"]),
    (
        "half an hour, change",
        LORD_HOWE,
        "2026-10-02T00:00",
        {"gap": "run_at_transition"},
        ["02 15:45", "03 15:30", "04 15:15"],
    ),
]


@pytest.mark.parametrize(("name", "text", "after", "policies", "expected"), TABLE)
def test_where_the_clock_changes(
    name: str, text: str, after: str, policies: dict[str, str], expected: list[str]
) -> None:
    assert fires(text, after, len(expected), **policies) == expected


@pytest.mark.parametrize(
    ("gap", "expected"),
    [
        ("shift", ["29 22:00", "30 22:00", "31 22:00"]),
        ("skip", ["29 22:00", "30 22:00", "31 22:00"]),
        ("run_at_transition", ["29 22:00", "30 10:00", "30 22:00"]),
    ],
)
def test_the_day_that_apia_skipped(gap: str, expected: list[str]) -> None:
    """30 December 2011 did not happen: its noon, by the offset before, is the noon of the 31st."""
    text = "DTSTART;TZID=Pacific/Apia:20111201T120000\nRRULE:FREQ=DAILY"
    assert fires(text, "2011-12-29T00:00", 3, gap=gap) == expected


def test_hourly_filters_look_at_the_wall_clock_and_both_half_past_ones_fire() -> None:
    text = "DTSTART;TZID=America/New_York:20261031T003000\nRRULE:FREQ=HOURLY;BYHOUR=1"
    assert fires(text, "2026-10-31T00:00", 4) == ["31 05:30", "01 05:30", "01 06:30", "02 06:30"]


def test_every_two_hours_is_every_two_hours_across_a_change() -> None:
    text = "DTSTART;TZID=Europe/Berlin:20260328T220000\nRRULE:FREQ=HOURLY;INTERVAL=2"
    assert fires(text, "2026-03-28T20:00", 4) == ["28 21:00", "28 23:00", "29 01:00", "29 03:00"]


def test_a_bare_hourly_rule_is_on_the_hour_in_kathmandu() -> None:
    assert rrule("FREQ=HOURLY", "Asia/Kathmandu").fires(datetime(2026, 1, 1, tzinfo=UTC), 2) == [
        datetime(2026, 1, 1, 0, 15, tzinfo=UTC),
        datetime(2026, 1, 1, 1, 15, tzinfo=UTC),
    ]


def test_skipped_times_do_not_count_and_shifted_ones_do() -> None:
    text = "DTSTART;TZID=Europe/Berlin:20260327T023000\nRRULE:FREQ=DAILY;COUNT=4"
    assert fires(text, "2026-03-27T00:00", 9) == ["27 01:30", "28 01:30", "29 01:30", "30 00:30"]
    assert fires(text, "2026-03-27T00:00", 9, gap="skip") == ["27 01:30", "28 01:30", "30 00:30", "31 00:30"]


def test_a_rule_that_only_ever_falls_in_the_gap_is_refused_where_gaps_are_skipped() -> None:
    text = "DTSTART;TZID=Europe/Berlin:20260101T023000\nRRULE:FREQ=YEARLY;BYMONTH=3;BYDAY=-1SU"
    assert fires(text, "2026-01-01T00:00", 1) == ["29 01:30"]
    with pytest.raises(ValueError, match="never fires"):
        rrule(text, gap="skip")


TWELVE_ZONES = (
    "Europe/Berlin",
    "Europe/London",
    "America/New_York",
    "America/Los_Angeles",
    "America/Santiago",
    "Australia/Sydney",
    "Australia/Lord_Howe",
    "Pacific/Auckland",
    "Asia/Kathmandu",
    "Africa/Casablanca",
    "America/St_Johns",
    "Asia/Jerusalem",
)


@pytest.mark.parametrize("key", TWELVE_ZONES)
def test_a_weekly_noon_keeps_its_wall_time(key: str) -> None:
    found = rrule(f"DTSTART;TZID={key}:20260104T120000\nRRULE:FREQ=WEEKLY").fires(datetime(2026, 1, 1, tzinfo=UTC), 104)
    local = [moment.astimezone(ZoneInfo(key)) for moment in found]
    assert {(moment.hour, moment.minute, moment.weekday()) for moment in local} == {(12, 0, 6)}
    assert len({moment.date() for moment in local}) == 104
