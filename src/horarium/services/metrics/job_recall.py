"""Recall: what /metrics says of jobs beyond the life of this process, and beyond the life of a job.

The last success of a job is in the store, so a restart must not make it unknown: it is read once, after the first
scrape, page by page. A job that was deleted is shown for a minute more, so that its last figures are scraped; then it
is forgotten, and no alert waits for its next success. Where as many jobs are shown as may be, it gives way at once.
"""

from __future__ import annotations

from collections.abc import Sequence

from horarium.clock import SECOND, Instant
from horarium.model import State
from horarium.ports import BATCH_MAX, JobFilter, RunFilter, Store, Topic
from horarium.services.loop.service import Service, Wake
from horarium.services.metrics.telemetry import Telemetry

PAGE = 50
PAUSE = SECOND // 10
LOOK = 60 * SECOND
"""How often deleted jobs are looked for, with this many names; more take longer."""
NAMES_A_LOOK = 1_000


class JobRecall(Service):
    """Keeps the meters of jobs true to the store."""

    name = "recall"
    topics: tuple[Topic, ...] = ()

    def __init__(self, store: Store, telemetry: Telemetry) -> None:
        self._store = store
        self._jobs = telemetry.jobs
        self.wake = Wake()
        self._after: str | None = ""
        self._looked_at: Instant | None = None
        self._gone: frozenset[str] = frozenset()

    def looks(self) -> bool:
        return (self._jobs.scraped and self._after is not None) or (self._looked_at is None and bool(self._jobs.names))

    async def step(self, now: Instant) -> Instant | None:
        if self._jobs.scraped and self._after is not None:
            return await self._recall(now)
        names = self._jobs.names
        if not names:
            self._looked_at = None
            return None
        pause = LOOK * -(-len(names) // NAMES_A_LOOK)
        if self._looked_at is None or not 0 <= now - self._looked_at < pause:
            await self._forget_deleted(names)
            self._looked_at = now
        return self._looked_at + pause

    async def _forget_deleted(self, names: Sequence[str]) -> None:
        """Those that were gone at the last look, too; at once where there is no room."""
        gone: set[str] = set()
        for start in range(0, len(names), BATCH_MAX):
            some = names[start : start + BATCH_MAX]
            found = await self._store.get_jobs(some)
            gone.update(name for name, job in zip(some, found, strict=True) if job is None)
        self._jobs.forget(gone if self._jobs.full else gone & self._gone)
        self._gone = frozenset(gone)

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
