"""Hash partitioning of jobs among planners, so that they do not make the same plans, of which all but one lose.

It is a habit, not a right: jobs that their planner has not planned shortly before they fall due, because it is gone,
busy, or not known yet, any other one plans. On a slow store a planner that is only late looks like one that is gone, so
patience with others grows with the time that a step of one's own takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from zlib import crc32

from horarium.clock import SECOND, Instant, to_micros
from horarium.model import Job, Node
from horarium.ports import Store
from horarium.rules.planning import plans_when_due

LOOK_EVERY = 5 * SECOND
"""How often the list of planners is read."""
BEHIND_SECONDS = 0.1
"""How long a planner leaves the jobs to another one that was quicker with every job of a step, or whose turn it is."""
LEFT_SECONDS, LEFT_SECONDS_MAX = 0.3, 1.3
"""How long jobs that are planned when they fall due are left to the planner whose turn it is: three of one's own steps,
within these bounds. Jobs that fall due in the middle of a step are planned by the next one."""
SPARE = 10
"""A tenth of the look-ahead before a job falls due, any planner plans it, also where it is another one's turn."""
SILENT = 25 * SECOND
"""A node that gave no sign of life for so long is not counted upon."""
LATE_SECONDS_MAX = 1.0
"""How much longer jobs that are planned ahead are left to it, at most, where a step is longer than `LEFT_SECONDS`."""
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
        self._place = 0
        self._look_at: Instant = 0
        self._step = 0
        """How long a step took lately: the longest, which decays by a quarter with each one."""
        self.nothing = False
        """Whether nothing was due when it was last shared out."""

    @property
    def whole(self) -> bool:
        """Whether there are no others."""
        return len(self._names) < 2

    def _turn(self, job: Job) -> int:
        """How many planners come before this one with the job. Of the jobs of one planner another one comes next with
        each."""
        names, number = self._names, crc32(job.id.encode())
        number, owner = divmod(number, len(names))
        apart = (self._place - owner) % len(names)
        return 0 if apart == 0 else 1 + (apart - 1 + number) % (len(names) - 1)

    def took(self, seconds: float) -> None:
        """That was a step of this planner. On a slow store those of the others take as long."""
        self._step = max(to_micros(seconds), 3 * self._step // 4)

    def share(self, jobs: Sequence[Job], now: Instant, *, more: bool) -> tuple[Sequence[Job], Instant | None]:
        """Which of these due jobs are to be planned here, and when to look whether others have planned theirs. `more`:
        there are more that are due than these."""
        self.nothing = not jobs
        if self.whole:
            return jobs, None
        turns = [(self._turn(job), job) for job in jobs]
        own = [job for turn, job in turns if turn == 0]
        if more:
            # Where it is the turn of others with all of them, it is left to them once; then we help.
            if own or self._left_to_others:
                self._left_to_others = False
                return own or jobs, None
            self._left_to_others = True
            return (), now + max(to_micros(BEHIND_SECONDS), self._late)
        spare = [(self._spare_at(job, turn), job) for turn, job in turns if turn]
        return (
            [*own, *(job for at, job in spare if at <= now)],
            min((at for at, _ in spare if at > now), default=None),
        )

    @property
    def _late(self) -> int:
        """How much longer others are waited for, since steps are slow."""
        return min(max(self._step - to_micros(LEFT_SECONDS), 0), to_micros(LATE_SECONDS_MAX))

    def _spare_at(self, job: Job, turn: int) -> Instant:
        """When this planner plans the job, where it is the turn of others."""
        at = (job.next_fire_at or 0) + (turn - 1) * to_micros(BEHIND_SECONDS)
        if plans_when_due(job) or not self._ahead:
            return at + min(max(3 * self._step, to_micros(LEFT_SECONDS)), to_micros(LEFT_SECONDS_MAX))
        return at + self._late - self._ahead // SPARE

    async def look(self, now: Instant) -> None:
        """See who plans, if that was not done just now."""
        if self._node is None or self._look_at - LOOK_EVERY <= now < self._look_at:
            return
        if self._began is None or now < self._began:
            self._began = now
        nodes = await self._store.list_nodes(now - SILENT)
        self._names = sorted({self._node, *(node.name for node in nodes if _plans(node, now))})
        self._place = self._names.index(self._node)
        self._look_at = now + LOOK_EVERY if now >= self._began + STARTING else now


def _plans(node: Node, now: Instant) -> bool:
    return "planner" in node.roles and node.is_alive(now, SILENT)
