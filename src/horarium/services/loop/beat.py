"""The beat: this node's sign of life, written every few seconds, and with it its reading of the steady scale. Nothing
else is decided by it (leases do that); it is what people see under /nodes, and whether the store can be written."""

from __future__ import annotations

from msgspec.structs import replace

from horarium.clock import SECOND, Instant
from horarium.model import Node
from horarium.ports import Store
from horarium.services.loop.service import Paced, Wake
from horarium.services.loop.steady import SteadyScale

BEAT_EVERY = 10 * SECOND


class NodeBeat(Paced):
    """Writes the node's own row."""

    name = "store"
    every = BEAT_EVERY

    def __init__(self, store: Store, node: Node, scale: SteadyScale) -> None:
        self.wake = Wake()
        self._store = store
        self._node = node
        self._scale = scale

    async def work(self, now: Instant) -> None:
        await self._scale.follow()
        await self._store.beat_node(replace(self._node, beat_at=now))

    async def farewell(self, now: Instant) -> None:
        """Say that the node stopped in order."""
        await self._store.beat_node(replace(self._node, beat_at=now, stopped_at=now))
