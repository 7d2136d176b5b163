"""The counts that scrapes, lists of queues and watchers ask for, shared where counting takes long.

A store counts all that is unfinished. Where that is little, every answer is counted again. Where it is much, an answer
may be some seconds old, and while the next one is being counted the last one is given, unless that takes only a moment.
So no scrape waits, however many runs do, and however many ask.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Sequence

from msgspec.structs import replace

from horarium.clock import SECOND, Instant
from horarium.errors import StoreUnavailable
from horarium.model import CLAIMED, EXTERNAL, Run, State
from horarium.model.holds import Hold
from horarium.operations.writing.context import Context
from horarium.ports import PAGE_MAX, QueueStats, RunFilter, Stats, Store
from horarium.rules.holds import held_queues
from horarium.rules.serving import UNSERVED_AFTER, may_be_unserved, waits_for_a_worker

QUEUES_LOOKED_INTO_MAX = 20
"""How many queues are looked into for one answer. Of those beyond, the counts decide."""
PENDING = frozenset({State.PENDING})


async def with_unserved(store: Store, stats: Stats, now: Instant) -> Stats:
    """The same counts; `unserved` is set for each queue that no worker serves. The counts alone tell nearly always.
    Only where runs have been due for a minute and none is claimed, a page of them is read, to see whether they wait for
    other runs and not for a worker."""
    suspects = [
        one.queue
        for one in stats.queues
        if one.queue != EXTERNAL and may_be_unserved(one.running, one.oldest_due_at, now)
    ]
    if not suspects:
        return stats
    waiting = set(suspects[QUEUES_LOOKED_INTO_MAX:])
    for queue in suspects[:QUEUES_LOOKED_INTO_MAX]:
        if await _waits(store, queue, now):
            waiting.add(queue)
    return replace(stats, queues=tuple(_marked(queue, queue.queue in waiting) for queue in stats.queues))


def _marked(queue: QueueStats, unserved: bool) -> QueueStats:
    return replace(queue, unserved=True) if unserved else queue


async def _waits(store: Store, queue: str, now: Instant) -> bool:
    """Whether a run of this queue waits for nothing but a worker. Where no run is found, the counts are believed."""
    until = now - UNSERVED_AFTER
    page = await store.list_runs(RunFilter(states=PENDING, queue=queue, until=until + 1), None, PAGE_MAX)
    runs = [run for run in page.items if run.due_at <= until]
    if not runs or any(not run.serial and run.concurrency_key is None for run in runs):
        return True
    ids = list({run.job_id for run in runs if run.serial and run.job_id is not None})
    of_jobs = await store.unfinished_runs(ids) if ids else {}
    claimed = await _claimed(store, [*runs, *(run for of_job in of_jobs.values() for run in of_job)])
    return any(waits_for_a_worker(run, of_jobs.get(run.job_id or "", []), claimed, now) for run in runs)


async def _claimed(store: Store, runs: Sequence[Run]) -> Counter[str]:
    """How many runs are claimed under each concurrency key, of the newest ones; nothing is asked without a key."""
    if all(run.concurrency_key is None for run in runs):
        return Counter()
    page = await store.list_runs(RunFilter(states=CLAIMED), None, PAGE_MAX)
    return Counter(run.concurrency_key for run in page.items if run.concurrency_key is not None)


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
