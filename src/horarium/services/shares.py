"""Which jobs each planner plans: those whose number, a hash of the id, is its own among the planners that are there.

So planners do not make the same plans, of which all but one lose. It is a habit, not a right: what the planner whose
turn it is has not planned shortly before it falls due, because it is gone, busy, or not known yet, any other one plans.
"""

from __future__ import annotations

from collections.abc import Sequence
from zlib import crc32

from horarium.clock import SECOND, Instant, to_micros
from horarium.model import Job, Node
from horarium.ports import Store
from horarium.rules.planning import plans_when_due

LOOK_EVERY = 5 * SECOND
"""How often it is looked who plans."""
BEHIND_SECONDS = 0.1
"""How long a planner leaves the jobs to another one that was quicker with every job of a step, or whose turn it is."""
LEFT_SECONDS = 0.3
"""How long a job that is planned when it falls due is left to the planner whose turn it is."""
SPARE = 10
"""A tenth of the look-ahead before a job falls due, any planner plans it, also where it is another one's turn."""
SILENT = 25 * SECOND
"""A node that gave no sign of life for so long is not counted upon."""
STARTING = 3 * SECOND
"""For so long after its start a planner looks at every step: others may have started together with it."""


class Shares:
    """The share of one planner. `node`: its name; None: it plans all. `ahead`: how long before they fall due jobs are
    looked at."""

    def __init__(self, store: Store, node: str | None, ahead: int) -> None:
        self._store = store
        self._node = node
        self._ahead = ahead
        self._left_to_others = False
        self._names: list[str] = [] if node is None else [node]
        self._began: Instant | None = None
        self._look_at: Instant = 0
        self.nothing = False
        """Whether nothing was due when it was last shared out."""

    @property
    def whole(self) -> bool:
        """Whether there are no others."""
        return len(self._names) < 2

    def owns(self, job: Job) -> bool:
        """Whether it is this planner's turn to plan the job."""
        return self.whole or self._names[crc32(job.id.encode()) % len(self._names)] == self._node

    def share(self, jobs: Sequence[Job], now: Instant, *, more: bool) -> tuple[Sequence[Job], Instant | None]:
        """Which of these due jobs are to be planned here, and when to look whether others have planned theirs. `more`:
        there are more that are due than these."""
        self.nothing = not jobs
        if self.whole:
            return jobs, None
        own = [job for job in jobs if self.owns(job)]
        if more:
            # Where it is the turn of others with all of them, it is left to them once; then we help.
            if own or self._left_to_others:
                self._left_to_others = False
                return own or jobs, None
            self._left_to_others = True
            return (), now + to_micros(BEHIND_SECONDS)
        spare = [(self._spare_at(job), job) for job in jobs if not self.owns(job)]
        later = min((at for at, _ in spare if at > now), default=None)
        return [*own, *(job for at, job in spare if at <= now)], later

    def _spare_at(self, job: Job) -> Instant:
        """When any planner plans the job, also where it is another one's turn."""
        fire_at = job.next_fire_at or 0
        if plans_when_due(job) or not self._ahead:
            return fire_at + to_micros(LEFT_SECONDS)
        return fire_at - self._ahead // SPARE

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
