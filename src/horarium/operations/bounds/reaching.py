"""The store as a bound caller sees it: its own jobs and runs, and nothing of any other, places to go on included.

A run belongs to whom its job belongs; one without a job has labels of its own. What a caller may see is looked for
among all, a bounded number at a time (by queue or by label, where the store can), and where that ends between jobs of
others the place is sealed. While no bound caller reads, this is the store itself.

Writes read what there is: they are judged by `writing.auditing.require_reach`, on the reads for the very write.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from hashlib import sha256, shake_256
from hmac import compare_digest
from hmac import new as hmac
from typing import Any, cast

from msgspec.structs import replace

from horarium.access.acting import bound_caller, who_reads
from horarium.access.roles import Principal
from horarium.clock import Instant
from horarium.errors import Conflict, Forbidden, InvalidRequest
from horarium.model import UNFINISHED, Health, Job, Node, Run, State, key_as_given, own_labels, queue_of
from horarium.model.identity import is_request_key
from horarium.operations.bounds.circles import NONE_BESIDE, require_no_circle
from horarium.operations.bounds.listing import Slices
from horarium.operations.writing.auditing import refusal_of
from horarium.operations.writing.context import Entropy
from horarium.operations.writing.keeping import Secret
from horarium.operations.writing.named import job_named, no_job
from horarium.ports import BATCH_MAX, PAGE_MAX, JobFilter, Page, QueueStats, RunFilter, Stats, Store
from horarium.rules.joins import members_in
from horarium.rules.uniqueness import asks_the_same, same_payload
from horarium.wire.definitions import JobDefinition

PULLED = "pull/"
SECRET = "secret/places"
STAMP_BYTES = 16
SEALED = "~"
"""How a sealed place begins; no name of a job does."""
JOBS_LOOKED_AT = 10_000
RUNS_LOOKED_AT = 5_000
"""For one page, and for counts of unfinished runs."""

ListRuns = Callable[[RunFilter, str | None, int], Awaitable[Page[Run]]]


async def reached(store: Store, caller: Principal, runs: Iterable[Run]) -> list[Run]:
    """Those of these runs that this caller may see and touch."""
    found = list(runs)
    if caller.labels is None:
        return [run for run in found if caller.may_reach(run.queue, {})]
    ids = list({run.job_id for run in found if run.job_id is not None})
    jobs: dict[str, Job] = {}
    for first in range(0, len(ids), PAGE_MAX):
        page = await store.get_jobs_by_id(ids[first : first + PAGE_MAX])
        jobs |= {job.id: job for job in page if job is not None}
    return [run for run in found if may_reach_run(caller, run, jobs.get(run.job_id or ""))]


def may_reach_run(caller: Principal, run: Run, job: Job | None) -> bool:
    """Whether this caller may see and touch a run. `job`: the one that it belongs to."""
    if run.job_id is not None and job is None and caller.labels is not None:
        return False
    return caller.may_reach(run.queue, own_labels(run) if job is None else job.labels)


def may_reach_job(caller: Principal, job: Job) -> bool:
    """Whether this caller may see and touch a job."""
    return caller.may_reach(job.queue, job.labels)


async def require_job(store: Store, name: str) -> Job:
    """The job of that name. Raises NotFound where there is none that who acts may see."""
    job, caller = await job_named(store, name), bound_caller()
    if caller is not None and not may_reach_job(caller, job):
        raise no_job(name)
    return job


def may_reach_definition(caller: Principal, definition: JobDefinition) -> bool:
    """The same of what a job was, or is to be."""
    return caller.may_reach(queue_of(definition.target), definition.labels)


async def require_run(store: Store, run: Run) -> None:
    """Raises Forbidden if who acts may not touch this run."""
    caller = bound_caller()
    if caller is not None and not await reached(store, caller, [run]):
        raise refusal_of(caller)


async def require_holder(store: Store, holder: Run, wanted: Run, field: str = "unique_key") -> None:
    """Raises Conflict if the run that holds the unique key of the wanted one is of another queue (it would do other
    work, or bring the payload to others), or is nothing that who acts may see: then no more is said of it.
    InvalidRequest if the key is that of a request that asked for something else."""
    seen = bool(await within_reach(store, [holder]))
    if seen and is_request_key(wanted.unique_key) and not asks_the_same(holder, wanted):
        raise key_reused(f"run {holder.id}")
    if not seen or holder.queue != wanted.queue:
        where = f"held by a run in {holder.queue}" if seen else "taken; choose another one"
        raise Conflict(f"{field}: {key_as_given(wanted.unique_key)!r} is {where}", field=field)


def require_asked(made: Run, payload: bytes | None) -> None:
    """Raises InvalidRequest if the request whose Idempotency-Key made this run had another payload."""
    if not same_payload(made.payload, payload):
        raise key_reused(f"run {made.id}")


def key_reused(made: str) -> InvalidRequest:
    """The error of a request whose Idempotency-Key is that of another one, which made this."""
    message = f"Idempotency-Key: {made} was made under it, for a request that asked for something else"
    return InvalidRequest(f"{message}; take another key for this one", field="Idempotency-Key")


async def within_reach(store: Store, runs: Sequence[Run]) -> Sequence[Run]:
    """Those of these runs that who acts may see and touch."""
    caller = bound_caller()
    return runs if caller is None else await reached(store, caller, runs)


class Reaching:
    """A store, which shows a bound caller who reads what it may see. All that is not here is the store's own."""

    def __init__(self, store: Store, entropy: Entropy) -> None:
        self._store, self._secret = store, Secret(SECRET, store, entropy)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    # ---- jobs

    async def get_jobs(self, names: Sequence[str]) -> list[Job | None]:
        return _seen_jobs(await self._store.get_jobs(names))

    async def get_jobs_by_id(self, ids: Sequence[str]) -> list[Job | None]:
        return _seen_jobs(await self._store.get_jobs_by_id(ids))

    async def list_jobs(self, where: JobFilter, after: str | None, limit: int) -> Page[Job]:
        caller = who_reads()
        if caller is None:
            return await self._store.list_jobs(where, after, limit)
        if caller.labels is not None and len(caller.labels) == 1:
            both = {**where.labels, **caller.labels[0]}
            if any(both[name] != text for name, text in where.labels.items()):
                return Page(())
            where = replace(where, labels=both)
        found: list[Job] = []
        place = await self._opened(after) if after is not None and after.startswith(SEALED) else after
        slices = Slices()
        for _ in range(JOBS_LOOKED_AT // PAGE_MAX):
            page = await self._store.list_jobs(where, place, PAGE_MAX)
            await slices.give_way()
            found += (job for job in page.items if may_reach_job(caller, job))
            if len(found) > limit:
                return Page(tuple(found[:limit]), found[limit - 1].name)
            if page.next_after is None:
                return Page(tuple(found))
            place = page.next_after
        return Page(tuple(found), None if place is None else await self._sealed(place))

    async def failing_jobs(self, limit: int) -> dict[str, Health]:
        found = await self._store.failing_jobs(limit if who_reads() is None else BATCH_MAX)
        return found if who_reads() is None else await self._seen_by_id(found, limit)

    async def _seen_by_id(self, found: dict[str, Health], limit: int) -> dict[str, Health]:
        jobs = await self.get_jobs_by_id(list(found))
        return {job.id: found[job.id] for job in jobs if job is not None and limit > 0}

    async def due_jobs(
        self, until: Instant, limit: int, after: Instant | None = None
    ) -> tuple[list[Job], Instant | None]:
        caller = who_reads()
        if caller is None:
            return await self._store.due_jobs(until, limit, after)
        jobs, beyond = await self._store.due_jobs(until, max(limit, BATCH_MAX), after)
        mine = [job for job in jobs if may_reach_job(caller, job)]
        return mine[:limit], mine[limit].next_fire_at if len(mine) > limit else beyond

    # ---- runs

    async def get_runs(self, ids: Sequence[str]) -> list[Run | None]:
        runs = await self._store.get_runs(ids)
        if (caller := who_reads()) is None:
            return runs
        seen = {run.id for run in await reached(self._store, caller, (run for run in runs if run is not None))}
        return [run if run is not None and run.id in seen else None for run in runs]

    async def get_run_by_key(self, unique_key: str) -> Run | None:
        run = await self._store.get_run_by_key(unique_key)
        if (caller := who_reads()) is None or run is None:
            return run
        return run if await reached(self._store, caller, [run]) else None

    async def list_runs(self, where: RunFilter, after: str | None, limit: int) -> Page[Run]:
        caller = who_reads()
        if caller is None:
            return await self._store.list_runs(where, after, limit)
        if caller.queues is not None and caller.labels is None:
            return await _of_queues(self._store.list_runs, caller, where, after, limit)
        found: list[Run] = []
        slices = Slices()
        for _ in range(RUNS_LOOKED_AT // PAGE_MAX):
            page = await self._store.list_runs(where, after, PAGE_MAX)
            await slices.give_way()
            found += await reached(self._store, caller, page.items)
            if len(found) > limit:
                return Page(tuple(found[:limit]), found[limit - 1].id)
            if (after := page.next_after) is None:
                break
        return Page(tuple(found), after)

    async def last_runs(self, jobs: Sequence[str], since: Instant, until: Instant, limit: int) -> dict[str, list[Run]]:
        found = await self._store.last_runs(jobs, since, until, limit)
        if (caller := who_reads()) is None:
            return found
        return {name: await reached(self._store, caller, runs) for name, runs in found.items()}

    # ---- the rest

    async def list_nodes(self, since: Instant) -> list[Node]:
        """Nodes serve all, so a bound caller sees none of them."""
        return [] if who_reads() is not None else await self._store.list_nodes(since)

    async def stats(self, now: Instant) -> Stats:
        """For a bound caller the counts of what it may see, as far as it is looked at."""
        caller = who_reads()
        if caller is None:
            return await self._store.stats(now)
        jobs = (await self.list_jobs(JobFilter(), None, BATCH_MAX)).items
        active = sum(job.active for job in jobs)
        if caller.labels is None:
            stats = await self._store.stats(now)
            return Stats(len(jobs), active, tuple(one for one in stats.queues if caller.may_reach(one.queue, {})))
        queues: dict[str, QueueStats] = {}
        after: str | None = None
        for _ in range(RUNS_LOOKED_AT // PAGE_MAX):
            page = await self.list_runs(RunFilter(states=UNFINISHED), after, PAGE_MAX)
            for run in page.items:
                one = queues.get(run.queue) or QueueStats(run.queue, 0, 0, 0, None)
                queues[run.queue] = _with(one, run, now)
            if (after := page.next_after) is None:
                break
        for job in jobs:
            queues.setdefault(job.queue, QueueStats(job.queue, 0, 0, 0, None))
        return Stats(len(jobs), active, tuple(queues[name] for name in sorted(queues)))

    # ---- places between what others have

    async def _sealed(self, place: str) -> str:
        """The place as a text that says nothing, but to a node of ours: the same each time, and not to be made up."""
        text, secret = place.encode(), await self._secret.read()
        stamp = _stamp(secret, text)
        return SEALED + urlsafe_b64encode(stamp + _veiled(secret, stamp, text)).decode().rstrip("=")

    async def _opened(self, sealed: str) -> str:
        """Nothing, for what we did not seal: the beginning."""
        secret = await self._secret.read()
        try:
            given = urlsafe_b64decode(sealed[len(SEALED) :] + "==")
        except ValueError:
            return ""
        stamp = given[:STAMP_BYTES]
        text = _veiled(secret, stamp, given[STAMP_BYTES:])
        return text.decode(errors="replace") if compare_digest(stamp, _stamp(secret, text)) else ""


def is_sealed(text: str) -> bool:
    """Whether a place looks like one that was sealed."""
    return text.startswith(SEALED) and text.isascii()


def _stamp(secret: bytes, text: bytes) -> bytes:
    return hmac(secret, b"stamp" + text, sha256).digest()[:STAMP_BYTES]


def _veiled(secret: bytes, stamp: bytes, text: bytes) -> bytes:
    """The text, under a stream of bytes that belongs to the stamp; veiled twice, it is as it was."""
    stream = shake_256(secret + stamp).digest(len(text))
    return bytes(one ^ other for one, other in zip(text, stream, strict=True))


def reaching(store: Store, entropy: Entropy) -> Store:
    """The store as it is shown to those who read."""
    return cast(Store, Reaching(store, entropy))


# ---- what jobs may set off


async def require_followed(
    store: Store, after: Job, before: Job | None = None, beside: Mapping[str, Job] = NONE_BESIDE
) -> None:
    """Raises Forbidden if who acts is bound, and makes runs of a job follow that it may not touch, or that is not
    there, or follows from such; InvalidTrigger for a circle. `beside`: jobs that are written with it."""
    await require_no_circle(store, after, before, beside)
    caller = bound_caller()
    if caller is None:
        return
    names = sorted(followed(after) - (frozenset() if before is None else followed(before)) - {after.name})
    stored = await store.get_jobs(names) if names else []
    found = [beside.get(name, job) for name, job in zip(names, stored, strict=True)]
    others = [name for name, job in zip(names, found, strict=True) if job is None or not may_reach_job(caller, job)]
    if others:
        raise Forbidden(f"{caller.name} is bound {caller.bounds}, and has no job {', '.join(others)} there")


def followed(job: Job) -> frozenset[str]:
    """The names of the jobs that it sets off, or follows from."""
    triggered = (each.trigger for follows in job.on.values() for each in follows if each.trigger is not None)
    return frozenset((*triggered, *members_in(job)))


async def _of_queues(ask: ListRuns, caller: Principal, where: RunFilter, after: str | None, limit: int) -> Page[Run]:
    """Runs are listed by queue, so those of several are listed one queue after another and merged."""
    mine: Collection[str] = caller.queues or ()
    queues = [PULLED + queue for queue in sorted(mine)] if where.queue is None else [where.queue]
    pages = [await ask(replace(where, queue=queue), after, limit) for queue in queues if caller.may_reach(queue, {})]
    # Below where the list of one queue ends, it may have more.
    ends = max((page.next_after for page in pages if page.next_after is not None), default=None)
    found = sorted((run for page in pages for run in page.items), key=lambda run: run.id, reverse=True)
    whole = [run for run in found if ends is None or run.id >= ends]
    if len(whole) > limit:
        return Page(tuple(whole[:limit]), whole[limit - 1].id)
    return Page(tuple(whole), ends)


def _seen_jobs(jobs: list[Job | None]) -> list[Job | None]:
    caller = who_reads()
    return jobs if caller is None else [job if job is not None and may_reach_job(caller, job) else None for job in jobs]


def _with(one: QueueStats, run: Run, now: Instant) -> QueueStats:
    if run.state is not State.PENDING:
        return replace(one, running=one.running + 1)
    if run.due_at > now:
        return replace(one, scheduled=one.scheduled + 1)
    oldest = run.due_at if one.oldest_due_at is None else min(one.oldest_due_at, run.due_at)
    return replace(one, due=one.due + 1, oldest_due_at=oldest)
