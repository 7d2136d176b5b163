"""The beat: this node's sign of life, written every few seconds, and with it its reading of the steady scale. Nothing
else is decided by it (leases do that); it is what people see under /nodes, and whether the store can be written."""

from __future__ import annotations

from msgspec.structs import replace

from horarium.clock import SECOND, Instant
from horarium.model import Node
from horarium.ports import Store
from horarium.services.loop.service import Service, Wake
from horarium.services.loop.steady import SteadyScale

BEAT_EVERY = 10 * SECOND


class NodeBeat(Service):
    """Writes the node's own row."""

    name = "store"
    sleeps = True

    def __init__(self, store: Store, node: Node, scale: SteadyScale) -> None:
        self.wake = Wake()
        self._store = store
        self._node = node
        self._scale = scale
        self._next: Instant = 0

    async def step(self, now: Instant) -> Instant | None:
        if self._next - BEAT_EVERY <= now < self._next:
            return self._next
        await self._scale.follow()
        await self._store.beat_node(replace(self._node, beat_at=now))
        self._next = now + BEAT_EVERY
        return self._next

    async def farewell(self, now: Instant) -> None:
        """Say that the node stopped in order."""
        await self._store.beat_node(replace(self._node, beat_at=now, stopped_at=now))
