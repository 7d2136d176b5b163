"""Runs and jobs as columns, and back.

The numbers for states, causes and dispositions are part of the schema: they may grow, never change. Rare fields are
in `details`, as JSON. Free text that a target reports may hold anything Python can hold, lone surrogates too, so it is
kept as bytes. Building a run is the hot path: what a waiting or running run never has is left to the defaults.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from horarium.clock import SECOND
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
    decode_id_digits,
    encode_details,
    encode_history,
    encode_id,
    encode_json,
    encode_text,
    is_plain,
)
from horarium.stores.sqlite.session import Row, Session, carray

_from_hex = bytes.fromhex

# ---- jobs -------------------------------------------------------------------------------------------------------


def job_columns(job: Job, version: int) -> Row:
    """What changes of a job with a version: version to finished_version."""
    labels = None
    if job.labels and job.deleted_at is None:
        labels = json.dumps(job.labels, sort_keys=True)
    stored = job if job.version == version else msgspec.structs.replace(job, version=version)
    definition = encode_json(stored).decode()
    plan = job.active, job.next_fire_at, job.deleted_at
    finished_version = None if job.finished_at is None else version
    return version, *plan, labels, definition, job.planned_until, job.retention.runs_max, finished_version


# ---- runs: to columns -------------------------------------------------------------------------------------------


def run_rows(session: Session, runs: Sequence[Run]) -> tuple[str, list[Row]]:
    """The query that inserts new runs, and its rows. Gives numbers to queues, workers and owners that have none."""
    names = {run.job_id: run.job or "" for run in runs if run.job_id is not None}
    owners = session.owner_numbers(names) if names else {}
    queues = {name: session.queue_number(name) for name in {run.queue for run in runs}}
    if all(is_plain(run) for run in runs):
        return "add_plain_runs", [_plain_row(run, queues[run.queue], owners) for run in runs]
    return "add_runs", [_run_row(session, run, queues[run.queue], owners) for run in runs]


def _plain_row(run: Run, queue_id: int, owners: Mapping[str, int]) -> Row:
    job_id, seconds = run.job_id, run.lease_seconds
    return (
        encode_id(run.id),
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


def _run_row(session: Session, run: Run, queue_id: int, owners: Mapping[str, int]) -> Row:
    job_id, key = run.job_id, run.concurrency_key
    return (
        encode_id(run.id),
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


def change_row(session: Session, change: RunChange) -> Row:
    """The row of a change: what must still be so, then everything that may change."""
    run = change.run
    return (
        encode_id(run.id),
        change.token,
        STATE_NUMBERS[change.state],
        change.held,
        STATE_NUMBERS[run.state],
        run.due_at,
        run.attempt,
        None if run.worker is None else session.worker_number(run.worker),
        run.lease_expires_at,
        run.started_at,
        run.finished_at,
        run.progress,
        encode_text(run.error),
        run.result,
        DISPOSITION_NUMBERS[run.disposition],
        run.prune_at,
        encode_history(run),
        run.start_by,
        run.token,
    )


# ---- runs: from columns -----------------------------------------------------------------------------------------


def load_runs(session: Session, numbers: Sequence[int]) -> list[Run]:
    """The runs of these numbers, in this order."""
    if not numbers:
        return []
    rows = session.array("load_runs", carray(numbers))
    queues = session.queue_names([row[1] for row in rows])
    owners = session.owners([row[7] for row in rows])
    workers = session.worker_names([row[12] for row in rows])
    return [_run(row, queues, owners, workers) for row in rows]


def _run(
    row: list[Any], queues: Mapping[int, str], owners: Mapping[int, tuple[str, str]], workers: Mapping[int, str]
) -> Run:
    (digits, queue_id, priority, state, due_at, fire_at, created_at, owner_id, cause, lease_seconds, attempt, token,
     worker_id, lease_expires_at, started_at, payload, rare) = row  # fmt: skip
    job_id, job = (None, None) if owner_id is None else owners[owner_id]
    if rare is not None:
        return _rare_run(row, rare, job_id, job, queues[queue_id], workers.get(worker_id))
    return Run(
        id=decode_id_digits(digits),
        queue=queues[queue_id],
        fire_at=fire_at,
        due_at=due_at,
        created_at=created_at,
        state=STATES[state],
        priority=priority,
        job_id=job_id,
        job=job,
        cause=CAUSES[cause],
        payload=_from_hex(payload) if payload else None,
        lease_seconds=lease_seconds,
        attempt=attempt,
        token=token,
        worker=None if worker_id is None else workers[worker_id],
        lease_expires_at=lease_expires_at,
        started_at=started_at,
    )


def _rare_run(
    row: list[Any], rare: list[Any], job_id: str | None, job: str | None, queue: str, worker: str | None
) -> Run:
    (digits, _, priority, state, due_at, fire_at, created_at, _, cause, lease_seconds, attempt, token,
     _, lease_expires_at, started_at, payload, _) = row  # fmt: skip
    (finished_at, disposition, prune_at, start_by, execution_seconds, serial, concurrency_key, concurrency_max,
     unique_key, details_hex, progress, error, result, history, present) = rare  # fmt: skip
    details = decode_details(_from_hex(details_hex)) if details_hex else NO_DETAILS
    return Run(
        id=decode_id_digits(digits),
        queue=queue,
        fire_at=fire_at,
        due_at=due_at,
        created_at=created_at,
        state=STATES[state],
        priority=priority,
        job_id=job_id,
        job=job,
        cause=CAUSES[cause],
        payload=_from_hex(payload) if present & 1 else None,
        policy=details.policy,
        unique_key=unique_key,
        concurrency_key=concurrency_key,
        concurrency_max=concurrency_max or 0,
        serial=serial is not None,
        lease_seconds=lease_seconds,
        execution_seconds=execution_seconds,
        start_by=start_by,
        attempt=attempt,
        token=token,
        worker=worker,
        lease_expires_at=lease_expires_at,
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
