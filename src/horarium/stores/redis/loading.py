"""All the runs and jobs that were asked for: one call brings no more bytes than a call may."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from operator import attrgetter
from typing import Any

from horarium.clock import Instant
from horarium.model import Job, Run
from horarium.ports import BATCH_MAX
from horarium.stores.redis.rows import Loaded, decode_job, decode_runs, found_runs

Read = Callable[..., Awaitable[Any]]
"""Calls a script by its name, with its arguments."""

_in_order = attrgetter("next_fire_at", "id")


async def runs_of(read: Read, ids: Sequence[str]) -> list[Run | None]:
    """The runs of these ids, in this order; None for one that does not exist."""
    found: list[Run | None] = []
    while left := ids[len(found) :]:
        loaded = await read("get_runs", *left)
        found += decode_runs(left[: len(loaded[0])], loaded)
    return found


async def found_all(read: Read, ids: Sequence[bytes], loaded: Loaded) -> list[Run]:
    """The runs of the ids that a script answered, and what it loaded of the first of them. Those that were too large to
    come along are asked for, as they are by then: one may have been deleted."""
    brought = len(loaded[0])
    runs = found_runs(ids[:brought], loaded)
    if brought < len(ids):
        runs += [run for run in await runs_of(read, [each.decode() for each in ids[brought:]]) if run is not None]
    return runs


async def jobs_of(read: Read, name: str, asked: Sequence[str]) -> list[Job | None]:
    """What this script answers for each of these; None for one that does not exist."""
    found: list[Job | None] = []
    while left := asked[len(found) : len(found) + BATCH_MAX]:
        found += decode_jobs(await read(name, *left))
    return found


async def due_of(
    read: Read, jobs: list[Job], left: Sequence[bytes], until: Instant, next_at: Instant | None
) -> tuple[list[Job], Instant | None]:
    """These due jobs and those of the ids that are left, which were too large to come along; and the next fire time
    beyond them. The rest is read as it is by then: a job may have been deleted, or planned."""
    if not left:
        return jobs, next_at
    last, beyond = until if next_at is None else min(until, next_at), [] if next_at is None else [next_at]
    for job in await jobs_of(read, "get_jobs_by_id", [each.decode() for each in left]):
        if job is None or job.deleted_at is not None or job.next_fire_at is None:
            continue
        if job.next_fire_at <= last:
            jobs.append(job)
        else:
            beyond.append(job.next_fire_at)
    jobs.sort(key=_in_order)
    return jobs, min(beyond, default=None)


def decode_jobs(rows: Sequence[bytes | None]) -> list[Job | None]:
    return [None if row is None else decode_job(row) for row in rows]
