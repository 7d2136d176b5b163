"""Runs, all but the claim: what `ports.Store` says of them, as functions on a session inside a transaction.

Which runs is asked first and answered in numbers; `rows.load_runs` is the only reader of whole rows. Writing a batch is
tried whole; if a row of it lost, it is undone and done again one by one, which gives each its own answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import merge

import apsw

from horarium.clock import Instant
from horarium.model import Run, RunChange
from horarium.ports import Beat, Page, Pulse, RunFilter
from horarium.stores.encoding import STATE_NUMBERS, encode_id
from horarium.stores.sqlite.rows import change_row, load_runs, run_rows
from horarium.stores.sqlite.session import Row, Session, carray

ABOVE_ALL_IDS = b"\xff" * 17
ALL_STATES = (1 << len(STATE_NUMBERS)) - 1
RUNNING, CANCELLING = 1, 2


def add_runs(session: Session, runs: Sequence[Run]) -> list[bool]:
    return _each_or_all(session, *run_rows(session, runs), session.namespace_id)


def insert_runs(session: Session, runs: Sequence[Run]) -> None:
    """Add runs, leaving out those that can't be added."""
    if runs:
        session.change_rows(*run_rows(session, runs), session.namespace_id)


def settle_runs(session: Session, changes: Sequence[RunChange], now: Instant) -> list[bool]:
    rows = [change_row(session, change) for change in changes]
    return _each_or_all(session, "settle_runs", rows, session.namespace_id, now)


def apply_changes(session: Session, changes: Sequence[RunChange], now: Instant) -> None:
    """Write changes, leaving out those whose run has moved on."""
    if changes:
        settle_runs(session, changes, now)


def withdraw_runs(session: Session, runs: Sequence[Run]) -> None:
    """Delete runs that are still pending under the token that was read."""
    if runs:
        session.change_rows("withdraw_runs", [(encode_id(run.id), run.token) for run in runs], session.namespace_id)


def _each_or_all(session: Session, query: str, rows: Sequence[Row], *values: object) -> list[bool]:
    if len(rows) > 1:
        session.connection.execute("SAVEPOINT whole")
        complete = session.change_rows(query, rows, *values) == len(rows)
        if not complete:
            session.connection.execute("ROLLBACK TO whole")
        session.connection.execute("RELEASE whole")
        if complete:
            return [True] * len(rows)
    return [session.change_rows(query, (row,), *values) == 1 for row in rows]


def get_runs(session: Session, ids: Sequence[str]) -> list[Run | None]:
    blobs = tuple(encode_id(run_id) for run_id in ids)
    found = load_runs(session, session.array("run_numbers", session.namespace_id, apsw.carray(blobs)))
    by_id = {run.id: run for run in found}
    return [by_id.get(run_id) for run_id in ids]


def get_run_by_key(session: Session, unique_key: str) -> Run | None:
    found = load_runs(session, session.array("run_by_key", session.namespace_id, unique_key))
    return found[0] if found else None


def unfinished_runs(session: Session, job_ids: Sequence[str]) -> dict[str, list[Run]]:
    answer: dict[str, list[Run]] = {job_id: [] for job_id in job_ids}
    owners = session.known_owners(answer)
    if owners:
        for run in load_runs(session, session.array("unfinished_runs", carray(owners.values()))):
            answer[run.job_id or ""].append(run)
    return answer


def list_runs(session: Session, where: RunFilter, after: str | None, limit: int) -> Page[Run]:
    queue_id = None
    if where.queue is not None:
        queue_id = session.queue_numbers((where.queue,)).get(where.queue)
        if queue_id is None:
            return Page(())
    states = sum(1 << STATE_NUMBERS[state] for state in where.states) or ALL_STATES
    below = ABOVE_ALL_IDS if after is None else encode_id(after)
    values = below, states, queue_id, where.since, where.until, limit + 1
    found = _listed(session, where.job, values)[: limit + 1]
    more = len(found) > limit > 0
    return Page(tuple(found[:limit]), found[limit - 1].id if more else None)


def _listed(session: Session, job: str | None, values: Row) -> list[Run]:
    if job is None:
        return load_runs(session, session.array("list_runs", session.namespace_id, *values))
    owners = session.array("owners_named", session.namespace_id, job)
    lists = [load_runs(session, session.array("list_runs_of_owner", owner, *values)) for owner in owners]
    return lists[0] if len(lists) == 1 else list(merge(*lists, key=_id_of, reverse=True))


def _id_of(run: Run) -> str:
    return run.id


def heartbeat_runs(session: Session, beats: Sequence[Beat], now: Instant) -> list[Pulse | None]:
    rows = [(place, encode_id(beat.run_id), beat.token) for place, beat in enumerate(beats)]
    answer: list[Pulse | None] = [None] * len(beats)
    leases: dict[int, Instant] = {}
    standing = session.array_rows("beating_runs", rows, now, now, session.namespace_id, now)
    for place, number, state, expires_at in standing:
        answer[place] = Pulse(expires_at, state == CANCELLING)
        if state == RUNNING:
            leases[number] = expires_at
        if (progress := beats[place].progress) is not None:
            session.change("write_progress", number, progress)
    if leases:
        session.change_rows("heartbeat_runs", list(leases.items()))
    return answer


def overdue_runs(session: Session, now: Instant, limit: int) -> tuple[list[Run], Instant | None]:
    expired = session.array("expired_runs", session.namespace_id, now, limit)
    unstarted = session.array("unstarted_runs", session.namespace_id, now, limit)
    numbers = [number for _, _, number in merge(expired, unstarted)][:limit]
    return load_runs(session, numbers), session.one("next_overdue_at", session.namespace_id, now)


def prune_runs(session: Session, now: Instant, limit: int) -> int:
    forgotten = session.change("prune_runs", session.namespace_id, now, limit)
    if orphans := session.array("orphaned_jobs", session.namespace_id, limit):
        session.change("forget_jobs", carray(orphans))
        session.change("forget_owners", carray(orphans))
    return forgotten


def trim_runs(session: Session, job_id: str, keep: int, limit: int) -> int:
    owners = session.known_owners([job_id])
    return sum(session.change("trim_runs", owner, keep, limit) for owner in owners.values())
