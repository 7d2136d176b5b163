"""Runs, all but the claim and the lists: what `ports.Store` says of them, as functions on a session in a transaction.

Which runs is asked first and answered in numbers; `rows.load_runs` is the only reader of whole rows. Writing a batch is
tried whole; if a row of it lost, it is undone and done again one by one, which gives each its own answer.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from heapq import merge
from itertools import compress

import apsw

from horarium.clock import Instant
from horarium.model import Run, RunChange
from horarium.ports import NOTHING_ALONG, Along, Beat, Pulse
from horarium.stores.encoding import are_alike, as_written, comes_alone, decode_ids, encode_id, encode_ids, kinds_of_end
from horarium.stores.sqlite.health import count_ends
from horarium.stores.sqlite.records import add_along, add_records
from horarium.stores.sqlite.rows import change_rows, end_values, load_runs, run_rows
from horarium.stores.sqlite.session import Row, Session, carray

RUNNING, CANCELLING = 1, 2


def add_runs(session: Session, runs: Sequence[Run], along: Along = NOTHING_ALONG) -> list[bool]:
    added = _each_or_all(session, *run_rows(session, runs), session.namespace_id)
    add_along(session, runs, added, along)
    return added


def insert_runs(session: Session, runs: Sequence[Run]) -> None:
    """Add runs, leaving out those that can't be added."""
    if runs:
        session.change_rows(*run_rows(session, runs), session.namespace_id)


def missing_runs(session: Session, ids: Collection[str]) -> set[str]:
    """Which of these there are none of."""
    if not ids:
        return set()
    given = sorted(ids)
    return {run_id for run_id, run in zip(given, get_runs(session, given), strict=True) if run is None}


def settle_runs(session: Session, changes: Sequence[RunChange], steady: Instant) -> list[bool]:
    changes = as_written(changes, steady)
    answers = _settle_runs(session, changes, steady)
    count_ends(session, compress(changes, answers))
    return answers


def _settle_runs(session: Session, changes: Sequence[RunChange], steady: Instant) -> list[bool]:
    if changes and changes[0].replaces:
        return [_replace_run(session, change) for change in changes]
    alone = all(map(comes_alone, changes))
    if alone and len(changes) > 1 and are_alike(changes) and _settle_kinds(session, changes, steady):
        return [True] * len(changes)
    rows = change_rows(session, changes)
    if alone:
        return _each_or_all(session, "settle_runs", rows, session.namespace_id, steady)
    if all_or_none(session, len(rows), lambda: session.change_rows("settle_runs", rows, session.namespace_id, steady)):
        _bring_along(session, changes)
        return [True] * len(changes)
    return [_settle_run(session, change, row, steady) for change, row in zip(changes, rows, strict=True)]


def _settle_kinds(session: Session, changes: Sequence[RunChange], steady: Instant) -> bool:
    """Write all of these, which are alike, if they are of few kinds, or none."""
    ends = [end_values(session, kind, steady) for kind in kinds_of_end(changes)]
    if not ends:
        return False
    return all_or_none(session, len(changes), lambda: sum(session.change("settle_kind", *end) for end in ends))


def _settle_run(session: Session, change: RunChange, row: Row, steady: Instant) -> bool:
    if session.change_rows("settle_runs", (row,), session.namespace_id, steady) == 0:
        return False
    _bring_along(session, [change])
    return True


def _replace_run(session: Session, change: RunChange) -> bool:
    if session.change_rows("withdraw_runs", [(encode_id(change.run.id), change.token)], session.namespace_id) == 0:
        return False
    insert_runs(session, [change.run])
    add_records(session, change.records)
    return True


def _bring_along(session: Session, changes: Sequence[RunChange]) -> None:
    insert_runs(session, [run for change in changes for run in change.follow_ups])
    add_records(session, (record for change in changes for record in change.records))


def apply_changes(session: Session, changes: Sequence[RunChange], steady: Instant) -> None:
    """Write changes, leaving out those whose run has moved on."""
    if changes:
        settle_runs(session, changes, steady)


def withdraw_runs(session: Session, runs: Sequence[Run]) -> None:
    """Delete runs that are still pending under the token that was read."""
    if runs:
        session.change_rows("withdraw_runs", [(encode_id(run.id), run.token) for run in runs], session.namespace_id)


def _each_or_all(session: Session, query: str, rows: Sequence[Row], *values: object) -> list[bool]:
    if len(rows) > 1 and all_or_none(session, len(rows), lambda: session.change_rows(query, rows, *values)):
        return [True] * len(rows)
    return [session.change_rows(query, (row,), *values) == 1 for row in rows]


def all_or_none(session: Session, count: int, write: Callable[[], int]) -> bool:
    """Whether `write` changed that many rows; else it changed none."""
    session.connection.execute("SAVEPOINT whole")
    complete = write() == count
    if not complete:
        session.connection.execute("ROLLBACK TO whole")
    session.connection.execute("RELEASE whole")
    return complete


def get_runs(session: Session, ids: Sequence[str]) -> list[Run | None]:
    blobs = tuple(encode_id(run_id) for run_id in ids)
    found = load_runs(session, session.array("run_numbers", session.namespace_id, apsw.carray(blobs)))
    by_id = {run.id: run for run in found}
    return [by_id.get(run_id) for run_id in ids]


def over(session: Session, ids: Sequence[str]) -> list[str]:
    """Those of these runs that are over, or do not exist."""
    found = session.array("runs_over", session.namespace_id, apsw.carray(tuple(encode_ids(ids))))
    return decode_ids(found)


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


def heartbeat_runs(session: Session, beats: Sequence[Beat], steady: Instant) -> list[Pulse | None]:
    rows = [(place, encode_id(beat.run_id), beat.token) for place, beat in enumerate(beats)]
    answer: list[Pulse | None] = [None] * len(beats)
    leases: dict[int, Instant] = {}
    held = session.array_rows("beating_runs", rows, steady, session.namespace_id, steady)
    for place, number, state, expires_at in held:
        answer[place] = Pulse(expires_at, state == CANCELLING)
        if state == RUNNING:
            leases[number] = expires_at
        if (progress := beats[place].progress) is not None:
            session.change("write_progress", number, progress)
    if leases:
        session.change_rows("heartbeat_runs", list(leases.items()))
    return answer


def overdue_runs(session: Session, now: Instant, limit: int, steady: Instant) -> tuple[list[Run], Instant | None]:
    shift = steady - now
    expired = session.array("expired_runs", session.namespace_id, steady, limit)
    unstarted = session.array("unstarted_runs", session.namespace_id, now, limit)
    overdue = merge([[end - shift, *rest] for end, *rest in expired], unstarted)
    numbers = [number for _, _, number in overdue][:limit]
    return load_runs(session, numbers), session.one("next_overdue_at", session.namespace_id, now, shift)


def prune_runs(session: Session, now: Instant, limit: int) -> int:
    pruned = session.change("prune_runs", session.namespace_id, now, limit)
    if orphans := session.array("orphaned_jobs", session.namespace_id, limit):
        session.change("delete_jobs", carray(orphans))
        session.change("delete_health", carray(orphans))
        session.change("delete_owners", carray(orphans))
    return pruned


def trim_runs(session: Session, job_id: str, keep: int, limit: int) -> int:
    owners = session.known_owners([job_id])
    return sum(session.change("trim_runs", owner, keep, limit) for owner in owners.values())
