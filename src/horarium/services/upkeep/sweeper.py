"""The sweeper: looks once through everything that waits when a node has died, and a while after this one began.

A node that dies between a change of a job and what follows from it for its runs leaves these as they were: pending
though the job was deleted, or in a queue that it has left. Where a worker claims from that queue, the claim finds them.
Where no worker does any longer, this does: page by page, with pauses, so that nothing that is on time waits for it.
What waited for this node is claimed first: there is no need to read it twice.
"""

from __future__ import annotations

from horarium.clock import SECOND, Instant
from horarium.model import Node
from horarium.operations.settling.reconciling import Reconciler
from horarium.ports import Store
from horarium.services.loop.beat import BEAT_EVERY
from horarium.services.loop.service import Service, Wake

LOOK_EVERY = BEAT_EVERY
DEAD_AFTER = BEAT_EVERY * 5 // 2
"""How long a node has been silent that did not say that it stops."""
REMEMBERED = 24 * 3600 * SECOND
PAGE_EVERY = SECOND // 10

Death = tuple[str, Instant | None]
"""A node, and its last sign of life; None: that was given by a clock which was ahead. One that was taken for dead, came
back, and died has died again."""


class Sweeper(Service):
    """Finds what dead nodes left undone."""

    name = "sweeper"
    sleeps = True

    def __init__(self, store: Store, reconciler: Reconciler) -> None:
        self.wake = Wake()
        self._store = store
        self._reconciler = reconciler
        self._swept: frozenset[Death] | None = None
        self._looked_at: Instant | None = None
        self._under_way = False
        self._after: str | None = None

    async def step(self, now: Instant) -> Instant | None:
        if self._looked_at is None:
            self._looked_at = now
        if not self._under_way:
            if self._looked_at <= now < self._looked_at + LOOK_EVERY:
                return self._looked_at + LOOK_EVERY
            await self._look_for_dead(now)
        if not self._under_way:
            return now + LOOK_EVERY
        self._after = await self._reconciler.sweep(self._after)
        self._under_way = self._after is not None
        return now + (PAGE_EVERY if self._under_way else LOOK_EVERY)

    async def _look_for_dead(self, now: Instant) -> None:
        """Begin a sweep if a node has died since the last one, or none was made yet."""
        nodes = await self._store.list_nodes(now - REMEMBERED)
        dead = frozenset(
            (node.name, node.beat_at if node.beat_at <= now else None) for node in nodes if _is_dead(node, now)
        )
        self._under_way = self._swept is None or not dead <= self._swept
        self._swept = dead
        self._looked_at = now


def _is_dead(node: Node, now: Instant) -> bool:
    return node.stopped_at is None and not node.is_alive(now, DEAD_AFTER)
