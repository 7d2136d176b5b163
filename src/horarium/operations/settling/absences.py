"""Fire times that jobs missed while no worker served their queue, found when a run of theirs is claimed late.

A record says that a queue has no worker (`services.alerts.troubles`). The first claim of a late run notes in it when
one came, so that all who claim judge by the same instant: runs that fall due after it are performed, however late.
Nothing is read for runs that are claimed within a minute of being due.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from horarium.clock import Instant
from horarium.model import Job, Run, RunChange, State
from horarium.model.records import Record, RecordChange
from horarium.ports import PAGE_MAX, Claimed, RunFilter, Store
from horarium.rules.serving import UNSERVED_AFTER, Absence, kept_from, may_be_missed, missed

PREFIX = "unserved/"
NEWEST = 20
"""Among how many of a job's newest runs its newest fire time is looked for; where it is not found, older ones run."""
PENDING = frozenset({State.PENDING})


async def missed_by_absence(store: Store, claimed: Claimed, now: Instant) -> list[RunChange]:
    """The ends of those runs of a claim that waited for a worker and are not to run, and of others of their jobs."""
    jobs, long_ago = claimed.jobs, now - UNSERVED_AFTER
    late = [run for run in claimed.runs if run.due_at <= long_ago and may_be_missed(run, jobs.get(run.job_id or ""))]
    if not late:
        return []
    served = await _served(store, {run.queue for run in late}, now)
    changes: dict[str, RunChange] = {}
    for job_id in dict.fromkeys(run.job_id or "" for run in late if run.queue in served):
        of_job = [run for run in claimed.runs if run.job_id == job_id]
        for run in await _missed(store, jobs[job_id], of_job, served):
            ended = missed(run, jobs[job_id], served[run.queue], now)
            changes[run.id] = RunChange(ended, run.token, run.state)
    return list(changes.values())


async def _missed(store: Store, job: Job, of_job: list[Run], served: Mapping[str, Instant]) -> list[Run]:
    """Of these claimed runs of a job, and of a page of those that wait, the ones that are not to run."""
    first = min(run.fire_at for run in of_job)
    served_at = served.get(job.queue)
    if served_at is None:
        return []
    newest = (await store.last_runs([job.name], first, served_at + 1, NEWEST))[job.name]
    bound = kept_from(job, newest, served_at)
    if bound <= first:
        return []
    where = RunFilter(job=job.name, states=PENDING, since=first, until=bound)
    waiting = (await store.list_runs(where, None, PAGE_MAX)).items
    found = (run for run in (*of_job, *waiting) if run.fire_at < bound and run.due_at <= served_at)
    return [run for run in found if run.queue in served and may_be_missed(run, job)]


async def _served(store: Store, queues: Iterable[str], now: Instant) -> dict[str, Instant]:
    """Of these queues those that had no worker, and when one came: now, where it was not noted before."""
    found = {}
    for record in await store.get_records([PREFIX + queue for queue in sorted(queues)]):
        if record is not None:
            absence = await worker_came(store, record, now)
            if absence is not None and absence.served_at is not None:
                found[record.name.removeprefix(PREFIX)] = absence.served_at
    return found


async def worker_came(store: Store, record: Record, now: Instant) -> Absence | None:
    """Note in the record of an absence that a worker has come by now, if it does not say so yet. None: it is gone."""
    absence = absence_of(record)
    if absence.served_at is not None:
        return absence
    absence = Absence(absence.since, now)
    if await put(store, record.name, absence, record.version):
        return absence
    (stored,) = await store.get_records([record.name])
    return None if stored is None else absence_of(stored)


def absence_of(record: Record) -> Absence:
    """As it is stored."""
    return msgspec.json.decode(record.body, type=Absence)


async def put(store: Store, name: str, absence: Absence, expected: int = 0) -> bool:
    """Store it, if the record has that version."""
    record = Record(name=name, body=msgspec.json.encode(absence), version=expected + 1)
    return (await store.put_records([RecordChange(record, expected)]))[0]
