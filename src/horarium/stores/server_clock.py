"""A store's clock as a node's own: so that all nodes agree, even if their machines' clocks differ.

The server is asked what time it is, and the answer is put in the middle of the round trip; from then on our monotonic
clock carries it forward. It is asked again every second, and an answer that took long is used only if nothing better is
known, since it is wrong by up to half of what it took. Where two readings differ, `now` steps; it never waits for one.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from itertools import count
from typing import Protocol

from horarium.clock import SECOND, Clock, Instant
from horarium.errors import StoreUnavailable

ASK_SECONDS = 1.0
"""How often the server is asked once, so that a step of its clock is known within this."""
MEASURE_EVERY = 60
"""Each time after this many asks it is asked `READINGS` times in one go; the shortest round trip counts."""
READINGS = 5
DRIFT_PER_SECOND = 0.000_1
"""How far a monotonic clock may drift from the server's: the age of a reading makes it worse by this."""


class TellsTime(Protocol):
    """An object that can ask the server for its time, in microseconds: a store."""

    async def server_time(self) -> Instant: ...


class ServerClock:
    """A `clock.Clock` that tells the time of the server that a store works on. `local` measures durations, and tells
    the time until `measure` has succeeded once; `tick_seconds`: how finely the server tells its time."""

    def __init__(self, store: TellsTime, local: Clock, tick_seconds: float = 0.0) -> None:
        self._store = store
        self._local = local
        self._tick_seconds = tick_seconds
        self.monotonic, self.steady = local.monotonic, local.steady
        self._offset: float | None = None
        self._error = 0.0
        self._measured_at = 0.0
        self._task: asyncio.Task[None] | None = None

    def now(self) -> Instant:
        if self._offset is None:
            return self._local.now()
        return round((self._local.monotonic() + self._offset) * SECOND)

    @property
    def machine(self) -> str:
        return self._local.machine

    @property
    def steady_offset(self) -> int:
        return self._local.steady_offset

    @steady_offset.setter
    def steady_offset(self, micros: int) -> None:
        self._local.steady_offset = micros

    @property
    def error_seconds(self) -> float | None:
        """How wrong the last accepted reading can be; None: there is none."""
        return None if self._offset is None else self._error

    async def measure(self, readings_max: int = READINGS) -> None:
        """Ask the server. Raises StoreUnavailable; the earlier offset then stays."""
        readings = [await self._read() for _ in range(readings_max)]
        error, offset, measured_at = min(readings)
        aged = self._error + (measured_at - self._measured_at) * DRIFT_PER_SECOND
        distance = 0.0 if self._offset is None else abs(offset - self._offset)
        # A reading that the old one can't explain tells of a step of the server's clock, which we follow.
        if self._offset is None or error <= aged or distance > aged + error:
            self._offset, self._error, self._measured_at = offset, error, measured_at

    async def _read(self) -> tuple[float, float, float]:
        before = self._local.monotonic()
        server = await self._store.server_time()
        after = self._local.monotonic()
        return (after - before + self._tick_seconds) / 2, server / SECOND - (before + after) / 2, after

    async def start(self) -> None:
        """Measure now, and then every second until `stop`. Raises StoreUnavailable."""
        await self.measure()
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._measure_on())

    async def _measure_on(self) -> None:
        for number in count(1):
            await asyncio.sleep(ASK_SECONDS)
            with suppress(StoreUnavailable):
                await self.measure(READINGS if number % MEASURE_EVERY == 0 else 1)

    async def stop(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
