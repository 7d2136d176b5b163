"""What a rolled trigger costs beside the one inside it: at most ten times as much, by calls and by processor time."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from horarium.clock import Instant, to_instant
from horarium.triggers import cron
from horarium.triggers.base import Trigger
from horarium.triggers.business import business_day
from horarium.triggers.business_days import Content, Convention
from horarium.triggers.cron_trigger import Cron

BAR = 10
CALLS_MAX = 4
CALLS = 300
CALENDAR = Content(
    dates=("2027-03-26", "2027-03-29", "2028-04-14", "2028-04-17", "2029-03-30", "2029-04-02"),
    rules=tuple(f"FREQ=YEARLY;BYMONTH={month};BYMONTHDAY={day}" for month, day in ((1, 1), (5, 1), (12, 25), (12, 26))),
)
"""Days at which banks rest."""
BEGIN, END = (to_instant(datetime(year, 1, 1, tzinfo=UTC)) for year in (2026, 2030))
RULES = ("0 9 * * *", "0 18 L * *", "0 9 1,15 * *", "59 23 * * 5", "*/5 * * * *", "0 0 * * *", "30 2 * * *")
ZONES = ("UTC", "Europe/Berlin", "America/New_York")


def in_turn(trigger: Trigger) -> None:
    """From each fire time to the next."""
    after = BEGIN
    for _ in range(CALLS):
        found = trigger.next_fire(after)
        after = BEGIN if found is None or found >= END else found


def at_random(trigger: Trigger) -> None:
    """At any instant: each time on a day that nothing is known of yet."""
    chance = random.Random(5)
    for _ in range(CALLS):
        trigger.next_fire(chance.randrange(BEGIN, END))


ASKED = pytest.mark.parametrize("asked", [in_turn, at_random])
ROLLED = [
    (rule, zone, convention, offset)
    for rule in RULES
    for zone in ZONES
    for convention in Convention
    for offset in (0, -1, 5)
]


def rolled(rule: str, zone: str, convention: Convention, offset: int) -> Trigger:
    return business_day(cron(rule, zone), "c", convention=convention, offset=offset, content=CALENDAR)


@pytest.mark.slow
@ASKED
def test_a_rolled_trigger_asks_the_one_inside_a_few_times(
    asked: Callable[[Trigger], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    honest, calls = Cron.next_fire, 0

    def counted(self: Cron, after: Instant) -> Instant | None:
        nonlocal calls
        calls += 1
        return honest(self, after)

    monkeypatch.setattr(Cron, "next_fire", counted)
    means = {}
    for each in ROLLED[::2]:  # every rule, zone, convention and offset is among them
        calls = 0
        asked(rolled(*each))
        means[each] = calls / CALLS
    worst = max(means, key=means.__getitem__)
    assert means[worst] < CALLS_MAX, worst


@pytest.mark.slow
@pytest.mark.proof
@pytest.mark.parametrize("offset", [366, -366])
def test_an_offset_of_a_year_costs_as_one_of_a_day(offset: int) -> None:
    assert ratio(at_random, *(rolled("0 9 * * *", "UTC", Convention.FOLLOWING, each) for each in (offset, 1))) < 3


@pytest.mark.slow
@pytest.mark.proof
@ASKED
def test_a_rolled_trigger_takes_at_most_ten_times_as_long(asked: Callable[[Trigger], None]) -> None:
    ratios = {each: ratio(asked, rolled(*each), cron(*each[:2])) for each in ROLLED}
    worst = max(ratios, key=ratios.__getitem__)
    print(f"{asked.__name__}: {ratios[worst]:.1f} times at most, by {worst}")
    assert ratios[worst] <= BAR, worst


def ratio(asked: Callable[[Trigger], None], one: Trigger, other: Trigger) -> float:
    """Processor time of one beside the other's: the least of some attempts each, in turn, as a busy machine slows what
    runs on it for seconds at a time."""
    took: tuple[list[float], list[float]] = ([], [])
    for _ in range(9):  # of three, all may fall into one bad moment of the machine
        for trigger, found in zip((one, other), took, strict=True):
            began = time.process_time()
            asked(trigger)
            found.append(time.process_time() - began)
    return min(took[0]) / min(took[1])
