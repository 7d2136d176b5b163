"""Changes of a job: read, let a rule decide, write if unchanged, else read again.

Changes of one job made in this process are decided one on the other and written together (`grouping`). Only what a
change needs is read of a job's unfinished runs (`Reach`): a job may have a hundred thousand of them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import NamedTuple

from msgspec.structs import replace

from horarium.clock import Instant
from horarium.model import UNFINISHED, Job, Plan, Run, State
from horarium.operations.bounds.evaluating import evaluate
from horarium.operations.jobs.grouping import ALONE, Group, Grouping, Reach, Step
from horarium.operations.jobs.passed import in_the_way, passed
from horarium.operations.jobs.versions import Versions
from horarium.operations.settling.following import Following
from horarium.operations.settling.reconciling import Reconciler
from horarium.operations.writing.auditing import require_reach
from horarium.operations.writing.context import Context
from horarium.operations.writing.named import job_named
from horarium.operations.writing.signalling import announce, announce_jobs
from horarium.ports import BATCH_MAX, RunFilter, Store
from horarium.rules.editing import stands_still
from horarium.rules.holds import job_hold
from horarium.rules.planning import ENDS_OTHERS, counted_runs, last_run_id, needs_unfinished, plan
from horarium.rules.reconciling import leaving, reconciled
from horarium.triggers.budget import PLAN_STEPS_MAX

LOOKED_AT = 200
"""Unfinished runs that a change reads in one go; where there are more, they are left for later."""
PAGES_OF_SOME = 5
"""How many pages are looked through for these, where others have been deleted jobs of that name."""


class Seen(NamedTuple):
    """What a change is decided upon. `ran`: fire times since the job was paused that have a run all the same, since
    they were planned ahead and claimed while the pause was being written. `group`: the changes written with it."""

    job: Job
    unfinished: list[Run]
    now: Instant
    ran: list[Instant]
    group: Group


Decide = Callable[[Seen], Awaitable[Plan | None]]
"""The plan of a change; None: there is nothing to change."""
ReachOf = Callable[[Job], Awaitable[Reach]]


def always(reach: Reach) -> ReachOf:
    """The same reach for every job."""

    async def of(job: Job) -> Reach:
        return reach

    return of


async def last_runs(store: Store, jobs: Sequence[Job]) -> dict[str, Run]:
    """The runs from whose end those of these jobs count that count from one, by the job's id; as far as they exist."""
    wanted = {job.id: run_id for job in jobs if (run_id := last_run_id(job)) is not None}
    found = await store.get_runs(list(wanted.values())) if wanted else []
    return {job_id: run for job_id, run in zip(wanted, found, strict=True) if run is not None}


class Changes:
    """Changes jobs of one namespace."""

    def __init__(self, context: Context, reconciler: Reconciler, versions: Versions, following: Following) -> None:
        self._store, self._clock, self._signal, self._entropy = context
        self._reconciler = reconciler
        self._versions = versions
        self._following = following
        self.looked_at = LOOKED_AT
        self._grouping = Grouping(self._read, self._commit, reconciler.after_changes, context.entropy)

    async def change(
        self, name: str, decide: Decide, reach: ReachOf, action: str | None = None, *, plan_owed: bool = True
    ) -> Job:
        """Carry out a change, and what follows from it for the job's runs. The job as it then is. `action`: what the
        audit calls it, and that it changes the job itself. `plan_owed`: fire times that are owed by now are planned
        first, under the rule that owed them."""

        async def decided(group: Group) -> Step | None:
            return await self._decided(group, decide, await reach(group.job), action)

        return (await self._grouping.take(name, decided, plan_owed)).after

    async def _read(self, name: str, owed: bool) -> Group | None:
        job, now = (
            await self.planned_up_to_now(name) if owed else (await job_named(self._store, name), self._clock.now())
        )
        return None if job is None else Group(job, now)

    async def _commit(self, planned: Plan, now: Instant) -> bool:
        if not (await self._store.commit_plans([planned], self._clock.steady()))[0]:
            return False
        announce_jobs(self._signal, [planned.job])
        announce(self._signal, [planned])
        return True

    async def _decided(self, group: Group, decide: Decide, reach: Reach, action: str | None) -> Step | None:
        """What the change makes of the job as the group has it so far; None: it must be the first of a group."""
        job, now = group.job, group.now
        require_reach(job)
        if group.changed and (reach in ALONE or (group.touched and reach not in group.unfinished)):
            return None
        more = False
        if reach is not Reach.NONE and reach not in group.unfinished:
            group.unfinished[reach], more = await self._unfinished(job, reach, now)
        seen = Seen(job, group.seen(reach), now, await self._ran(job, now), group)
        planned = await decide(seen)
        if planned is None:
            return Step(job, job, None)
        followed = await self._following.plan(reconciled(planned, seen.unfinished, now), now)
        planned = group.fit(followed)
        if planned is None:
            return None
        if more:
            planned = leaving(job, planned)
        after = replace(planned.job, version=planned.job.version + 1)
        if action is not None:
            planned = await self._versions.kept_with(planned, job, action, now, group.kept, after)
        return Step(job, after, planned)

    async def planned_up_to_now(self, name: str) -> tuple[Job | None, Instant]:
        """The job, with nothing owed by now, and that instant; None: another one was quicker to plan it."""
        job, now = await job_named(self._store, name), self._clock.now()
        while job.next_fire_at is not None and job.next_fire_at <= now:
            unfinished, more = await self._unfinished(job, Reach.ALL if needs_unfinished(job) else Reach.NONE, now)
            last = (await last_runs(self._store, [job])).get(job.id)
            held = job_hold(await self._reconciler.holding.look(), job, now)
            asked = partial(plan, job, unfinished, now, steps=PLAN_STEPS_MAX, last=last, held=held)
            planned = await evaluate(asked, PLAN_STEPS_MAX)
            if found := await in_the_way(self._store, [job], [planned], now):
                planned = await evaluate(partial(asked, ran=found[job.id]), PLAN_STEPS_MAX)
            planned = leaving(job, planned) if more else planned
            owed = await self._following.plan(planned, now)
            if not (await self._store.commit_plans([owed], self._clock.steady()))[0]:
                return None, now
            announce(self._signal, [owed])
            await self._reconciler.after_change(job, owed.job, owed)
            job, now = await job_named(self._store, name), self._clock.now()
        return job, now

    async def _unfinished(self, job: Job, reach: Reach, now: Instant) -> tuple[list[Run], bool]:
        """The runs to look at, and whether the rest of `SOME` is left."""
        match reach:
            case Reach.NONE:
                return [], False
            case Reach.COUNTED if (numbers := counted_runs(job)) is not None:
                return await self._counted(job, *numbers), False
            case Reach.ALL | Reach.COUNTED if job.overlap in ENDS_OTHERS:
                return await self._some(job)
            case Reach.ALL | Reach.COUNTED:
                return (await self._store.unfinished_runs([job.id]))[job.id], False
        where = RunFilter(job=job.name, states=UNFINISHED, since=now + 1 if reach is Reach.AHEAD else None)
        found: list[Run] = []
        after: str | None = None
        while True:
            page = await self._store.list_runs(where, after, self.looked_at)
            found += (run for run in page.items if run.job_id == job.id)
            after = page.next_after
            enough = reach is Reach.SOME and page.items and page.items[-1].fire_at <= now
            if after is None:
                return found, False
            if enough:
                return [run for run in found if run.fire_at > now], True

    async def _some(self, job: Job) -> tuple[list[Run], bool]:
        """Those with the latest fire times, and whether there may be more than these."""
        where, found = RunFilter(job=job.name, states=UNFINISHED), list[Run]()
        after: str | None = None
        for _ in range(PAGES_OF_SOME):
            page = await self._store.list_runs(where, after, self.looked_at - len(found))
            found += (run for run in page.items if run.job_id == job.id)
            after = page.next_after
            if after is None or len(found) >= self.looked_at:
                break
        return sorted(found, key=lambda run: (run.fire_at, run.id)), after is not None

    async def _counted(self, job: Job, unfinished: int, pending: int) -> list[Run]:
        """That many of each, as far as there are any."""
        found: dict[str, Run] = {}
        for states, number in ((UNFINISHED, unfinished), (frozenset({State.PENDING}), pending)):
            after: str | None = None
            while number > 0:
                page = await self._store.list_runs(
                    RunFilter(job=job.name, states=states), after, min(number, BATCH_MAX)
                )
                runs = [run for run in page.items if run.job_id == job.id]
                found.update((run.id, run) for run in runs)
                number, after = number - len(runs), page.next_after
                if after is None:
                    break
        return list(found.values())

    async def _ran(self, job: Job, now: Instant) -> list[Instant]:
        """Fire times beyond the cursor of a job that is paused or held which have a run, ascending."""
        return await passed(self._store, job, now) if stands_still(job) else []
