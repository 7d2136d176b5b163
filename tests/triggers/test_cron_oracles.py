"""`cron` against two other libraries and a model that asks every minute.

Where we differ from the oracles, by decision (docs/triggers.md says so too):

- cronsim lets a list or range of all hours (`0-23`) count as fixed times at DST; for us it is as `*`.
- cronsim knows DST rules for 5 fields only; we apply them to 6 and 7 as well. Compared in UTC there.
- cronsim reads `n/s` in the day of week as up to 7, Sunday again; we stop at 6.
- cronsim takes steps larger than a field, we refuse them.
- Of a range of one value, cronsim reads `22-22/1` as `22/1`, and croniter `11-11` as every value; we don't.
  The random ranges have two values or more.
- croniter joins `*/2` in a day field with OR, we (and Debian, and cronsim) with AND; it puts seconds last and fires
  fixed times twice in a fold. Compared on 5 fields, in UTC, without steps in the day fields.
"""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

import pytest
from croniter import croniter
from cronsim import CronSim

from horarium.clock import to_instant
from horarium.errors import InvalidTrigger
from horarium.triggers import cron

pytestmark = pytest.mark.slow

SPANS = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 6))
BERLIN, NEW_YORK, LORD_HOWE = "Europe/Berlin", "America/New_York", "Australia/Lord_Howe"


def random_field(rng: random.Random, low: int, high: int, *, steps: bool = True) -> str:
    first = rng.randint(low, high - 1)
    last = rng.randint(first + 1, high)
    shapes = ["*", str(first), f"{first}-{last}", ",".join(str(rng.randint(low, high)) for _ in range(3))]
    if steps:
        shapes += [f"*/{rng.randint(2, max(2, (high - low) // 2))}", f"{first}-{last}/{rng.randint(1, 3)}"]
    return rng.choice(shapes)


def random_expression(rng: random.Random, *, day_steps: bool = True) -> str:
    fields = [random_field(rng, *span, steps=day_steps or n not in (2, 4)) for n, span in enumerate(SPANS)]
    for index, odds in ((2, 0.5), (3, 0.6), (4, 0.5)):
        fields[index] = "*" if rng.random() < odds else fields[index]
    if rng.random() < 0.1:
        fields[2] = rng.choice(["L", "LW"])
    if rng.random() < 0.1:
        fields[4] = rng.choice(["5L", "MON#2", "0#5", "SUN", "MON-FRI"])
    return " ".join(fields)


def random_moment(rng: random.Random) -> datetime:
    return datetime(2024, 1, 1, tzinfo=UTC) + timedelta(seconds=rng.randint(0, 4 * 366 * 86_400))


def all_hours_listed(expression: str) -> bool:
    trigger = cron(expression)
    minute, hour = expression.split()[:2]
    return trigger.follows_elapsed_time and not (minute.startswith("*") or hour.startswith("*"))


def check_cronsim(seed: int, zone: str, rounds: int) -> int:
    rng, compared = random.Random(seed), 0
    for _ in range(rounds):
        expression, start = random_expression(rng), random_moment(rng)
        try:
            theirs = CronSim(expression, start.astimezone(ZoneInfo(zone)))
        except Exception:
            with pytest.raises(InvalidTrigger):
                cron(expression)
            continue
        try:
            trigger = cron(expression, zone)
        except InvalidTrigger:
            with pytest.raises(StopIteration):
                next(theirs)
            continue
        if all_hours_listed(expression):
            continue
        for ours in trigger.fires(start, 4):
            assert next(theirs).astimezone(UTC) == ours, (expression, zone, start)
            compared += 1
    return compared


@pytest.mark.parametrize("zone", ["UTC", BERLIN, NEW_YORK, LORD_HOWE])
def test_cronsim_agrees(zone: str) -> None:
    assert check_cronsim(1, zone, 120) > 300


@pytest.mark.parametrize("zone", ["UTC", BERLIN, NEW_YORK, "Asia/Kolkata"])
def test_cronsim_agrees_on_many(zone: str) -> None:
    assert check_cronsim(2, zone, 700) > 2000


def test_cronsim_agrees_with_six_fields_in_utc() -> None:
    rng = random.Random(3)
    for _ in range(200):
        expression = f"{random_field(rng, 0, 59)} {random_expression(rng)}"
        start = random_moment(rng)
        try:
            theirs, trigger = CronSim(expression, start), cron(expression)
        except Exception:
            continue
        assert [next(theirs) for _ in range(3)] == trigger.fires(start, 3), expression


def test_croniter_agrees_on_plain_expressions_in_utc() -> None:
    rng, compared = random.Random(4), 0
    for _ in range(400):
        expression, start = random_expression(rng, day_steps=False), random_moment(rng)
        if "L" in expression or "#" in expression:
            continue
        try:
            theirs = croniter(expression, start)
            expected = [theirs.get_next(datetime) for _ in range(3)]
        except Exception:
            continue
        assert cron(expression).fires(start, 3) == expected, expression
        compared += 3
    assert compared > 500


def model_day(expression: str, wall: datetime) -> bool:
    """Every day on its own, by the words of the manual: nothing shared with the code under test."""
    parts, values = expression.split()[2:], (wall.day, wall.month, wall.isoweekday() % 7)
    met = [model_field(part, value, *span) for part, value, span in zip(parts, values, SPANS[2:], strict=True)]
    either = not parts[0].startswith("*") and not parts[2].startswith("*")
    day = (met[0] or met[2]) if either else (met[0] and met[2])
    return met[1] and day


def model_minute(expression: str, wall: datetime) -> bool:
    """The same of each minute of a day."""
    minute, hour, *_ = expression.split()
    return model_field(minute, wall.minute, *SPANS[0]) and model_field(hour, wall.hour, *SPANS[1])


@lru_cache(maxsize=4096)
def model_field(part: str, value: int, low: int, high: int) -> bool:
    for term in part.split(","):
        base, _, step = term.partition("/")
        first, dash, last = (str(low), "-", str(high)) if base == "*" else base.partition("-")
        end = int(last) if dash else int(first)
        if int(first) <= value <= end and (value - int(first)) % int(step or 1) == 0:
            return True
    return False


def check_model(seed: int, rounds: int, spread: timedelta) -> None:
    rng = random.Random(seed)
    for _ in range(rounds):
        expression = random_expression(rng)
        if any(letter in expression for letter in "L#SM"):
            continue
        start = datetime(2027, 12, 20, tzinfo=UTC)
        days = [day for n in range(spread.days) if model_day(expression, day := start + timedelta(n))]
        minutes = [day + timedelta(minutes=n) for day in days for n in range(24 * 60)]
        expected = [to_instant(moment) for moment in minutes if model_minute(expression, moment)]
        try:
            trigger = cron(expression)
        except InvalidTrigger:
            assert not expected
            continue
        found = trigger.list_fires(to_instant(start) - 1, to_instant(start + spread) - 1, 10**6)
        assert found == expected, expression


def test_the_model_by_minute_agrees_over_weeks() -> None:
    check_model(5, 30, timedelta(days=8))


def test_the_model_by_minute_agrees_over_a_year() -> None:
    check_model(6, 3, timedelta(days=366))
