"""Zones against zoneinfo, and the policies for wall times that the clock skips or repeats."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import datetime, timedelta
from random import Random
from zoneinfo import ZoneInfo

import pytest

from horarium.errors import InvalidTrigger
from horarium.triggers.zones import Gap, Repeat, get_zone, tzdata_version
from tests.waiting import PATIENCE

EPOCH = datetime(1970, 1, 1)
KEYS = (
    "UTC",
    "Europe/Berlin",
    "Europe/Dublin",
    "America/New_York",
    "America/St_Johns",
    "Australia/Lord_Howe",
    "Pacific/Apia",
    "Pacific/Kwajalein",
    "Asia/Kathmandu",
    "Africa/Casablanca",
    "Africa/Monrovia",
    "America/Sao_Paulo",
)


def wall(text: str) -> int:
    return (datetime.fromisoformat(text) - EPOCH) // timedelta(seconds=1)


def utc(*seconds: int) -> list[str]:
    return [(EPOCH + timedelta(seconds=second)).isoformat() for second in seconds]


@pytest.mark.parametrize("key", KEYS)
def test_a_zone_says_what_zoneinfo_says_from_1970_to_2200(key: str) -> None:
    random, zone, tz = Random(key), get_zone(key), ZoneInfo(key)
    for _ in range(1500):
        second = random.randrange(7_289_654_400)
        shown = datetime.fromtimestamp(second, tz).replace(tzinfo=None)
        assert zone.to_wall(second) == (shown - EPOCH) // timedelta(seconds=1)


@pytest.mark.parametrize("key", KEYS)
def test_around_every_change_the_wall_clock_leads_back(key: str) -> None:
    zone, tz, at = get_zone(key), ZoneInfo(key), 0
    while (at := zone.segment_at(at).end) < wall("2045-01-01T00:00:00"):
        for second in (at - 86_400, at - 1801, at - 1, at, at + 1, at + 1801, at + 86_400):
            shown = datetime.fromtimestamp(second, tz)
            local = (shown.replace(tzinfo=None, fold=0) - EPOCH) // timedelta(seconds=1)
            both = zone.to_utc(local, repeat=Repeat.BOTH)
            assert second in both
            assert zone.to_utc(local, repeat=Repeat.FIRST) == both[:1]
            assert zone.to_utc(local, repeat=Repeat.SECOND) == both[-1:]


GAPS = [
    ("Europe/Berlin", "2026-03-29T02:30:00", "2026-03-29T01:30:00", "2026-03-29T01:00:00"),
    ("America/New_York", "2026-03-08T02:00:00", "2026-03-08T07:00:00", "2026-03-08T07:00:00"),
    ("Australia/Lord_Howe", "2026-10-04T02:15:00", "2026-10-03T15:45:00", "2026-10-03T15:30:00"),
    ("Pacific/Apia", "2011-12-30T12:00:00", "2011-12-30T22:00:00", "2011-12-30T10:00:00"),
    ("America/Sao_Paulo", "2018-11-04T00:00:00", "2018-11-04T03:00:00", "2018-11-04T03:00:00"),
]


@pytest.mark.parametrize(("key", "local", "shifted", "change"), GAPS)
def test_a_skipped_wall_time(key: str, local: str, shifted: str, change: str) -> None:
    zone = get_zone(key)
    assert utc(*zone.to_utc(wall(local))) == [shifted]
    assert zone.to_utc(wall(local), Gap.SKIP) == ()
    assert utc(*zone.to_utc(wall(local), Gap.RUN_AT_TRANSITION)) == [change]


FOLDS = [
    ("Europe/Berlin", "2026-10-25T02:30:00", "2026-10-25T00:30:00", "2026-10-25T01:30:00"),
    ("America/New_York", "2026-11-01T01:00:00", "2026-11-01T05:00:00", "2026-11-01T06:00:00"),
    ("Australia/Lord_Howe", "2026-04-05T01:45:00", "2026-04-04T14:45:00", "2026-04-04T15:15:00"),
]


@pytest.mark.parametrize(("key", "local", "first", "second"), FOLDS)
def test_a_repeated_wall_time(key: str, local: str, first: str, second: str) -> None:
    zone = get_zone(key)
    assert utc(*zone.to_utc(wall(local))) == [first]
    assert utc(*zone.to_utc(wall(local), repeat=Repeat.SECOND)) == [second]
    assert utc(*zone.to_utc(wall(local), repeat=Repeat.BOTH)) == [first, second]


def test_the_rule_of_a_zone_goes_on_after_2037() -> None:
    assert utc(*get_zone("Europe/Berlin").to_utc(wall("2199-07-01T12:00:00"))) == ["2199-07-01T10:00:00"]


@pytest.mark.parametrize(
    ("given", "near"), [("Europe/Berln", "Europe/Berlin"), ("america/new_york", "America/New_York")]
)
def test_an_unknown_zone_names_the_nearest(given: str, near: str) -> None:
    with pytest.raises(InvalidTrigger, match=f"did you mean {near}") as caught:
        get_zone(given)
    assert caught.value.field == "timezone"


@pytest.mark.parametrize(
    "given",
    [
        "",
        "localtime",
        "posixrules",
        "right/UTC",
        "posix/UTC",
        "../etc/passwd",
        "/etc/passwd",
        "America",
        "\0",
        "é" * 999,
    ],
)
def test_what_is_no_zone_is_refused(given: str) -> None:
    with pytest.raises(InvalidTrigger):
        get_zone(given)


@pytest.mark.slow
def test_the_servers_own_zone_changes_nothing() -> None:
    code = (
        "from horarium.triggers.rrule_trigger import rrule; from datetime import *;"
        "t = rrule('DTSTART;TZID=Europe/Berlin:20260101T083000\\nRRULE:FREQ=DAILY');"
        "print(t.next_after(datetime(2026, 7, 1, tzinfo=UTC)), rrule('FREQ=HOURLY').next_fire(10**15))"
    )
    answers = set()
    for key in ("UTC", "Asia/Kathmandu", "America/St_Johns"):
        environment = {**os.environ, "TZ": key}
        done = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, timeout=PATIENCE, check=True
        )
        answers.add(done.stdout)
    assert answers == {b"2026-07-01 06:30:00+00:00 1000000800000000\n"}


def test_a_zone_is_kept_and_equal_to_itself() -> None:
    assert get_zone("Asia/Tokyo") is get_zone("Asia/Tokyo")
    assert get_zone("Asia/Tokyo") != get_zone("Asia/Seoul")


def test_the_version_of_the_database_is_told() -> None:
    assert tzdata_version()[:2] == "20"
