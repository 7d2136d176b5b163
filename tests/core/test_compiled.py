"""Compiled triggers: kept by weight, shared, and small."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from horarium.rules.compiled import BYTES_MAX, CompiledTriggers
from horarium.triggers.interval import Interval


def daily(number: int) -> dict[str, Any]:
    return {"type": "cron", "expression": f"{number % 60} {number // 60 % 24} * * *", "timezone": "Europe/Berlin"}


def test_the_same_question_gets_the_same_trigger() -> None:
    kept = CompiledTriggers()
    first = kept.get(daily(1), 0, "job")
    assert kept.get(daily(1), 0, "job") is first
    assert kept.get(daily(1), 5, "job") is not first
    assert len(kept) == 2


def test_the_same_form_under_another_anchor_or_seed_is_another_trigger() -> None:
    kept, form = CompiledTriggers(), {"type": "interval", "every_seconds": 60}
    first = kept.get(form, 0, "job")
    assert kept.get(form, 0, "job") is first
    assert kept.get(form, 5, "job").next_fire(0) == 60_000_005
    assert kept.get(form, 0, "other") is not first
    assert kept.get(form, 0, "job") is first
    kept.know(Interval(30_000_000), spread := {"type": "interval", "every_seconds": 30}, 7, "job")
    assert kept.get(spread, 7, "job").next_fire(0) == 30_000_007
    assert kept.get(dict(form), 0, "job") is first


def test_what_a_trigger_says_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = CompiledTriggers()
    trigger = kept.get(daily(1), 0, "job")
    said = trigger.words()
    asked: list[object] = []

    def words(self: object) -> str:
        asked.append(self)
        return said

    monkeypatch.setattr(type(trigger), "words", words)
    assert [kept.words(daily(1), 0, "job") for _ in range(2)] == [said, said]
    assert asked == [trigger]
    assert kept.words(daily(2), 0, "job") == said
    assert len(asked) == 2


def test_the_bound_is_one_of_weight_and_the_oldest_goes_first() -> None:
    room = 6 * CompiledTriggers.weigh(msgspec.json.encode(daily(10)))
    kept = CompiledTriggers(room)
    first = kept.get(daily(0), 0, "job")
    for number in range(1, 20):
        assert kept.get(daily(0), 0, "job") is first, "used last, kept longest"
        kept.get(daily(number), 0, "job")
    assert kept.weight <= room
    assert 3 <= len(kept) <= 8
    large = {"type": "rrule", "rrule": "FREQ=DAILY;BYHOUR=" + ",".join(["9"] * 390)}
    assert kept.get(large, 0, "job").type == "rrule"
    assert kept.weight <= room
    assert len(kept) == 0


def test_the_trigger_of_a_deleted_job_is_forgotten() -> None:
    kept = CompiledTriggers()
    first = kept.get(daily(1), 0, "job")
    kept.get(daily(1), 0, "another")
    weight = kept.weight
    kept.forget(daily(1), 0, "job")
    kept.forget(daily(1), 0, "job")
    assert (len(kept), kept.weight) == (1, weight // 2)
    assert kept.get(daily(1), 0, "job") is not first


def a_tree(number: int, member: Callable[[int], dict[str, Any]]) -> dict[str, Any]:
    groups = [[member(number * 240 + group * 60 + place) for place in range(60)] for group in range(4)]
    return {"type": "any_of", "triggers": [{"type": "any_of", "triggers": group} for group in groups]}


def an_interval(number: int) -> dict[str, Any]:
    return {"type": "interval", "every_seconds": 600 + number}


def a_rule(number: int) -> dict[str, Any]:
    return {"type": "rrule", "rrule": f"FREQ=MONTHLY;BYDAY=MO,TU;BYSETPOS=-1;BYHOUR={number % 24}"}


def a_phrase(number: int) -> dict[str, Any]:
    return {"type": "phrase", "text": f"every weekday at 9:{number % 60:02}"}


@pytest.mark.parametrize(
    ("count", "made"),
    [
        (25, daily),
        (100, an_interval),
        (20, a_rule),
        (20, a_phrase),
        pytest.param(1, lambda number: a_tree(number, daily), marks=pytest.mark.slow),
        (1, lambda number: a_tree(number, an_interval)),
    ],
    ids=["crons", "intervals", "rules", "phrases", "trees of crons", "trees of intervals"],
)
def test_the_weight_is_what_it_takes(count: int, made: Callable[[int], dict[str, Any]]) -> None:
    kept = CompiledTriggers(1 << 40)

    def keep(number: int) -> None:
        spec, anchor = made(number), 10**15 + number
        kept.get(spec, anchor, f"job {number}").list_fires(anchor, anchor + 10**15, 3)
        kept.words(spec, anchor, f"job {number}")

    def used_by(numbers: range) -> tuple[int, int]:
        before = kept.weight
        gc.collect()
        tracemalloc.start()
        for number in numbers:
            keep(number)
        gc.collect()
        used = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        return used, kept.weight - before

    keep(10_000)
    # What grows elsewhere meanwhile (a table of the interpreter, a cache of zones) is no part of any of them.
    used, weight = min(used_by(range(start, start + count)) for start in (0, 1_000, 2_000))
    assert 0.75 < weight / used < 4, used / count
    assert BYTES_MAX // CompiledTriggers.weigh(msgspec.json.encode(daily(1))) > 5_000
