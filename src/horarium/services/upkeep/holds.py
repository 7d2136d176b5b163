"""What a hold asks beside the check of each claim: a fresh list on every node, and the changes of what waits.

`HoldReader` keeps the list of holds fresh, so that nothing that begins has to wait for it. `HoldApplier` carries a
change of a hold to what it covers, page by page, once it is written: runs planned ahead into it are withdrawn, jobs and
runs that wait for its former end are looked at again. It does so once more some seconds later, since a node that had
not yet heard of the change may have put back a run until the former end. `HoldCancels` ends what is running where a
hold asks for it, lifts holds whose job was deleted, and deletes those that ended long ago.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from msgspec.structs import replace

from horarium.clock import DAY, MINUTE, SECOND, Clock, Instant
from horarium.errors import CallerError, Conflict
from horarium.model import UNFINISHED, Job, Plan, RunChange, State
from horarium.model.holds import HeldRunning, Hold
from horarium.operations.bounds.listing import pages_of
from horarium.operations.holds import CHANGED, HoldOperations
from horarium.operations.runs.runs import RunOperations
from horarium.operations.settling.holding import PREFIX, READ_SECONDS, Holding, decode_hold
from horarium.operations.settling.members import Members
from horarium.operations.settling.reconciling import Reconciler
from horarium.operations.settling.settling import Settling
from horarium.operations.writing.named import jobs_of
from horarium.operations.writing.signalling import JOINS
from horarium.ports import HOLDS, JOBS, PAGE_MAX, JobFilter, RunFilter, Signal, Store
from horarium.rules.applying import owed_of
from horarium.rules.editing import withdraw_ahead
from horarium.rules.holds import (
    LOOK_AGAIN,
    PLANNED_CAUSES,
    brought_back,
    covers_job,
    end_of,
    goes_on_in,
    hold_on,
    job_hold,
    kept_back,
    next_begin,
    reason_of,
    stretch_at,
    wakes_at,
)
from horarium.services.loop.service import Service, Wake
from horarium.services.upkeep.applier import Applier, Work

PAGE = 100
HEARD = 10 * SECOND
"""Within this every node has heard of a change, and what it began before is written."""
KEPT = 30 * DAY
"""How long a hold is kept that has ended: a job that was not planned since is still to account for it."""
BEGUN = 3 * SECOND
"""For so long after a hold began, something may still begin on a node that has not heard of it."""
GONE = MINUTE
"""A hold is lifted whose job is missing twice, so long apart: a job that is made again at once keeps its hold."""


class HoldReader(Service):
    """Reads the holds once a second, where anything was written; and from whose runs other jobs follow."""

    name = "holds"
    topics = (HOLDS, JOINS)
    by_writes = True

    def __init__(self, holding: Holding, members: Members) -> None:
        self.wake = Wake()
        self._holding, self._members = holding, members

    async def step(self, now: Instant) -> Instant | None:
        await self._holding.look(READ_SECONDS)
        await self._members.look(READ_SECONDS)
        return None


def _begins(hold: Hold, now: Instant) -> Instant | None:
    """The first instant from `now` on that the hold covers."""
    return now if stretch_at(hold, now) is not None else next_begin(hold, now)


Step = Callable[[Hold, str | None], Awaitable[str | None]]
"""Looks at one page of what a hold covers. Where the next one begins; None: that was the last."""


class HoldApplier(Applier):
    """Carries changes of holds to jobs and runs."""

    name = "lifting"
    prefix = CHANGED

    def __init__(
        self, store: Store, clock: Clock, reconciler: Reconciler, node: str, settling: Settling, signal: Signal
    ) -> None:
        super().__init__(store, clock, reconciler, node)
        self._settling = settling
        self._signal = signal
        self._steps: list[Step] = []
        self._steps_of = ""

    async def _page(self, work: Work) -> None:
        owed, name = owed_of(work.record), work.record.name
        await self._reconciler.holding.look()
        (stored,) = await self._store.get_records([PREFIX + owed.job_id])
        if stored is not None:
            hold = decode_hold(stored.body)
            if self._steps_of != name:
                self._steps_of, self._steps = name, self._steps_for(hold, is_new=stored.version == 1)
            if self._steps:
                work.after = await self._steps[0](hold, work.after)
                if work.after is None:
                    del self._steps[0]
                return
        self._steps_of = ""
        await self._finish(work, 0 if stored is None else HEARD)

    def _steps_for(self, hold: Hold, *, is_new: bool) -> list[Step]:
        """Nothing waits yet for a hold that is new, nothing is to be withdrawn for one that is over."""
        ahead: list[Step] = [] if end_of(hold) <= self._clock.now() else [self._withdraw]
        return ahead if is_new else [*ahead, self._look_at_jobs, self._look_at_runs]

    async def _withdraw(self, hold: Hold, after: str | None) -> str | None:
        """Take back runs that were planned ahead into the hold: they are planned again once it has ended."""
        begins_at = _begins(hold, self._clock.now())
        if begins_at is None:
            return None
        page = await self._store.jobs_ahead(begins_at, after, PAGE)
        jobs = [job for job in page.items if job.enabled and covers_job(hold.scope, job)]
        unfinished = await self._store.unfinished_runs([job.id for job in jobs]) if jobs else {}
        # Read after the jobs: a process that stood still meanwhile would take back what others have planned since.
        now = self._clock.now()
        begins_at = _begins(hold, now)
        if begins_at is not None:
            ahead = [job for job in jobs if job.planned_until > begins_at]
            ended = await self._ended(ahead, begins_at) if ahead else {}
            await self._commit(
                [withdraw_ahead(job, unfinished[job.id], begins_at - 1, now, ended.get(job.id, ())) for job in ahead]
            )
        return page.next_after

    async def _ended(self, jobs: Sequence[Job], begins_at: Instant) -> dict[str, list[Instant]]:
        """Fire times from then on, up to the cursors of these jobs, whose runs have ended before their time, as one
        that was cancelled. There are few."""
        until = max(job.planned_until for job in jobs) + 1
        where = RunFilter(states=frozenset(State) - UNFINISHED, since=begins_at, until=until)
        found: dict[str, list[Instant]] = {}
        async for page in pages_of(lambda after: self._store.list_runs(where, after, PAGE_MAX)):
            for run in page:
                if run.job_id is not None and run.cause in PLANNED_CAUSES:
                    found.setdefault(run.job_id, []).append(run.fire_at)
        return {job.id: [at for at in found.get(job.id, ()) if at <= job.planned_until] for job in jobs}

    async def _look_at_jobs(self, hold: Hold, after: str | None) -> str | None:
        """Let jobs that wait for another end than that of the holds be planned again: for them, theirs is now."""
        now, known = self._clock.now(), self._reconciler.holding.known
        page = await self._store.list_jobs(JobFilter(labels=hold.scope.labels), after, PAGE)
        waiting = [job for job in page.items if job.held_until is not None and covers_job(hold.scope, job)]
        until = {job.id: job_hold(known, job, now).until or now for job in waiting}
        stale = [job for job in waiting if until[job.id] not in (job.held_until, now + LOOK_AGAIN)]
        await self._commit([Plan(replace(job, held_until=until[job.id], next_fire_at=until[job.id])) for job in stale])
        return page.next_after

    async def _look_at_runs(self, hold: Hold, after: str | None) -> str | None:
        """Let runs that wait, and that nothing holds any more, be due as before, and others at the end of what does."""
        where = RunFilter(job=hold.scope.job, states=frozenset({State.PENDING}))
        page = await self._store.list_runs(where, after, PAGE)
        now, known, jobs = self._clock.now(), self._reconciler.holding.known, await jobs_of(self._store, page.items)
        changes = []
        for run in page.items:
            job = jobs.get(run.job_id or "")
            back = brought_back(run, now)  # also one that has left what the hold lies over: its job was changed
            held = None if back is None else hold_on(known, run, job, max(now, back.due_at))
            if held is not None and wakes_at(held, now) < run.due_at:
                back = kept_back(run, held, now)
            elif held is not None:
                continue
            if back is not None:
                changes.append(RunChange(back, run.token, run.state))
        if changes:
            await self._settling.write(changes, jobs, now)
        return page.next_after

    async def _commit(self, plans: Sequence[Plan]) -> None:
        """One that loses is looked at again by the next round, some seconds later."""
        if plans:
            await self._store.commit_plans(plans, self._clock.steady())
            self._signal.publish(JOBS)


class HoldCancels(Service):
    """Cancels runs under way under a hold that asks for it; lifts holds without a job, and deletes old ones."""

    name = "hold-cancels"
    topics = (HOLDS,)
    by_writes = True

    def __init__(self, store: Store, holding: Holding, runs: RunOperations, holds: HoldOperations) -> None:
        self.wake = Wake()
        self._store = store
        self._holding = holding
        self._runs = runs
        self._holds = holds
        self._done: dict[str, Instant] = {}
        self._gone: set[str] = set()
        self._look_at: Instant = 0

    async def step(self, now: Instant) -> Instant | None:
        holds = await self._holding.look()
        wakes = await self._lift_of_gone(holds, now)
        for hold in holds:
            if end_of(hold) + KEPT < now:
                await self._delete(hold)
            elif hold.running is HeldRunning.CANCEL:
                wakes += await self._cancel(hold, now)
        return min(wakes, default=None)

    async def _lift_of_gone(self, holds: Sequence[Hold], now: Instant) -> list[Instant]:
        """When to look again."""
        jobs = {hold.id: hold.scope.job for hold in holds if hold.scope.job is not None and now < end_of(hold)}
        if jobs and not self._look_at - GONE <= now < self._look_at:
            found = await self._store.get_jobs(list(jobs.values()))
            gone = {id for id, job in zip(jobs, found, strict=True) if job is None}
            for id in gone & self._gone:
                with suppress(CallerError, Conflict):
                    await self._holds.lift(id)
            self._gone, self._look_at = gone, now + GONE
        return [self._look_at] if jobs else []

    async def _cancel(self, hold: Hold, now: Instant) -> list[Instant]:
        """When to look again."""
        stretch = stretch_at(hold, now)
        begin = next_begin(hold, now)
        later = [] if begin is None else [begin]
        if stretch is None or self._done.get(hold.id) == stretch.begins_at:
            return later
        where = RunFilter(job=hold.scope.job, states=frozenset({State.RUNNING}))
        async for page in pages_of(lambda after: self._store.list_runs(where, after, PAGE)):
            jobs = await jobs_of(self._store, page)
            for run in page:
                if goes_on_in(hold.scope, run, jobs.get(run.job_id or "")):
                    with suppress(CallerError, Conflict):
                        await self._runs.cancel_run(run.id, reason_of(hold))
        if now >= max(stretch.begins_at, hold.created_at) + BEGUN:
            self._done[hold.id] = stretch.begins_at
            return later
        return [now + SECOND]

    async def _delete(self, hold: Hold) -> None:
        (stored,) = await self._store.get_records([PREFIX + hold.id])
        if stored is not None:
            await self._store.put_records([stored.removal()])
            self._holding.stale()
