"""Which jobs each planner plans: those whose number, a hash of the id, is its own among the planners that are there.

So planners do not make the same plans, of which all but one lose. It is a habit, not a right: what the planner whose
turn it is has not planned shortly before it falls due, because it is gone, busy, or not known yet, any other one plans.

To a planner that is only late, on a store that is busy, such help is of no use, and makes the store busier. It shows in
plans that lost. From then on less and later help is given, until help is of use again (`Help`).
"""

from __future__ import annotations

from collections import defaultdict
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
LEFT_SECONDS, LEFT_SECONDS_MAX = 0.3, 3.0
"""How long a job that is planned when it falls due is left to the planner whose turn it is: as long as two steps take,
at least and at most for so long. What falls due in the middle of a step is planned by the next one."""
SPARE = 10
"""A tenth of the look-ahead before a job falls due, any planner plans it, also where it is another one's turn."""
SILENT = 25 * SECOND
"""A node that gave no sign of life for so long is not counted upon."""
PATIENCE = SECOND // 10, SECOND
"""How much longer a planner that was only late is waited for, the first time and at most."""
ROOM, ROOM_MAX = 8, 100_000
"""With how many jobs of another planner a step helps at first, and at most."""
STARTING = 3 * SECOND
"""For so long after its start a planner looks at every step: others may have started together with it."""


Turn = tuple[int, str]


class Help:
    """How one other planner is helped: with how many of its jobs in a step, and how much later than a planner whose
    jobs never were late. Each time that comes to something, with twice as many, and earlier."""

    def __init__(self) -> None:
        self.room = ROOM
        self.patience = 0
        self.given = 0
        """With how many jobs it was helped since that was judged."""
        self.lost = False
        """Whether a plan was lost since."""
        self._spoilt = False

    @property
    def of_use(self) -> bool:
        """Whether it came to something three times in a row."""
        return self.room > 4 * ROOM

    def judge(self) -> None:
        """See what came of what was given."""
        if self.lost:
            first, most = PATIENCE
            self.room, self.patience = max(self.room // 2, ROOM), min(max(2 * self.patience, first), most)
            self._spoilt = True
        elif self.given:
            self.room = min(2 * self.room, ROOM_MAX)
            self._ease()
        self.given, self.lost = 0, False

    def forget(self) -> None:
        """Some time has passed. If nothing was lost in it, that it was late is half forgotten."""
        if not self._spoilt:
            self._ease()
        self._spoilt = False

    def _ease(self) -> None:
        first, _ = PATIENCE
        self.patience = self.patience // 2 if self.patience > first else 0


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
        self._help: defaultdict[str, Help] = defaultdict(Help)
        self._step = 0
        """How long a step took lately: the longest, a quarter of which is forgotten with each one."""
        self.nothing = False
        """Whether nothing was due when it was last shared out."""

    @property
    def whole(self) -> bool:
        """Whether there are no others."""
        return len(self._names) < 2

    def owns(self, job: Job) -> bool:
        """Whether it is this planner's turn to plan the job."""
        return self.whole or self._turn(job)[0] == 0

    def _turn(self, job: Job) -> Turn:
        """How many planners come before this one with the job, and the last of them, whom it helps. Of the jobs of one
        planner another one comes next with each."""
        names, number = self._names, crc32(job.id.encode())
        others = len(names) - 1
        number, owner = divmod(number, len(names))
        apart = (self._place - owner) % len(names)
        if apart == 0:
            return 0, names[owner]
        turn = 1 + (apart - 1 + number) % others
        before = owner if turn == 1 else owner + 1 + (apart - 2) % others
        return turn, names[before % len(names)]

    def took(self, seconds: float) -> None:
        """That was a step of this planner. On a slow store those of the others take as long."""
        self._step = max(to_micros(seconds), 3 * self._step // 4)

    def lost(self, jobs: Sequence[Job]) -> None:
        """Plans of these jobs came too late."""
        for job in () if self.whole else jobs:
            turn, before = self._turn(job)
            if turn:
                self._help[before].lost = True

    def share(self, jobs: Sequence[Job], now: Instant, *, more: bool) -> tuple[Sequence[Job], Instant | None]:
        """Which of these due jobs are to be planned here, and when to look whether others have planned theirs. `more`:
        there are more that are due than these."""
        self.nothing = not jobs
        if self.whole:
            return jobs, None
        for help in self._help.values():
            help.judge()
        turns = [(self._turn(job), job) for job in jobs]
        own = [job for (turn, _), job in turns if turn == 0]
        if more:
            # Where it is the turn of others with all of them, it is left to them once; then we help.
            if own or self._left_to_others:
                self._left_to_others = False
                return own or self._helped(turns), None
            self._left_to_others = True
            waits = (help.patience for help in self._help.values())
            return (), now + max(to_micros(BEHIND_SECONDS), *waits, 0)
        due, later = [], []
        for turn, job in turns:
            if turn[0]:
                at = self._spare_at(job, *turn)
                if at > now:
                    later.append(at)
                else:
                    due.append((turn, job))
        helped = self._helped(due)
        return [*own, *helped], now if len(helped) < len(due) else min(later, default=None)

    def _helped(self, turns: Sequence[tuple[Turn, Job]]) -> list[Job]:
        """With which of these jobs others are helped now."""
        helped = []
        for (_, before), job in turns:
            help = self._help[before]
            if help.given < help.room:
                help.given += 1
                helped.append(job)
        return helped

    def _spare_at(self, job: Job, turn: int, before: str) -> Instant:
        """When this planner plans the job, where it is the turn of others."""
        fire_at, help = job.next_fire_at or 0, self._help[before]
        turns = (turn - 1) * to_micros(BEHIND_SECONDS)
        if plans_when_due(job) or not self._ahead:
            steps = 0 if help.of_use else min(2 * self._step, to_micros(LEFT_SECONDS_MAX))
            return fire_at + turns + max(to_micros(LEFT_SECONDS) + help.patience, steps)
        return fire_at + turns + help.patience - self._ahead // SPARE

    async def look(self, now: Instant) -> None:
        """See who plans, if that was not done just now."""
        if self._node is None or self._look_at - LOOK_EVERY <= now < self._look_at:
            return
        if self._began is None or now < self._began:
            self._began = now
        nodes = await self._store.list_nodes(now - SILENT)
        self._names = sorted({self._node, *(node.name for node in nodes if _plans(node))})
        self._place = self._names.index(self._node)
        for name in self._help.keys() - set(self._names):
            del self._help[name]
        if now >= self._began + STARTING:
            self._look_at = now + LOOK_EVERY
            for help in self._help.values():
                help.forget()
        else:
            self._look_at = now


def _plans(node: Node) -> bool:
    return "planner" in node.roles and node.stopped_at is None
