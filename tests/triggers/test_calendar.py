"""Crons as sets: a union or a difference answers as its members do, one by one, in every zone and at every change."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horarium.clock import DAY, SECOND, Instant, to_instant
from horarium.triggers import Cron, cron
from horarium.triggers.calendar import CronSet, Daily, Span
from horarium.triggers.compose import AnyOf, Except
from horarium.triggers.exclusions import DailyWindow, Exclusion, TriggerTimes
from tests.searching import tries

EXPRESSIONS = (
    "* * * * *", "*/7 * * * *", "0-58 1-3 * * *", "30 2 * * *", "15,45 1,2,3 * * *", "0 * * * *", "30 2 * * 0",
    "*/10 2 * * 6-7", "0 3 L * *", "0 0 1 1 *", "20-40 * * 3,10 *", "* 2 * * SUN", "0 1-4 15W * *", "* 1 8-14 * MON#2",
    "0 30 2 * * * 2026-2028", "* 0-23 * 10 *",
)  # fmt: skip
ZONES = ("UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "America/Sao_Paulo", "Africa/Casablanca")
CHANGES = {
    "Europe/Berlin": ("2026-03-29", "2026-10-25"), "America/New_York": ("2026-03-08", "2026-11-01"),
    "Australia/Lord_Howe": ("2026-04-05", "2026-10-04"), "America/Sao_Paulo": ("2018-11-04", "2019-02-17"),
    "Africa/Casablanca": ("2026-02-15", "2026-03-22"), "UTC": ("2026-02-28", "2027-01-01"),
}  # fmt: skip


def one_by_one(included: list[Cron], excluded: list[Exclusion], after: Instant, until: Instant) -> list[Instant]:
    """The oracle: every fire time of every member, those that an exclusion covers left out."""
    fires = sorted({fire for member in included for fire in member.list_fires(after, until, 10**6)})
    return [fire for fire in fires if all(item.end_of(fire) == fire for item in excluded)]


def drawn(chance: random.Random, zone: str) -> Cron:
    return cron(
        chance.choice(EXPRESSIONS),
        zone,
        gap=chance.choice(("shift", "skip", "run_at_transition")),
        repeat=chance.choice(("first", "second", "both")),
    )


def window(chance: random.Random, zone: str) -> DailyWindow:
    start = chance.randrange(0, 86_400, 900)
    return DailyWindow(
        start, (start + chance.randrange(900, 80_000, 900)) % 86_400 or 86_400, chance.randrange(1, 128), zone
    )


@pytest.mark.slow
@tries(80)
@given(st.integers(0, 10**9), st.sampled_from(ZONES), st.integers(0, 1))
def test_a_difference_is_what_is_left_one_by_one(seed: int, zone: str, change: int) -> None:
    chance = random.Random(seed)
    included = [drawn(chance, zone) for _ in range(chance.randint(1, 3))]
    excluded: list[Exclusion] = [TriggerTimes(drawn(chance, zone)) for _ in range(chance.randint(0, 3))]
    excluded += [window(chance, zone) for _ in range(chance.randint(0 if excluded else 1, 2))]
    trigger = Except(AnyOf(tuple(included)), tuple(excluded))
    day = datetime.fromisoformat(CHANGES[zone][change]).replace(tzinfo=ZoneInfo(zone)) - timedelta(days=1)
    after = to_instant(day.astimezone(UTC))
    until = after + 3 * DAY
    assert trigger.list_fires(after, until, 10**6) == one_by_one(included, excluded, after, until)


@tries(30)
@given(st.integers(0, 10**9), st.sampled_from(ZONES))
def test_a_union_is_what_its_members_are(seed: int, zone: str) -> None:
    chance = random.Random(seed)
    crons = [drawn(chance, zone) for _ in range(6)]
    after = to_instant(datetime(2026, chance.randint(1, 12), 1, tzinfo=UTC))
    expected = one_by_one(crons, [], after, after + 2 * DAY)
    assert AnyOf(tuple(crons)).list_fires(after, after + 2 * DAY, 10**6) == expected
    assert CronSet(crons).next_fire(after) == min(fire for one in crons if (fire := one.next_fire(after)) is not None)


def test_a_rare_difference_is_found_across_centuries() -> None:
    zone = "Europe/Berlin"
    leap_days = CronSet([cron("0 0 29 2 *", zone)], [cron("0 0 29 2 * ", zone, day_match="all")])
    assert leap_days.next_fire(0) is None
    late = CronSet([cron("0 0 12 * * *", zone)], [cron("0 0 12 * * * 1970-2199", zone)])
    assert late.next_fire(0) == to_instant(datetime(2200, 1, 1, 11, tzinfo=UTC))


@pytest.mark.parametrize(("month", "first", "expected"), [(2, 0, 8), (2, 6, 8), (3, 4, 9)])
def test_a_daily_window_knows_the_weekdays_of_a_month(month: int, first: int, expected: int) -> None:
    weekends = Daily(Span(0, 86_400), 0b1000001)
    days = weekends.month_days(2026, month, first)
    assert {day for day in range(1, 32) if days >> day & 1} == {
        day for day in range(1, 29 if month == 2 else 32) if (first + day - 1) % 7 in (0, 6)
    }
    assert days.bit_count() == expected


def test_seconds_are_kept_apart() -> None:
    trigger = CronSet([cron("* * * * * *")], [cron("1-59 * * * * *")])
    assert [trigger.next_fire(0), trigger.next_fire(59 * SECOND)] == [60 * SECOND, 60 * SECOND]
