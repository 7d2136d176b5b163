"""A wall clock that jumps: nothing is deleted by a time that may be wrong, and leases are as though it had not."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from horarium.clock import SECOND
from horarium.model import Outcome, RunChange, State, Succeeded
from horarium.ports import Assignment, Claimed, Control
from horarium.services.leases.attempt import Stop
from horarium.services.loop.believed import STANDS_SECONDS, ClockWatch
from horarium.services.performing.waiting import Ready
from horarium.services.upkeep.pruner import Pruner
from horarium.testing.values import NOW, a_run
from tests.services.conftest import Setting, a_rescuer
from tests.services.node import Node, Work, answer
from tests.waiting import until

DAY_SECONDS = 86_400
YEAR_SECONDS = 365 * DAY_SECONDS
JUMPS = [(3_600,), (-3_600,), (90, YEAR_SECONDS), (-3_000, 3_000), (5, -5, 3_600, -600), (3_650 * DAY_SECONDS,)]


async def finished(setting: Setting, seconds: int) -> None:
    """A run that is done, and is kept for so long."""
    run = await setting.add_run()
    (claimed,) = (await setting.store.claim_runs(["pull/q"], 1, "w", setting.now, setting.now, setting.steady)).runs
    done = replace(
        claimed, state=State.COMPLETED, lease_expires_at=None, finished_at=setting.now,
        prune_at=setting.now + seconds * SECOND,
    )  # fmt: skip
    assert await setting.store.settle_runs([RunChange(done, claimed.token, claimed.state)], run.due_at) == [True]


async def kept(setting: Setting) -> bool:
    return (await setting.store.get_runs(["run"]))[0] is not None


def test_a_step_is_what_the_monotonic_clock_does_not_know_of() -> None:
    setting = Setting()
    watch = ClockWatch(setting.clock)
    assert watch.look(setting.now) == 0
    setting.clock.advance(100)
    assert watch.look(setting.now) == 0
    setting.clock.step(100)
    assert watch.look(setting.now) == 100 * SECOND
    assert not watch.stood_for(10)
    setting.clock.step(-100)
    assert watch.look(setting.now) == -100 * SECOND
    assert watch.stood_for(10)


async def test_a_clock_that_is_wrong_for_a_minute_makes_nothing_be_forgotten(setting: Setting) -> None:
    await finished(setting, DAY_SECONDS)
    pruner = Pruner(setting.store, setting.telemetry, setting.clock)
    await pruner.step(setting.now)
    setting.clock.step(8 * DAY_SECONDS)
    for _ in range(60):
        setting.clock.advance(1)
        await pruner.step(setting.now)
    setting.clock.step(-8 * DAY_SECONDS)
    for _ in range(60):
        setting.clock.advance(1)
        await pruner.step(setting.now)
    assert await kept(setting)


async def test_a_step_that_stands_for_an_hour_counts(setting: Setting) -> None:
    await finished(setting, DAY_SECONDS)
    pruner = Pruner(setting.store, setting.telemetry, setting.clock)
    await pruner.step(setting.now)
    setting.clock.step(8 * DAY_SECONDS)
    await pruner.step(setting.now)
    setting.clock.advance(STANDS_SECONDS - 1)
    await pruner.step(setting.now)
    assert await kept(setting)
    setting.clock.advance(1)
    await pruner.step(setting.now)
    assert not await kept(setting)


@pytest.mark.parametrize("jumps", JUMPS)
async def test_a_lease_ends_when_its_time_has_passed_whatever_the_wall_clock_does(
    setting: Setting, jumps: tuple[int, ...]
) -> None:
    rescuer = a_rescuer(setting)
    await rescuer.step(setting.now)
    await setting.add_run(lease_seconds=30)
    for jump in jumps:
        setting.clock.step(jump)
    if sum(jumps) < 0:
        setting.clock.step(-sum(jumps))
    await setting.store.claim_runs(["pull/q"], 1, "w", setting.now, setting.now, setting.steady)
    for jump in jumps:
        setting.clock.step(jump)
        await rescuer.step(setting.now)
    setting.clock.advance(29)
    for jump in jumps:
        await rescuer.step(setting.now)
        setting.clock.step(-jump)
    await rescuer.step(setting.now)
    assert await setting.state() is State.RUNNING
    setting.clock.advance(1)
    await rescuer.step(setting.now)
    assert await setting.state() is State.PENDING


@pytest.mark.parametrize("jumps", JUMPS)
async def test_work_goes_on_across_jumps_and_ends_at_its_limit(setting: Setting, jumps: tuple[int, ...]) -> None:
    work = Work()
    node = Node(setting, work)
    await setting.add_run(lease_seconds=5, execution_seconds=20)
    await node.claim()
    await until(lambda: bool(work.begun))
    (attempt,) = node.performing.attempts.values()
    rescuer = a_rescuer(setting)
    for second in range(19):
        setting.clock.step(jumps[second % len(jumps)] * (-1) ** (second // len(jumps)))
        await node.keeper.step(setting.now)
        await rescuer.step(setting.now)
        setting.clock.advance(1)
    assert (attempt.stop, (await setting.run()).token) == (None, 1)
    setting.clock.advance(1)
    await node.keeper.step(setting.now)
    assert attempt.stop is Stop.TIMEOUT
    await node.performing.end(1)


async def test_an_outcome_counts_though_the_clock_jumps_as_the_work_ends(setting: Setting) -> None:
    node = Node(setting, answer(Succeeded(b"1")))
    await setting.add_run()
    await node.claim()
    await until(lambda: node.collector.waiting > 0)
    setting.clock.step(3_600)
    await node.collector.step(setting.now)
    run = await setting.run()
    assert (run.state, run.attempt, run.result) == (State.COMPLETED, 1, b"1")


@pytest.mark.parametrize("jump", [3_600, -3_600])
async def test_work_that_beats_at_a_jump_keeps_its_lease(setting: Setting, jump: int) -> None:
    beats: list[bool] = []

    async def beat(assignment: Assignment, control: Control) -> Outcome | None:
        setting.clock.step(jump)
        await control.heartbeat()
        beats.append(control.cancelled)
        await work.go_on.wait()
        return Succeeded()

    work = Work(beat)
    node = Node(setting, work)
    await setting.add_run()
    await node.claim()
    await until(lambda: bool(beats))
    await node.keeper.step(setting.now)
    (attempt,) = node.performing.attempts.values()
    assert (beats, attempt.stop, attempt.lease_expires_at) == ([False], None, setting.steady + 30 * SECOND)
    work.go_on.set()
    await node.settle()
    assert await setting.state() is State.COMPLETED


@pytest.mark.parametrize("window_seconds", [0, 5])
async def test_what_the_clock_went_back_before_begins_at_its_instant(setting: Setting, window_seconds: int) -> None:
    """The clock goes back while the store claims."""
    work = answer(Succeeded())
    node = Node(setting, work, window_seconds=window_seconds)
    await setting.add_run(due_at=setting.now)
    claim_runs = setting.store.claim_runs

    async def and_back(*given: Any) -> Claimed:
        claimed = await claim_runs(*given)
        setting.clock.step(-300)
        return claimed

    setting.store.claim_runs = and_back  # type: ignore[assignment]
    await node.claim()
    setting.store.claim_runs = claim_runs  # type: ignore[method-assign]
    await node.claim()
    await node.settle()
    waiting = await setting.run()
    assert (work.begun, waiting.state, waiting.attempt) == ([], State.PENDING, 0)
    setting.clock.advance(300)
    await node.claim()
    await node.settle()
    assert (len(work.begun), await setting.state()) == (1, State.COMPLETED)


def test_a_run_waits_for_a_place_for_a_third_of_its_lease_or_of_its_time() -> None:
    run = a_run(lease_seconds=30, lease_expires_at=NOW + 30 * SECOND)
    assert Ready(run, None).patience_ends_at == NOW + 10 * SECOND
    short = replace(run, execution_seconds=3, lease_expires_at=NOW + 3 * SECOND)
    assert Ready(short, None).patience_ends_at == NOW + SECOND
