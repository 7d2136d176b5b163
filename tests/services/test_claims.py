"""Long-polled claims: who waits, who is served, and what becomes of those who leave."""

from __future__ import annotations

import asyncio

import pytest

from horarium.clock import SECOND
from horarium.model import State
from horarium.services import claims as module
from horarium.services.claims import Claims
from tests.services.conftest import START, Setting, until


@pytest.fixture
def claims(setting: Setting) -> Claims:
    return Claims(setting.store, setting.clock, setting.signal)


async def test_what_is_due_is_handed_out_at_once(setting: Setting, claims: Claims) -> None:
    await setting.add_run()
    claimed = await claims.claim(["pull/q"], 5, "w")
    assert [run.id for run in claimed.runs] == ["run"]


async def test_nothing_due_and_no_wait_is_an_empty_answer(claims: Claims) -> None:
    assert (await claims.claim(["pull/q"], 5, "w")).runs == ()


async def test_a_waiter_gets_what_becomes_due(setting: Setting, claims: Claims) -> None:
    waiting = asyncio.create_task(claims.claim(["pull/q"], 5, "w", 60))
    await until(lambda: claims.waiting == 1)
    await setting.add_run(due_at=START + SECOND)
    assert await claims.step(setting.now) == START + SECOND
    setting.clock.advance(1)
    await claims.step(setting.now)
    assert [run.id for run in (await waiting).runs] == ["run"]


async def test_waiters_of_one_line_are_served_in_order(setting: Setting, claims: Claims) -> None:
    waiting = [asyncio.create_task(claims.claim(["pull/q"], 1, f"w{index}", 60)) for index in range(3)]
    await until(lambda: claims.waiting == 3)
    for index in range(2):
        await setting.add_run(f"run-{index}")
    await claims.step(setting.now)
    answers = await asyncio.gather(*waiting[:2])
    assert [answer.runs[0].worker for answer in answers] == ["w0", "w1"]
    assert claims.waiting == 1
    waiting[2].cancel()
    await asyncio.wait([waiting[2]])


async def test_a_line_that_was_served_makes_way_for_others(setting: Setting, claims: Claims) -> None:
    greedy = [asyncio.create_task(claims.claim(["pull/q"], 1, "greedy", 60)) for _ in range(2)]
    await until(lambda: claims.waiting == 2)
    modest = asyncio.create_task(claims.claim(["pull/q", "pull/other"], 1, "modest", 60))
    await until(lambda: claims.waiting == 3)
    for index in range(2):
        await setting.add_run(f"run-{index}")
        setting.signal.publish("queue:pull/q")
        await claims.step(setting.now)
    assert (await modest).runs[0].worker == "modest"
    claims.close()
    await asyncio.gather(*greedy)


async def test_a_waiter_that_left_costs_nothing(setting: Setting, claims: Claims) -> None:
    waiting = asyncio.create_task(claims.claim(["pull/q"], 1, "w", 60))
    await until(lambda: claims.waiting == 1)
    waiting.cancel()
    await asyncio.wait([waiting])
    await setting.add_run()
    await claims.step(setting.now)
    assert (claims.waiting, await setting.state()) == (0, State.PENDING)


async def test_what_was_claimed_for_one_who_leaves_is_given_back(setting: Setting, claims: Claims) -> None:
    waiting = asyncio.create_task(claims.claim(["pull/q"], 1, "w", 60))
    await until(lambda: claims.waiting == 1)
    await setting.add_run()
    await claims.step(setting.now)
    waiting.cancel()
    await asyncio.wait([waiting])
    run = await setting.run()
    assert (run.state, run.attempt, run.token) == (State.PENDING, 0, 1)


async def test_closing_sends_everybody_home_and_lets_nobody_wait(claims: Claims) -> None:
    waiting = asyncio.create_task(claims.claim(["pull/q"], 1, "w", 60))
    await until(lambda: claims.waiting == 1)
    claims.close()
    assert (await claims.claim(["pull/q"], 1, "late", 60)).runs == ()
    assert (await waiting).runs == ()


async def test_beyond_the_limit_of_waiters_nobody_waits(claims: Claims, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WAITERS_MAX", 1)
    waiting = asyncio.create_task(claims.claim(["pull/q"], 1, "w", 60))
    await until(lambda: claims.waiting == 1)
    assert (await claims.claim(["pull/q"], 1, "late", 60)).runs == ()
    claims.close()
    await waiting
