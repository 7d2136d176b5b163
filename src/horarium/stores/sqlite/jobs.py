"""Jobs: what `ports.Store` says of them, as functions on a session inside a transaction.

A batch is first tried whole, in one statement or a few; only if a row of it lost does it go item by item, so that each
item gets its own answer and takes effect after the one before it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

import apsw

from horarium.clock import Instant
from horarium.model import Job, Plan
from horarium.ports import JobFilter, Page
from horarium.stores.encoding import encode_id
from horarium.stores.sqlite.rows import job_columns
from horarium.stores.sqlite.runs import apply_changes, insert_runs, withdraw_runs
from horarium.stores.sqlite.session import Session


def all_or_none(session: Session, write: Callable[[], bool]) -> bool:
    """Do `write` in a savepoint, and undo it if it says that something of it lost."""
    session.connection.execute("SAVEPOINT whole")
    complete = write()
    if not complete:
        session.connection.execute("ROLLBACK TO whole")
        session.forget()
    session.connection.execute("RELEASE whole")
    return complete


def add_jobs(session: Session, jobs: Sequence[Job]) -> list[bool]:
    if len(jobs) > 1 and all_or_none(session, lambda: _insert(session, jobs) == len(jobs)):
        return [True] * len(jobs)
    return [_add_job(session, job) for job in jobs]


def _add_job(session: Session, job: Job) -> bool:
    name = job.name if job.deleted_at is None else None
    if session.one("job_taken", session.namespace_id, encode_id(job.id), name):
        return False
    return _insert(session, [job]) == 1


def _insert(session: Session, jobs: Sequence[Job]) -> int:
    owners = session.owner_numbers({job.id: job.name for job in jobs})
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
    values = session.namespace_id, after or "", where.enabled, prefix, limit + 1
    if where.labels:
        (key, value), *others = where.labels.items()
        found = session.jobs("list_jobs_labelled", *values, key, value, json.dumps(dict(others)))
    else:
        found = session.jobs("list_jobs_prefixed" if prefix else "list_jobs", *values)
    more = len(found) > limit > 0
    return Page(tuple(found[:limit]), found[limit - 1].name if more else None)


def due_jobs(session: Session, until: Instant, limit: int) -> tuple[list[Job], Instant | None]:
    due = session.jobs("due_jobs", session.namespace_id, until, limit)
    last = (due[-1].next_fire_at, encode_id(due[-1].id)) if due else (-1, b"")
    return due, session.one("next_job_at", session.namespace_id, *last)


def commit_plans(session: Session, plans: Sequence[Plan], now: Instant) -> list[bool]:
    if len(plans) > 1 and all_or_none(session, lambda: _update(session, plans) == len(plans)):
        _follow_all(session, plans, now)
        return [True] * len(plans)
    return [_commit_plan(session, plan, now) for plan in plans]


def _commit_plan(session: Session, plan: Plan, now: Instant) -> bool:
    if _update(session, [plan]) == 0:
        return False
    _follow(session, plan, now)
    return True


def _update(session: Session, plans: Sequence[Plan]) -> int:
    rows = [(encode_id(plan.job.id), plan.job.version, *job_columns(plan.job, plan.job.version + 1)) for plan in plans]
    return session.change_rows("update_jobs", rows, session.namespace_id)


def _follow_all(session: Session, plans: Sequence[Plan], now: Instant) -> None:
    """Together where one plan can't see what another did: if they only add runs."""
    if any(plan.changes or plan.withdrawals for plan in plans):
        for plan in plans:
            _follow(session, plan, now)
    else:
        insert_runs(session, [run for plan in plans for run in plan.runs])


def _follow(session: Session, plan: Plan, now: Instant) -> None:
    apply_changes(session, plan.changes, now)
    withdraw_runs(session, plan.withdrawals)
    insert_runs(session, plan.runs)
