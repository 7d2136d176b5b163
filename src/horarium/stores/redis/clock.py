"""The server's clock, as a node reads it without asking each time.

The time is the node's own monotonic clock plus an offset, measured at the start and every minute after. So all nodes of
a store agree within the time of a round trip, and one whose wall clock is wrong takes no lease that is still held.
"""

from __future__ import annotations

import asyncio
import logging

from horarium.clock import SECOND, Clock, Instant, SystemClock
from horarium.errors import StoreUnavailable
from horarium.stores.redis.location import parse_url
from horarium.stores.redis.server import Server

log = logging.getLogger("horarium.redis")

MEASURE_SECONDS = 60.0
READINGS = 5
"""The number of readings, of which the one with the shortest round trip counts."""


class RedisClock:
    """A `Clock` whose `now` is the server's. `error_micros` bounds how far it was off when last measured: half a round
    trip."""

    def __init__(self, url: str, local: Clock | None = None) -> None:
        self._server = Server(parse_url(url), connections=1)
        self._local = local or SystemClock()
        self._offset = 0
        self._task: asyncio.Task[None] | None = None
        self.error_micros: int | None = None

    async def start(self) -> None:
        """Measure, and go on measuring. Raises StoreUnavailable."""
        await self.measure()
        self._task = asyncio.create_task(self._keep_measuring())

    async def stop(self) -> None:
        """Stop measuring. May be called twice."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        await self._server.close()

    def now(self) -> Instant:
        assert self.error_micros is not None, "start the clock first"
        return self._micros() + self._offset

    def monotonic(self) -> float:
        return self._local.monotonic()

    async def measure(self) -> None:
        """Ask the server, and follow it if it differs by more than the measurement may be off."""
        error, offset = min([await self._reading() for _ in range(READINGS)])
        if self.error_micros is None or abs(offset - self._offset) > error + self.error_micros:
            self._offset = offset
        self.error_micros = error

    async def _reading(self) -> tuple[int, int]:
        """Half the round trip, and the offset, in microseconds."""
        before = self._micros()
        seconds, micros = await self._server.command("TIME")
        half = (self._micros() - before + 1) // 2
        return half, int(seconds) * SECOND + int(micros) - before - half

    def _micros(self) -> int:
        return round(self._local.monotonic() * SECOND)

    async def _keep_measuring(self) -> None:
        while True:
            await asyncio.sleep(MEASURE_SECONDS)
            try:
                await self.measure()
            except StoreUnavailable as outage:
                log.warning("the clock was not compared with the server's: %s", outage)
