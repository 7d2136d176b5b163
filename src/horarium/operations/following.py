"""What follows is put into each change before it is written: `rules.following` decides, this reads what it must know.

Every write that may end a run comes through here: what is settled, and what is planned. For a job without `on` that
costs nothing, and reads of earlier runs are made only where the rule counts in a row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from horarium.clock import Instant
from horarium.model import Job, Plan, Run, RunChange, State
from horarium.ports import PAGE_MAX, RunFilter, Store
from horarium.rules.following import follow, follow_plan, looks_back, says_something, telling_states
from horarium.rules.watching import watch_records

PAGES_MAX = 20
"""Pages of earlier runs that are looked at for one end."""


class Following:
    """Adds what follows to changes of runs of one namespace."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def changes(self, changes: Sequence[RunChange], jobs: Mapping[str, Job], now: Instant) -> list[RunChange]:
        """The changes, each with what follows from it. Jobs that are not among those given are read."""
        jobs = await self._with_missing(changes, jobs)
        if not any(job.on for job in jobs.values()):
            return list(changes)
        done: list[RunChange] = []
        before: dict[str, list[Run]] = {}
        for change in changes:
            job = jobs.get(change.run.job_id or "")
            if job is None or not job.on:
                done.append(change)
                continue
            earlier = await self._earlier(job, change.run, change.state, now, before.get(job.id, []))
            done.append(follow(job, change, now, earlier))
            if change.run.finished:
                before.setdefault(job.id, []).append(change.run)
        return done

    async def plans(self, plans: Sequence[Plan], now: Instant) -> list[Plan]:
        """The plans, each with what follows from it."""
        return [await self.plan(planned, now) if planned.job.on else planned for planned in plans]

    async def plan(self, planned: Plan, now: Instant) -> Plan:
        """The plan, with what follows from it, and with what leads the watcher to a job that was edited."""
        if not planned.job.on:
            return planned
        earlier: dict[str, Sequence[Run]] = {}
        before: list[Run] = []
        pairs = [(change.run, change.state) for change in planned.changes]
        for run, was in (*pairs, *((run, None) for run in planned.runs if run.state is State.SKIPPED)):
            earlier[run.id] = await self._earlier(planned.job, run, was, now, before)
            if run.finished:
                before.append(run)
        followed = follow_plan(planned, now, earlier)
        return replace(followed, records=(*followed.records, *watch_records(planned, now)))

    async def earlier_runs(self, job: Job, run: Run, count: int) -> list[Run]:
        """Of the finished runs of the job before this one those that say something of it, the newest first, at most
        `count`, as far as the last few hundred have them."""
        where, found, after = RunFilter(job=job.name, states=telling_states(run)), list[Run](), run.id
        limit = PAGE_MAX if run.state is State.SKIPPED else count
        for _ in range(PAGES_MAX if count else 0):
            page = await self._store.list_runs(where, after, limit)
            found += (each for each in page.items if each.job_id == job.id and says_something(run, each))
            if page.next_after is None or len(found) >= count:
                break
            after = page.next_after
        return found[:count]

    async def _earlier(
        self, job: Job, run: Run, was: State | None, now: Instant, together: Sequence[Run]
    ) -> Sequence[Run]:
        """What ended before, that which ends together with it in one batch included."""
        count = looks_back(job, run, was, now)
        if count == 0:
            return ()
        ours = {each.id: each for each in together if each.id < run.id and says_something(run, each)}
        newest = await self.earlier_runs(job, run, 1) if not ours else []
        if newest and newest[0].state is run.state is State.COMPLETED and "completed" not in job.on:
            return newest
        found = {each.id: each for each in await self.earlier_runs(job, run, count)} | ours
        return sorted(found.values(), key=lambda each: each.id, reverse=True)[:count]

    async def _with_missing(self, changes: Sequence[RunChange], jobs: Mapping[str, Job]) -> Mapping[str, Job]:
        missing = [each for each in {change.run.job_id for change in changes} if each is not None and each not in jobs]
        if not missing:
            return jobs
        read = await self._store.get_jobs_by_id(sorted(missing))
        return {**jobs, **{job.id: job for job in read if job is not None}}
