"""Jobs: what `ports.Store` says of them, as functions on a session.

Plans are carried out in one transaction for the batch. The first try assumes that every job still has the version that
was read, that the names of all records are free, and that no run is in the way of those that plans add: then nothing
need be read but the runs that plans change. If that fails, mostly because another node has planned the same
jobs, nothing is written, and the batch is processed plan by plan: what is stored is read in one snapshot, the effect of
each plan is computed in memory, and the result is written. A concurrent write makes the transaction start again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from horarium.clock import Instant
from horarium.model import Job, Plan, RunChange, Whole
from horarium.ports import NOTHING_ALONG, Along, JobFilter, Page
from horarium.stores.listing import ahead_after
from horarium.stores.mongo import queries
from horarium.stores.mongo.connect import update_many
from horarium.stores.mongo.health import count_ends
from horarium.stores.mongo.indexes import JOBS
from horarium.stores.mongo.records import add_records, insert_records, put_records_within
from horarium.stores.mongo.rows import job_document, load_job
from horarium.stores.mongo.runs import add_all_runs
from horarium.stores.mongo.scene import read_scene, write_scene
from horarium.stores.mongo.session import TRIES_MAX, Contended, Lost, Session
from horarium.stores.mongo.writes import insert, replacing

LABELLED_COUNTED = (128, 1_024)
"""Up to how many jobs of a label are counted to find the rarest of several: up to the second only if all have as many
as the first. The server reads each job that it counts."""


async def add_jobs(session: Session, jobs: Sequence[Job], along: Along = NOTHING_ALONG) -> list[bool]:
    if along:
        if added := await session.assuming(lambda within: _add_new_jobs(session, jobs, along, within)):
            return added
        return await session.whole(lambda within: _add_jobs_with(session, jobs, along, within))
    return await insert(session.jobs, [job_document(session, job, job.version) for job in jobs])


async def _add_new_jobs(session: Session, jobs: Sequence[Job], along: Along, within: Any) -> list[bool]:
    """None of them is there."""
    await session.insert(JOBS, [job_document(session, job, job.version) for job in jobs], within)
    await insert_records(session, [record for job in jobs for record in along.get(job.id, ())], within)
    return [True] * len(jobs)


async def _add_jobs_with(session: Session, jobs: Sequence[Job], along: Along, within: Any) -> list[bool]:
    same = await session.find(queries.job_versions(session, (job.id for job in jobs)), within=within)
    named = await session.find(queries.get_jobs(session, [job.name for job in jobs]), within=within)
    ids, names = {document["_id"] for document in same}, {document["name"] for document in named}
    new: list[Job] = []
    answers: list[bool] = []
    for job in jobs:
        key = session.key(job.id)
        answers.append(key not in ids and (job.deleted_at is not None or job.name not in names))
        if answers[-1]:
            new.append(job)
            ids.add(key)
            names.update(() if job.deleted_at is not None else (job.name,))
    await session.insert(JOBS, [job_document(session, job, job.version) for job in new], within)
    await add_records(session, [record for job in new for record in along.get(job.id, ())], within)
    return answers


async def get_jobs(session: Session, names: Sequence[str]) -> list[Job | None]:
    found = await session.find(queries.get_jobs(session, names))
    by_name = {document["name"]: load_job(document) for document in found}
    return [by_name.get(name) for name in names]


async def get_jobs_by_id(session: Session, ids: Sequence[str]) -> list[Job | None]:
    by_id = await jobs_by_id(session, ids)
    return [by_id.get(job_id) for job_id in ids]


async def jobs_by_id(session: Session, ids: Sequence[str]) -> dict[str, Job]:
    """Those that exist."""
    if not ids:
        return {}
    found = await session.find(queries.get_jobs_by_id(session, ids))
    return {job.id: job for job in map(load_job, found)}


async def list_jobs(session: Session, where: JobFilter, after: str | None, limit: int) -> Page[Job]:
    lead = await _rarest(session, where.labels) if len(where.labels) > 1 else None
    query = queries.list_jobs(session, where, after, lead)
    found = [load_job(document) for document in await session.find(query, limit + 1)]
    more = len(found) > limit > 0
    return Page(tuple(found[:limit]), found[limit - 1].name if more else None)


async def _rarest(session: Session, labels: Mapping[str, str]) -> str:
    """The key of the label that the fewest jobs have, as far as it is worth counting them."""

    async def count(key: str, value: str, limit: int) -> tuple[int, str]:
        counted = await session.group(queries.count_labelled(session, key, value, limit))
        return sum(document["all"] for document in counted), key

    rarest = 0, ""
    for limit in LABELLED_COUNTED:
        rarest = min(await asyncio.gather(*(count(*pair, limit) for pair in labels.items())))
        if rarest[0] < limit:
            break
    return rarest[1]


async def jobs_ahead(session: Session, until: Instant, after: str | None, limit: int) -> Page[Job]:
    documents = await session.find(queries.jobs_ahead(session, until, after), limit)
    jobs = tuple(map(load_job, documents))
    if len(documents) < limit or limit <= 0:
        return Page(jobs)
    return Page(jobs, ahead_after(jobs[-1].planned_until, jobs[-1].id))


async def jobs_trimmed(session: Session, after: str | None, limit: int) -> Page[Job]:
    found = [load_job(document) for document in await session.find(queries.jobs_trimmed(session, after), limit + 1)]
    return Page(tuple(found[:limit]), found[limit - 1].name if len(found) > limit > 0 else None)


async def due_jobs(
    session: Session, until: Instant, limit: int, after: Instant | None = None
) -> tuple[list[Job], Instant | None]:
    first: Instant | None = await session.first(queries.next_job_at(session, -1 if after is None else after))
    if first is None or first > until:
        return [], first  # as nearly always where nothing happens: one query says that nothing is due
    async with session.at_one_instant() as instant:
        found = await session.find(queries.due_jobs(session, until, after), limit + 1, within=instant)
        if len(found) > limit:
            return [load_job(document) for document in found[:limit]], int(found[limit]["next_fire_at"])
        above = until if after is None else max(until, after)
        beyond: Instant | None = await session.first(queries.next_job_at(session, above), within=instant)
    return [load_job(document) for document in found], beyond


# ---- plans ------------------------------------------------------------------------------------------------------


TRIES_DIVIDED = 3
"""How often a part of a batch is tried, after the whole has failed."""


async def commit_plans(session: Session, plans: Sequence[Plan], steady: Instant, tries: int = TRIES_MAX) -> list[bool]:
    """A job that another transaction is writing must not hinder the others: the batch is halved until the job is
    alone, and its plan loses."""
    try:
        return await _commit_together(session, plans, steady, tries)
    except Contended:
        if len(plans) == 1:
            return [False]
    half = len(plans) // 2
    first = await commit_plans(session, plans[:half], steady, TRIES_DIVIDED)
    return [*first, *await commit_plans(session, plans[half:], steady, TRIES_DIVIDED)]


async def write_whole(session: Session, whole: Whole, steady: Instant) -> bool:
    ended: list[RunChange] = []

    async def write(within: Any) -> None:
        if not (
            all(await _commit_each(session, whole.plans, steady, within, ended))
            and all(await _add_jobs_with(session, whole.jobs, whole.along, within))
            and all(await put_records_within(session, whole.records, within))
            and (not whole.runs or await add_all_runs(session, whole.runs, whole.along, within))
        ):
            raise Lost

    try:
        await session.whole(write)
    except Lost:
        return False
    await count_ends(session, ended)
    return True


async def _commit_together(session: Session, plans: Sequence[Plan], steady: Instant, tries: int) -> list[bool]:
    once = len({plan.job.id for plan in plans}) == len(plans)
    ended: list[RunChange] = []
    done: list[bool] | None = None
    if once:
        done = await session.assuming(lambda within: _commit_all(session, plans, steady, within, ended))
    if done is None:
        done = await session.transaction(
            lambda within: _commit_each(session, plans, steady, within, ended), tries=tries
        )
    await count_ends(session, ended)
    return done


async def _commit_all(
    session: Session, plans: Sequence[Plan], steady: Instant, within: Any, ended: list[RunChange]
) -> list[bool]:
    if await _write_jobs(session, plans, within) != len(plans):
        raise Lost
    ended[:] = await _follow(session, plans, steady, within, assumed=True)
    return [True] * len(plans)


async def _write_jobs(session: Session, plans: Sequence[Plan], within: Any) -> int:
    """Compare and set. How many still had the version that was read: only these are changed, since the new one differs
    in its version. Many by one update take three quarters of what one update of each takes."""
    ordered = sorted(plans, key=_job_id_of)
    documents = [job_document(session, plan.job, plan.job.version + plan.versions) for plan in ordered]
    writes = []
    for some in queries.statements([len(document["definition"]) for document in documents]):
        versions = [plan.job.version for plan in ordered[some]]
        writes.append(update_many(*queries.replace_jobs(documents[some], versions)))
    return int((await session.jobs.bulk_write(writes, session=within)).modified_count)


def _job_id_of(plan: Plan) -> str:
    return plan.job.id


async def _commit_each(
    session: Session, plans: Sequence[Plan], steady: Instant, within: Any, ended: list[RunChange]
) -> list[bool]:
    ended.clear()
    jobs = await session.find(queries.job_versions(session, (plan.job.id for plan in plans)), within=within)
    versions = {document["_id"]: document["version"] for document in jobs}
    carried_out: list[Plan] = []
    answer: list[bool] = []
    for plan in plans:
        key = session.key(plan.job.id)
        answer.append(versions.get(key) == plan.job.version)
        if answer[-1]:
            versions[key] += plan.versions
            carried_out.append(plan)
    if carried_out:
        await _replace_jobs(session, carried_out, within)
        ended[:] = await _follow(session, carried_out, steady, within)
    return answer


async def _replace_jobs(session: Session, plans: Sequence[Plan], within: Any) -> None:
    """As the last plan of each says."""
    last = [plan for _, plan in sorted({plan.job.id: plan for plan in plans}.items())]
    documents = [job_document(session, plan.job, plan.job.version + plan.versions) for plan in last]
    await session.write([replacing(JOBS, document) for document in documents], within)


async def _follow(
    session: Session, plans: Sequence[Plan], steady: Instant, within: Any, *, assumed: bool = False
) -> list[RunChange]:
    """What the plans do to runs; the changes that were written. `assumed`: nothing is in the way of what they add."""
    changes = [change for plan in plans for change in plan.changes]
    named = [change.run for change in changes] + [run for plan in plans for run in plan.withdrawals]
    added = [run for plan in plans for run in plan.runs] + [run for change in changes for run in change.follow_ups]
    scene = await read_scene(session, named, () if assumed else added, within)
    written: list[RunChange] = []
    for plan in plans:
        written += (change for change in plan.changes if scene.change(change, steady))
        stays = {run.id for run in plan.withdrawals if not scene.withdraw(run)}
        for run in plan.runs:
            if run.id not in stays and scene.add(run):
                scene.records += plan.along.get(run.id, ())
        scene.records += plan.records
    await write_scene(session, scene, within, insert_records if assumed else add_records)
    return written
