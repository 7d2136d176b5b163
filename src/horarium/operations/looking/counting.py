"""The counts that scrapes, lists of queues and watchers ask for, shared where counting takes long.

A store counts all that is unfinished. Where that is little, every answer is counted again. Where it is much, an answer
may be some seconds old, and while the next one is being counted the last one is given, unless that takes only a moment.
So no scrape waits, however many runs do, and however many ask.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from msgspec.structs import replace

from horarium.clock import SECOND, Instant
from horarium.errors import StoreUnavailable
from horarium.model.holds import Hold
from horarium.operations.looking.serving import with_unserved
from horarium.operations.writing.context import Context
from horarium.ports import QueueStats, Stats
from horarium.rules.holds import held_queues

MUCH = 5_000
"""Up to this weight (a job or an unfinished run counts one, a queue ten) each answer is counted for itself."""
COUNTED_PER_SECOND = 100_000
"""The weight that makes an answer good for another second: counting is faster, so it takes a small part of the time."""
SOON_SECONDS = 0.005
"""An answer waits for this long for the next count: where much has become little, that is enough."""
OLD_MAX = 60 * SECOND
"""An answer older than this is not given."""

log = logging.getLogger("horarium")


class Counting:
    """Counts of one store."""

    def __init__(self, context: Context) -> None:
        self._store, self._clock = context.store, context.clock
        self._last: tuple[Instant, Stats] | None = None
        self._task: asyncio.Task[Stats] | None = None

    async def stats(self) -> Stats:
        """Counts by queue, and which queues no worker serves."""
        now = self._clock.now()
        if self._last is None:
            return await self._shared()
        at, stats = self._last
        weight = _weight(stats)
        if weight <= MUCH:
            return await self._count()
        if at <= now < at + weight * SECOND // COUNTED_PER_SECOND:
            return stats
        counting = self._under_way()
        if not at <= now < at + OLD_MAX:
            return await self._shared()
        await asyncio.wait({counting}, timeout=SOON_SECONDS)
        return stats if self._last is None else self._last[1]

    async def _shared(self) -> Stats:
        return await asyncio.shield(self._under_way())

    def _under_way(self) -> asyncio.Task[Stats]:
        if self._task is None or self._task.done() or self._task.get_loop() is not asyncio.get_running_loop():
            self._task = asyncio.create_task(self._count(), name="horarium counts")
            self._task.add_done_callback(_look)
        return self._task

    async def _count(self) -> Stats:
        now = self._clock.now()
        stats = await with_unserved(self._store, await self._store.stats(now), now)
        self._last = now, stats
        return stats


def with_holds(stats: Stats, holds: Sequence[Hold], now: Instant) -> Stats:
    """With the queues marked that a hold lies over as a whole: no worker has to serve them."""
    free = set(held_queues(holds, [one.queue for one in stats.queues], now)[0])
    return replace(stats, queues=tuple(one if one.queue in free else _held(one) for one in stats.queues))


def _held(one: QueueStats) -> QueueStats:
    return replace(one, hold=True, unserved=False)


def _weight(stats: Stats) -> int:
    runs = sum(one.due + one.scheduled + one.running for one in stats.queues)
    return stats.jobs + runs + 10 * (len(stats.queues) + stats.queues_left_out)


def _look(task: asyncio.Task[Stats]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        level = logging.DEBUG if isinstance(error, StoreUnavailable) else logging.ERROR
        log.log(level, "runs could not be counted: %s", error)
