"""Rules that cost more than next to nothing are evaluated beside the event loop, one at a time, with rests."""

from __future__ import annotations

import asyncio
import os
from importlib import import_module
from threading import Event, get_ident
from types import SimpleNamespace
from typing import Any

import pytest

from horarium.access.acting import acting
from horarium.access.audit import Origin
from horarium.access.roles import LOCAL
from horarium.errors import TooExpensive
from horarium.operations.bounds import evaluating
from horarium.operations.bounds.evaluating import REST, WORK_SECONDS, Evaluator
from horarium.operations.facade import Operations
from horarium.stores.memory import MemoryStore
from horarium.stores.wakeups import LocalSignal
from horarium.testing import ManualClock
from horarium.testing.values import NOW
from horarium.triggers.budget import FIRST_STEPS, limited, spend
from horarium.triggers.compose import WORDS_STEPS
from horarium.triggers.cron_words import say_cron
from horarium.wire.definitions import read_definition
from horarium.wire.views import job_view

from ..waiting import until

MORE = 10 * FIRST_STEPS


def costs(steps: int) -> int:
    """Spend that many, one by one. The thread that did."""
    for _ in range(steps):
        spend()
    return get_ident()


async def test_what_costs_next_to_nothing_is_answered_at_once() -> None:
    assert await Evaluator()(lambda: costs(FIRST_STEPS), MORE) == get_ident()


async def test_what_costs_more_is_answered_by_a_thread_within_its_limit() -> None:
    evaluate = Evaluator()
    assert await evaluate(lambda: costs(MORE), MORE) != get_ident()
    with pytest.raises(TooExpensive):
        await evaluate(lambda: costs(MORE + 1), MORE)
    assert await evaluate(lambda: costs(MORE), MORE) != get_ident(), "a refusal does not keep the turn"


async def test_an_answer_that_was_cut_short_is_asked_for_again() -> None:
    def listed() -> str:
        try:
            costs(MORE)
        except TooExpensive:
            return "a part"
        return "all"

    assert await Evaluator()(listed, MORE) == "all"


async def test_what_goes_wrong_is_told_as_it_is() -> None:
    def wrong() -> int:
        costs(MORE)
        raise KeyError("rule")

    with pytest.raises(KeyError, match="rule"):
        await Evaluator()(wrong, MORE)


async def test_an_outer_limit_holds_in_the_thread_too() -> None:
    evaluate = Evaluator()
    with limited(MORE + FIRST_STEPS) as all_together:
        await evaluate(lambda: costs(MORE - 1), MORE)
        assert all_together.left <= FIRST_STEPS
        with pytest.raises(TooExpensive):
            await evaluate(lambda: costs(MORE), MORE)


async def test_one_is_evaluated_at_a_time_and_ordinary_ones_do_not_wait() -> None:
    evaluate, at_work, go_on = Evaluator(), list[int](), Event()
    together: list[int] = []

    def slow(number: int) -> int:
        costs(FIRST_STEPS + 1)
        at_work.append(number)
        together.append(len(at_work))
        go_on.wait()
        at_work.remove(number)
        return number

    asked = [asyncio.create_task(evaluate(lambda number=number: slow(number), MORE)) for number in range(3)]  # type: ignore[misc]
    await until(lambda: at_work == [0])
    assert await evaluate(lambda: "ordinary", MORE) == "ordinary"
    go_on.set()
    assert await asyncio.gather(*asked) == [0, 1, 2]
    assert together == [1, 1, 1]


async def test_one_that_was_given_up_ends_and_gives_its_turn_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluating, "WORK_SECONDS", 0.0)
    monkeypatch.setattr(evaluating, "REST", 0.0)
    evaluate, begun, steps = Evaluator(), Event(), 10**12

    def endless() -> int:
        costs(FIRST_STEPS + 1)
        begun.set()
        return costs(steps)

    asked = asyncio.create_task(evaluate(endless, steps))
    await until(begun.is_set)
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    assert await evaluate(lambda: costs(MORE), MORE) != get_ident()


async def test_more_questions_than_can_wait_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluating, "WAITING_MAX", 0)
    with pytest.raises(TooExpensive, match="at once"):
        await Evaluator()(lambda: costs(MORE), MORE)


async def test_a_thread_rests_four_times_as_long_as_it_works(monkeypatch: pytest.MonkeyPatch) -> None:
    worked, rests = [0.0], list[float]()

    def tick() -> float:
        worked[0] += WORK_SECONDS / 4
        return worked[0]

    monkeypatch.setattr(evaluating, "time", SimpleNamespace(thread_time=tick, sleep=rests.append))
    await Evaluator()(lambda: costs(MORE), MORE)
    assert max(rests) <= 2 * REST * WORK_SECONDS
    assert sum(rests) > 0.5 * REST * worked[0]


async def test_a_rule_of_many_parts_is_put_into_words_beside_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[int] = []

    def say(*given: Any) -> str:
        threads.append(get_ident())
        return say_cron(*given)

    monkeypatch.setattr(import_module("horarium.triggers.cron_trigger"), "say_cron", say)
    operations = Operations(MemoryStore(), ManualClock(NOW), LocalSignal(), os.urandom, lambda target: None)
    hours = [{"type": "cron", "expression": f"{minute} 3 * * *"} for minute in range(60)]
    rule = {"type": "except", "trigger": {"type": "cron", "expression": "* * * * *"}, "except": hours}
    fires, words = await operations.jobs.preview(rule, None, 1)
    assert len(fires) == 1
    assert words.count("03:") == 60
    assert len(threads) >= 60
    assert threads.count(get_ident()) * WORDS_STEPS <= FIRST_STEPS
    target = {"type": "queue", "queue": "q"}
    definition = read_definition({"name": "job", "trigger": rule, "target": target})
    threads.clear()
    with acting(Origin(principal=LOCAL, request_id="any")):
        job, _ = await operations.jobs.put_job(definition)
    assert job_view(job).words == words
    assert len(threads) >= 60
    assert threads.count(get_ident()) * WORDS_STEPS <= FIRST_STEPS
    threads.clear()
    assert (await operations.jobs.fires(job.name, 1))[1] == words
    assert threads.count(get_ident()) * WORDS_STEPS <= FIRST_STEPS
