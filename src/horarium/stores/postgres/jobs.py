"""Jobs: what `ports.Store` says of them, as functions on a session.

A batch is one statement. Where its items might touch each other (one id twice, a plan that withdraws what the next one
adds) it is cut into parts that don't, which follow one another in the same transaction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any

from horarium.clock import INSTANT_MIN, Instant
from horarium.model import Job, Plan, Whole
from horarium.ports import NOTHING_ALONG, Along, JobFilter, Page
from horarium.stores.batches import job_identities, parts, unlike
from horarium.stores.encoding import decode_id, encode_id, label_text
from horarium.stores.listing import ahead_after, ahead_cursor
from horarium.stores.postgres.records import add_along, add_records, put_records
from horarium.stores.postgres.rows import decode_job, is_storable, job_columns, storable
from horarium.stores.postgres.runs import add_runs, settle_runs
from horarium.stores.postgres.session import Session

LABELLED_MAX = 2_000
"""Jobs that have some labels are all looked at for a page of them, up to this number."""
ABOVE_ALL_IDS = "~"
"""Ids are ASCII, below this; a character beyond it is not in every encoding that a database may have."""
BEFORE_ALL: Instant = INSTANT_MIN - 1


class _Lost(Exception):
    """Something of a whole is refused. Never leaves this module."""


async def add_jobs(session: Session, jobs: Sequence[Job], along: Along = NOTHING_ALONG) -> list[bool]:
    answers: list[bool] = []
    for part in unlike(jobs, job_identities):
        # By name, so that two who add the same ones do not wait for each other in a circle.
        added = await session.insert_jobs(sorted(part, key=attrgetter("name")))
        answers.extend(job.id in added for job in part)
    await add_along(session, jobs, answers, along)
    return answers


async def get_jobs(session: Session, names: Sequence[str]) -> list[Job | None]:
    rows = await session.rows("get_jobs", session.namespace_id, storable(names))
    by_name = {job.name: job for job in (decode_job(row[0]) for row in rows)}
    return [by_name.get(name) for name in names]


async def get_jobs_by_id(session: Session, ids: Sequence[str]) -> list[Job | None]:
    rows = await session.rows("get_jobs_by_id", session.namespace_id, storable(ids))
    by_id = {job.id: job for job in (decode_job(row[0]) for row in rows)}
    return [by_id.get(job_id) for job_id in ids]


async def list_jobs(session: Session, where: JobFilter, after: str | None, limit: int) -> Page[Job]:
    prefix, above = where.name_prefix or "", after or ""
    if not is_storable(prefix) or not is_storable(above):
        return Page(())
    values = session.namespace_id, above, where.enabled, prefix, limit + 1, where.finished
    if where.labels:
        rows = await _labelled(session, where.labels, values)
    elif where.finished:
        rows = await session.rows("list_finished_jobs", *values)
    elif where.enabled is False:
        rows = await session.rows("list_disabled_jobs", *values)
    elif where.finished is False:
        rows = await session.rows("list_current_jobs", *values)
    else:
        rows = await session.rows("list_jobs_prefixed" if prefix else "list_jobs", *values)
    jobs = [decode_job(row[0]) for row in rows]
    more = len(jobs) > limit > 0
    return Page(tuple(jobs[:limit]), jobs[limit - 1].name if more else None)


async def _labelled(session: Session, labels: Mapping[str, str], values: tuple[Any, ...]) -> list[Any]:
    """Jobs with these labels: all that there are, if they are few; else by name, where they are met soon."""
    texts = [label_text(key, value) for key, value in labels.items()]
    found = await session.rows("labelled_jobs", session.namespace_id, texts, LABELLED_MAX + 1)
    if len(found) > LABELLED_MAX:
        return await session.rows("list_jobs_labelled", *values, texts)
    return await session.rows("list_jobs_numbered", *values, [row[0] for row in found]) if found else []


async def jobs_ahead(session: Session, until: Instant, after: str | None, limit: int) -> Page[Job]:
    beyond = (until, ABOVE_ALL_IDS) if after is None else ahead_cursor(after)
    rows = await session.rows("jobs_ahead", session.namespace_id, *beyond, limit)
    jobs = [decode_job(row[0]) for row in rows]
    more = ahead_after(rows[-1][1], rows[-1][2]) if len(rows) == limit > 0 else None
    return Page(tuple(job for job in jobs if job.planned_until > until), more)


async def jobs_trimmed(session: Session, after: str | None, limit: int) -> Page[Job]:
    rows = await session.rows("jobs_trimmed", session.namespace_id, after or "", limit + 1)
    jobs = [decode_job(row[0]) for row in rows]
    trimmed = tuple(job for job in jobs[:limit] if job.retention.runs_max is not None)
    return Page(trimmed, jobs[limit - 1].name if len(jobs) > limit > 0 else None)


async def due_jobs(
    session: Session, until: Instant, limit: int, after: Instant | None = None
) -> tuple[list[Job], Instant | None]:
    rows = await session.rows("due_jobs", session.namespace_id, until, limit, BEFORE_ALL if after is None else after)
    due = [row for row in rows if row[1] is not None]
    beyond = next((row[0] for row in [*due[limit:], *rows[len(due) :]]), None)
    return [decode_job(row[1]) for row in due[:limit]], beyond


async def commit_plans(session: Session, plans: Sequence[Plan], steady: Instant) -> list[bool]:
    touched = [run.id for plan in plans for run in (*(change.run for change in plan.changes), *plan.withdrawals)]
    cut = list(parts(plans, lambda plan: plan.job.id, lambda plan: bool(plan.changes or plan.withdrawals)))
    await session.lock_runs(touched)
    if len(cut) > 1:
        await session.lock_jobs(plan.job.id for plan in plans)
    answers: list[bool] = []
    for part in cut:
        answers.extend(await _commit_part(session, part, steady))
    return answers


async def write_whole(session: Session, whole: Whole, steady: Instant) -> bool:
    try:
        async with session.connection.transaction(isolation=None):
            if not (
                all(await commit_plans(session, whole.plans, steady))
                and all(await add_jobs(session, whole.jobs, whole.along))
                and all(await put_records(session, whole.records))
                and (not whole.runs or all(await add_runs(session, whole.runs, whole.along)))
            ):
                raise _Lost
    except _Lost:
        return False
    return True


async def _commit_part(session: Session, plans: Sequence[Plan], steady: Instant) -> list[bool]:
    won = await _update_jobs(session, sorted(plans, key=lambda plan: plan.job.id))
    winners = [plan for plan in plans if plan.job.id in won]
    stays: set[str] = set()
    for plan in winners:
        if plan.changes:
            await settle_runs(session, plan.changes, steady)
        if plan.withdrawals:
            stays |= await _withdraw(session, plan)
    if runs := [run for plan in winners for run in plan.runs if run.id not in stays]:
        await add_runs(session, runs, {run_id: records for plan in winners for run_id, records in plan.along.items()})
    await add_records(session, (record for plan in winners for record in plan.records))
    return [plan.job.id in won for plan in plans]


async def _withdraw(session: Session, plan: Plan) -> set[str]:
    """Withdraw runs. The ids of those that are to be moved and were not withdrawn."""
    ids = sorted({(encode_id(run.id), run.token) for run in plan.withdrawals})
    blobs, tokens = [blob for blob, _ in ids], [token for _, token in ids]
    rows = await session.rows("withdraw_runs", session.namespace_id, blobs, tokens)
    return plan.moved - {decode_id(row[0]) for row in rows}


async def _update_jobs(session: Session, plans: Sequence[Plan]) -> set[str]:
    ids, versions = [plan.job.id for plan in plans], [plan.job.version for plan in plans]
    columns = job_columns([plan.job for plan in plans], [plan.versions for plan in plans], session.labels)
    rows = await session.rows("update_jobs", session.namespace_id, ids, versions, *columns)
    return {row[0] for row in rows}
