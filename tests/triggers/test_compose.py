"""`any_of`, `except`, `between`: unions, exclusions of every kind, windows, and their bounds."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horarium.clock import DAY, HOUR, MINUTE, SECOND, to_instant
from horarium.errors import InvalidTrigger, TooExpensive
from horarium.triggers import Interval, Trigger, any_of, at, between, cron, every, except_, parse_trigger
from horarium.triggers.compose import EXCLUDED_MAX, MEMBERS_MAX, TREE_MAX
from horarium.triggers.exclusions import DATES_MAX
from tests.searching import tries

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)  # a Friday
DAILY = cron("0 9 * * *")
SATURDAYS = {"type": "cron", "expression": "0 0 * * 6"}


def said(trigger: Trigger, count: int = 3, after: datetime = NOW) -> list[str]:
    return [fire.strftime("%m-%d %H:%M") for fire in trigger.fires(after, count)]


# --- any_of


def test_a_union_is_in_order_and_names_an_instant_once() -> None:
    trigger = any_of(cron("0 9 * * *"), cron("0 9,12 * * MON"), at("2026-11-21T10:00:00Z"))
    assert said(trigger, 5) == ["11-21 09:00", "11-21 10:00", "11-22 09:00", "11-23 09:00", "11-23 12:00"]
    assert parse_trigger(trigger.spec()) == trigger


@given(st.lists(st.integers(1, 50), min_size=1, max_size=5), st.integers(0, 500), st.integers(0, 300))
def test_a_union_holds_exactly_what_its_members_hold(sizes: list[int], start: int, span: int) -> None:
    trigger = any_of(*(Interval(size * SECOND) for size in sizes))
    after, until = start * SECOND, (start + span) * SECOND
    expected = sorted({second for size in sizes for second in range(0, start + span + 1, size) if second > start})
    assert trigger.list_fires(after, until, 1000) == [second * SECOND for second in expected]
    assert trigger.count_fires(after, until, 1000) == len(expected)
    assert trigger.last_fire(after, until) == (expected[-1] * SECOND if expected else None)


def test_anchors_and_seeds_reach_every_member() -> None:
    trigger = any_of(every("5m"), except_(cron("H 3 * * *"), every("1d")), between(every("1h"), end=NOW))
    anchored = trigger.anchored(to_instant(NOW)).seeded("nightly")
    assert anchored.triggers[0] == every("5m").anchored(to_instant(NOW))
    assert parse_trigger(anchored.spec()) == anchored
    assert '"seed"' not in str(trigger.spec())
    assert anchored.spec()["triggers"][1]["trigger"]["seed"] == "nightly"
    assert "anchor" in anchored.spec()["triggers"][1]["except"][0]


def test_members_and_depth_are_bounded() -> None:
    assert any_of(*[DAILY] * MEMBERS_MAX).next_after(NOW) is not None
    with pytest.raises(InvalidTrigger):
        any_of(*[DAILY] * (MEMBERS_MAX + 1))
    with pytest.raises(InvalidTrigger):
        any_of()
    with pytest.raises(InvalidTrigger, match=str(TREE_MAX)):
        any_of(*[any_of(*[DAILY] * MEMBERS_MAX)] * 4)
    deep: Trigger = DAILY
    for _ in range(7):
        deep = any_of(deep)
    with pytest.raises(InvalidTrigger):
        any_of(deep)
    with pytest.raises(InvalidTrigger) as caught:
        any_of(DAILY, "0 9 * * *")  # type: ignore[arg-type]
    assert caught.value.field == "triggers[1]"


# --- except


@pytest.mark.parametrize(
    ("excluded", "expected"),
    [
        ({"dates": ["2026-11-21", "2026-11-23"]}, ["11-22 09:00", "11-24 09:00", "11-25 09:00"]),
        ({"dates": ["2026-11-21/2026-11-30"]}, ["12-01 09:00", "12-02 09:00", "12-03 09:00"]),
        ({"dates": ["11-21", "11-22"]}, ["11-23 09:00", "11-24 09:00", "11-25 09:00"]),
        ({"weekdays": ["sat", "Sunday"]}, ["11-23 09:00", "11-24 09:00", "11-25 09:00"]),
        ({"from": "08:00", "until": "10:00", "weekdays": ["sat"]}, ["11-22 09:00", "11-23 09:00", "11-24 09:00"]),
        ({"from": "09:00:01", "until": "10:00"}, ["11-21 09:00", "11-22 09:00", "11-23 09:00"]),
        ({"from": "08:00", "until": "09:00"}, ["11-21 09:00", "11-22 09:00", "11-23 09:00"]),
        ({"from": "22:00", "until": "09:30", "weekdays": ["fri"]}, ["11-22 09:00", "11-23 09:00", "11-24 09:00"]),
        ({"from": "2026-11-21T00:00:00Z", "until": "2026-11-23T09:00:00Z"}, ["11-23 09:00", "11-24 09:00",
            "11-25 09:00"]),
        ({"until": "2026-11-25T00:00:00Z"}, ["11-25 09:00", "11-26 09:00", "11-27 09:00"]),
        ({"from": "2026-11-22T00:00:00Z"}, ["11-21 09:00"]),
        ({"type": "cron", "expression": "0 9 * * 6"}, ["11-22 09:00", "11-23 09:00", "11-24 09:00"]),
        ({"trigger": SATURDAYS, "for_seconds": 86400}, ["11-22 09:00", "11-23 09:00", "11-24 09:00"]),
        ({"trigger": SATURDAYS, "for_seconds": 32400}, ["11-21 09:00", "11-22 09:00", "11-23 09:00"]),
    ],
)  # fmt: skip
def test_every_kind_of_exclusion(excluded: dict[str, Any], expected: list[str]) -> None:
    trigger = except_(DAILY, excluded)
    assert said(trigger) == expected
    assert parse_trigger(trigger.spec()) == trigger
    assert trigger.words().startswith("every day at 09:00, UTC, except ")


def test_days_and_times_are_read_in_the_zone_of_the_trigger() -> None:
    berlin = except_(cron("30 0 * * *", "Europe/Berlin"), {"dates": ["2026-11-22"]})
    assert said(berlin) == ["11-20 23:30", "11-22 23:30", "11-23 23:30"]
    utc = except_(cron("30 0 * * *", "Europe/Berlin"), {"dates": ["2026-11-22"], "timezone": "UTC"})
    assert said(utc) == ["11-20 23:30", "11-21 23:30", "11-23 23:30"]
    assert berlin.spec()["except"][0]["timezone"] == "Europe/Berlin"


def test_exclusions_add_up() -> None:
    hours = except_(
        cron("0 * * * *"), {"from": "00:00", "until": "06:00"}, {"from": "06:00", "until": "24:00", "weekdays": ["sat"]}
    )
    assert said(hours, 2, NOW + timedelta(hours=12)) == ["11-22 06:00", "11-22 07:00"]


def test_a_window_costs_one_step_however_many_fires_it_hides() -> None:
    trigger = except_(every(1), {"from": "2026-11-20T00:00:00Z", "until": "2126-11-20T00:00:00Z"})
    began = time.process_time()
    assert trigger.next_after(NOW) == datetime(2126, 11, 20, tzinfo=UTC)
    assert trigger.last_fire(to_instant(NOW), to_instant(NOW) + 99 * 365 * DAY) is None
    assert time.process_time() - began < 1


def test_business_hours_by_daily_windows() -> None:
    trigger = except_(
        cron("*/30 * * * *", "Europe/Berlin"), {"from": "17:30", "until": "09:00"}, {"weekdays": ["sat", "sun"]}
    )
    fires = trigger.between(datetime(2026, 11, 23, tzinfo=UTC), datetime(2026, 11, 24, tzinfo=UTC))
    assert len(fires) == 17
    assert (fires[0].hour, fires[-1].hour) == (8, 16)


def test_an_exclusion_of_everything_is_refused_in_bounded_time() -> None:
    for trigger, excluded in (
        (every("1m"), every("1m")),
        (cron("* * * * * *"), cron("* * * * * *")),
        (DAILY, {"weekdays": ["mon", "tue", "wed", "thu", "fri", "sat", "sun"]}),
        (at("2026-12-24T09:00:00Z"), {"dates": ["12-24"]}),
        (every("1h"), {"from": "1970-01-01T00:00:00Z"}),
    ):
        began = time.process_time()
        with pytest.raises(InvalidTrigger, match="nothing is left"):
            except_(trigger, excluded)
        assert time.process_time() - began < 1


def test_a_run_of_excluded_fires_beyond_the_bound_is_too_expensive() -> None:
    hidden = between(every(1), NOW, NOW + timedelta(seconds=EXCLUDED_MAX + 5))
    trigger = except_(every(1), hidden)
    with pytest.raises(TooExpensive, match="in a row"):
        trigger.next_after(NOW - timedelta(seconds=1))
    assert trigger.next_after(NOW + timedelta(seconds=10)) == NOW + timedelta(seconds=EXCLUDED_MAX + 5)


@pytest.mark.parametrize(
    ("excluded", "field"),
    [
        ({}, "except[0]"),
        ({"dates": []}, "except[0].dates"),
        ({"dates": "2026-12-25"}, "except[0].dates"),
        ({"dates": ["2026-02-30"]}, "except[0].dates[0]"),
        ({"dates": ["2026-12-25", "02-30"]}, "except[0].dates[1]"),
        ({"dates": ["2026-12-25/2026-12-24"]}, "except[0].dates[0]"),
        ({"dates": [20261225]}, "except[0].dates[0]"),
        ({"dates": ["2026-12-25"] * (DATES_MAX + 1)}, "except[0].dates"),
        ({"dates": ["2026-12-25"], "timezone": "Mars"}, "except[0].timezone"),
        ({"weekdays": ["satur"]}, "except[0].weekdays[0]"),
        ({"weekdays": []}, "except[0].weekdays"),
        ({"from": "25:00", "until": "26:00"}, "except[0].from"),
        ({"from": "22:00"}, "except[0].until"),
        ({"from": "22:00", "until": "22:00"}, "except[0].until"),
        ({"from": "22:00", "until": "2026-12-25T00:00:00Z"}, "except[0].until"),
        ({"from": "2026-12-26T00:00:00Z", "until": "2026-12-25T00:00:00Z"}, "except[0].until"),
        ({"from": "2026-12-26"}, "except[0].from"),
        ({"trigger": {"type": "cron", "expression": "0 0 * * *"}}, "except[0].for_seconds"),
        ({"trigger": {"type": "cron", "expression": "x"}, "for_seconds": 60}, "except[0].trigger.expression"),
        ({"trigger": {"type": "cron", "expression": "0 0 * * *"}, "for_seconds": 0}, "except[0].for_seconds"),
        ({"type": "cron", "expression": "0 0 * *"}, "except[0].expression"),
        ({"dates": ["12-25"], "weekdays": ["sat"]}, "except[0].weekdays"),
        ("weekends", "except[0]"),
    ],
)
def test_wrong_exclusions_name_their_field(excluded: Any, field: str) -> None:
    with pytest.raises(InvalidTrigger) as caught:
        parse_trigger({"type": "except", "trigger": DAILY.spec(), "except": [excluded]})
    assert caught.value.field == f"trigger.{field}"


def test_the_library_and_json_read_the_same() -> None:
    spec = {
        "type": "except",
        "trigger": DAILY.spec(),
        "except": [{"weekdays": ["sat"]}, DAILY.spec() | {"expression": "0 9 1 * *"}],
    }
    assert parse_trigger(spec) == except_(DAILY, {"weekdays": ["sat"]}, cron("0 9 1 * *"))


@tries(60)
@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 5), st.integers(0, 10**5))
def test_except_agrees_with_taking_away_by_hand(size: int, other: int, length: int, start: int) -> None:
    if all(s % other < length for s in range(0, size * other, size)):
        return
    spec = {"trigger": {"type": "interval", "every_seconds": other}, "for_seconds": length}
    trigger = except_(every(size), spec)
    after = start * SECOND
    expected = [s for s in range(start + 200) if s > start and s % size == 0 and s % other >= length]
    assert trigger.list_fires(after, (start + 199) * SECOND, 1000) == [s * SECOND for s in expected]


# --- between


def test_a_window_includes_its_start_and_excludes_its_end() -> None:
    trigger = between(cron("0 * * * *"), "2026-11-20T14:00:00Z", "2026-11-20T16:00:00Z")
    assert said(trigger, 9) == ["11-20 14:00", "11-20 15:00"]
    assert parse_trigger(trigger.spec()) == trigger
    assert between(DAILY, start=NOW).spec() == {
        "type": "between",
        "trigger": DAILY.spec(),
        "from": "2026-11-20T12:00:00Z",
    }


def test_a_window_counts_by_arithmetic_and_anchors_from_its_start() -> None:
    trigger = between(every(1), NOW, NOW + timedelta(days=3650)).anchored(0)
    assert trigger.count_fires(0, 10**17, 10**12) == 3650 * 86_400 - 1
    assert trigger.last_fire(0, 10**17) == to_instant(NOW) + 3650 * DAY - SECOND
    assert trigger.last_fire(0, to_instant(NOW) - HOUR) is None
    assert trigger.count_fires(to_instant(NOW) + MINUTE, to_instant(NOW), 5) == 0


@pytest.mark.parametrize(("start", "end"), [(NOW, NOW), (NOW, NOW - timedelta(days=1)), (None, None)])
def test_an_empty_window_is_refused(start: datetime | None, end: datetime | None) -> None:
    with pytest.raises(InvalidTrigger):
        between(DAILY, start, end)
