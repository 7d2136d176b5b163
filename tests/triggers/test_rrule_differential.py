"""Thousands of random rules: the engine against the slow model, and against python-dateutil where that is right.

dateutil is wrong, or decides otherwise, in these classes, which the model settles instead:
- BYDAY that mixes numbered and plain days (it intersects them; they are a union);
- WEEKLY with BYSETPOS in the first, partial week (it counts from DTSTART; a set begins with its week);
- BYWEEKNO without a day part (it takes all seven days; here the weekday of DTSTART), and the weeks 52 and 53 or
  negative ones around New Year;
- rules finer than a day in a zone whose clock changes (it keeps the wall clock; here elapsed time).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise, takewhile
from random import Random
from zoneinfo import ZoneInfo

import pytest
from dateutil.rrule import rrulestr

from horarium.clock import to_datetime, to_instant
from horarium.errors import InvalidTrigger
from horarium.triggers.rrule_trigger import rrule
from tests.triggers.rrule_model import elapsed, instants, moved
from tests.triggers.rrule_random import draw_fast, draw_slow, draw_start

CHANGES = (datetime(2026, 3, 7, 3), datetime(2026, 10, 31, 2), datetime(2026, 3, 28, 4), datetime(2026, 10, 24, 7))


def engine(text: str, start: datetime, zone: str, end: datetime) -> list[datetime]:
    """All fire times before `end`; none for a rule that is refused, which must then be impossible."""
    try:
        trigger = rrule(f"DTSTART;TZID={zone}:{start:%Y%m%dT%H%M%S}\nRRULE:{text}")
    except InvalidTrigger:
        return []
    return [to_datetime(fire) for fire in trigger.list_fires(-1, to_instant(end) - 1, 1_000_000)]


@pytest.mark.slow
@pytest.mark.parametrize("zone", ["UTC", "America/New_York", "Australia/Lord_Howe"])
def test_slow_rules_agree_with_the_model(zone: str) -> None:
    random = Random(zone)
    for _ in range(20):
        text, start = draw_slow(random), draw_start(random)
        end = start.replace(tzinfo=UTC) + timedelta(1100)
        expected = [moment for moment in instants(text, start, 1470, zone) if moment < end]
        assert engine(text, start, zone, end) == expected, (text, start)


@pytest.mark.slow
@pytest.mark.parametrize("zone", ["UTC", "America/New_York", "Europe/Berlin"])
def test_fast_rules_agree_with_the_model_where_the_clock_changes(zone: str) -> None:
    random = Random(zone)
    for _ in range(5):
        text, start = draw_fast(random), random.choice(CHANGES) + timedelta(seconds=random.randrange(80_000))
        end = start.replace(tzinfo=ZoneInfo(zone)).astimezone(UTC) + timedelta(hours=30)
        expected = [moment for moment in elapsed(text, start, 32, zone) if moment < end]
        assert engine(text, start, zone, end) == expected, (text, start)


@pytest.mark.slow
@pytest.mark.parametrize("zone", ["Europe/Berlin", "Australia/Lord_Howe", "Pacific/Apia"])
@pytest.mark.parametrize(("gap", "repeat"), [("skip", "both"), ("run_at_transition", "second"), ("shift", "both")])
def test_the_policies_agree_with_the_model(zone: str, gap: str, repeat: str) -> None:
    random = Random(zone + gap)
    start = datetime(2011, 8, 1, 0, 30)
    end = start.replace(tzinfo=UTC) + timedelta(500)
    for _ in range(8):
        hours, minutes = random.sample(range(5), 3), random.sample(range(60), 4)
        text = f"FREQ=DAILY;BYHOUR={_join(hours)};BYMINUTE={_join(minutes)}"
        expected = [moment for moment in instants(text, start, 505, zone, gap, repeat) if moment < end]
        trigger = rrule(f"DTSTART;TZID={zone}:{start:%Y%m%dT%H%M%S}\nRRULE:{text}", gap=gap, repeat=repeat)
        found = trigger.list_fires(-1, to_instant(end) - 1, 100_000)
        assert [to_datetime(fire) for fire in found] == expected, text


@pytest.mark.parametrize("skip", ["BACKWARD", "FORWARD"])
@pytest.mark.parametrize("interval", [1, 2, 5])
def test_moved_days_agree_with_the_model(skip: str, interval: int) -> None:
    start = datetime(2023, 1, 5, 6)
    head = f"DTSTART:{start:%Y%m%dT%H%M%SZ}\nRRULE:FREQ=MONTHLY;INTERVAL={interval};SKIP={skip}"
    for days in ([31], [29, 30, 31], [1, 31], [30, -1]):
        for months in ([], [1, 2, 3, 4], [4, 11]):
            expected = [moment.replace(tzinfo=UTC) for moment in moved(days, start, interval, months, skip)]
            text = f"{head};BYMONTHDAY={_join(days)}" + (f";BYMONTH={_join(months)}" if months else "")
            size = min(len(expected) // 2, 37)
            assert rrule(text).fires(start.replace(tzinfo=UTC) - timedelta(9), size) == expected[:size], text
            counted = rrule(f"{text};COUNT={size}") if size else rrule(text)
            assert counted.fires(start.replace(tzinfo=UTC) - timedelta(9), 99)[:size] == expected[:size], text
            assert not size or len(counted.fires(start.replace(tzinfo=UTC) - timedelta(9), 99)) == size


def _join(numbers: list[int]) -> str:
    return ",".join(map(str, sorted(numbers)))


def _is_disputed(text: str) -> bool:
    mixed = re.search(r"BYDAY=[^;]*\d[A-Z]{2}", text) and re.search(r"BYDAY=([^;]*,)?[A-Z]{2}(,|;|$)", text)
    return bool(mixed or ("WEEKLY" in text and "SETPOS" in text) or "WEEKNO" in text)


@pytest.mark.slow
@pytest.mark.parametrize(("draw", "count", "days"), [(draw_slow, 800, 1500), (draw_fast, 300, 3)])
def test_rules_agree_with_dateutil(draw: Callable[[Random], str], count: int, days: int) -> None:
    random = Random(count)
    for _ in range(count):
        text, start = draw(random), draw_start(random)
        if _is_disputed(text):
            continue
        end = start + timedelta(days)
        found = engine(text, start, "UTC", end.replace(tzinfo=UTC)) if days > 3 else _few(text, start, end)
        if found:
            theirs = takewhile(end.__gt__, rrulestr(f"RRULE:{text}", dtstart=start))
            assert [moment.replace(tzinfo=None) for moment in found[:30]] == list(islice(theirs, 30)), (text, start)


def _few(text: str, start: datetime, end: datetime) -> list[datetime]:
    try:
        trigger = rrule(f"DTSTART:{start:%Y%m%dT%H%M%SZ}\nRRULE:{text}")
    except InvalidTrigger:
        return []
    fires = trigger.list_fires(-1, to_instant(end.replace(tzinfo=UTC)) - 1, 30)
    return [to_datetime(fire) for fire in fires]


def test_count_ends_where_counting_one_by_one_does() -> None:
    random = Random(9)
    for _ in range(250):
        text, start = (draw_slow if random.random() < 0.5 else draw_fast)(random), draw_start(random)
        number, zone = random.randint(1, 60), random.choice(("UTC", "Europe/Berlin", "Australia/Lord_Howe"))
        head = f"DTSTART;TZID={zone}:{start:%Y%m%dT%H%M%S}\nRRULE:{text}"
        try:
            endless, counted = rrule(head), rrule(f"{head};COUNT={number}")
        except InvalidTrigger:
            continue
        many = endless.list_fires(-1, 10**17, number)
        assert counted.list_fires(-1, 10**17, number + 5) == many, (text, start, zone, number)


def test_a_jump_from_afar_lands_where_the_chain_does() -> None:
    random = Random(11)
    for _ in range(120):
        text, start = (draw_slow if random.random() < 0.5 else draw_fast)(random), draw_start(random)
        zone = random.choice(("UTC", "America/New_York", "Pacific/Apia"))
        policies = {
            "gap": random.choice(("shift", "skip", "run_at_transition")),
            "repeat": random.choice(("first", "second", "both")),
        }
        try:
            trigger = rrule(f"DTSTART;TZID={zone}:{start:%Y%m%dT%H%M%S}\nRRULE:{text}", **policies)
        except InvalidTrigger:
            continue
        chain = trigger.list_fires(to_instant(start.replace(tzinfo=UTC)), 10**17, 150)
        for before, fire in pairwise(chain):
            assert before < fire
            assert trigger.next_fire(random.randint(before, fire - 1)) == fire, (text, start, zone, policies)
