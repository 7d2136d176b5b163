"""Runs and jobs as columns, and back.

The numbers for states, causes and dispositions are part of the schema: they may grow, never change. Rare fields are
in `details`, as JSON. Free text that a target reports may hold anything Python can hold, lone surrogates too, so it is
kept as bytes. Building a run is the hot path: what a waiting or running run never has is left to the defaults.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any

import apsw
from msgspec.structs import replace

from horarium.clock import SECOND, Instant
from horarium.model import Job, Run, RunChange
from horarium.stores.encoding import (
    CAUSE_NUMBERS,
    CAUSES,
    DISPOSITION_NUMBERS,
    DISPOSITIONS,
    NO_DETAILS,
    STATE_NUMBERS,
    STATES,
    decode_details,
    decode_history,
    decode_ids,
    encode_details,
    encode_history,
    encode_ids,
    encode_json,
    encode_text,
    end_of_attempt,
    is_plain,
    with_details,
)
from horarium.stores.sqlite.session import Row, Session, carray

_from_hex = bytes.fromhex

# ---- jobs -------------------------------------------------------------------------------------------------------


def job_columns(job: Job, version: int) -> Row:
    """What changes of a job with a version: version to finished."""
    labels = None
    if job.labels and job.deleted_at is None:
        labels = json.dumps(job.labels, sort_keys=True)
    stored = job if job.version == version else replace(job, version=version)
    definition = encode_json(stored).decode()
    plan = job.active, job.next_fire_at, job.deleted_at
    return version, *plan, labels, definition, job.planned_until, job.retention.runs_max, job.finished_at is not None


# ---- runs: to columns -------------------------------------------------------------------------------------------


def run_rows(session: Session, runs: Sequence[Run]) -> tuple[str, list[Row]]:
    """The query that inserts new runs, and its rows. Gives numbers to queues, workers and owners that have none."""
    names = {run.job_id: run.job or "" for run in runs if run.job_id is not None}
    owners = session.owner_numbers(names) if names else {}
    queues = {name: session.queue_number(name) for name in {run.queue for run in runs}}
    identified = zip(encode_ids([run.id for run in runs]), runs, strict=True)
    if all(map(is_plain, runs)):
        return "add_plain_runs", [_plain_row(id, run, queues[run.queue], owners) for id, run in identified]
    return "add_runs", [_run_row(session, id, run, queues[run.queue], owners) for id, run in identified]


def _plain_row(id: bytes, run: Run, queue_id: int, owners: Mapping[str, int]) -> Row:
    job_id, seconds = run.job_id, run.lease_seconds
    return (
        id,
        queue_id,
        run.priority,
        run.due_at,
        run.fire_at,
        run.created_at,
        None if job_id is None else owners[job_id],
        CAUSE_NUMBERS[run.cause],
        seconds,
        round(seconds * SECOND),
        run.payload,
    )


def _run_row(session: Session, id: bytes, run: Run, queue_id: int, owners: Mapping[str, int]) -> Row:
    job_id, key = run.job_id, run.concurrency_key
    return (
        id,
        queue_id,
        run.priority,
        STATE_NUMBERS[run.state],
        run.due_at,
        run.fire_at,
        run.created_at,
        None if job_id is None else owners[job_id],
        CAUSE_NUMBERS[run.cause],
        run.lease_seconds,
        round(run.lease_seconds * SECOND),
        run.attempt,
        run.token,
        None if run.worker is None else session.worker_number(run.worker),
        run.lease_expires_at,
        run.deadline,
        run.started_at,
        run.finished_at,
        DISPOSITION_NUMBERS[run.disposition],
        run.prune_at,
        run.start_by,
        run.execution_seconds,
        None if run.execution_seconds is None else round(run.execution_seconds * SECOND),
        key is not None or (run.serial and job_id is not None),
        1 if run.serial else None,
        key,
        run.concurrency_max or None,
        run.unique_key,
        run.payload,
        encode_details(run),
        run.progress,
        encode_text(run.error),
        run.result,
        encode_history(run),
    )


def change_rows(session: Session, changes: Sequence[RunChange]) -> list[Row]:
    """The rows of changes: the conditions, then everything that may change."""
    ids = encode_ids([change.run.id for change in changes])
    return [_change_row(session, id, change) for id, change in zip(ids, changes, strict=True)]


def _change_row(session: Session, id: bytes, change: RunChange) -> Row:
    run = change.run
    return (
        id,
        change.token,
        STATE_NUMBERS[change.state],
        change.held,
        STATE_NUMBERS[run.state],
        run.due_at,
        run.attempt,
        None if run.worker is None else session.worker_number(run.worker),
        run.lease_expires_at,
        run.deadline,
        run.started_at,
        *end_of_attempt(run),
        run.token,
    )


def end_values(session: Session, kind: Sequence[RunChange], steady: Instant) -> Row:
    """The values of the query `settle_kind`. For changes of one kind."""
    change, run = kind[0], kind[0].run
    return (
        apsw.carray(tuple(encode_ids([each.run.id for each in kind]))),
        session.namespace_id,
        run.token,
        STATE_NUMBERS[change.state],
        change.held,
        steady,
        run.attempt,
        run.started_at,
        STATE_NUMBERS[run.state],
        None if run.worker is None else session.worker_number(run.worker),
        run.lease_expires_at,
        run.deadline,
        *end_of_attempt(run),
    )


# ---- runs: from columns -----------------------------------------------------------------------------------------


def load_runs(session: Session, numbers: Sequence[int]) -> list[Run]:
    """The runs of these numbers, in this order."""
    return runs_of(session, session.array("load_runs", carray(numbers))) if numbers else []


def runs_of(session: Session, rows: Sequence[list[Any]]) -> list[Run]:
    """The runs of rows as `load_runs` has them."""
    queues = session.queue_names([row[1] for row in rows])
    owners = session.owners([row[7] for row in rows])
    workers = session.worker_names([row[12] for row in rows])
    names = queues, owners, workers
    alike: dict[tuple[Any, ...], Run] = {}
    runs: list[Run] = []
    for id, row in zip(decode_ids([row[0] for row in rows]), rows, strict=True):
        rare = row[_RARE]
        if isinstance(rare, list):
            runs.append(_run(id, row, rare, *names))
            continue
        if (like := alike.get(kind := _kind(row))) is None:
            like = alike[kind] = _run(id, row, _NOTHING_RARE, *names)
        run = replace(
            like,
            id=id,
            due_at=row[4],
            fire_at=row[5],
            created_at=row[6],
            payload=_from_hex(row[15]) if row[15] else None,
            lease_expires_at=row[13],
            started_at=row[14],
        )
        runs.append(run if rare is None else with_details(run, decode_details(_from_hex(rare))))
    return runs


_RARE = 16
"""Where a row has what few runs have, in an array; of one that has details alone, these."""
NUMBER = 17
"""Where a row has the number of the run, if it has that."""
_kind = itemgetter(1, 2, 3, 7, 8, 9, 10, 11, 12)
"""What most runs of one claim have in common: such a run costs half of what it costs to make a run of a row."""

Names = Mapping[int, str]
Owners = Mapping[int, tuple[str, str]]


_NOTHING_RARE: Any = (*(None,) * 15, 0)


def _run(id: str, row: list[Any], rare: list[Any], queues: Names, owners: Owners, workers: Names) -> Run:
    (_, queue_id, priority, state, due_at, fire_at, created_at, owner_id, cause, lease_seconds, attempt, token,
     worker_id, lease_expires_at, started_at, payload, *_) = row  # fmt: skip
    (finished_at, disposition, prune_at, start_by, execution_seconds, deadline, serial, concurrency_key,
     concurrency_max, unique_key, details_hex, progress, error, result, history, present) = rare  # fmt: skip
    details = decode_details(_from_hex(details_hex)) if details_hex else NO_DETAILS
    job_id, job = (None, None) if owner_id is None else owners[owner_id]
    return Run(
        id=id,
        queue=queues[queue_id],
        fire_at=fire_at,
        due_at=due_at,
        created_at=created_at,
        state=STATES[state],
        priority=priority,
        job_id=job_id,
        job=job,
        cause=CAUSES[cause],
        payload=_from_hex(payload) if payload or present & 1 else None,
        policy=details.policy,
        unique_key=unique_key,
        concurrency_key=concurrency_key,
        concurrency_max=concurrency_max or 0,
        serial=serial is not None,
        rates=details.rates,
        fair=details.fair,
        lease_seconds=lease_seconds,
        execution_seconds=execution_seconds,
        start_by=start_by,
        attempt=attempt,
        token=token,
        worker=None if worker_id is None else workers[worker_id],
        lease_expires_at=lease_expires_at,
        deadline=deadline,
        started_at=started_at,
        finished_at=finished_at,
        progress=_from_hex(progress) if present & 2 else None,
        error=_from_hex(error).decode("utf-8", "surrogatepass") if present & 4 else None,
        result=_from_hex(result) if present & 8 else None,
        disposition=None if disposition is None else DISPOSITIONS[disposition],
        fires=details.fires,
        last_fire_at=details.last_fire_at,
        prune_at=prune_at,
        history=decode_history(_from_hex(history)) if history else (),
    )
