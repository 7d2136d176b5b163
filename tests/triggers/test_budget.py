"""What an evaluation may cost: rules made to be expensive are cheap, or refused, within a bound of steps."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

import pytest

from horarium.clock import INSTANT_MAX, Instant, to_instant
from horarium.errors import InvalidTrigger, TooExpensive
from horarium.triggers import Trigger, any_of, cron, every, except_, parse_trigger
from horarium.triggers.base import Trigger as BaseTrigger
from horarium.triggers.budget import FIRE_STEPS, PLAN_STEPS, Budget, bounded, limited, spend

NOW = to_instant(datetime(2026, 11, 20, 12, tzinfo=UTC))
ZONES = ("UTC", "Europe/Berlin", "Australia/Lord_Howe")


def times(expression: str, zone: str = "UTC") -> dict[str, Any]:
    return {"type": "cron", "expression": expression, "timezone": zone}


def less(trigger: dict[str, Any], *excluded: dict[str, Any]) -> dict[str, Any]:
    return {"type": "except", "trigger": trigger, "except": list(excluded)}


def hourly_by_taking_away(zone: str) -> dict[str, Any]:
    return less(times("* * * * * *", zone), times("1-59 * * * * *", zone), times("0 1-59 * * * *", zone))


def sixty_taken_away(zone: str) -> dict[str, Any]:
    lone = [times(f"{second} * * * * *", zone) for second in range(59)]
    return less(times("* * * * * *", zone), *lone, times("59 1-59 * * * *", zone))


def sixty_times_three(zone: str) -> dict[str, Any]:
    triples = [
        [times(f"{n} * * * * *", zone), times(f"{n} {n} * * * *", zone), times(f"* {n} {n % 24} * * *", zone)]
        for n in range(60)
    ]
    return {"type": "any_of", "triggers": [{"type": "any_of", "triggers": three} for three in triples]}


CHEAP = {"by two": hourly_by_taking_away, "by sixty": sixty_taken_away, "of sixty times three": sixty_times_three}


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("made", CHEAP.values(), ids=CHEAP)
def test_crons_joined_or_taken_away_in_great_number_cost_a_few_steps_a_fire(made: Any, zone: str) -> None:
    with limited(PLAN_STEPS) as defining:
        trigger = parse_trigger(made(zone))
    with limited(10 * FIRE_STEPS) as listing:
        assert len(trigger.list_fires(NOW, INSTANT_MAX, 1000)) == 1000
    assert defining.spent < 1_000
    assert listing.spent < 5_000


@pytest.mark.parametrize("zone", ZONES)
def test_crons_of_which_nothing_is_left_are_refused_in_few_steps(zone: str) -> None:
    for spec in (
        less(times("* * * * * *", zone), times("0-29 * * * * *", zone), times("30-59 * * * * *", zone)),
        less(times("0 12 * * *", zone), {"weekdays": ["mon", "tue", "wed", "thu", "fri", "sat", "sun"]}),
        less(times("*/5 * * * *", zone), {"from": "06:00", "until": "22:00"}, {"from": "22:00", "until": "06:00"}),
    ):
        with limited(3 * PLAN_STEPS) as budget, pytest.raises(InvalidTrigger, match="nothing is left"):
            parse_trigger(spec)
        assert budget.spent < 2 * PLAN_STEPS


NO_SETS: list[dict[str, Any]] = [
    less({"type": "interval", "every_seconds": 1}, *(times(f"{n} * * * * *") for n in range(59)),
        times("59 1-59 * * * *")),
    less(times("* * * * * *", "Europe/Paris"), *(times(f"{n} * * * * *") for n in range(59)), times("59 1-59 * * * *")),
    less(times("* * * * * *"), {"type": "rrule", "rrule": "FREQ=MINUTELY;BYSECOND=" + ",".join(map(str, range(59)))},
        {"type": "rrule", "rrule": "FREQ=HOURLY;BYSECOND=59;BYMINUTE=" + ",".join(map(str, range(59)))}),
    {"type": "rrule", "rrule": "DTSTART:20260101T000000Z\nRRULE:FREQ=SECONDLY\nEXRULE:FREQ=MINUTELY;BYSECOND="
        + ",".join(map(str, range(59))) + "\nEXRULE:FREQ=HOURLY;BYSECOND=59;BYMINUTE=" + ",".join(map(str, range(60)))},
]  # fmt: skip


@pytest.mark.parametrize("spec", NO_SETS, ids=("interval", "zones", "rules", "exrules"))
def test_what_arithmetic_cannot_shorten_ends_at_the_budget(spec: dict[str, Any]) -> None:
    began = time.process_time()
    with limited(PLAN_STEPS) as budget, pytest.raises(TooExpensive) as caught:
        parse_trigger(spec).next_fire(NOW)
    assert caught.value.code == "too_expensive"
    assert budget.spent < PLAN_STEPS + 100
    assert time.process_time() - began < 1


def test_a_hidden_stretch_costs_more_than_a_budget_and_not_a_wrong_answer() -> None:
    """What is excluded one by one for longer than anybody looks is an error, never `no further fire time`."""
    trigger = except_(every(1), {"type": "rrule", "rrule": "FREQ=SECONDLY;BYMONTH=1,2,3,4,5,6,7,8,9,10,11"})
    with pytest.raises(TooExpensive):
        trigger.next_fire(to_instant(datetime(2026, 3, 1, tzinfo=UTC)))


def test_an_inner_budget_spends_from_the_outer_one() -> None:
    with limited(100) as outer:
        with limited(1_000) as inner:
            assert inner.given == 100
            spend(30)
        assert outer.left == 70
        with bounded(5):
            spend(60)
        with pytest.raises(TooExpensive), limited(50):
            spend(11)
        assert outer.left < 0


def test_without_a_budget_nothing_is_counted_and_a_bound_of_last_resort_holds() -> None:
    spend(10**9)
    with pytest.raises(TooExpensive), bounded(5):
        spend(6)
    with pytest.raises(TooExpensive):
        Budget(2).spend(3)


class _Echo(BaseTrigger):
    """A trigger of another package that holds one of ours."""

    type = "echo"

    def __init__(self, inner: Trigger) -> None:
        self.inner = inner

    def next_fire(self, after: Instant) -> Instant | None:
        return self.inner.next_fire(after)

    def spec(self) -> dict[str, Any]:
        return {"type": "echo"}

    def words(self) -> str:
        return "echo"


def test_a_budget_holds_within_triggers_of_other_packages() -> None:
    inner = any_of(*(every(n) for n in range(1, 60)))
    with pytest.raises(TooExpensive), limited(500):
        _Echo(inner).list_fires(NOW, INSTANT_MAX, 1000)


def test_a_union_lists_by_merging() -> None:
    members = [every(n) for n in (2, 3, 5)] + [cron("*/7 * * * * *"), cron("30 * * * * *")]
    trigger = any_of(*members)
    one_by_one: list[int] = []
    fire = trigger.next_fire(NOW)
    while len(one_by_one) < 200:
        assert fire is not None
        one_by_one.append(fire)
        fire = trigger.next_fire(fire)
    assert trigger.list_fires(NOW, INSTANT_MAX, 200) == one_by_one
    assert trigger.list_fires(NOW, one_by_one[9], 200) == one_by_one[:10]
    assert trigger.list_fires(NOW, INSTANT_MAX, 0) == []
