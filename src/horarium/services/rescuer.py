"""The rescuer: takes back what nobody holds any more. A lease that expired loses its attempt; a run that was not
started in time fails; a cancel whose grace ran out is enforced. Every node may rescue: each change names token, state
and lease as they were read, so a run is rescued once, and never one whose worker has just beaten."""

from __future__ import annotations

import logging

from horarium.clock import Instant
from horarium.model import CLAIMED, Job, Run, RunChange
from horarium.ports import BATCH_MAX, Signal, Store
from horarium.settling import rescue
from horarium.telemetry import Telemetry

log = logging.getLogger("horarium")


class Rescuer:
    """Ends leases that expired."""

    name = "rescuer"
    topics: tuple[str, ...] = ("leases",)

    def __init__(self, store: Store, signal: Signal, telemetry: Telemetry) -> None:
        self._store = store
        self._signal = signal
        self._telemetry = telemetry

    async def step(self, now: Instant) -> Instant | None:
        runs, next_at = await self._store.overdue_runs(now, BATCH_MAX)
        if not runs:
            return next_at
        jobs = await self._jobs(runs)
        changes = [self._change(run, jobs, now) for run in runs]
        written = await self._store.settle_runs(changes, now)
        rescued = [change.run for change, done in zip(changes, written, strict=True) if done]
        self._telemetry.rescued(rescued)
        for run in rescued:
            log.warning("run %s is %s: %s", run.id, run.state, run.error)
        for queue in sorted({run.queue for run in rescued}):
            self._signal.publish(f"queue:{queue}")
        return now if len(runs) == BATCH_MAX and rescued else next_at

    async def _jobs(self, runs: list[Run]) -> dict[str, Job]:
        ids = list({run.job_id for run in runs if run.job_id is not None})
        return {job.id: job for job in await self._store.get_jobs_by_id(ids) if job is not None} if ids else {}

    def _change(self, run: Run, jobs: dict[str, Job], now: Instant) -> RunChange:
        after = rescue(run, jobs.get(run.job_id or ""), now)
        return RunChange(after, run.token, run.state, False if run.state in CLAIMED else None)
