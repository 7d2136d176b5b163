"""A small world for the services: a manual clock, the memory store, and whatever a test adds to them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from horarium.clock import SECOND, Instant, to_text
from horarium.model import Job, QueueTarget, Run, State
from horarium.planning import next_fire
from horarium.ports import Store
from horarium.signals import LocalSignal
from horarium.stores.memory import MemoryStore
from horarium.telemetry import Telemetry
from horarium.testing import ManualClock

START = 1_767_571_200 * SECOND
TURNS = 20


class Setting:
    """What every service needs."""

    def __init__(self) -> None:
        self.clock = ManualClock(START)
        self.store: Store = MemoryStore()
        self.signal = LocalSignal()
        self.telemetry = Telemetry()

    @property
    def now(self) -> Instant:
        return self.clock.now()

    async def add_job(self, name: str = "job", every: int = 10, **changes: Any) -> Job:
        """Fires every so many seconds, counted from the start."""
        fields: dict[str, Any] = {
            "name": name,
            "id": name,
            "trigger": {"type": "interval", "every_seconds": every, "anchor": to_text(START)},
            "target": QueueTarget(queue="q"),
            "planned_until": self.now,
            "created_at": self.now,
            **changes,
        }
        job = Job(**fields)
        job = replace(job, next_fire_at=next_fire(job, job.planned_until))
        assert await self.store.add_jobs([job]) == [True]
        return job

    async def add_run(self, id: str = "run", queue: str = "pull/q", **changes: Any) -> Run:
        """Due now."""
        fields = {"fire_at": self.now, "due_at": self.now, "created_at": self.now, **changes}
        run = Run(id=id, queue=queue, **fields)
        assert await self.store.add_runs([run]) == [True]
        return run

    async def run(self, id: str = "run") -> Run:
        """As it stands in the store."""
        (run,) = await self.store.get_runs([id])
        assert run is not None
        return run

    async def state(self, id: str = "run") -> State:
        return (await self.run(id)).state


@pytest.fixture
def setting() -> Setting:
    return Setting()


async def until(happened: Callable[[], bool]) -> None:
    """Let other tasks have their turns until something has happened; no time passes."""
    for _ in range(TURNS):
        if happened():
            return
        await asyncio.sleep(0)
    raise AssertionError("it did not happen")
