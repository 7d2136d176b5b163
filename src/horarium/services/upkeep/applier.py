"""The applier: does for very many runs what a change of their job asks, page by page, when the change is long written.

The work is in marker records (`rules.applying`), so a node that dies leaves nothing undone: another one goes on once
its hold has ended. It works half of the time at most, so that on-time work has its turn.
"""

from __future__ import annotations

from msgspec import Struct

from horarium.clock import INSTANT_MIN, SECOND, Clock, Instant
from horarium.errors import Outage
from horarium.model import CLAIMED, UNFINISHED, State
from horarium.model.records import Record, RecordChange, RecordFilter
from horarium.operations.settling.reconciling import Reconciler
from horarium.ports import APPLY, PAGE_MAX, Store
from horarium.rules.applying import HELD, PREFIX, held_by, owed_of
from horarium.services.loop.service import Service, Wake

LOOK_EVERY = 5 * SECOND
"""How often work without a signal is looked for."""


class Work(Struct):
    """What this node is at: the record as it wrote it, which runs, and where the next page of them begins. Those that
    are claimed come first: they may have to be asked to stop."""

    record: Record
    states: frozenset[State] = CLAIMED
    after: str | None = None
    begun: Instant = 0


class Applier(Service):
    """Applies changes of jobs to runs that the changes did not look at."""

    name = "applier"
    topics = (APPLY,)
    prefix = PREFIX

    def __init__(self, store: Store, clock: Clock, reconciler: Reconciler, node: str) -> None:
        self.wake = Wake()
        self._store = store
        self._clock = clock
        self._reconciler = reconciler
        self._node = node
        self._work: Work | None = None
        self._look_at: Instant = INSTANT_MIN
        self._left = False

    def signalled(self) -> None:
        self._look_at = INSTANT_MIN

    def looks(self) -> bool:
        return not self._has_looked(self._clock.now())

    def _has_looked(self, now: Instant) -> bool:
        return self._look_at - LOOK_EVERY <= now < self._look_at

    @property
    def under_way(self) -> bool:
        """Whether a change was begun here and is not done."""
        return self._work is not None

    async def step(self, now: Instant) -> Instant | None:
        began = self._clock.monotonic()
        if self._work is None:
            if not self._has_looked(now):
                self._look_at = now + LOOK_EVERY
                try:
                    self._work = await self._find(now)
                except Outage:
                    self._look_at = INSTANT_MIN
                    raise
            if self._work is None:
                return self._look_at if self._left else None
        if await self._renew(self._work, now):
            await self._page(self._work)
        return now + 2 * round((self._clock.monotonic() - began) * SECOND)

    async def _find(self, now: Instant) -> Work | None:
        """The first record that no other node holds. `_left`: whether there are any."""
        after: str | None = None
        self._left = False
        while True:
            page = await self._store.list_records(RecordFilter(self.prefix), after, PAGE_MAX)
            self._left = self._left or bool(page.items)
            for record in page.items:
                if owed_of(record).held(self._node, now):
                    continue
                mine = held_by(record, self._node, now)
                if (await self._store.put_records([RecordChange(mine, record.version)]))[0]:
                    return Work(mine, begun=now)
            if (after := page.next_after) is None:
                return None

    async def _renew(self, work: Work, now: Instant) -> bool:
        """Say that we go on, where that is needed. False: another node does."""
        left = owed_of(work.record).until - now
        if HELD // 2 < left <= HELD:
            return True
        mine = held_by(work.record, self._node, now)
        if (await self._store.put_records([RecordChange(mine, work.record.version)]))[0]:
            work.record = mine
            return True
        self._give_up()
        return False

    async def _page(self, work: Work) -> None:
        owed = owed_of(work.record)
        (job,) = await self._store.get_jobs_by_id([owed.job_id])
        if job is not None:
            page = job, owed.since, work.after, work.states, owed.newest
            work.after = await self._reconciler.look_at_page(*page)
            if work.after is not None:
                return
        if job is not None and work.states == CLAIMED:
            work.states = UNFINISHED
        else:
            await self._finish(work)

    async def _finish(self, work: Work, settles: Instant = 0) -> None:
        """All was gone through: the marker is removed. If that was begun sooner after the change than it `settles`, all
        is gone through once more in a while; at once, if a signal came meanwhile."""
        if settles and work.begun < owed_of(work.record).since + settles:
            self._work = None
            if self._look_at != INSTANT_MIN:
                self._look_at = self._clock.now() + LOOK_EVERY
            return
        await self._store.put_records([work.record.removal()])
        self._give_up()

    def _give_up(self) -> None:
        self._work, self._look_at = None, INSTANT_MIN
