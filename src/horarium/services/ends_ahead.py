"""Runs that ended in a future which turned out to be wrong are brought back with the clock.

Their end, what their history says and when they may be forgotten lie where the clock was. Without this they would be
kept for that much longer, and would count as the newest runs of their jobs.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from horarium.clock import SECOND, Instant
from horarium.model import UNFINISHED, Job, Run, RunChange, State
from horarium.ports import PAGE_MAX, RunFilter, Store
from horarium.rules.settling import brought_back

AHEAD = SECOND
"""An end further ahead than this was written by a clock that was wrong."""
FINISHED = frozenset(State) - UNFINISHED

log = logging.getLogger("horarium")


class EndsAhead:
    """Looks, a page at a time, at the finished runs of fire times since some instant."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._since: Instant | None = None
        self._after: str | None = None

    def begin(self, since: Instant) -> None:
        """Look at the runs of fire times from there on."""
        self._since = since if self._since is None else min(since, self._since)
        self._after = None

    async def step(self, now: Instant) -> bool:
        """Look at the next page. Whether there is another one."""
        if self._since is None:
            return False
        page = await self._store.list_runs(RunFilter(states=FINISHED, since=self._since), self._after, PAGE_MAX)
        await self._bring_back([run for run in page.items if (run.finished_at or 0) > now + AHEAD], now)
        self._after = page.next_after
        if self._after is None:
            self._since = None
        return self._since is not None

    async def _bring_back(self, runs: Sequence[Run], now: Instant) -> None:
        if not runs:
            return
        jobs = await self._jobs({run.job_id for run in runs if run.job_id is not None})
        changes = [RunChange(brought_back(run, jobs.get(run.job_id or ""), now), run.token, run.state) for run in runs]
        done = await self._store.settle_runs(changes, now)
        log.warning("%d runs ended by a clock that was ahead; they ended now", sum(done))

    async def _jobs(self, ids: set[str]) -> Mapping[str, Job]:
        return {job.id: job for job in await self._store.get_jobs_by_id(sorted(ids)) if job is not None}
