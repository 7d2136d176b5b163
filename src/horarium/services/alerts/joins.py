"""Ends of runs, taken into account: those from which other jobs follow, and those of batches."""

from __future__ import annotations

from horarium.clock import SECOND, Instant
from horarium.model.batches import BATCH_ENDS, BATCH_OWED
from horarium.model.records import RecordFilter
from horarium.operations.batches import Batches
from horarium.operations.settling.batching import BATCHES, Batching
from horarium.operations.settling.holding import READ_SECONDS
from horarium.operations.settling.joining import Joining
from horarium.operations.writing.signalling import JOIN_ENDS, JOINS
from horarium.ports import PAGE_MAX, Store
from horarium.rules.batches import ended_batch
from horarium.services.loop.service import Service, Wake

AFTER_ANOTHER = SECOND // 10
"""How long the batches of another node that counts are left to it."""


class BatchCounter(Service):
    """Counts the ends of runs of batches, and so finds the last one: what follows is written with the count. Goes on
    with requests about all runs of a large batch, a page at a time. Any number of nodes may count; of two that count
    one batch one has to read again."""

    name = "batches"
    topics = (BATCHES,)
    rest_seconds = 0.02
    by_writes = True

    def __init__(self, store: Store, batching: Batching, batches: Batches) -> None:
        self.wake = Wake()
        self._store, self._batching, self._batches = store, batching, batches

    async def step(self, now: Instant) -> Instant | None:
        page = await self._store.list_records(RecordFilter(BATCH_ENDS), None, PAGE_MAX)
        if not page.items:
            return None
        owed = [record for record in page.items if record.name.startswith(BATCH_OWED)]
        alone = [await self._batches.carry_on(record) for record in owed]
        ended = {ended_batch(record) for record in page.items[len(owed) :]}
        alone += [await self._batching.count(each) for each in sorted(ended)]
        return now if all(alone) else now + AFTER_ANOTHER


class Joiner(Service):
    """Looks at jobs that follow from others, at the ends of these and at their deadlines. Any number of nodes may do
    this; of two that take one end into account one has nothing left to do."""

    name = "joins"
    topics = (JOINS, JOIN_ENDS)
    rest_seconds = 0.02
    by_writes = True

    def __init__(self, joining: Joining) -> None:
        self.wake = Wake()
        self._joining = joining

    async def step(self, now: Instant) -> Instant | None:
        if not await self._joining.members.look(READ_SECONDS):
            return None
        if await self._joining.count():
            return now
        return await self._joining.look(now)
