"""Takes ends of runs into account from which other jobs follow, and looks at these at their deadlines."""

from __future__ import annotations

from horarium.clock import Instant
from horarium.operations.settling.holding import READ_SECONDS
from horarium.operations.settling.joining import Joining
from horarium.operations.writing.signalling import JOIN_ENDS, JOINS
from horarium.ports import Topic
from horarium.services.loop.service import Service, Wake


class Joiner(Service):
    """Any number of nodes may do this; of two that take one end into account one has nothing left to do."""

    name = "joins"
    topics: tuple[Topic, ...] = (JOINS, JOIN_ENDS)
    rest_seconds = 0.02

    def __init__(self, joining: Joining) -> None:
        self.wake = Wake()
        self._joining = joining

    def at_writes(self) -> bool:
        return True

    async def step(self, now: Instant) -> Instant | None:
        if not await self._joining.members.look(READ_SECONDS):
            return None
        if await self._joining.count():
            return now
        return await self._joining.look(now)
