"""A small world for the services: a manual clock, the memory store, and whatever a test adds to them."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from horarium.clock import SECOND, Instant, to_text
from horarium.model import Job, QueueTarget, Run, State
from horarium.operations.facade import Operations
from horarium.ports import Store
from horarium.rules.planning import next_fire
from horarium.services.leases.leases import NOTHING, Own
from horarium.services.leases.rescuer import Rescuer
from horarium.services.loop.steady import SETTLED_SECONDS, SteadyScale
from horarium.services.metrics.telemetry import Telemetry
from horarium.services.performing.collector import Collector
from horarium.stores.memory import MemoryStore
from horarium.stores.wakeups import LocalSignal
from horarium.testing import ManualClock

START = 1_767_571_200 * SECOND


class Setting:
    """What every service needs."""

    def __init__(self) -> None:
        self.clock = ManualClock(START)
        self.signal = LocalSignal()
        self.telemetry = Telemetry()
        self.store = MemoryStore()

    @property
    def store(self) -> Store:
        return self.operations.store

    @store.setter
    def store(self, store: Store) -> None:
        self.operations = self.operations_on(store)

    def operations_on(self, store: Store) -> Operations:
        """What writes to this store, on this clock."""
        return Operations(store, self.clock, self.signal, os.urandom, lambda target: None)

    @property
    def now(self) -> Instant:
        return self.clock.now()

    @property
    def steady(self) -> Instant:
        return self.clock.steady()

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


def a_scale(store: Store, clock: ManualClock) -> SteadyScale:
    """Of a node that has kept to it for long."""
    scale = SteadyScale(store, clock)
    scale._moved_at = clock.monotonic() - SETTLED_SECONDS
    return scale


def a_rescuer(setting: Setting, own: Callable[[], Own] = lambda: NOTHING, **more: Any) -> Rescuer:
    """`own`: what its process holds."""
    operations, scale = setting.operations, a_scale(setting.store, setting.clock)
    return Rescuer(
        setting.store, operations.settling, operations.reconciler, setting.telemetry, setting.clock, scale, own, **more
    )


def a_collector(setting: Setting, store: Store | None = None) -> Collector:
    """`store`: another one than that of the setting."""
    operations = setting.operations if store is None else setting.operations_on(store)
    return Collector(operations.settling, setting.clock, setting.telemetry)


@pytest.fixture
def setting() -> Setting:
    return Setting()
