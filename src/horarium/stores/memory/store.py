"""`ports.Store` over a `Space`, and the claim.

No method awaits anything inside, so each is one step of the event loop: that is the whole of its atomicity. A claim
walks the lanes in claim order, counts the runs that it takes, and only then writes.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator, Mapping, Sequence
from heapq import merge
from itertools import islice, takewhile

from msgspec.structs import replace

from horarium.clock import Instant
from horarium.model import NO_HEALTH, Health, Job, Level, Node, Plan, Run, RunChange, State, Whole
from horarium.model.records import Record, RecordChange, RecordFilter
from horarium.ports import (
    NOTHING_ALONG,
    Along,
    Beat,
    Claimed,
    JobFilter,
    Page,
    Pulse,
    QueueStats,
    RunFilter,
    Stats,
    deadline_of,
    lease_end,
)
from horarium.stores.counting import counted
from horarium.stores.listing import ahead_after, ahead_cursor, id_bounds
from horarium.stores.memory.indexes import LOOKED_AT, Timed
from horarium.stores.memory.ordered import Ordered
from horarium.stores.memory.space import Space

LAST = chr(sys.maxunicode)
_RUNNING = State.RUNNING


class MemoryDatabase:
    """What several stores of one process share, as nodes share a database."""

    def __init__(self) -> None:
        self._spaces: dict[str, Space] = {}

    def space(self, namespace: str) -> Space:
        """The data of a namespace, empty at first."""
        if namespace not in self._spaces:
            self._spaces[namespace] = Space()
        return self._spaces[namespace]


class MemoryStore:
    """A store that forgets everything with its process. For its methods see `ports.Store`."""

    def __init__(self, namespace: str = "default", database: MemoryDatabase | None = None) -> None:
        self.namespace = namespace
        self._space = (database or MemoryDatabase()).space(namespace)

    async def open(self) -> None:
        """Nothing to connect to."""

    async def close(self) -> None:
        """Nothing to finish: every call was carried out when it returned."""

    async def check(self) -> None:
        """A write always succeeds."""

    # -- jobs

    async def add_jobs(self, jobs: Sequence[Job], along: Along = NOTHING_ALONG) -> list[bool]:
        return [self._add_job(job, along.get(job.id, ())) for job in jobs]

    def _add_job(self, job: Job, along: Sequence[Record]) -> bool:
        named = job.deleted_at is None and job.name in self._space.found_jobs.ids
        if named or job.id in self._space.jobs:
            return False
        self._space.put_job(job)
        self._space.beside.add(along)
        return True

    async def get_jobs(self, names: Sequence[str]) -> list[Job | None]:
        ids, jobs = self._space.found_jobs.ids, self._space.jobs
        return [jobs[ids[name]] if name in ids else None for name in names]

    async def get_jobs_by_id(self, ids: Sequence[str]) -> list[Job | None]:
        return [self._space.jobs.get(job_id) for job_id in ids]

    async def list_jobs(self, where: JobFilter, after: str | None, limit: int) -> Page[Job]:
        found = list[Job]()
        while len(found) <= limit:
            names = list(islice(self._space.found_jobs.named(where.name_prefix or "", after), LOOKED_AT))
            fitting = (job for job in self._space.jobs_named(names) if _job_matches(job, where))
            found += islice(fitting, limit + 1 - len(found))
            if len(names) < LOOKED_AT:
                break
            after = names[-1]
            await asyncio.sleep(0)
        return Page(tuple(found[:limit]), found[limit - 1].name if len(found) > limit > 0 else None)

    async def job_health(self, job_ids: Sequence[str]) -> dict[str, Health]:
        return {job_id: self._space.health.get(job_id, NO_HEALTH) for job_id in job_ids}

    async def failing_jobs(self, limit: int) -> dict[str, Health]:
        failing = (pair for pair in self._space.health.items() if pair[1].failures_in_a_row)
        return dict(islice(failing, limit))

    async def add_health(self, health: Mapping[str, Health]) -> None:
        for job_id, each in health.items():
            self._space.health.setdefault(job_id, each)

    async def due_jobs(
        self, until: Instant, limit: int, after: Instant | None = None
    ) -> tuple[list[Job], Instant | None]:
        entries = self._space.found_jobs.due
        found: list[Job] = []
        for fire_at, job_id in entries if after is None else entries.above(_end_of(after)):
            if fire_at > until or len(found) == limit:
                return found, fire_at
            found.append(self._space.jobs[job_id])
        return found, None

    async def jobs_ahead(self, until: Instant, after: str | None, limit: int) -> Page[Job]:
        above = _end_of(until) if after is None else ahead_cursor(after)
        entries = list(islice(self._space.found_jobs.by_cursor.above(above), limit + 1))
        jobs = tuple(self._space.jobs[job_id] for _, job_id in entries[:limit])
        return Page(jobs, ahead_after(*entries[limit - 1]) if len(entries) > limit > 0 else None)

    async def jobs_trimmed(self, after: str | None, limit: int) -> Page[Job]:
        names = list(islice(self._space.found_jobs.trimmed.above(after or ""), limit + 1))
        return Page(tuple(self._space.jobs_named(names[:limit])), names[limit - 1] if len(names) > limit > 0 else None)

    async def commit_plans(self, plans: Sequence[Plan], steady: Instant) -> list[bool]:
        return [self._commit_plan(plan, steady) for plan in plans]

    def _commit_plan(self, plan: Plan, steady: Instant) -> bool:
        stored = self._space.jobs.get(plan.job.id)
        if stored is None or stored.version != plan.job.version:
            return False
        self._space.put_job(replace(plan.job, version=stored.version + plan.versions))
        self._space.apply_all(plan.changes, steady)
        stays = {run.id for run in plan.withdrawals if not self._withdraw(run)}
        for run in plan.runs:
            if run.id not in stays:
                self._add_run(run, plan.along.get(run.id, ()))
        self._space.beside.add(plan.records)
        return True

    def _withdraw(self, read: Run) -> bool:
        run = self._space.runs.get(read.id)
        withdrawn = run is not None and run.state is State.PENDING and run.token == read.token
        if run is not None and withdrawn:
            self._space.delete_run(run)
        return withdrawn

    async def write_whole(self, whole: Whole, steady: Instant) -> bool:
        jobs, names, records = self._space.jobs, self._space.found_jobs.ids, self._space.beside.records
        keys = [run.unique_key for run in whole.runs if run.unique_key is not None]
        refused = (
            len(set(keys)) < len(keys)
            or any(
                jobs.get(plan.job.id) is None or jobs[plan.job.id].version != plan.job.version for plan in whole.plans
            )
            or any(job.id in jobs or job.name in names for job in whole.jobs)
            or any(_version_of(records.get(change.record.name)) != change.expected for change in whole.records)
            or any(run.id in self._space.runs or run.unique_key in self._space.identities.by_key for run in whole.runs)
        )
        if not refused:
            await self.commit_plans(whole.plans, steady)
            await self.add_jobs(whole.jobs, whole.along)
            await self.put_records(whole.records)
            await self.add_runs(whole.runs, whole.along)
        return not refused

    # -- runs

    async def add_runs(self, runs: Sequence[Run], along: Along = NOTHING_ALONG) -> list[bool]:
        return [self._add_run(run, along.get(run.id, ())) for run in runs]

    def _add_run(self, run: Run, along: Sequence[Record]) -> bool:
        added = self._space.add_run(run)
        if added and along:
            self._space.beside.add(along)
        return added

    async def get_runs(self, ids: Sequence[str]) -> list[Run | None]:
        return [self._space.runs.get(run_id) for run_id in ids]

    async def get_run_by_key(self, unique_key: str) -> Run | None:
        run_id = self._space.identities.by_key.get(unique_key)
        return None if run_id is None else self._space.runs[run_id]

    async def unfinished_runs(self, job_ids: Sequence[str]) -> dict[str, list[Run]]:
        runs, unfinished = self._space.runs, self._space.found_runs.unfinished
        return {job_id: [runs[run_id] for _, run_id in unfinished.get(job_id, ())] for job_id in job_ids}

    async def list_runs(self, where: RunFilter, after: str | None, limit: int) -> Page[Run]:
        runs = (self._space.runs[run_id] for run_id in self._ids_descending(where, after))
        found = list(islice((run for run in runs if _run_matches(run, where)), limit + 1))
        more = len(found) > limit > 0
        return Page(tuple(found[:limit]), found[limit - 1].id if more else None)

    async def last_runs(self, jobs: Sequence[str], since: Instant, until: Instant, limit: int) -> dict[str, list[Run]]:
        lowest, below = id_bounds(RunFilter(since=since, until=until), None)
        answer = {}
        for job in jobs:
            named = self._space.identities.of_name.get(job, Ordered[str]()).descending(below)
            found = islice(takewhile(lambda run_id: lowest is None or run_id >= lowest, named), limit)
            answer[job] = [self._space.runs[run_id] for run_id in found]
        return answer

    def _ids_descending(self, where: RunFilter, after: str | None) -> Iterator[str]:
        if where.job is not None:
            return self._space.identities.of_name.get(where.job, Ordered[str]()).descending(after)
        states = where.states or State
        return merge(*(self._space.found_runs.in_state[state].descending(after) for state in states), reverse=True)

    async def claim_runs(
        self, queues: Sequence[str], limit: int, worker: str, now: Instant, until: Instant, steady: Instant
    ) -> Claimed:
        claim = _Claim(self._space, sorted(set(queues)), now, until)
        takes = claim.takes()
        runs = tuple(_claimed(run, worker, now, steady) for run in islice(takes, limit))
        # What it would take next is due and may be taken still; it is drawn before anything is written.
        left = next(takes, None)
        for run in runs:
            self._space.put_run(run)
        ids = {run.job_id for run in runs if run.job_id is not None}
        jobs = {job_id: self._space.jobs[job_id] for job_id in ids if job_id in self._space.jobs}
        return Claimed(runs, jobs, claim.due_ahead() if left is None else left.due_at)

    async def first_due(self, levels: Sequence[Level]) -> list[Instant | None]:
        return [self._first_due(*level) for level in levels]

    def _first_due(self, queue: str, priority: int, gated: bool) -> Instant | None:
        lane = self._space.found_runs.lanes.by_queue.get(queue, {}).get(priority, ())
        return next((due_at for due_at, run_id in lane if self._space.runs[run_id].is_gated is gated), None)

    async def settle_runs(self, changes: Sequence[RunChange], steady: Instant) -> list[bool]:
        return self._space.apply_all(changes, steady)

    async def heartbeat_runs(self, beats: Sequence[Beat], steady: Instant) -> list[Pulse | None]:
        return [self._heartbeat(beat, steady) for beat in beats]

    def _heartbeat(self, beat: Beat, steady: Instant) -> Pulse | None:
        run = self._space.runs.get(beat.run_id)
        if run is None or run.state not in (State.RUNNING, State.CANCELLING) or run.token != beat.token:
            return None
        expires_at = lease_end(run, steady) if run.state is State.RUNNING else run.lease_expires_at
        if expires_at is None or expires_at <= steady:
            return None
        progress = run.progress if beat.progress is None else beat.progress
        self._space.put_run(replace(run, lease_expires_at=expires_at, progress=progress))
        return Pulse(expires_at, run.state is State.CANCELLING)

    async def overdue_runs(self, now: Instant, limit: int, steady: Instant) -> tuple[list[Run], Instant | None]:
        found, shift = self._space.found_runs, steady - now
        ended = [(end - shift, run_id) for end, run_id in islice(found.leases.upto(_end_of(steady)), limit)]
        unstarted = islice(found.start_limits.upto(_end_of(now)), limit)
        overdue = [self._space.runs[run_id] for _, run_id in islice(merge(ended, unstarted), limit)]
        ahead = [end - shift for end, _ in islice(found.leases.above(_end_of(steady)), 1)]
        ahead += [limit_at for limit_at, _ in islice(found.start_limits.above(_end_of(now)), 1)]
        return overdue, min(ahead, default=None)

    async def prune_runs(self, now: Instant, limit: int) -> int:
        expired = list(islice(self._space.found_runs.prunable.upto(_end_of(now)), limit))
        for _, run_id in expired:
            self._space.delete_run(self._space.runs[run_id])
        orphans = (job_id for job_id in self._space.found_jobs.deleted if job_id not in self._space.identities.of_job)
        for job_id in list(islice(orphans, limit)):
            self._space.delete_job(self._space.jobs[job_id])
        return len(expired)

    async def trim_runs(self, job_id: str, keep: int, limit: int) -> int:
        finished = self._space.found_runs.finished.get(job_id, Ordered[str]())
        surplus = list(islice(finished, max(0, min(len(finished) - keep, limit))))
        for run_id in surplus:
            self._space.delete_run(self._space.runs[run_id])
        return len(surplus)

    # -- records

    async def get_records(self, names: Sequence[str]) -> list[Record | None]:
        return [self._space.beside.records.get(name) for name in names]

    async def list_records(self, where: RecordFilter, after: str | None, limit: int) -> Page[Record]:
        records = (self._space.beside.records[name] for name in self._names(where, after))
        found = list(islice((record for record in records if where.labels.items() <= record.labels.items()), limit + 1))
        more = len(found) > limit > 0
        return Page(tuple(found[:limit]), found[limit - 1].name if more else None)

    def _names(self, where: RecordFilter, after: str | None = None) -> Iterator[str]:
        """The names within the bounds of a filter, in its order."""
        names, first, below = self._space.beside.names, where.prefix + where.since, _below(where)
        if where.descending:
            bounds = [bound for bound in (after, below) if bound is not None]
            return takewhile(lambda name: name >= first, names.descending(min(bounds, default=None)))
        ordered = names.since(first) if after is None or after < first else names.above(after)
        return ordered if below is None else takewhile(lambda name: name < below, ordered)

    async def put_records(self, changes: Sequence[RecordChange]) -> list[bool]:
        return [self._put_record(change) for change in changes]

    def _put_record(self, change: RecordChange) -> bool:
        stored = self._space.beside.records.get(change.record.name)
        if _version_of(stored) != change.expected:
            return False
        if change.deleted:
            self._space.beside.forget(change.record.name)
        else:
            self._space.beside.put(change.record)
        self._space.beside.add(change.records)
        return True

    async def prune_records(self, prefix: str, until: str, limit: int) -> int:
        old = list(islice(self._names(RecordFilter(prefix, until=until)), max(limit, 0)))
        for name in old:
            self._space.beside.forget(name)
        return len(old)

    # -- the rest

    async def beat_node(self, node: Node) -> None:
        self._space.beside.nodes[node.name] = node

    async def list_nodes(self, since: Instant) -> list[Node]:
        nodes = (node for node in self._space.beside.nodes.values() if node.beat_at >= since)
        return sorted(nodes, key=lambda node: node.name)

    async def stats(self, now: Instant) -> Stats:
        jobs = [self._space.jobs[job_id] for job_id in self._space.found_jobs.ids.values()]
        queues = self._space.found_runs.lanes.by_queue.keys() | self._space.found_runs.claimed.in_queue.keys()
        enabled = sum(job.active for job in jobs)
        return counted(len(jobs), enabled, (self._queue_stats(queue, now) for queue in queues))

    def _queue_stats(self, queue: str, now: Instant) -> QueueStats:
        lanes = self._space.found_runs.lanes.of(queue)
        due = sum(lane.count_below(_end_of(now)) for lane in lanes)
        earliest = min((entry[0] for lane in lanes if (entry := lane.first()) is not None), default=None)
        return QueueStats(
            queue=queue,
            due=due,
            scheduled=sum(map(len, lanes)) - due,
            running=self._space.found_runs.claimed.in_queue[queue],
            oldest_due_at=earliest if due else None,
        )


class _Claim:
    """One claim: which runs may be taken, in which order, as if each were taken before the next is looked at."""

    def __init__(self, space: Space, queues: list[str], now: Instant, until: Instant) -> None:
        self._space = space
        self._queues = queues
        self._now = now
        self._end = _end_of(until)
        self._keys: dict[str, int] = {}
        self._jobs: set[str] = set()

    def takes(self) -> Iterator[Run]:
        """Runs to take, in claim order. Each one drawn counts as claimed for those that follow."""
        for run in self._due():
            key, job_id = run.concurrency_key, run.job_id
            if self._held_back(run):
                continue
            if key is not None:
                self._keys[key] = self._keys.get(key, 0) + 1
            if job_id is not None:
                self._jobs.add(job_id)
            yield run

    def due_ahead(self) -> Instant | None:
        """The next due instant, after all that is due."""
        lanes = (lane for queue in self._queues for lane in self._space.found_runs.lanes.of(queue))
        ahead = (next(lane.above(self._end), None) for lane in lanes)
        return min((entry[0] for entry in ahead if entry is not None), default=None)

    def _due(self) -> Iterator[Run]:
        for lanes in self._space.found_runs.lanes.lane_by_lane(self._queues):
            due = [lane.upto(self._end) for lane in lanes]
            for _, run_id in due[0] if len(due) == 1 else merge(*due):
                yield self._space.runs[run_id]

    def _held_back(self, run: Run) -> bool:
        if run.start_by is not None and run.start_by <= self._now:
            return True
        if (key := run.concurrency_key) is not None:
            taken = self._space.found_runs.claimed.under[key] + self._keys.get(key, 0)
            if taken >= run.concurrency_max:
                return True
        if not run.serial or run.job_id is None:
            return False
        if run.job_id in self._jobs or self._space.found_runs.claimed.of_job[run.job_id]:
            return True
        return self._space.found_runs.unfinished[run.job_id].first() != (run.fire_at, run.id)


def _claimed(run: Run, worker: str, now: Instant, steady: Instant) -> Run:
    started_at = max(now, run.due_at)
    begins = steady + started_at - now
    if run.execution_seconds is not None:
        run = replace(run, deadline=deadline_of(run, begins))
    return replace(
        run,
        state=_RUNNING,
        token=run.token + 1,
        attempt=run.attempt + 1,
        worker=worker,
        started_at=started_at,
        lease_expires_at=lease_end(run, begins),
    )


def _end_of(instant: Instant) -> Timed:
    """Above every entry at `instant`, below every entry after it."""
    return instant + 1, ""


def _job_matches(job: Job, where: JobFilter) -> bool:
    if where.enabled is not None and job.active is not where.enabled:
        return False
    if where.finished is not None and (job.finished_at is not None) is not where.finished:
        return False
    return where.labels.items() <= job.labels.items()


def _run_matches(run: Run, where: RunFilter) -> bool:
    return (
        (where.job is None or run.job == where.job)
        and (not where.states or run.state in where.states)
        and (where.queue is None or run.queue == where.queue)
        and (where.since is None or run.fire_at >= where.since)
        and (where.until is None or run.fire_at < where.until)
    )


def _below(where: RecordFilter) -> str | None:
    """What every name that matches lies below; None: all do. (Names are texts, ordered by code point.)"""
    if where.until is not None:
        return where.prefix + where.until
    shorter = where.prefix.rstrip(LAST)
    return shorter[:-1] + chr(ord(shorter[-1]) + 1) if shorter else None


def _version_of(record: Record | None) -> int:
    return 0 if record is None else record.version
