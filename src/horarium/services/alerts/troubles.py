"""Troubles that concern no job: a queue in which runs are due and that no worker serves, a node that is lost.

Each is reported to every channel whose `system` is true. It works from the store, and any number may run: a message has
a unique key, made of the trouble and of when it began. A queue's trouble has a record while it lasts, which says since
when; at its end the channels hear that it is over. The record stays until all have been claimed that fell due before
(`operations.settling.absences`). Runs are counted together with those who ask for counts (see
`services.serving`): where many wait, that takes long.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple

from horarium.clock import SECOND, Instant, to_text
from horarium.model.channels import Told
from horarium.model.records import Record, RecordFilter
from horarium.operations.bounds.listing import pages_of
from horarium.operations.channels import ChannelOperations
from horarium.operations.settling.absences import PREFIX, absence_of, put, worker_came
from horarium.operations.writing.context import Context
from horarium.operations.writing.signalling import announce_runs
from horarium.ports import PAGE_MAX, QueueStats, Stats
from horarium.rules.following import notify_run
from horarium.rules.serving import UNSERVED_AFTER, Absence, unserved_words
from horarium.services.loop.beat import BEAT_EVERY
from horarium.services.loop.service import Paced, Wake

LOOK_EVERY = 15 * SECOND
LOST_AFTER = 3 * BEAT_EVERY
"""How long a node that has not reported that it stops sends no signs of life until it is reported as lost."""
REMEMBERED = 24 * 3600 * SECOND


class Trouble(NamedTuple):
    """Something to tell of. `event`: as channels hear it; `at`: when it began, or ends."""

    event: str
    name: str
    at: Instant
    text: str

    @property
    def key(self) -> str:
        return f"{self.event}/{self.name}/{self.at}"


class Troubles(Paced):
    """Tells channels of queues and nodes."""

    name = "troubles"
    every = LOOK_EVERY

    def __init__(self, context: Context, channels: ChannelOperations, count: Callable[[], Awaitable[Stats]]) -> None:
        self.wake = Wake()
        self._context, self._store = context, context.store
        self._channels, self._count = channels, count
        self._seen: frozenset[str] = frozenset()
        self._told: set[str] = set()

    async def work(self, now: Instant) -> None:
        troubles = [*await self._nodes(now), *await self._queues(now)]
        for trouble in troubles:
            await self._tell(trouble)
        self._told = {trouble.key for trouble in troubles}

    async def _nodes(self, now: Instant) -> list[Trouble]:
        nodes = await self._store.list_nodes(now - REMEMBERED)
        said = "the node {} was last heard of at {}"
        return [
            Trouble("node_lost", node.name, node.beat_at, said.format(node.name, to_text(node.beat_at)))
            for node in nodes
            if node.stopped_at is None and node.beat_at <= now - LOST_AFTER
        ]

    async def _queues(self, now: Instant) -> list[Trouble]:
        """Queues in trouble, as two looks in a row show it; those whose trouble is over are reported at once."""
        queues = {queue.queue: queue for queue in (await self._count()).queues}
        unserved = {name for name, queue in queues.items() if queue.unserved}
        begun = {record.name.removeprefix(PREFIX): record for record in await self._records()}
        found = []
        for name, record in begun.items():
            if name not in unserved and name not in self._seen:
                over = f"runs in the queue {name} no longer wait for a worker"
                found.append(Trouble("queue_served", name, absence_of(record).since, over))
                await self._tell(found[-1])
                await self._end(record, queues.get(name), now)
        for name in unserved:
            before = begun.get(name)
            absence = None if before is None else absence_of(before)
            lasts = absence if absence is not None and absence.served_at is None else None
            if lasts is not None or name in self._seen:
                since = lasts.since if lasts is not None else await self._begin(name, before, now)
                found.append(Trouble("queue_unserved", name, since, _words(queues[name], now)))
        self._seen = frozenset(unserved)
        return found

    async def _end(self, record: Record, queue: QueueStats | None, now: Instant) -> None:
        """Delete the record, once no run is left that was due when a worker came."""
        oldest = None if queue is None else queue.oldest_due_at
        served_at = absence_of(record).served_at
        if oldest is None or oldest > (now - UNSERVED_AFTER if served_at is None else served_at):
            await self._store.put_records([record.removal()])
        else:
            await worker_came(self._store, record, now)

    async def _records(self) -> list[Record]:
        pages = pages_of(lambda after: self._store.list_records(RecordFilter(PREFIX), after, PAGE_MAX))
        return [record async for page in pages for record in page]

    async def _begin(self, queue: str, record: Record | None, now: Instant) -> Instant:
        """Since when the trouble lasts: as the first watcher that saw it has noted. `record`: of one before it."""
        name = PREFIX + queue
        await put(self._store, name, Absence(now), 0 if record is None else record.version)
        (stored,) = await self._store.get_records([name])
        return now if stored is None else absence_of(stored).since

    async def _tell(self, trouble: Trouble) -> None:
        if trouble.key not in self._told:
            await tell_system(self._context, self._channels, trouble)
            self._told.add(trouble.key)


async def tell_system(context: Context, channels: ChannelOperations, trouble: Trouble) -> None:
    """Tell every channel whose `system` is true, each once for one trouble."""
    now = context.clock.now()
    told = Told(trouble.event, None, None, None, to_text(now), trouble.text)
    async for page in pages_of(lambda after: channels.page(after, PAGE_MAX)):
        keys = {name: f"{trouble.key}/notify:{name}" for name, channel in page if channel.system}
        if runs := [notify_run(name, told, key, now) for name, key in keys.items()]:
            await context.store.add_runs(runs)
            announce_runs(context.signal, runs)


def _words(queue: QueueStats, now: Instant) -> str:
    since = "" if queue.oldest_due_at is None else f", the oldest since {(now - queue.oldest_due_at) // SECOND} s"
    return unserved_words(queue.queue, queue.due) + since
