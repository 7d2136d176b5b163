"""Windows of joins: each instant lies in one, they follow each other, and they begin as the wall clock says."""

from __future__ import annotations

from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horarium.clock import INSTANT_MAX, SECOND, to_datetime, to_instant
from horarium.errors import InvalidTrigger
from horarium.triggers import after, any_of, between, business_day, cron, except_, parse_trigger

ZONES = ["UTC", "Europe/Berlin", "America/Sao_Paulo", "Australia/Lord_Howe", "Asia/Kathmandu", "Pacific/Apia"]
WITHIN = st.sampled_from(["hour", "day", "week", "month"]) | st.integers(1, 10_000_000).map(lambda n: {"seconds": n})
YEAR = 366 * 86_400 * SECOND
INSTANTS = st.integers(YEAR, to_instant(datetime(2100, 1, 1, tzinfo=ZoneInfo("UTC"))))


@given(WITHIN, st.sampled_from(ZONES), INSTANTS)
def test_windows_hold_every_instant_and_follow_each_other(within: str | dict[str, float], zone: str, at: int) -> None:
    join = after("a", within=within, timezone=zone if isinstance(within, str) else "UTC")
    start = join.window_of(at)
    assert start <= at
    assert join.window_of(start) == start
    following = join.next_window(start)
    assert following is not None
    assert start < following
    assert join.window_of(following) == following
    if within != "hour":  # an offset of half an hour may change within one
        assert at < following
        assert join.window_of(following - 1) == start


@given(st.sampled_from(["day", "week", "month"]), st.sampled_from(ZONES), INSTANTS)
def test_calendar_windows_begin_on_their_first_day(within: str, zone: str, at: int) -> None:
    tz = ZoneInfo(zone)
    here = to_datetime(at).astimezone(tz).date()
    first = {"day": here, "week": here - timedelta(days=here.weekday()), "month": here.replace(day=1)}[within]
    began = to_datetime(after("a", within=within, timezone=zone).window_of(at)).astimezone(tz)
    if to_instant(datetime(first.year, first.month, first.day, tzinfo=tz)) >= 0:
        assert began.date() == first or (began - timedelta(days=1)).date() <= first <= began.date()
    assert began.timestamp() * SECOND <= at


def test_its_json_and_its_words() -> None:
    join = after("a", "b", within="week", timezone="Europe/Berlin", deadline=timedelta(hours=6))
    assert parse_trigger(join.spec()) == join
    assert (
        str(join)
        == "once every week, after a and b have completed in it, Europe/Berlin, missed 6 hours after its start"
    )
    quarter = after("a", within=timedelta(minutes=15), outcome="finished")
    assert quarter.spec() == {"type": "after", "jobs": ["a"], "outcome": "finished", "within": {"seconds": 900}}
    assert parse_trigger(quarter.spec()) == quarter
    assert str(quarter) == "once in every 15 minutes, after a has finished in it"
    assert quarter.list_fires(0, INSTANT_MAX, 10) == [], "nothing can be known ahead"


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"jobs": []}, "jobs"),
        ({"jobs": ["a", "a"]}, "jobs[1]"),
        ({"jobs": ["not a name"]}, "jobs[0]"),
        ({"jobs": "a"}, "jobs"),
        ({"jobs": ["a"] * 65}, "jobs"),
        ({"jobs": ["a"], "within": "fortnight"}, "within"),
        ({"jobs": ["a"], "within": {"seconds": 0}}, "within.seconds"),
        ({"jobs": ["a"], "within": {"minutes": 5}}, "within"),
        ({"jobs": ["a"], "within": 5}, "within"),
        ({"jobs": ["a"], "within": {"seconds": 60}, "timezone": "Europe/Berlin"}, "timezone"),
        ({"jobs": ["a"], "outcome": "failed"}, "outcome"),
        ({"jobs": ["a"], "deadline_seconds": 0}, "deadline_seconds"),
        ({"jobs": ["a"], "timezone": "Mars"}, "timezone"),
        ({"jobs": ["a"], "every": 5}, "every"),
    ],
)
def test_what_is_wrong_is_named(fields: dict[str, object], field: str) -> None:
    with pytest.raises(InvalidTrigger) as refused:
        parse_trigger({"type": "after", **fields})
    assert refused.value.field == f"trigger.{field}"


def test_it_stands_alone() -> None:
    join, daily = after("a"), cron("0 3 * * *")
    for combine in (
        lambda: any_of(join, daily), lambda: except_(daily, join), lambda: between(join, "2026-01-01T00:00:00Z"),
        lambda: business_day(join), lambda: except_(join, daily),
    ):  # fmt: skip
        with pytest.raises(InvalidTrigger, match="can't be combined"):
            combine()
    with pytest.raises(InvalidTrigger, match="no fire times of its own") as refused:
        parse_trigger({"type": "any_of", "triggers": [daily.spec(), join.spec()]})
    assert refused.value.field == "trigger.triggers[1]"
