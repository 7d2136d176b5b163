"""What fell silent together is tried apart, though nobody claimed for so long that all of it is due."""

from __future__ import annotations

from typing import Any

from horarium.clock import SECOND
from horarium.model import EventKind, Run, RunPolicy, State
from horarium.policies import Retry
from horarium.ports import Claimed
from horarium.rules.silences import APART_SECONDS_MAX
from horarium.testing import Fault, FaultyStore, by_script
from tests.services.conftest import Setting, a_rescuer

COUNT = 30
LEASE_SECONDS = 31
AWAY_SECONDS = 2 * APART_SECONDS_MAX


async def claim(setting: Setting, queue: str = "pull/q") -> Claimed:
    return await setting.operations.claiming.claim([queue], 100, "w", setting.now, setting.now)


async def fall_silent(setting: Setting) -> None:
    setting.clock.advance(LEASE_SECONDS)
    await a_rescuer(setting).step(setting.now)


async def lost_twice(setting: Setting, queue: str = "pull/q", **changes: Any) -> None:
    """Runs whose worker died twice, after which none was there until all of them were due."""
    for number in range(COUNT):
        await setting.add_run(f"run-{number:02}", queue, **changes)
    for _ in range(2):
        assert len((await claim(setting, queue)).runs) == COUNT
        await fall_silent(setting)
    setting.clock.advance(AWAY_SECONDS)


async def runs(setting: Setting) -> list[Run]:
    return [await setting.run(f"run-{number:02}") for number in range(COUNT)]


async def test_a_worker_that_comes_back_late_gets_them_one_by_one(setting: Setting) -> None:
    await lost_twice(setting)
    first = await claim(setting)
    assert len(first.runs) == 1
    waiting = [run for run in await runs(setting) if run.state is State.PENDING]
    assert len(waiting) == COUNT - 1
    assert {run.attempt for run in waiting} == {2}
    assert {run.history[-1].kind for run in waiting} == {EventKind.DEFERRED}
    assert len({run.due_at for run in waiting}) == COUNT - 1
    assert setting.now + SECOND <= min(run.due_at for run in waiting)
    assert max(run.due_at for run in waiting) <= setting.now + (APART_SECONDS_MAX + 1) * SECOND
    together = []
    for _ in range(int(APART_SECONDS_MAX + 1) * 4):
        setting.clock.advance(0.25)
        together.append(len((await claim(setting)).runs))
    assert sum(together) == COUNT - 1
    assert max(together) <= COUNT // 5
    assert {run.attempt for run in await runs(setting)} == {3}


async def test_they_are_put_off_once(setting: Setting) -> None:
    await lost_twice(setting)
    await claim(setting)
    setting.clock.advance(AWAY_SECONDS)
    assert len((await claim(setting)).runs) == COUNT - 1


async def test_after_a_first_silence_all_are_tried_at_once(setting: Setting) -> None:
    for number in range(COUNT):
        await setting.add_run(f"run-{number:02}")
    await claim(setting)
    await fall_silent(setting)
    setting.clock.advance(AWAY_SECONDS)
    assert len((await claim(setting)).runs) == COUNT


async def test_what_is_new_goes_along(setting: Setting) -> None:
    await lost_twice(setting)
    await setting.add_run("new")
    assert {run.token for run in (await claim(setting)).runs} == {1, 3}
    assert await setting.state("new") is State.RUNNING


async def test_silences_with_a_budget_of_their_own_are_tried_apart_as_well(setting: Setting) -> None:
    await lost_twice(setting, policy=RunPolicy(retry=Retry(silences_max=3)))
    assert len((await claim(setting)).runs) == 1


async def test_what_would_be_too_old_by_then_is_tried_now(setting: Setting) -> None:
    age_max = 2 * LEASE_SECONDS + AWAY_SECONDS
    await lost_twice(setting, policy=RunPolicy(retry=Retry(age_max_seconds=age_max)))
    assert len((await claim(setting)).runs) == COUNT


async def test_in_an_outage_the_first_goes_out_and_the_others_are_left_to_the_rescuer(setting: Setting) -> None:
    await lost_twice(setting)
    setting.store = FaultyStore(setting.store, by_script(("settle_runs", Fault.BEFORE)))
    assert len((await claim(setting)).runs) == 1
    assert {run.state for run in await runs(setting)} == {State.RUNNING}
