"""Drops logs of runs that are old, and the oldest where all of them together are too large; what is remembered of
unique keys that no run holds; plans that expired; batches that finished long ago; and windows of joins."""

from __future__ import annotations

from horarium.clock import SECOND, Instant
from horarium.operations.facade import Operations
from horarium.ports import BATCH_MAX
from horarium.services.loop.believed import BelievedClock
from horarium.services.loop.service import Service, Wake

LOOK = 60 * SECOND
PAUSE = SECOND // 20


class LogPruner(Service):
    """Deletes nothing for a while after the wall clock stepped forward: the new time may be wrong."""

    name = "log-pruner"
    sleeps = True

    def __init__(self, operations: Operations, believed: BelievedClock, keep_seconds: float, bytes_max: int) -> None:
        self.wake = Wake()
        self._operations = operations
        self._keys_after: str | None = None
        self._batches_after: str | None = None
        self._believed = believed
        self._keep_seconds = keep_seconds
        self._bytes_max = bytes_max
        self._look_at: Instant = 0

    async def step(self, now: Instant) -> Instant | None:
        if self._look_at - LOOK <= now < self._look_at:
            return self._look_at
        if not self._believed.stands():
            return now + (LOOK if self._believed.is_known else SECOND)
        gone = await self._operations.logs.prune(now, self._keep_seconds, self._bytes_max)
        self._keys_after = await self._operations.one_offs.prune_keys(self._keys_after)
        await self._operations.planned_changes.prune_expired(now)
        await self._operations.reconciler.joining.prune(now, BATCH_MAX)
        self._batches_after = await self._operations.batches.prune(now, self._batches_after)
        self._look_at = now + (PAUSE if gone >= BATCH_MAX else LOOK)
        return self._look_at
