"""Follow-ups are put into each change before it is written (docs/architecture/follow-ups.md): `rules.following`
decides, this reads what it must know.

Every write that may end a run comes through here: settlements and plans. For a job without `on` that costs nothing, and
reads of earlier runs are made only where the rule counts in a row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from horarium.access.acting import who_acts
from horarium.clock import Instant
from horarium.model import Job, Occasion, Plan, Run, RunChange, State
from horarium.operations.settling.members import Members
from horarium.operations.writing.named import jobs_by_id
from horarium.ports import PAGE_MAX, RunFilter, Store
from horarium.rules.asking import with_questions
from horarium.rules.following import follow, follow_plan, looks_back, says_something, telling_states
from horarium.rules.joins import defined_records, is_join
from horarium.rules.watching import watch_records

_COUNTED = (Occasion.COMPLETED, Occasion.LATE, Occasion.OVERDUE)
PAGES_MAX = 20
"""Pages of earlier runs that are looked at for one end."""


class Following:
    """Adds what follows to changes of runs of one namespace."""

    def __init__(self, store: Store, members: Members | None = None) -> None:
        self._store = store
        self.members = members
        """The jobs from whose runs others follow (`settling.joining`)."""

    async def ready(
        self, changes: Mapping[int, RunChange], jobs: Mapping[str, Job], now: Instant
    ) -> dict[int, RunChange]:
        """Of these changes those that can be written now, each with what follows from it; at least the first. Another
        waits until those before it in the batch are written or refused, if what follows from it depends on that. Jobs
        that are not among those given are read."""
        jobs = await self.with_missing(list(changes.values()), jobs)
        if not any(job.on for job in jobs.values()):
            return dict(changes)
        done: dict[int, RunChange] = {}
        before: dict[str, list[Run]] = {}
        waiting: set[str] = set()
        for index, change in changes.items():
            job = jobs.get(change.run.job_id or "")
            if job is None or not job.on:
                done[index] = change
                continue
            if job.id in waiting and looks_back(job, change.run, change.state, now):
                continue  # what it looks back upon waits itself: many that end at once are each read for once
            followed = await self._followed(job, change, now, before.get(job.id, []))
            if followed is not None:
                done[index] = followed
            else:
                waiting.add(job.id)
            if change.run.finished:
                before.setdefault(job.id, []).append(change.run)
        return done

    async def plans(self, plans: Sequence[Plan], now: Instant) -> list[Plan]:
        return [await self.plan(planned, now) if _brings_along(planned, now) else planned for planned in plans]

    async def plan(self, planned: Plan, now: Instant) -> Plan:
        """The plan, with what follows from it, with the way to runs that wait for a decision, and with what leads the
        watcher to a job that was edited."""
        if planned.changes and self.members is not None:
            planned = replace(planned, changes=tuple(await self.members.with_ends(planned.changes)))
        if now in (planned.job.updated_at, planned.job.deleted_at):
            records = defined_records(planned.job, planned.job.version + 1, now)
            planned = replace(planned, records=(*planned.records, *records)) if records else planned
        if planned.job.approval is not None:
            origin = who_acts()
            who = ("", "") if origin is None else (origin.principal.subject, origin.principal.name)
            planned = with_questions(planned, *who)
        if not planned.job.on:
            return planned
        earlier: dict[str, Sequence[Run]] = {}
        before: list[Run] = []
        pairs = [(change.run, change.state) for change in planned.changes]
        for run, was in (*pairs, *((run, None) for run in planned.runs if run.state is State.SKIPPED)):
            if count := looks_back(planned.job, run, was, now):
                found = await self._earlier(planned.job, run, count)
                told = [each for each in before if each.id < run.id and says_something(run, each)]
                earlier[run.id] = _newest(found, told, count)
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
            after, limit = page.next_after, PAGE_MAX
        return found[:count]

    async def _followed(self, job: Job, change: RunChange, now: Instant, together: Sequence[Run]) -> RunChange | None:
        """The change, with what follows from it. None: that depends on whether those `together` with it, which may yet
        be refused, are written."""
        count = looks_back(job, change.run, change.state, now)
        if count == 0:
            return follow(job, change, now)
        earlier = await self._earlier(job, change.run, count)
        followed = follow(job, change, now, earlier)
        ours = _that_count(job, change.run, together)
        if not ours:
            return followed
        if len({each.state for each in ours}) > 1:
            return None
        if_written = follow(job, change, now, _newest(earlier, ours, count))
        return if_written if _keys(if_written) == _keys(followed) else None

    async def _earlier(self, job: Job, run: Run, count: int) -> list[Run]:
        """The `count` that `looks_back` asks for, or the newest alone where it says all."""
        newest = await self.earlier_runs(job, run, 1)
        if not newest or count == 1 or (newest[0].state is run.state is State.COMPLETED and not _counts_ends(job)):
            return newest
        return await self.earlier_runs(job, run, count)

    async def with_missing(self, changes: Sequence[RunChange], jobs: Mapping[str, Job]) -> Mapping[str, Job]:
        """The jobs given, and those of the changes that are not among them, as they are stored."""
        read = await jobs_by_id(self._store, [change.run.job_id for change in changes if change.run.job_id not in jobs])
        return {**jobs, **read} if read else jobs


def _brings_along(planned: Plan, now: Instant) -> bool:
    job = planned.job
    if job.on or planned.changes or job.approval is not None:
        return True
    return now in (job.updated_at, job.deleted_at) and is_join(job)


def _that_count(job: Job, run: Run, together: Sequence[Run]) -> list[Run]:
    """Of the runs that end in one batch with this one and have earlier fire times those that it depends on. Completed
    runs each tell a recovery under the same unique key, so that they need not know of one another."""
    same = State.COMPLETED if run.state is State.COMPLETED and not _counts_ends(job) else None
    return [each for each in together if each.id < run.id and says_something(run, each) and each.state is not same]


def _counts_ends(job: Job) -> bool:
    """Whether completed runs count, so that one that recovers nothing still looks back."""
    return any(each.after > 1 for occasion in _COUNTED for each in job.on.get(occasion, ()))


def _newest(earlier: Sequence[Run], together: Sequence[Run], count: int) -> list[Run]:
    found = {each.id: each for each in (*earlier, *together)}
    return sorted(found.values(), key=lambda each: each.id, reverse=True)[:count]


def _keys(change: RunChange) -> set[str | None]:
    return {run.unique_key for run in change.follow_ups}
