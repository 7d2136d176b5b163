"""Which jobs each planner plans: those whose number, a hash of the id, is its own among the planners that are there.

So planners do not make the same plans, of which all but one lose. It is a habit, not a right: what the planner whose
turn it is has not planned shortly before it falls due, because it is gone, busy, or not known yet, any other one plans.
"""

from __future__ import annotations

from zlib import crc32

from horarium.clock import SECOND, Instant
from horarium.model import Job, Node
from horarium.ports import Store

LOOK_EVERY = 5 * SECOND
"""How often it is looked who plans."""
SILENT = 25 * SECOND
"""A node that gave no sign of life for so long is not counted upon."""
STARTING = 3 * SECOND
"""For so long after its start a planner looks at every step: others may have started together with it."""


class Shares:
    """The share of one planner. `node`: its name; None: it plans all."""

    def __init__(self, store: Store, node: str | None) -> None:
        self._store = store
        self._node = node
        self._names: list[str] = [] if node is None else [node]
        self._began: Instant | None = None
        self._look_at: Instant = 0

    @property
    def whole(self) -> bool:
        """Whether there are no others."""
        return len(self._names) < 2

    def owns(self, job: Job) -> bool:
        """Whether it is this planner's turn to plan the job."""
        return self.whole or self._names[crc32(job.id.encode()) % len(self._names)] == self._node

    async def look(self, now: Instant) -> None:
        """See who plans, if that was not done just now."""
        if self._node is None or self._look_at - LOOK_EVERY <= now < self._look_at:
            return
        if self._began is None or now < self._began:
            self._began = now
        nodes = await self._store.list_nodes(now - SILENT)
        self._names = sorted({self._node, *(node.name for node in nodes if _plans(node))})
        self._look_at = now + LOOK_EVERY if now >= self._began + STARTING else now


def _plans(node: Node) -> bool:
    return "planner" in node.roles and node.stopped_at is None
