"""Recall: what /metrics says of jobs, from their definition on and beyond the life of this process.

Once metrics are scraped, jobs are looked at every few seconds: each is shown with zeros before its first run ends, so
that its first failure is an increase, and with its health, which is in the store. A job that was deleted is shown until
the look after the one that missed it, so that its last figures are scraped; where there is no room, it goes at once.
"""

from __future__ import annotations

from collections.abc import Sequence

from horarium.clock import SECOND, Instant
from horarium.model import Job
from horarium.ports import BATCH_MAX, PAGE_MAX, JobFilter, Store
from horarium.services.loop.service import Service, Wake
from horarium.services.metrics.telemetry import Telemetry

LOOK = 10 * SECOND
"""How often they are looked at, with this many names; more take longer."""
NAMES_A_LOOK = 1_000


class JobRecall(Service):
    """Keeps the meters of jobs true to the store."""

    name = "recall"

    def __init__(self, store: Store, telemetry: Telemetry) -> None:
        self._store = store
        self._jobs = telemetry.jobs
        self.wake = Wake()
        self._looked_at: Instant | None = None
        self._gone: frozenset[str] = frozenset()

    def looks(self) -> bool:
        return self._jobs.scraped and self._looked_at is None

    async def step(self, now: Instant) -> Instant | None:
        if not self._jobs.scraped:
            return None
        pause = LOOK * max(-(-len(self._jobs.names) // NAMES_A_LOOK), 1)
        if self._looked_at is None or not 0 <= now - self._looked_at < pause:
            await self._look()
            self._looked_at = now
        return self._looked_at + pause

    async def _look(self) -> None:
        after, seen, gone = None, set[str](), set[str]()
        while True:
            page = await self._store.list_jobs(JobFilter(), after, PAGE_MAX)
            seen |= await self._show(page.items)
            after = page.next_after
            if after is None or self._jobs.full:
                break
        others = [name for name in self._jobs.names if name not in seen]
        for start in range(0, len(others), BATCH_MAX):
            some = others[start : start + BATCH_MAX]
            found = await self._store.get_jobs(some)
            await self._show([job for job in found if job is not None])
            gone.update(name for name, job in zip(some, found, strict=True) if job is None)
        self._jobs.forget(gone if self._jobs.full else gone & self._gone)
        self._gone = frozenset(gone)

    async def _show(self, jobs: Sequence[Job]) -> set[str]:
        health = await self._store.job_health([job.id for job in jobs])
        for job in jobs:
            self._jobs.show(job.name, health[job.id])
        return {job.name for job in jobs}
