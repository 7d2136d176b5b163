"""How many runs are claimed ahead of free places."""

from __future__ import annotations

from horarium.model import Outcome, Succeeded
from horarium.ports import BATCH_MAX, Assignment, Control
from horarium.services.performing import AHEAD_SECONDS, GROWTH, Pace
from horarium.testing.clock import ManualClock
from tests.services.conftest import START, Setting
from tests.services.node import Node, Work
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
    assert _after(Pace(clock), clock, count=1, busy=0.000_02, idle=1.0) <= GROWTH // 2


def test_a_pace_is_forgotten_where_nothing_is_done() -> None:
    clock = ManualClock(START)
    pace = Pace(clock)
    for _ in range(12):
        _after(pace, clock, count=1_000, busy=0.001, idle=0.0)
    assert pace.ahead > BATCH_MAX - 3
    for _ in range(10):
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
