"""The pruner gives way: the longer the store takes, the less it is asked for; but it never falls behind for good."""

from __future__ import annotations

from typing import Any

import pytest

from horarium.clock import SECOND, Instant
from horarium.model import State
from horarium.policies import Retention
from horarium.ports import RunFilter
from horarium.services.upkeep.pruner import BATCH, BATCH_MIN, BEHIND_SECONDS, PAUSE, PER_SECOND_MIN, Pruner
from horarium.stores.memory import MemoryStore
from horarium.testing import ManualClock
from tests.services.conftest import START, Setting


class FullStore(MemoryStore):
    """There is always more to forget, and it takes `seconds`."""

    def __init__(self, clock: ManualClock, seconds: float) -> None:
        super().__init__()
        self._clock = clock
        self.seconds = seconds
        self.asked: list[int] = []

    async def prune_runs(self, now: Instant, limit: int) -> int:
        self._clock.advance(self.seconds)
        self.asked.append(limit)
        return limit


async def pauses(setting: Setting, pruner: Pruner, steps: int) -> list[int]:
    """How long after each step the pruner wants to be called again."""
    found = []
    for _ in range(steps):
        setting.clock.advance(1)
        now = setting.now
        found.append((await pruner.step(now) or 0) - now)
    return found


@pytest.fixture
def store(setting: Setting) -> FullStore:
    return FullStore(setting.clock, 0.0)


@pytest.fixture
def pruner(setting: Setting, store: FullStore) -> Pruner:
    return Pruner(store, setting.telemetry, setting.clock)


async def test_a_quick_store_is_asked_twenty_times_a_second(setting: Setting, store: FullStore, pruner: Pruner) -> None:
    assert await pauses(setting, pruner, 3) == [PAUSE] * 3
    assert store.asked == [BATCH] * 3


async def test_a_slow_store_is_asked_for_less_and_less_often(
    setting: Setting, store: FullStore, pruner: Pruner
) -> None:
    store.seconds = 0.015
    assert min(await pauses(setting, pruner, 3)) > PAUSE
    store.seconds = 0.1
    for pause, asked in zip(await pauses(setting, pruner, 4), store.asked[3:], strict=True):
        assert pause <= asked * SECOND // PER_SECOND_MIN or pause == PAUSE
    assert store.asked[-1] == BATCH_MIN
    store.seconds = 0.001
    await pauses(setting, pruner, 4)
    assert store.asked[-1] == BATCH


async def test_what_falls_behind_for_long_gives_no_more_way(setting: Setting, store: FullStore, pruner: Pruner) -> None:
    store.seconds = BEHIND_SECONDS / 4
    found = await pauses(setting, pruner, 6)
    assert found[-1] == PAUSE
    assert store.asked[-1] == BATCH


async def test_a_run_that_ends_while_its_job_is_trimmed_is_trimmed_next(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = await setting.add_job(retention=Retention(runs_max=1))
    pruner, trim = Pruner(setting.store, setting.telemetry, setting.clock), setting.store.trim_runs

    async def ended(number: int) -> None:
        done: Any = {"state": State.COMPLETED, "finished_at": setting.now, "fire_at": START + number}
        await setting.add_run(f"run-{number}", job=job.name, job_id=job.id, **done)
        pruner.note(job)

    async def slow(*given: Any) -> int:
        trimmed = await trim(*given)
        monkeypatch.undo()
        await ended(2)
        return trimmed

    await ended(1)
    monkeypatch.setattr(setting.store, "trim_runs", slow)
    for _ in range(2):
        await pruner.step(setting.now)
    assert [run.id for run in (await setting.store.list_runs(RunFilter(), None, 10)).items] == ["run-2"]
