"""Runs asked for by hand of jobs whose runs may overlap, written in groups.

Such a run changes nothing of its job, so it needs no compare-and-set: it is added like a one-off run. Requests come in
one by one and wait while the last group is being written; then all that have gathered, of any job, are one read
and one write. Many requests for one job cost no more than one request for each of many jobs.

A job may be deleted, or go to another queue, between the read and the write. So the jobs are read once more after it: a
change that was committed before that is seen here, one that comes later sees the runs.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from horarium.access.audit import Origin
from horarium.clock import SECOND, Instant
from horarium.errors import InvalidRequest, StoreUnavailable
from horarium.model import Cause, Job, Run
from horarium.operations.settling.rating import Rating
from horarium.operations.settling.reconciling import Reconciler
from horarium.operations.writing.auditing import out_of_reach, told_asked
from horarium.operations.writing.context import RACES_MAX, Context, contended
from horarium.operations.writing.gathering import Gathered
from horarium.operations.writing.named import jobs_of, no_job
from horarium.operations.writing.signalling import announce_runs
from horarium.operations.writing.tracing import Tracing
from horarium.rules.editing import free_instant, put_off
from horarium.rules.joins import repeating
from horarium.rules.planning import needs_unfinished, owed_run
from horarium.rules.reconciling import belongs

GROUP_MAX = 500
"""Requests that are written together."""
INSTANTS_REMEMBERED = 1_000
"""Jobs of which the instant of the last run is remembered."""


class Request(Struct, frozen=True):
    """One run asked for. `told`: its action and object in the audit. `origin`: who asks; the group is written in a task
    that serves them all. `due_at`: not before then. `repeats`: the fire time whose work it does again."""

    name: str
    payload: bytes | None
    unique_key: str | None
    told: str
    origin: Origin | None
    due_at: Instant = 0
    cause: Cause = Cause.MANUAL
    trace: str | None = None
    repeats: Instant | None = None


class Triggered(NamedTuple):
    """`run` is None where the job's policy asks for a look at its other runs. `new`: it was not there before."""

    run: Run | None
    new: bool = False


class Triggering:
    """Adds runs asked for by hand."""

    def __init__(self, context: Context, reconciler: Reconciler, tracing: Tracing) -> None:
        self._store, self._clock, self._signal, self._entropy = context
        self.tracing = tracing
        self._reconciler = reconciler
        self.holding = reconciler.holding
        self._rating = Rating(context)
        self._gathered: Gathered[Request, Triggered] = Gathered(
            self.trigger_all, together=lambda waiting: min(GROUP_MAX, sum(1 for _ in waiting))
        )
        self._last: OrderedDict[str, Instant] = OrderedDict()

    async def trigger(self, asked: Request) -> Run | None:
        """A run of a job now; None: its policy asks for a look at its other runs. Raises NotFound, Forbidden."""
        return (await self._gathered(asked)).run

    async def trigger_all(self, group: Sequence[Request]) -> list[Triggered | Exception]:
        """The answer to each of these, at most `BATCH_MAX`; the new ones are written in one go."""
        answers: dict[int, Triggered | Exception] = {}
        for _ in range(RACES_MAX):
            todo = {index: asked for index, asked in enumerate(group) if index not in answers}
            if not todo:
                break
            await self._write_once(todo, answers)
        return [answers.get(index) or contended(asked.name) for index, asked in enumerate(group)]

    async def _write_once(self, group: Mapping[int, Request], answers: dict[int, Triggered | Exception]) -> None:
        """Read the jobs, add the runs, look at the jobs again. Those whose instant was taken by another process have no
        answer yet."""
        names = list(dict.fromkeys(asked.name for asked in group.values()))
        jobs = dict(zip(names, await self._store.get_jobs(names), strict=True))
        runs: dict[int, Run] = {}
        for index, asked in group.items():
            job = jobs[asked.name]
            if job is None:
                answers[index] = no_job(asked.name)
            elif (refusal := out_of_reach(asked.origin, job)) is not None:
                answers[index] = refusal
            elif needs_unfinished(job) or job.approval is not None:
                answers[index] = Triggered(None)
            else:
                try:
                    runs[index] = await self.holding.said(self._run(job, asked), job)
                except InvalidRequest as error:
                    answers[index] = error
        if not runs:
            return
        runs = dict(zip(runs, await self._rating.lined_up(list(runs.values())), strict=True))
        now = self._clock.now()
        told = ((run, group[index]) for index, run in runs.items())
        along = {run.id: told_asked(by.origin, by.told, run, now) for run, by in told if by.origin is not None}
        added = dict(zip(runs, await self._store.add_runs(list(runs.values()), along), strict=True))
        announce_runs(self._signal, (runs[index] for index, new in added.items() if new))
        answers |= await self._look_again({index: runs[index] for index, new in added.items() if new})
        for index in (index for index, new in added.items() if not new):
            if (holder := await self._answered_before(group[index], runs[index])) is not None:
                answers[index] = Triggered(holder)

    def _run(self, job: Job, asked: Request) -> Run:
        now = self._clock.now()
        run = owed_run(job, self._instant(job, now), now, Cause.MANUAL, asked.payload)
        run = replace(put_off(run, asked.due_at), unique_key=asked.unique_key, cause=asked.cause)
        return repeating(self.tracing.mark(run, asked.trace), asked.repeats)

    def _instant(self, job: Job, now: Instant) -> Instant:
        """One that no run of this job made here has; another process may have taken it, then the next try is later."""
        last = self._last.get(job.id, 0)
        start = last + 1 if now <= last < now + SECOND else now
        instant = self._last[job.id] = free_instant(job, start, frozenset())
        self._last.move_to_end(job.id)
        if len(self._last) > INSTANTS_REMEMBERED:
            self._last.popitem(last=False)
        return instant

    async def _look_again(self, added: Mapping[int, Run]) -> dict[int, Triggered | Exception]:
        """The answers for runs that were added, unless their job was deleted meanwhile. In an outage that is looked at
        later: the runs are there."""
        runs = list(added.values())
        try:
            jobs = await jobs_of(self._store, runs)
        except StoreUnavailable:
            await self._reconciler.after_put_back(runs)
            jobs = {}
        changed = [run for run in runs if run.job_id in jobs and not belongs(run, jobs[run.job_id])]
        await self._reconciler.after_put_back(changed)
        deleted = {job.id for job in jobs.values() if job.deleted_at is not None}
        return {
            index: no_job(run.job or "") if run.job_id in deleted else Triggered(run, new=True)
            for index, run in added.items()
        }

    async def _answered_before(self, asked: Request, refused: Run) -> Run | None:
        """The run that holds the unique key, which is the answer. If there is none, the next try is for a later
        instant."""
        holder = None if asked.unique_key is None else await self._store.get_run_by_key(asked.unique_key)
        if holder is None:
            job_id = refused.job_id or ""
            skipped = int.from_bytes(self._entropy(1), "big")
            self._last[job_id] = max(self._last.get(job_id, 0), refused.fire_at + skipped)
        return holder
