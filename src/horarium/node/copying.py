"""All jobs, runs and records of one store into another, and the proof that they are the same there.

Owns the order in which things are moved, and what counts as equal. It must never change the source, and never overwrite
the target: it only adds, and each id once, so that a copy that was killed can simply be run again.

Order matters. Runs go first, from the newest, and with each page of them the deleted jobs that its runs belong to,
which nothing else leads to; the jobs that are not deleted go last, so that nothing is planned in the target before
every fire time that has a run already has it there too. Nodes are not moved. Deleted jobs without runs can't be listed,
and are about to be deleted for good.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Literal, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import asdict

from horarium.clock import SECOND, Clock, Instant
from horarium.errors import NotFound, StateConflict
from horarium.model import Job, Run
from horarium.model.records import Record, RecordChange, RecordFilter
from horarium.operations.bounds.listing import pages_of
from horarium.ports import BATCH_MAX, PAGE_MAX, JobFilter, Page, RunFilter, Store
from horarium.services.loop.believed import NOTED
from horarium.services.loop.steady import NAME, carry_over

QUIET_SECONDS = 30
"""How long no node may have given a sign of life: three of its beats."""
PROBLEMS_KEPT = 100
"""How many differences are described; all are counted."""
PAGE_BYTES = 8 * 1024 * 1024
"""About how much a page of runs may weigh, judged by the page before it."""
RUN_BYTES, EVENT_BYTES = 500, 100
"""What the rest of a run, and a line of its history, weigh."""
OWNERS_REMEMBERED = 50_000
"""How many ids of handled jobs are remembered."""

T = TypeVar("T")
Pages = AsyncIterator[tuple[T, ...]]
Stage = Literal["records", "runs", "jobs", "check"]
Kind = Literal["missing", "extra", "different", "disturbed"]
What = Literal["job", "run", "record", "node"]
Item = Job | Run | Record


class Side(Struct, frozen=True):
    """One of the two stores, open; the clock that its nodes go by; and what to call it."""

    store: Store
    clock: Clock
    name: str


class Problem(Struct, frozen=True):
    """One difference. `kind`: `missing` (only in the source), `extra` (only in the target), `different` (in both), or
    `disturbed` (a node was at work meanwhile). `id` is that of the job or run, or the name of the record or node."""

    kind: Kind
    what: What
    id: str
    detail: str


class Progress(Struct, frozen=True):
    """How far it is: how many of a stage were handled, and of how many (None: not known)."""

    stage: Stage
    done: int
    total: int | None


class Counts(Struct):
    """Counts of added, existing and equal items."""

    jobs_copied: int = 0
    jobs_present: int = 0
    runs_copied: int = 0
    runs_present: int = 0
    records_copied: int = 0
    records_present: int = 0
    jobs_equal: int = 0
    runs_equal: int = 0
    records_equal: int = 0
    problems: int = 0


class Copied(Struct, frozen=True):
    """The result. `stopped`: a job is in both with different content, so nothing more was copied and nothing checked.
    `problems` holds the first of them, `counts.problems` says how many there are."""

    counts: Counts
    problems: tuple[Problem, ...]
    stopped: bool

    @property
    def ok(self) -> bool:
        """Whether the target was proven to hold exactly what the source holds."""
        return not self.stopped and self.counts.problems == 0


class _Stopped(Exception):
    """The copy stops: jobs of the target conflict."""


async def copy(
    source: Side, target: Side, notify: Callable[[Progress], None], *, force: bool = False, check_only: bool = False
) -> Copied:
    """Copy everything (unless `check_only`), then compare everything. `force`: nodes may be at work.

    Raises StateConflict if nodes are at work and it is not given, NotFound if the source is empty, StoreUnavailable if
    a store fails; items copied until then stay, and are passed over the next time.
    """
    return await _Copy(source, target, notify).carry_out(force, check_only)


async def _refuse_beating(side: Side) -> None:
    now, quiet = side.clock.now(), QUIET_SECONDS * SECOND
    if names := [node.name for node in await side.store.list_nodes(now - quiet) if node.is_alive(now, quiet + 1)]:
        raise StateConflict(
            f"{side.name}: a node is at work there, or was within the last {QUIET_SECONDS} s: {', '.join(names[:5])}; "
            "stop all nodes of both stores and try again (--force: go on all the same)"
        )


async def _refuse_empty(side: Side) -> None:
    """A wrong URL or namespace looks like an empty store, and would be copied with success."""
    jobs = await side.store.list_jobs(JobFilter(), None, 1)
    runs = await side.store.list_runs(RunFilter(), None, 1)
    if not jobs.items and not runs.items and not [page async for page in _record_pages(side.store)]:
        raise NotFound(f"{side.name}: there is nothing in this namespace; check the URL and the namespace")


class _Copy:
    """One copy under way."""

    def __init__(self, source: Side, target: Side, notify: Callable[[Progress], None]) -> None:
        self._sides = (source, target)
        self._source, self._target = source.store, target.store
        self._notify = notify
        self._counts = Counts()
        self._problems: list[Problem] = []

    async def carry_out(self, force: bool, check_only: bool) -> Copied:
        begun = [side.clock.now() for side in self._sides]
        if not force:
            for side in self._sides:
                await _refuse_beating(side)
        await _refuse_empty(self._sides[0])
        stopped = False
        try:
            if not check_only:
                await self._copy()
            await self._check()
        except _Stopped:
            stopped = True
        if not force:
            await self._note_beats(begun)
        return Copied(self._counts, tuple(self._problems), stopped)

    async def _note_beats(self, begun: Sequence[Instant]) -> None:
        """Nodes that were started while we were at work: compared items may have changed since."""
        for side, since in zip(self._sides, begun, strict=True):
            for node in await side.store.list_nodes(since):
                self._found("disturbed", "node", node.name, f"was at work in {side.name} meanwhile; stop it, run again")

    def _found(self, kind: Kind, what: What, id: str, detail: str) -> None:
        self._counts.problems += 1
        if len(self._problems) < PROBLEMS_KEPT:
            self._problems.append(Problem(kind, what, id, detail))

    # ---- copy

    async def _copy(self) -> None:
        await self._look_for_conflicts()
        await self._copy_runs()
        await self._copy_records()
        await self._copy_jobs()

    async def _look_for_conflicts(self) -> None:
        """Before anything is written: every job that conflicts, not only the first."""
        async for jobs in _job_pages(self._source):
            by_id = await self._target.get_jobs_by_id([job.id for job in jobs])
            by_name = await self._target.get_jobs([job.name for job in jobs])
            for job, same, named in zip(jobs, by_id, by_name, strict=True):
                self._compare_job(job, same, named)
        self._stop_if_found()

    def _compare_job(self, job: Job, same: Job | None, named: Job | None) -> None:
        """Note a job that can't be added as it is."""
        if same is not None and same != job:
            self._found("different", "job", job.id, f"{job.name}: {_differences(job, same)}")
        elif same is None and named is not None:
            self._found("different", "job", job.id, f"{job.name}: its name is taken by job {named.id}")

    def _stop_if_found(self) -> None:
        if self._counts.problems:
            raise _Stopped

    async def _copy_records(self) -> None:
        """One that is there and differs stays: the check will find it."""
        done = 0
        async for records in _record_pages(self._source):
            copied = sum(await self._target.put_records([RecordChange(record) for record in records]))
            self._counts.records_copied += copied
            self._counts.records_present += len(records) - copied
            done += len(records)
            self._notify(Progress("records", done, None))
        await carry_over(self._source, self._target)
        self._notify(Progress("records", done, done))

    async def _copy_runs(self) -> None:
        seen: set[str] = set()
        done = 0
        async for runs in _run_pages(self._source):
            await self._copy_deleted(_new_owners(runs, seen))
            there = await self._target.get_runs([run.id for run in runs])
            new = [run for run, present in zip(runs, there, strict=True) if present is None]
            added = await self._target.add_runs(new) if new else []
            self._counts.runs_copied += sum(added)
            self._counts.runs_present += len(runs) - len(new)
            done += len(runs)
            self._notify(Progress("runs", done, None))
        self._notify(Progress("runs", done, done))

    async def _copy_deleted(self, ids: Sequence[str]) -> None:
        if ids:
            jobs = await self._source.get_jobs_by_id(ids)
            await self._add_jobs([job for job in jobs if job is not None and job.deleted_at is not None])

    async def _copy_jobs(self) -> None:
        total = (await self._source.stats(self._sides[0].clock.now())).jobs
        done = 0
        async for jobs in _job_pages(self._source):
            await self._add_jobs(jobs)
            await self._target.add_health(await self._source.job_health([job.id for job in jobs]))
            done += len(jobs)
            self._notify(Progress("jobs", done, total))

    async def _add_jobs(self, jobs: Sequence[Job]) -> None:
        """Add those that are not there yet. Stops where one that is there differs, or can't be added."""
        if not jobs:
            return
        there = await self._target.get_jobs_by_id([job.id for job in jobs])
        for job, same in zip(jobs, there, strict=True):
            self._compare_job(job, same, None)
        new = [job for job, same in zip(jobs, there, strict=True) if same is None]
        added = await self._target.add_jobs(new) if new else []
        for job, done in zip(new, added, strict=True):
            if not done:
                self._found("different", "job", job.id, f"{job.name}: the name is taken by another job of the target")
        self._counts.jobs_copied += sum(added)
        self._counts.jobs_present += len(jobs) - len(new)
        self._stop_if_found()

    # ---- check

    async def _check(self) -> None:
        await self._check_jobs()
        async for job in _unlike_health(self._source, self._target):
            self._found("different", "job", job.id, f"{job.name}: different: health")
        await self._check_runs()
        await self._check_records()

    async def _check_records(self) -> None:
        pages = _record_pages(self._source), _record_pages(self._target)
        async for record, there in _paired(*pages, lambda record: record.name, descending=False):
            self._counts.records_equal += self._is_same("record", record, there)

    async def _check_jobs(self) -> None:
        pairs = _paired(_job_pages(self._source), _job_pages(self._target), lambda job: job.name, descending=False)
        async for job, there in pairs:
            self._counts.jobs_equal += self._is_same("job", job, there, "" if job is None else job.name)

    async def _check_runs(self) -> None:
        """Runs by id; and the deleted jobs that they belong to, some hundreds at a time."""
        total = self._counts.runs_copied + self._counts.runs_present
        seen: set[str] = set()
        done = 0
        for_owners: list[Run] = []
        pairs = _paired(_run_pages(self._source), _run_pages(self._target), lambda run: run.id, descending=True)
        async for run, there in pairs:
            why = "" if run is None or there is not None else await self._reason(run)
            self._counts.runs_equal += self._is_same("run", run, there, why)
            for_owners += (one for one in (run, there) if one is not None)
            done += run is not None
            if len(for_owners) >= BATCH_MAX:
                await self._check_owners(_new_owners(for_owners, seen))
                for_owners.clear()
                self._notify(Progress("check", done, total or None))
        if for_owners:
            await self._check_owners(_new_owners(for_owners, seen))
            self._notify(Progress("check", done, done))

    async def _reason(self, run: Run) -> str:
        """Why a run may have been refused."""
        if run.unique_key is not None:
            holder = await self._target.get_run_by_key(run.unique_key)
            if holder is not None:
                return f"its unique key is held by the run {holder.id} of the target"
        return "" if run.job is None else f"of the job {run.job}"

    def _is_same(self, what: What, here: Item | None, there: Item | None, words: str = "") -> bool:
        """Compare what both have under one id, and note a difference. `words`: about what the source has."""
        if here is None or there is None:
            kind: Literal["missing", "extra"] = "missing" if there is None else "extra"
            found = here or there
            if found is not None:
                self._found(kind, what, _id_of(found), words if here is not None else "is in the target only")
        elif here != there:
            self._found("different", what, _id_of(here), f"{words}: {_differences(here, there)}".removeprefix(": "))
        return here is not None and here == there

    async def _check_owners(self, ids: Sequence[str]) -> None:
        """Deleted jobs; the others were compared as they were listed."""
        if not ids:
            return
        jobs = await self._source.get_jobs_by_id(ids)
        others = await self._target.get_jobs_by_id(ids)
        for job, other in zip(jobs, others, strict=True):
            if _is_deleted(job) or _is_deleted(other):
                self._is_same("job", job, other, "" if job is None else f"{job.name}, deleted")


# ---- pages


async def _job_pages(store: Store) -> AsyncIterator[tuple[Job, ...]]:
    async for jobs in pages_of(lambda after: store.list_jobs(JobFilter(), after, PAGE_MAX)):
        if jobs:
            yield jobs


async def _unlike_health(source: Store, target: Store) -> AsyncIterator[Job]:
    """The jobs whose health is not the same in both."""
    async for jobs in _job_pages(source):
        ids = [job.id for job in jobs]
        here, there = await source.job_health(ids), await target.job_health(ids)
        for job in jobs:
            if here[job.id] != there[job.id]:
                yield job


async def _record_pages(store: Store) -> AsyncIterator[tuple[Record, ...]]:
    """All but what the nodes of a store note of its clocks."""
    async for page in pages_of(lambda after: store.list_records(RecordFilter(), after, PAGE_MAX)):
        if records := tuple(record for record in page if record.name not in (NOTED, NAME)):
            yield records


async def _run_pages(store: Store) -> AsyncIterator[tuple[Run, ...]]:
    """As many runs to a page as its bytes allow: with the largest payloads a full batch would weigh 300 MB."""
    after: str | None = None
    limit = PAGE_MAX
    while True:
        page: Page[Run] = await store.list_runs(RunFilter(), after, limit)
        if page.items:
            limit = max(1, min(BATCH_MAX, PAGE_BYTES * len(page.items) // sum(map(_weight, page.items))))
            yield page.items
        if page.next_after is None:
            return
        after = page.next_after


def _weight(run: Run) -> int:
    """About how many bytes a run has."""
    parts = (run.payload, run.result, run.progress, run.error)
    policy = 0 if run.policy is None else len(msgspec.msgpack.encode(run.policy))
    return RUN_BYTES + policy + EVENT_BYTES * len(run.history) + sum(len(part) for part in parts if part is not None)


async def _paired(
    left: AsyncIterator[tuple[T, ...]],
    right: AsyncIterator[tuple[T, ...]],
    key: Callable[[T], str],
    *,
    descending: bool,
) -> AsyncIterator[tuple[T | None, T | None]]:
    """Two ordered lists as one: items of one key come together, the rest with None. A page of each is held."""
    ones, others = _each(left), _each(right)
    one, other = await anext(ones, None), await anext(others, None)
    while one is not None or other is not None:
        if one is not None and other is not None and key(one) == key(other):
            yield one, other
            one, other = await anext(ones, None), await anext(others, None)
        elif other is None or (one is not None and (key(one) > key(other)) is descending):
            yield one, None
            one = await anext(ones, None)
        else:
            yield None, other
            other = await anext(others, None)


async def _each(pages: Pages[T]) -> AsyncIterator[T]:
    async for page in pages:
        for item in page:
            yield item


# ---- values


def _new_owners(runs: Iterable[Run], seen: set[str]) -> list[str]:
    """The jobs of these runs, without those that were handled lately."""
    ids = {run.job_id for run in runs if run.job_id is not None} - seen
    if len(seen) > OWNERS_REMEMBERED:
        seen.clear()
    seen |= ids
    return sorted(ids)


def _is_deleted(job: Job | None) -> bool:
    return job is not None and job.deleted_at is not None


def _id_of(item: Item) -> str:
    return item.name if isinstance(item, Record) else item.id


def _differences(one: Item, other: Item) -> str:
    """The names of the fields that differ; their values may be large, or secret."""
    here, there = asdict(one), asdict(other)
    return "different: " + ", ".join(name for name in here if here[name] != there[name])
