"""The rescuer: takes back what nobody holds any more. A lease that expired loses its attempt; a run that was not
started in time fails; a cancel whose grace ran out is enforced. Every node may rescue: each change names token, state
and lease as they were read, so a run is rescued once, and never one whose worker has just beaten."""

from __future__ import annotations

import logging

from msgspec.structs import replace

from horarium.clock import INSTANT_MAX, MINUTE, SECOND, Instant, to_micros
from horarium.model import CLAIMED, Job, Run, RunChange
from horarium.moving import move_put_back
from horarium.policies import CANCEL_GRACE_SECONDS
from horarium.ports import BATCH_MAX, Signal, Store
from horarium.services.quiet import QuietLog
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
        self._last: Instant | None = None
        self._log = QuietLog("runs rescued")

    async def step(self, now: Instant) -> Instant | None:
        self._log.tell_rest(now)
        if self._last is None or now < self._last - SECOND:
            await self._shorten(now)
        self._last = now
        runs, next_at = await self._store.overdue_runs(now, BATCH_MAX)
        if not runs:
            return next_at
        jobs = await self._jobs(runs)
        changes = [self._change(run, jobs, now) for run in runs]
        written = await self._store.settle_runs(changes, now)
        rescued = [change.run for change, done in zip(changes, written, strict=True) if done]
        self._telemetry.rescued(rescued)
        for run in rescued:
            self._log.warning(now, "run %s is %s: %s", run.id, run.state, run.error)
        for queue in sorted({run.queue for run in rescued}):
            self._signal.publish(f"queue:{queue}")
        await move_put_back(self._store, self._signal, rescued, now)
        return now if len(runs) == BATCH_MAX and rescued else next_at

    async def _shorten(self, now: Instant) -> None:
        """Leases that were given by a clock that was ahead end as a lease given now would. Whoever holds one renews it
        before that; nothing is taken from anybody. Looked at when we begin, and when our clock went back."""
        runs, _ = await self._store.overdue_runs(INSTANT_MAX, BATCH_MAX)
        changes = [
            RunChange(replace(run, lease_expires_at=end), run.token, run.state)
            for run in runs
            if run.lease_expires_at is not None and run.lease_expires_at > (end := _longest(run, now)) + MINUTE
        ]
        if changes:
            log.warning("%d leases were given by a clock that was ahead", len(changes))
            await self._store.settle_runs(changes, now)

    async def _jobs(self, runs: list[Run]) -> dict[str, Job]:
        ids = list({run.job_id for run in runs if run.job_id is not None})
        return {job.id: job for job in await self._store.get_jobs_by_id(ids) if job is not None} if ids else {}

    def _change(self, run: Run, jobs: dict[str, Job], now: Instant) -> RunChange:
        after = rescue(run, jobs.get(run.job_id or ""), now)
        return RunChange(after, run.token, run.state, False if run.state in CLAIMED else None)


def _longest(run: Run, now: Instant) -> Instant:
    """The latest end of a lease that a right clock could have given."""
    return now + to_micros(max(run.lease_seconds, CANCEL_GRACE_SECONDS))
