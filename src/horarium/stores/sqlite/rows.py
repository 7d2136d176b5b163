"""Runs and jobs as columns, and back.

The numbers for states, causes and dispositions are part of the schema: they may grow, never change. What is rare stands
in `details`, as JSON. Free text that a target reports may hold anything Python can hold, lone surrogates too, so it is
kept as bytes. Building a run is the hot path: what a waiting or running run never has is left to the defaults.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any

import msgspec
from msgspec import Struct

from horarium.clock import SECOND, Instant
from horarium.model import Cause, Disposition, Event, Job, Run, RunChange, RunPolicy, State
from horarium.stores.sqlite.ids import decode_id, encode_id
from horarium.stores.sqlite.session import Row, Session, carray

STATES = (
    State.PENDING,
    State.RUNNING,
    State.CANCELLING,
    State.COMPLETED,
    State.FAILED,
    State.CANCELLED,
    State.SKIPPED,
)
CAUSES = (Cause.SCHEDULE, Cause.CATCH_UP, Cause.MANUAL, Cause.BACKFILL, Cause.ENQUEUED)
DISPOSITIONS = (
    Disposition.RAN,
    Disposition.SKIPPED_OVERLAP,
    Disposition.SKIPPED_PAUSED,
    Disposition.MISSED,
    Disposition.EXCLUDED,
    Disposition.DST_GAP,
    Disposition.LIMIT_REACHED,
    Disposition.WITHDRAWN,
    Disposition.NOT_STARTED,
    Disposition.CANCELLED,
)
STATE_NUMBERS = {state: number for number, state in enumerate(STATES)}
CAUSE_NUMBERS = {cause: number for number, cause in enumerate(CAUSES)}
DISPOSITION_NUMBERS: dict[Disposition | None, int | None] = {
    None: None,
    **{disposition: number for number, disposition in enumerate(DISPOSITIONS)},
}


class Details(Struct, frozen=True, omit_defaults=True):
    """What few runs have."""

    policy: RunPolicy | None = None
    fires: int = 1
    last_fire_at: Instant | None = None


PLAIN_FIELDS = frozenset(
    ("id", "queue", "priority", "due_at", "fire_at", "created_at", "job_id", "job", "cause", "lease_seconds", "payload")
)
"""What new runs differ in. A batch that has nothing else is written by a shorter statement."""

_beyond_plain = attrgetter(*(name for name in Run.__struct_fields__ if name not in PLAIN_FIELDS))
_PLAIN = _beyond_plain(Run(id="", queue="", fire_at=0, due_at=0, created_at=0))

_encode = msgspec.json.encode
_decode_details = msgspec.json.Decoder(Details).decode
_decode_history = msgspec.json.Decoder(tuple[Event, ...]).decode
_from_hex = bytes.fromhex

# ---- jobs -------------------------------------------------------------------------------------------------------


def job_columns(job: Job, version: int) -> Row:
    """What changes of a job with a version: version to definition."""
    labels = None
    if job.labels and job.deleted_at is None:
        labels = json.dumps(job.labels, sort_keys=True)
    stored = job if job.version == version else msgspec.structs.replace(job, version=version)
    return version, job.enabled, job.next_fire_at, job.deleted_at, labels, _encode(stored).decode()


# ---- runs: to columns -------------------------------------------------------------------------------------------


def run_rows(session: Session, runs: Sequence[Run]) -> tuple[str, list[Row]]:
    """The query that inserts new runs, and its rows. Gives numbers to queues, workers and owners that have none."""
    names = {run.job_id: run.job or "" for run in runs if run.job_id is not None}
    owners = session.owner_numbers(names) if names else {}
    queues = {name: session.queue_number(name) for name in {run.queue for run in runs}}
    if all(_beyond_plain(run) == _PLAIN for run in runs):
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
        None if run.policy is None and run.fires == 1 and run.last_fire_at is None else _details(run),
        run.progress,
        None if run.error is None else _text_blob(run.error),
        run.result,
        _encode(run.history) if run.history else None,
    )


def _details(run: Run) -> bytes:
    return _encode(Details(run.policy, run.fires, run.last_fire_at))


def _text_blob(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


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
        None if run.error is None else _text_blob(run.error),
        run.result,
        DISPOSITION_NUMBERS[run.disposition],
        run.prune_at,
        _encode(run.history) if run.history else None,
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
        id=decode_id(digits),
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
    details = _decode_details(_from_hex(details_hex)) if details_hex else Details()
    return Run(
        id=decode_id(digits),
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
        history=_decode_history(_from_hex(history)) if history else (),
    )
