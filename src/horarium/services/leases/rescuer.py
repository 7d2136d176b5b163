"""The rescuer: takes back what no worker holds any more. A lease that expired loses its attempt; a run that was not
started in time fails; a cancel whose grace ran out is enforced. Every node may rescue: each change names token, state
and lease as they were read, so a run is rescued once, and never one whose worker has just sent a heartbeat."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from horarium.clock import MINUTE, Clock, Instant
from horarium.model import CLAIMED, Job, Run, RunChange
from horarium.operations.settling.reconciling import Reconciler
from horarium.operations.settling.settling import Settling
from horarium.ports import BATCH_MAX, RunFilter, Store, Topic
from horarium.rules.settling import longest_lease, rescue
from horarium.rules.unbegun import unbegun
from horarium.services.leases.leases import GRACE_SECONDS, revived
from horarium.services.leases.own import NOTHING, Own
from horarium.services.leases.sudden import Sudden
from horarium.services.loop.clock_watch import ClockWatch, Steps
from horarium.services.loop.quiet import QuietLog
from horarium.services.loop.service import Service, Wake
from horarium.services.metrics.telemetry import Telemetry

STILL_SECONDS = 2.0
"""A store that does not answer for longer than this stood still."""

log = logging.getLogger("horarium")


class Rescuer(Service):
    """Ends leases that expired. `own`: what this process holds itself; it is left to it. `steps`: those of the clock
    that this process knows of."""

    name = "rescuer"
    topics: tuple[Topic, ...] = ()

    def __init__(
        self,
        store: Store,
        settling: Settling,
        reconciler: Reconciler,
        telemetry: Telemetry,
        clock: Clock,
        own: Callable[[], Own] = lambda: NOTHING,
        steps: Steps | None = None,
    ) -> None:
        self.wake = Wake()
        self._store = store
        self._settling = settling
        self._reconciler = reconciler
        self._telemetry = telemetry
        self._clock = clock
        self._own = own
        self._watch = ClockWatch(clock, steps)
        self._sudden = Sudden(clock)
        self._to_shorten = True
        self._nothing_overdue = False
        self._asked_at: float | None = None
        """Since when the store has been asked and has not answered, by the monotonic clock."""
        self._log = QuietLog("runs rescued")

    def at_writes(self) -> bool:
        return self._nothing_overdue and not self._reconciler.behind and not self._log.waits

    async def step(self, now: Instant) -> Instant | None:
        self._log.tell_rest(now)
        if (step := self._watch.look(now)) != 0:
            # A step forward that is seen may be the rest of a longer one, of which a part was taken back meanwhile.
            self._to_shorten = True
        if step < 0:
            self._sudden.forget()
        if self._to_shorten:
            self._to_shorten = not await self._shorten(now)
        await self._reconciler.catch_up()
        runs, next_at, stood_still = await self._overdue(now)
        self._nothing_overdue = not runs
        left = self._sudden.among(runs, now, BATCH_MAX, stood_still)
        if not runs:
            return next_at
        is_full = len(runs) == BATCH_MAX
        own = self._own()
        runs = [run for run in runs if run.id not in left and not own.keeps(run)]
        if not self._watch.stood_for(GRACE_SECONDS) or self._watch.steps.stood:
            runs = await self._spare(runs, now)
        jobs = await self._jobs(runs)
        if self._clock.now() < now:
            # The clock went back while we waited: these leases ran out by a time that has not come.
            return self._clock.now()
        changes = [_change(run, jobs, now, own) for run in runs]
        written = await self._settling.write(changes, jobs, now)
        rescued = [change.run for change, done in zip(changes, written, strict=True) if done]
        self._telemetry.rescued(rescued)
        for run in rescued:
            self._log.warning(now, "run %s is %s: %s", run.id, run.state, run.error or run.history[-1].message)
        return now if is_full and rescued else next_at

    async def _overdue(self, now: Instant) -> tuple[list[Run], Instant | None, bool]:
        """As the store answers; and whether it stood still before: then no lease could be renewed."""
        if self._asked_at is None:
            self._asked_at = self._clock.monotonic()
        runs, next_at = await self._store.overdue_runs(now, BATCH_MAX)
        stood_still = self._clock.monotonic() - self._asked_at > STILL_SECONDS
        self._asked_at = None
        return runs, next_at, stood_still

    async def _spare(self, runs: list[Run], now: Instant) -> list[Run]:
        """After a step forward a lease may have ended by this clock only. Leases from before the step last, once, as
        long as they would have without it; the workers that hold them renew them meanwhile. Where it is not sure which
        leases these are, they are looked at again once they would have been renewed. Returns the others."""
        changes = revived(self._watch, runs, now)
        if changes:
            log.warning("the wall clock stepped forward; %d leases go on", len(changes))
            await self._store.settle_runs(changes, now)
        spared = {change.run.id for change in changes}
        return [run for run in runs if run.id not in spared and not self._is_unsure(run)]

    def _is_unsure(self, run: Run) -> bool:
        return run.state in CLAIMED and self._watch.is_unsure(run)

    async def _shorten(self, now: Instant) -> bool:
        """Leases that were given by a clock that was ahead end as a lease given now would. The worker that holds
        one renews it before that, so nothing is taken from it. Done at the start, and when this clock was set. Whether
        that is all: a run that was changed since it was read, by a cancel perhaps, is looked at again."""
        after: str | None = None
        is_all = True
        while True:
            page = await self._store.list_runs(RunFilter(states=CLAIMED), after, BATCH_MAX)
            is_all &= await self._shorten_all(page.items, now)
            if (after := page.next_after) is None:
                return is_all

    async def _shorten_all(self, runs: Sequence[Run], now: Instant) -> bool:
        too_long: dict[Instant, list[RunChange]] = {}
        for run in runs:
            end = longest_lease(run, now)
            if run.lease_expires_at is not None and run.lease_expires_at > end + MINUTE:
                shortened = RunChange(replace(run, lease_expires_at=end), run.token, run.state, held=True)
                too_long.setdefault(end, []).append(shortened)
        if too_long:
            log.warning("%d leases were given by a clock that was ahead", sum(map(len, too_long.values())))
        is_all = True
        for end, changes in too_long.items():
            # Held beyond that still: a lease that was renewed since it was read is left alone, and its companions.
            is_all &= all(await self._store.settle_runs(changes, end + MINUTE))
        return is_all

    async def _jobs(self, runs: list[Run]) -> dict[str, Job]:
        ids = list({run.job_id for run in runs if run.job_id is not None})
        return {job.id: job for job in await self._store.get_jobs_by_id(ids) if job is not None} if ids else {}


def _change(run: Run, jobs: dict[str, Job], now: Instant, own: Own) -> RunChange:
    job = jobs.get(run.job_id or "")
    after = unbegun(run, run.token, job, now) if own.waits(run) else None
    after = after or rescue(run, job, now)
    return RunChange(after, run.token, run.state, False if run.state in CLAIMED else None)
