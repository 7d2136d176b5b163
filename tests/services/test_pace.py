"""How many runs are claimed ahead of free places."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from horarium.model import Outcome, RunChange, State, Succeeded
from horarium.ports import BATCH_MAX, Assignment, Control
from horarium.services.performing import collector
from horarium.services.performing.performing import AHEAD_MAX, AHEAD_SECONDS, GROWTH, Pace
from horarium.testing.clock import ManualClock
from tests.services.conftest import START, Setting
from tests.services.node import Node, Work, answer
from tests.waiting import until


def _after(pace: Pace, clock: ManualClock, *, count: int, busy: float, idle: float) -> int:
    """What is claimed ahead after so many were performed in so much time, and nothing was in hand for some."""
    pace.begins()
    clock.advance(busy)
    pace.count += count
    pace.pauses()
    clock.advance(idle)
    pace.look()
    return pace.ahead


def test_waiting_for_the_store_is_not_held_against_the_work() -> None:
    clock = ManualClock(START)
    waits, works = Pace(clock), Pace(clock)
    for _ in range(8):
        _after(waits, clock, count=100, busy=0.01, idle=0.09)
        _after(works, clock, count=100, busy=0.1, idle=0.0)
    # 10,000 a second, of which those of the next 0.03 s are claimed; and 1,000.
    assert 290 <= waits.ahead <= 10_000 * AHEAD_SECONDS
    assert 22 <= works.ahead <= 1_000 * AHEAD_SECONDS


def test_work_in_hand_counts_as_time_until_it_is_done() -> None:
    clock = ManualClock(START)
    pace = Pace(clock)
    pace.begins()
    for _ in range(8):
        clock.advance(1.0)
        pace.count += 100
        pace.look()
    assert pace.ahead <= 100 * AHEAD_SECONDS


def test_one_short_run_says_little() -> None:
    clock = ManualClock(START)
    assert _after(Pace(clock), clock, count=1, busy=0.000_02, idle=1.0) <= GROWTH


def test_a_pace_is_forgotten_where_nothing_is_done() -> None:
    clock = ManualClock(START)
    pace = Pace(clock)
    for _ in range(12):
        _after(pace, clock, count=1_000, busy=0.001, idle=0.0)
    assert pace.ahead == AHEAD_MAX
    for _ in range(11):
        _after(pace, clock, count=0, busy=0.0, idle=0.1)
    assert pace.ahead == 0


async def test_claims_grow_beside_a_store_that_is_slow_to_answer(setting: Setting) -> None:
    """Each claim takes a tenth of a second here, each run a ten thousandth: by the wall, a thousand a second."""

    async def perform(assignment: Assignment, control: Control) -> Outcome | None:
        setting.clock.advance(0.000_1)
        return Succeeded()

    for index in range(1_000):
        await setting.add_run(f"run-{index}")
    work = Work(perform)
    node = Node(setting, work, places=100)
    claims = 0
    while len(work.begun) < 1_000:
        setting.clock.advance(0.1)
        await node.claim()
        await until(lambda: node.performing.unoccupied)
        claims += 1
    assert claims <= 5  # of 115 each, as if the store's time were the work's, they would be nine


async def a_blocked_node(setting: Setting, runs: int, ahead: int) -> Node:
    """Ten places, all taken, and `runs` less ten that wait for one."""
    for index in range(runs):
        await setting.add_run(f"run-{index}")
    node = Node(setting, Work(), places=10)
    node.performing.pace.ahead = 2 * ahead  # a look that finds that nothing was performed halves it
    await node.claim()
    await until(lambda: len(node.performing.attempts) == 10)
    node.performing.pace.ahead = 2 * ahead
    return node


async def test_a_small_claim_waits_where_there_is_plenty(setting: Setting) -> None:
    node = await a_blocked_node(setting, 700, ahead=1_000)
    await setting.add_run("more")
    assert node.performing.free == 1_310
    await node.claim()
    assert await setting.state("more") is State.PENDING  # there was room for 310 of 1,000
    node.performing.pace.ahead = 1_400
    await node.claim()
    assert await setting.state("more") is State.PENDING
    while len(node.performing.waiting.line) > 350:
        node.performing.waiting.line.popleft()
    node.performing.pace.ahead = 1_400
    await node.claim()
    assert await setting.state("more") is State.RUNNING
    await node.performing.end(0.0)


async def test_the_next_claim_is_made_while_a_full_one_is_performed(setting: Setting) -> None:
    node = await a_blocked_node(setting, BATCH_MAX, ahead=AHEAD_MAX)
    for index in range(BATCH_MAX):
        await setting.add_run(f"more-{index}")
    await node.claim()
    assert len(node.performing.waiting) == 2 * BATCH_MAX - 10
    await node.performing.end(0.0)


async def test_less_is_claimed_while_outcomes_are_not_written(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collector, "UNWRITTEN_MAX", 10)
    for index in range(50):
        await setting.add_run(f"run-{index}")
    node = Node(setting, answer(Succeeded()), places=60)
    await node.claim()
    await until(lambda: node.collector.waiting == 50 and node.performing.unoccupied)
    node.performing.pace.ahead = 0
    assert node.performing.free == 20
    node.performing.room.clear()
    await node.collector.step(setting.now)
    assert (node.performing.free, node.performing.room.is_set) == (60, True)


async def test_what_ends_together_is_written_at_once(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    settle = setting.store.settle_runs

    async def noted(changes: Sequence[RunChange], now: int) -> list[bool]:
        sizes.append(len(changes))
        return await settle(changes, now)

    monkeypatch.setattr(setting.store, "settle_runs", noted)
    for index in range(900):
        await setting.add_run(f"run-{index}")
    node = Node(setting, answer(Succeeded()), places=900)
    await node.claim()
    while node.collector.waiting < 200:
        await asyncio.sleep(0)
    await node.collector.step(setting.now)
    assert sizes == [900]
