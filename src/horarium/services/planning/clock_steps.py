"""What a stepped clock leaves behind, put right: cursors and leases that lie in a future which turned out to be wrong.

A wall clock that runs ahead for a while (a bad time server, a machine that woke up wrong) makes planners account for
fire times that have not come, perhaps years of them. When it is set back, those jobs would keep silent until the time
comes again. So whenever our clock went back, whenever a node is seen that beats in our future, and once at the start,
the jobs whose cursor lies ahead are looked for, a page at a time, and planned again from now. The unique (job, fire_at)
keeps a run from running twice. Never touches a cursor that lies where a right clock puts it.
"""

from __future__ import annotations

import logging

from msgspec.structs import replace

from horarium.clock import SECOND, Clock, Instant
from horarium.errors import Outage
from horarium.model import Job, Plan, RunChange, State
from horarium.ports import PAGE_MAX, RunFilter, Store
from horarium.rules.editing import reanchor
from horarium.rules.holds import PLANNED_CAUSES
from horarium.rules.overridden import back_in_force
from horarium.rules.planning import CURSOR_AHEAD
from horarium.services.planning.ends_ahead import EndsAhead

STEP_BACK = SECOND
"""How far back the clock must go between two steps to count as set back."""
PAGE_PAUSE = SECOND // 20
NODES_EVERY = 30 * SECOND
WRONG_FOR = 3600 * SECOND
"""How long a clock that is set back may have been wrong for its runs to be looked at."""
PAGES_MAX = 50
"""Pages of skipped rows that are removed for one job at one time."""

log = logging.getLogger("horarium")


class ClockSteps:
    """Looks for jobs whose cursor lies in the future. `ahead`: how far they are planned ahead on purpose. Answers of
    the store are judged by the clock after the read: beside a process that stood still others planned on, up to now."""

    def __init__(self, store: Store, clock: Clock, ahead: int) -> None:
        self._store, self._clock = store, clock
        self._ahead = ahead
        self._last: Instant | None = None
        self._steady: Instant = 0
        self._wrong_at: Instant = 0
        self._after: str | None = None
        self._looking = True
        self._nodes_at: Instant = 0
        self._ahead_of_us: frozenset[tuple[str, Instant]] = frozenset()
        self._ends = EndsAhead(store, clock)

    async def step(self, now: Instant) -> Instant | None:
        """Look at the next page, if there is a reason to look at all. When to be called again."""
        self._notice(now)
        if now >= self._nodes_at:
            await self._look_at_nodes(now)
        more = await self._ends.step()
        if self._looking:
            await self._look_at_jobs(now)
        return now + PAGE_PAUSE if more or self._looking else None

    async def _look_at_jobs(self, now: Instant) -> None:
        page = await self._store.jobs_ahead(now + self._ahead + CURSOR_AHEAD, self._after, PAGE_MAX)
        self._after = page.next_after
        self._looking = page.next_after is not None
        try:
            for job in page.items:
                now = self._clock.now()
                if job.planned_until > now + self._ahead + CURSOR_AHEAD:
                    await self._bring_back(job, now)
        except Outage:
            self._begin()
            raise

    def _notice(self, now: Instant) -> None:
        steady = self._clock.steady()
        if self._last is not None and now < self._last - STEP_BACK:
            log.warning("the wall clock went back by %.0f s", (self._last - now) / SECOND)
            self._begin()
            self._wrong_at = self._last + steady - self._steady
            self._ends.begin(now - WRONG_FOR)
            self._nodes_at = now
        elif self._last is None:
            self._ends.begin(now + CURSOR_AHEAD)
        self._last, self._steady = now, steady

    def _begin(self) -> None:
        self._looking, self._after = True, None

    async def _look_at_nodes(self, now: Instant) -> None:
        nodes = await self._store.list_nodes(now + CURSOR_AHEAD)
        now = self._clock.now()
        self._wrong_at = max([self._wrong_at, *(node.beat_at for node in nodes)])
        seen = frozenset((node.name, node.beat_at) for node in nodes if node.beat_at >= now + CURSOR_AHEAD)
        if seen - self._ahead_of_us:
            log.warning("the clock of node %s is ahead of ours", min(name for name, _ in seen))
            self._begin()
            self._ends.begin(now + CURSOR_AHEAD)
        self._ahead_of_us = seen
        self._nodes_at = now + NODES_EVERY

    async def _bring_back(self, job: Job, now: Instant) -> None:
        """First the skipped rows where runs are due now, then the job: if this is interrupted in between, the job is
        still found. Each write goes under the version that was read: another node that brings back the same job may
        have planned it since, and have a new row in the place of one that was read here."""
        log.warning("job %s was planned by a clock that was ahead; it goes on from now", job.name)
        where = RunFilter(job=job.name, states=frozenset({State.SKIPPED}), since=now + 1)
        after: str | None = None
        for _ in range(PAGES_MAX):
            page = await self._store.list_runs(where, after, PAGE_MAX)
            # A run asked for by hand and skipped was so by any clock, and its asker has the answer.
            rows = [row for row in page.items if row.job_id == job.id and row.cause in PLANNED_CAUSES]
            if rows:
                changes = (RunChange(replace(row, prune_at=0), row.token, row.state) for row in rows)
                job = replace(job, overrides=back_in_force(job, rows))
                forgetting = Plan(job, changes=tuple(changes))
                if not await self._commit(forgetting, now):
                    return
                job = replace(job, version=job.version + forgetting.versions)
                # Others may be as free to go, and are taken first.
                while await self._store.prune_runs(0, PAGE_MAX) == PAGE_MAX:
                    pass
            if (after := page.next_after) is None:
                break
        unfinished = await self._store.unfinished_runs([job.id])
        await self._commit(reanchor(job, unfinished[job.id], now, self._wrong_at), now)

    async def _commit(self, planned: Plan, now: Instant) -> bool:
        """Write; where another one was quicker, all is looked at once more, as the job may still be ahead."""
        written = (await self._store.commit_plans([planned], now))[0]
        if not written:
            self._begin()
        return written
