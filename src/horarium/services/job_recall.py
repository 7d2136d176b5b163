"""Recall: what /metrics says of jobs beyond the life of this process, and beyond the life of a job.

The last success of a job is in the store, so a restart must not make it unknown: it is read once, after the first
scrape, page by page. Where as many jobs are shown as may be, those that were deleted give way to new ones.
"""

from __future__ import annotations

from horarium.clock import SECOND, Instant
from horarium.model import State
from horarium.ports import BATCH_MAX, JobFilter, RunFilter, Store, Topic
from horarium.services.service import Service, Wake
from horarium.services.telemetry import Telemetry

PAGE = 50
PAUSE = SECOND // 10
LOOK = 60 * SECOND
"""How often deleted jobs are looked for, where there is no room for new ones."""


class JobRecall(Service):
    """Keeps the meters of jobs true to the store."""

    name = "recall"
    topics: tuple[Topic, ...] = ()

    def __init__(self, store: Store, telemetry: Telemetry) -> None:
        self._store = store
        self._jobs = telemetry.jobs
        self.wake = Wake()
        self._after: str | None = ""
        self._looked_at: Instant = 0

    def looks(self) -> bool:
        return self._jobs.scraped and (self._after is not None or self._jobs.full)

    async def step(self, now: Instant) -> Instant | None:
        if not self._jobs.scraped:
            return None
        if self._after is not None:
            return await self._recall(now)
        if self._jobs.full and not 0 <= now - self._looked_at < LOOK:
            self._looked_at = now
            await self._forget_deleted()
        return None

    async def _forget_deleted(self) -> None:
        names = self._jobs.names
        for start in range(0, len(names), BATCH_MAX):
            some = names[start : start + BATCH_MAX]
            found = await self._store.get_jobs(some)
            self._jobs.forget([name for name, job in zip(some, found, strict=True) if job is None])

    async def _recall(self, now: Instant) -> Instant | None:
        """One page of jobs."""
        page = await self._store.list_jobs(JobFilter(), self._after or None, PAGE)
        for job in page.items:
            if self._jobs.full:
                self._after = None
                return None
            runs = await self._store.list_runs(RunFilter(job=job.name, states=frozenset({State.COMPLETED})), None, 1)
            for run in runs.items:
                self._jobs.succeeded(job.name, run.finished_at)
        self._after = page.next_after
        return None if self._after is None else now + PAUSE
