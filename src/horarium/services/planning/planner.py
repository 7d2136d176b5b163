"""The planner: turns due jobs into runs. Any number of planners may work on the same jobs at once; each plan is a
compare-and-set on the job's version, and the planner that loses has nothing left to do.

Work is proportional to due jobs, never to the number of jobs. Misfires of an absence are planned at once but fall due
at a limited rate (`pacing`), so that catching up neither floods the targets nor delays on-time work; where more was
missed than one step takes, each step plans on-time jobs first (docs/architecture/planners.md).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from msgspec.structs import replace

from horarium.clock import SECOND, Instant, to_micros
from horarium.errors import Outage, TooExpensive
from horarium.model import Job, Plan, Run
from horarium.operations.jobs.changes import last_runs
from horarium.operations.jobs.passed import in_the_way
from horarium.operations.settling.following import Following
from horarium.operations.settling.holding import PLANNED_SECONDS
from horarium.operations.settling.reconciling import Changed, Reconciler
from horarium.operations.writing.signalling import announce
from horarium.operations.writing.tracing import Tracing
from horarium.ports import JOBS, Signal, Store
from horarium.rules.holds import everything_until, job_hold
from horarium.rules.overridden import MISFIRE_GRACE
from horarium.rules.planning import needs_unfinished, plans_when_due
from horarium.rules.reconciling import plan_bounded
from horarium.services.loop.service import Service, Wake
from horarium.services.metrics.telemetry import Telemetry
from horarium.services.planning.clock_steps import ClockSteps
from horarium.services.planning.costly import CostlyJobs
from horarium.services.planning.pacing import Pacing
from horarium.services.planning.shares import BEHIND_SECONDS, Shares
from horarium.triggers.budget import LIST_STEPS, PLAN_STEPS

JOBS_MAX = 500
"""Jobs planned in one step, where nothing else is said."""
RUNS_MAX = 2_000
"""Runs committed in one transaction, give or take one job's."""
SLICE_SECONDS = 0.005
"""How long planning goes on without giving way to other tasks."""
REST_SECONDS = 0.01
"""Between two looks for jobs that were defined or changed: a stream of definitions costs a hundred looks a second."""
COMPOSED = frozenset({"any_of", "except", "between", "phrase"})
"""Types of triggers that are made of triggers."""

log = logging.getLogger("horarium")


class Planner(Service):
    """Plans due jobs, and those that fall due within `ahead_seconds`. `lead`: which part of that it looks at a job
    before it falls due. `node`: its name among those that plan, which share out the jobs; None: it plans all."""

    name = "planner"
    topics = (JOBS,)
    rest_seconds: float = REST_SECONDS

    def __init__(
        self,
        store: Store,
        signal: Signal,
        reconciler: Reconciler,
        following: Following,
        telemetry: Telemetry,
        *,
        ahead_seconds: float = 1.0,
        catch_up_per_second: float = 100.0,
        jobs_max: int = JOBS_MAX,
        lead: float = 0.5,
        tracing: Tracing | None = None,
        node: str | None = None,
    ) -> None:
        self._tracing = tracing or Tracing()
        self.wake = Wake()
        self._store = store
        self._signal = signal
        self._reconciler = reconciler
        self._following = following
        self._telemetry = telemetry
        self._jobs_max = jobs_max
        self._ahead = to_micros(ahead_seconds)
        self._lead = round(self._ahead * lead)
        self._shares = Shares(store, node, self._ahead)
        self._pacing = Pacing(round(SECOND / catch_up_per_second))
        self._passed: Instant | None = None
        self._clock_steps = ClockSteps(store, reconciler.clock, self._ahead)
        self.costly = CostlyJobs(store, self._commit_one, self._ahead, reconciler.holding)
        """The service that plans what costs too much here; to be run beside this one."""

    def at_writes(self) -> bool:
        return self._shares.nothing

    async def step(self, now: Instant) -> Instant | None:
        self._pacing.look(now)
        clock = asyncio.get_running_loop().time
        wakes, began = [await self._clock_steps.step(now)], clock()
        wakes.append(await self._plan_due(now))
        self._shares.took(clock() - began)
        return min((wake for wake in wakes if wake is not None), default=None)

    async def _plan_due(self, now: Instant) -> Instant | None:
        await self._shares.look(now)
        all_held_until = everything_until(await self._reconciler.holding.look(PLANNED_SECONDS), now)
        if all_held_until is not None:
            return all_held_until
        until = now + self._ahead
        jobs, next_at = await self._store.due_jobs(until, self._jobs_max, self._passed)
        full = len(jobs) == self._jobs_max
        punctual = now - MISFIRE_GRACE
        if full and _fire(jobs[-1]) <= punctual:
            # More is late than a step takes. On-time jobs do not wait for it.
            on_time, _ = await self._store.due_jobs(until, self._jobs_max, punctual)
            await self._plan_jobs(self._shares.share(on_time, now, more=False)[0], now)
        share, others_at = self._shares.share(jobs, now, more=full)
        if full and not share:
            return others_at
        wakes, planned, carried_out = await self._plan_jobs(share, now)
        if others_at is not None:
            wakes.append(others_at)
        if full and planned:
            # Two planners in step would each plan everything, and half of it for nothing.
            return now if carried_out else now + to_micros(BEHIND_SECONDS)
        # Jobs that can't be planned now keep no others from it, however many they are.
        self._passed = _fire(jobs[-1]) if full and _fire(jobs[-1]) <= punctual else None
        if self._passed is not None:
            return now
        if next_at is not None:
            wakes.append(next_at - self._lead)
        return min(wakes, default=None)

    async def _plan_jobs(self, jobs: Sequence[Job], now: Instant) -> tuple[list[Instant], int, int]:
        """When these jobs are to be looked at again, how many could be planned, and of how many the plan was carried
        out."""
        ready = [job for job in jobs if not plans_when_due(job) or _fire(job) <= now]
        wakes = [_fire(job) for job in jobs if plans_when_due(job) and _fire(job) > now]
        unfinished, last = await self._unfinished(ready), await last_runs(self._store, ready)
        plans: dict[str, Plan] = {}
        clock = asyncio.get_running_loop().time
        slice_ends = clock() + SLICE_SECONDS
        for job in ready:
            if clock() > slice_ends:
                await asyncio.sleep(0)
                slice_ends = clock() + SLICE_SECONDS
            planned = self._plan(job, unfinished.get(job.id, []), now, last.get(job.id))
            if planned is not None and planned.job == job:
                wakes.append(self._plan_at(job, now))  # nothing can be said yet
            elif planned is not None:
                plans[job.id] = planned
        ready = [job for job in ready if job.id in plans]
        ran = await in_the_way(self._store, ready, list(plans.values()), now)
        for job in (job for job in ready if job.id in ran):
            again = self._plan(job, unfinished.get(job.id, []), now, last.get(job.id), ran[job.id])
            if again is None:
                del plans[job.id]
            else:
                plans[job.id] = again
        carried_out = await self._commit(list(plans.values()), now)
        wakes += [self._plan_at(planned.job, now) for planned in plans.values() if planned.job.next_fire_at is not None]
        return wakes, len(plans), carried_out

    def _plan_at(self, job: Job, now: Instant) -> Instant:
        """When to plan this job next: some part of the look-ahead before it falls due, when others do not run. What
        lies beyond the begin of a hold is not planned before."""
        if plans_when_due(job):
            return _fire(job)
        at = _fire(job) - self._lead
        begins = None if at > now else job_hold(self._reconciler.holding.known, job, now).next_at
        return at if begins is None or begins > _fire(job) else begins

    async def _unfinished(self, jobs: Sequence[Job]) -> dict[str, list[Run]]:
        ids = [job.id for job in jobs if needs_unfinished(job)]
        return await self._store.unfinished_runs(ids) if ids else {}

    def _plan(
        self, job: Job, unfinished: Sequence[Run], now: Instant, last: Run | None, ran: Sequence[Instant] = ()
    ) -> Plan | None:
        """One job's plan. A job that can't be planned here must not keep the others from it."""
        if self.costly.holds(job, now):
            return None
        try:
            held = job_hold(self._reconciler.holding.known, job, now)
            return plan_bounded(job, unfinished, now, self._ahead, steps=_steps(job), last=last, ran=ran, held=held)
        except TooExpensive:
            self.costly.set_aside(job)
        except Exception as error:
            log.exception("job %s can't be planned", job.name)
            self.costly.put_off(job, now, f"{type(error).__name__}: {error}")
        return None

    async def _commit_one(self, planned: Plan, now: Instant) -> None:
        await self._commit([planned], now)

    async def _commit(self, plans: list[Plan], now: Instant) -> int:
        """How many were carried out."""
        carried_out, given = 0, self._pacing.given
        batch: list[Plan] = []
        size = 0
        try:
            for planned in self._pacing.paced(plans, now):
                batch.append(planned)
                size += len(planned.runs) + len(planned.changes)
                if size >= RUNS_MAX:
                    carried_out += await self._commit_batch(batch, now)
                    batch, size = [], 0
            if batch:
                carried_out += await self._commit_batch(batch, now)
        except Outage:
            if not carried_out:
                self._pacing.take_back(given)
            raise
        return carried_out

    def _traced(self, planned: Plan) -> Plan:
        if not self._tracing.recording:
            return planned
        return replace(planned, runs=tuple(self._tracing.mark(run) for run in planned.runs))

    async def _commit_batch(self, batch: Sequence[Plan], now: Instant) -> int:
        batch = [self._traced(planned) for planned in batch]
        followed = await self._following.plans(batch, now)
        committed = await self._store.commit_plans(followed, self._reconciler.clock.steady())
        done = [planned for planned, did in zip(batch, committed, strict=True) if did]
        for planned in done:
            self._telemetry.planned(planned.runs)
        announce(self._signal, [planned for planned, did in zip(followed, committed, strict=True) if did])
        await self._reconciler.after_each([Changed(planned.job, planned.job, planned) for planned in done])
        return len(done)


def _steps(job: Job) -> int:
    """The budget of a plan here. A rule made of rules takes up to a hundred times as long as a plain one."""
    return PLAN_STEPS if job.trigger.get("type") in COMPOSED else LIST_STEPS


def _fire(job: Job) -> Instant:
    assert job.next_fire_at is not None, "a due job has a next fire time"
    return job.next_fire_at
