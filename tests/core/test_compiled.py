"""Compiled triggers: kept by weight, shared, and small."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest

from horarium.rules.compiled import BYTES_MAX, CompiledTriggers


def daily(number: int) -> dict[str, Any]:
    return {"type": "cron", "expression": f"{number % 60} {number // 60 % 24} * * *", "timezone": "Europe/Berlin"}


def test_the_same_question_gets_the_same_trigger() -> None:
    kept = CompiledTriggers()
    first = kept.get(daily(1), 0, "job")
    assert kept.get(daily(1), 0, "job") is first
    assert kept.get(daily(1), 5, "job") is not first
    assert len(kept) == 2


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
    kept = CompiledTriggers(500)
    first = kept.get(daily(0), 0, "job")
    for number in range(1, 20):
        assert kept.get(daily(0), 0, "job") is first, "used last, kept longest"
        kept.get(daily(number), 0, "job")
    assert kept.weight <= 500
    assert 3 <= len(kept) <= 8
    large = {"type": "rrule", "rrule": "FREQ=DAILY;BYHOUR=" + ",".join(["9"] * 300)}
    assert kept.get(large, 0, "job").type == "rrule"
    assert kept.weight <= 500
    assert len(kept) == 0


@pytest.mark.slow
def test_a_cron_takes_about_a_kilobyte() -> None:
    kept = CompiledTriggers()
    kept.get(daily(0), 0, "job").next_fire(10**15)
    tracemalloc.start()
    for number in range(1, 501):
        kept.get(daily(number), number, f"job {number}").next_fire(10**15)
    used = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert used / 500 < 1_500
    assert BYTES_MAX // (kept.weight // len(kept)) > 8_000
