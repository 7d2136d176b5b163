"""The pruner: deletes finished runs when their retention says so, in small batches, so that nothing has to wait."""

from __future__ import annotations

from horarium.access import audit, sessions
from horarium.clock import SECOND, Clock, Instant, to_micros
from horarium.model import Job
from horarium.operations.jobs.versions import Versions
from horarium.ports import PAGE_MAX, Store
from horarium.rules.compiled import retention_of_job
from horarium.services.loop.believed import BelievedClock
from horarium.services.loop.service import Service, Wake
from horarium.services.metrics.telemetry import Telemetry

BATCH, BATCH_MIN = 500, 100
PAUSE = SECOND // 20
"""Between two batches, at least: what else waits for the store goes first."""
SLOW_SECONDS, QUICK_SECONDS = 0.020, 0.010
"""A batch that takes longer than the first is halved, one that takes less than the second grows again."""
SHARE = 20
"""One part in this number of the time is spent on pruning, while it does not fall behind."""
PER_SECOND_MIN = 2_000
"""Deleted in a second at least, where more waits."""
BEHIND_SECONDS = 600.0
"""When for so long more had expired than a batch takes, or fire times were not planned, no more way is given."""
IDLE = 30 * SECOND
RECORDS_AGAIN = 3_600 * SECOND
"""How often expired sessions of people and audit entries are looked for."""
TRIMMED_JOBS_MAX = 10_000
SWEEP = 600 * SECOND
"""How often the jobs that keep a number of runs are looked for: this process has no note of runs settled by another
one, or before a crash."""


class Pace:
    """The size of a batch, and the pause after it: the longer the store takes, the less it is asked for."""

    def __init__(self) -> None:
        self.batch = BATCH
        self._behind_since: float | None = None

    def pause(self, began: float, ended: float, pruned: int) -> int:
        """The pause after a batch that began and ended then."""
        full, took = pruned >= self.batch, ended - began
        if not full:
            self._behind_since = None
        elif self._behind_since is None:
            self._behind_since = began
        if self._behind_since is not None and ended - self._behind_since >= BEHIND_SECONDS:
            self.batch = BATCH
            return PAUSE
        slowest = to_micros(self.batch / PER_SECOND_MIN)
        if took > SLOW_SECONDS:
            self.batch = max(self.batch // 2, BATCH_MIN)
        elif took < QUICK_SECONDS:
            self.batch = min(self.batch * 2, BATCH)
        return max(PAUSE, min(to_micros(took * (SHARE - 1)), slowest))


class Pruner(Service):
    """Deletes by age, and by number for jobs that say how many they keep."""

    name = "pruner"

    def __init__(
        self, store: Store, telemetry: Telemetry, clock: Clock, audit_retention_seconds: float | None = None
    ) -> None:
        self.wake = Wake()
        self._store = store
        self._telemetry = telemetry
        self._clock = clock
        self.believed = BelievedClock(store, clock)
        """Of this node: what else deletes by age asks it."""
        self._unplanned_since: float | None = None
        self._pace = Pace()
        self._trim: dict[str, int] = {}
        self._held_back = False
        self._idle_until: Instant = 0
        self._swept_at: Instant | None = None
        self._sweep_after: str | None = None
        self._audit_seconds = audit_retention_seconds
        self._records_due_at: Instant | None = None

    def note(self, job: Job | None) -> None:
        """Runs of this job were settled: it may have more than it keeps."""
        keep = None if job is None else retention_of_job(job).runs_max
        if job is not None and keep is not None and len(self._trim) < TRIMMED_JOBS_MAX:
            self._trim[job.id] = keep

    def looks(self) -> bool:
        return bool(self._trim) or self._held_back

    async def step(self, now: Instant) -> Instant | None:
        self.believed.look()
        await self.believed.compare(now)
        self._held_back = not self.believed.stands()
        if self._held_back:
            return None
        await self._prune_records(now)
        idle = self._idle_until - IDLE <= now < self._idle_until
        if idle and not self._trim and self._sweep_after is None:
            return self._idle_until
        await self._sweep(now)
        planned_until = await self._planned_until(now)
        behind = planned_until < now
        batch, began = self._pace.batch, self._clock.monotonic()
        pruned = 0 if idle else await self._store.prune_runs(planned_until, batch)
        trimmed = 0 if behind else await self._trim_one()
        self._telemetry.pruned(pruned + trimmed)
        pause = self._pace.pause(began, self._clock.monotonic(), max(pruned, trimmed))
        if not idle and pruned < batch:
            self._idle_until = now + IDLE
        more = pruned == batch or (self._trim and not behind) or self._sweep_after
        return now + pause if more else self._idle_until

    async def _planned_until(self, now: Instant) -> Instant:
        """The instant up to which all jobs are planned. A run beyond it, of a backfill or of a plan that an edit took
        back, is what tells the planner that its fire time was had."""
        due, _ = await self._store.due_jobs(now - SECOND, 1)
        began = self._clock.monotonic()
        if not due or due[0].next_fire_at is None:
            self._unplanned_since = None
            return now
        if self._unplanned_since is None:
            self._unplanned_since = began
        return due[0].next_fire_at if began - self._unplanned_since < BEHIND_SECONDS else now

    async def _prune_records(self, now: Instant) -> None:
        """Sessions that are over; entries, and the versions of jobs that were deleted, beyond their time: one batch
        of each where there are more."""
        due_at = self._records_due_at
        if due_at is not None and due_at - RECORDS_AGAIN <= now < due_at:
            return
        gone = await sessions.prune(self._store, now, BATCH)
        if self._audit_seconds is not None:
            until = now - to_micros(self._audit_seconds)
            gone += await audit.prune(self._store, until, BATCH) + await Versions(self._store).prune(until, BATCH)
        self._records_due_at = now + (PAUSE if gone >= BATCH else RECORDS_AGAIN)

    async def _sweep(self, now: Instant) -> None:
        """One page of the jobs that keep a number of runs, where it is time to look for them."""
        if self._sweep_after is None and self._swept_at is not None and 0 <= now - self._swept_at < SWEEP:
            return
        page = await self._store.jobs_trimmed(self._sweep_after, PAGE_MAX)
        for job in page.items:
            self.note(job)
        self._sweep_after = page.next_after
        self._swept_at = now

    async def _trim_one(self) -> int:
        if not self._trim:
            return 0
        job_id = next(iter(self._trim))
        keep, batch, trimmed = self._trim.pop(job_id), self._pace.batch, None
        try:
            trimmed = await self._store.trim_runs(job_id, keep, batch)
        finally:
            if trimmed is None or trimmed >= batch:
                self._trim.setdefault(job_id, keep)
        return trimmed
