"""The pruner: forgets finished runs when their retention says so, in small batches, so that nothing has to wait."""

from __future__ import annotations

from horarium.clock import SECOND, Instant
from horarium.model import Job, Run
from horarium.ports import Store
from horarium.telemetry import Telemetry

BATCH = 500
PAUSE = SECOND // 20
"""Between two batches: what else waits for the store goes first."""
IDLE = 30 * SECOND
TRIMMED_JOBS_MAX = 10_000


class Pruner:
    """Forgets by age, and by number for jobs that say how many they keep."""

    name = "pruner"
    topics: tuple[str, ...] = ()

    def __init__(self, store: Store, telemetry: Telemetry) -> None:
        self._store = store
        self._telemetry = telemetry
        self._trim: dict[str, int] = {}
        self._idle_until: Instant = 0

    def note(self, run: Run, job: Job | None) -> None:
        """A run of this job was settled: it may have one more than it keeps."""
        if job is not None and job.retention.runs_max is not None and len(self._trim) < TRIMMED_JOBS_MAX:
            self._trim[job.id] = job.retention.runs_max

    async def step(self, now: Instant) -> Instant | None:
        if self._idle_until - IDLE <= now < self._idle_until and not self._trim:
            return self._idle_until
        pruned = await self._store.prune_runs(now, BATCH) if now >= self._idle_until else 0
        trimmed = await self._trim_one()
        self._telemetry.pruned(pruned + trimmed)
        if pruned < BATCH and now >= self._idle_until:
            self._idle_until = now + IDLE
        return now + PAUSE if pruned == BATCH or self._trim else self._idle_until

    async def _trim_one(self) -> int:
        if not self._trim:
            return 0
        job_id, keep = next(iter(self._trim.items()))
        trimmed = await self._store.trim_runs(job_id, keep, BATCH)
        if trimmed < BATCH:
            self._trim.pop(job_id, None)
        return trimmed
