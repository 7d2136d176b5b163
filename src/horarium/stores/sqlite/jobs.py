"""Jobs: what `ports.Store` says of them, as functions on a session inside a transaction.

A batch is first tried whole, in one statement or a few; only if a row of it lost does it go item by item, so that each
item gets its own answer and takes effect after the one before it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import apsw
import msgspec

from horarium.clock import INSTANT_MIN, Instant
from horarium.model import Job, Plan, Whole
from horarium.ports import NOTHING_ALONG, Along, JobFilter, Page
from horarium.stores.encoding import decode_id_digits, encode_id
from horarium.stores.listing import ahead_after, ahead_cursor
from horarium.stores.sqlite.records import add_along, add_records, put_records
from horarium.stores.sqlite.rows import job_columns
from horarium.stores.sqlite.runs import add_runs, all_or_none, apply_changes, insert_runs, missing_runs, withdraw_runs
from horarium.stores.sqlite.session import Session

LABELLED_COUNTED = 1_000
"""Up to how many jobs of a label are counted to find the rarest of several."""
ABOVE_ALL_IDS = b"\xff" * 17
BEFORE_ALL: Instant = INSTANT_MIN - 1

_decode_ahead = msgspec.json.Decoder(tuple[list[Job], Instant | None, str | None]).decode


def add_jobs(session: Session, jobs: Sequence[Job], along: Along = NOTHING_ALONG) -> list[bool]:
    added = _add_jobs(session, jobs)
    add_along(session, jobs, added, along)
    return added


def _add_jobs(session: Session, jobs: Sequence[Job]) -> list[bool]:
    if len(jobs) > 1 and all_or_none(session, len(jobs), lambda: _insert(session, jobs)):
        return [True] * len(jobs)
    return [_add_job(session, job) for job in jobs]


def _add_job(session: Session, job: Job) -> bool:
    name = job.name if job.deleted_at is None else None
    if name is not None and session.change("intern_new_owner", session.namespace_id, encode_id(job.id), name):
        return _insert_owned(session, [job], {job.id: session.connection.last_insert_rowid()}) == 1
    if session.one("job_taken", session.namespace_id, encode_id(job.id), name):
        return False
    return _insert(session, [job]) == 1


def _insert(session: Session, jobs: Sequence[Job]) -> int:
    return _insert_owned(session, jobs, session.owner_numbers({job.id: job.name for job in jobs}))


def _insert_owned(session: Session, jobs: Sequence[Job], owners: Mapping[str, int]) -> int:
    rows = [(owners[job.id], encode_id(job.id), job.name, *job_columns(job, job.version)) for job in jobs]
    return session.change_rows("add_jobs", rows, session.namespace_id)


def get_jobs(session: Session, names: Sequence[str]) -> list[Job | None]:
    found = session.jobs("get_jobs", session.namespace_id, apsw.carray(tuple(names)))
    by_name = {job.name: job for job in found}
    return [by_name.get(name) for name in names]


def get_jobs_by_id(session: Session, ids: Sequence[str]) -> list[Job | None]:
    found = session.jobs("get_jobs_by_id", session.namespace_id, apsw.carray(tuple(map(encode_id, ids))))
    by_id = {job.id: job for job in found}
    return [by_id.get(job_id) for job_id in ids]


def list_jobs(session: Session, where: JobFilter, after: str | None, limit: int) -> Page[Job]:
    prefix = where.name_prefix or ""
    values = session.namespace_id, after or "", where.enabled, prefix, limit + 1, where.finished
    if where.labels:
        key, value = _rarest(session, where.labels)
        others = {other: wanted for other, wanted in where.labels.items() if other != key}
        found = session.jobs("list_jobs_labelled", *values, key, value, json.dumps(others))
    elif where.finished:
        found = session.jobs("list_finished_jobs", *values)
    elif where.enabled is False:
        found = session.jobs("list_disabled_jobs", *values)
    elif where.finished is False:
        found = session.jobs("list_current_jobs", *values)
    else:
        found = session.jobs("list_jobs_prefixed" if prefix else "list_jobs", *values)
    more = len(found) > limit > 0
    return Page(tuple(found[:limit]), found[limit - 1].name if more else None)


def _rarest(session: Session, labels: Mapping[str, str]) -> tuple[str, str]:
    """The label that the fewest jobs have, as far as it is worth counting them."""
    if len(labels) == 1:
        return next(iter(labels.items()))

    def count(pair: tuple[str, str]) -> int:
        counted: int = session.one("count_labelled", session.namespace_id, *pair, LABELLED_COUNTED)
        return counted

    return min(labels.items(), key=count)


def jobs_ahead(session: Session, until: Instant, after: str | None, limit: int) -> Page[Job]:
    at, job_id = (until, ABOVE_ALL_IDS) if after is None else _read_cursor(after)
    found, last_at, last_id = _decode_ahead(session.one("jobs_ahead", session.namespace_id, at, job_id, limit))
    if last_at is None or last_id is None:
        return Page(tuple(found))
    return Page(tuple(found), ahead_after(last_at, decode_id_digits(last_id.lower())))


def _read_cursor(after: str) -> tuple[Instant, bytes]:
    at, job_id = ahead_cursor(after)
    return at, encode_id(job_id)


def jobs_trimmed(session: Session, after: str | None, limit: int) -> Page[Job]:
    found = session.jobs("jobs_trimmed", session.namespace_id, after or "", limit + 1)
    more = len(found) > limit > 0
    return Page(tuple(found[:limit]), found[limit - 1].name if more else None)


def due_jobs(
    session: Session, until: Instant, limit: int, after: Instant | None = None
) -> tuple[list[Job], Instant | None]:
    first = BEFORE_ALL if after is None else after
    due = session.jobs("due_jobs", session.namespace_id, until, limit, first)
    last = (due[-1].next_fire_at, encode_id(due[-1].id)) if due else (first, ABOVE_ALL_IDS)
    return due, session.one("next_job_at", session.namespace_id, *last)


def commit_plans(session: Session, plans: Sequence[Plan], steady: Instant) -> list[bool]:
    if len(plans) > 1 and all_or_none(session, len(plans), lambda: _update(session, plans)):
        _follow_all(session, plans, steady)
        return [True] * len(plans)
    return [_commit_plan(session, plan, steady) for plan in plans]


def write_whole(session: Session, whole: Whole, steady: Instant) -> bool:
    def write() -> bool:
        return (
            all(commit_plans(session, whole.plans, steady))
            and all(add_jobs(session, whole.jobs, whole.along))
            and all(put_records(session, whole.records))
            and (not whole.runs or all(add_runs(session, whole.runs, whole.along)))
        )

    complete = all_or_none(session, 1, write)
    if not complete:
        session.forget()  # numbers of queues that are undone with it
    return complete


def _commit_plan(session: Session, plan: Plan, steady: Instant) -> bool:
    if _update(session, [plan]) == 0:
        return False
    _follow(session, plan, steady)
    return True


def _update(session: Session, plans: Sequence[Plan]) -> int:
    rows = [
        (encode_id(plan.job.id), plan.job.version, *job_columns(plan.job, plan.job.version + plan.versions))
        for plan in plans
    ]
    return session.change_rows("update_jobs", rows, session.namespace_id)


def _follow_all(session: Session, plans: Sequence[Plan], steady: Instant) -> None:
    """Together where one plan can't see what another did: if they only add runs."""
    if any(plan.changes or plan.withdrawals or plan.along for plan in plans):
        for plan in plans:
            _follow(session, plan, steady)
    else:
        insert_runs(session, [run for plan in plans for run in plan.runs])
        add_records(session, (record for plan in plans for record in plan.records))


def _follow(session: Session, plan: Plan, steady: Instant) -> None:
    apply_changes(session, plan.changes, steady)
    gone = missing_runs(session, plan.moved)
    withdraw_runs(session, plan.withdrawals)
    runs = [run for run in plan.runs if run.id not in gone] if gone else plan.runs
    if plan.along:
        add_runs(session, runs, plan.along)
    else:
        insert_runs(session, runs)
    add_records(session, plan.records)
