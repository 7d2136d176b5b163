"""Jobs and runs as rows of Redis, and back.

A row is one MessagePack array. Of a run, the scripts read and rewrite the first places and copy the rest unseen, so the
order here and the places named in `scripts/shared_runs.lua` must agree. The numbers for states and dispositions are
part of the layout: they may grow, never change. Nothing that a script unpacks may hold bytes: the `cmsgpack` of the
servers does not know that type, so bytes travel as arguments of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from horarium.clock import SECOND, Instant
from horarium.model import Cause, Disposition, Event, Job, Run, RunChange, RunPolicy, State

STATES = (
    State.PENDING,
    State.RUNNING,
    State.CANCELLING,
    State.COMPLETED,
    State.FAILED,
    State.CANCELLED,
    State.SKIPPED,
)
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
CAUSES = (Cause.SCHEDULE, Cause.CATCH_UP, Cause.MANUAL, Cause.BACKFILL, Cause.ENQUEUED)
STATE_NUMBERS = {state: number for number, state in enumerate(STATES)}
CAUSE_NUMBERS = {cause: number for number, cause in enumerate(CAUSES)}
DISPOSITION_NUMBERS: dict[Disposition | None, int | None] = {
    None: None,
    **{disposition: number for number, disposition in enumerate(DISPOSITIONS)},
}

PAYLOAD_INLINE_BYTES_MAX = 1_024
"""A larger payload is kept apart from the row, which is rewritten with every transition."""


class RunRow(Struct, frozen=True, array_like=True):
    """A run's row, in this order. `lease_seconds` and `execution_seconds` stand there only if the microseconds don't
    give them back exactly."""

    state: int
    token: int
    attempt: int
    due_at: Instant
    lease_expires_at: Instant | None
    started_at: Instant | None
    start_by: Instant | None
    worker: str | None
    finished_at: Instant | None
    disposition: int | None
    prune_at: Instant | None
    # What is fixed, and looked at by scripts.
    queue: str
    priority: int
    fire_at: Instant
    job_id: str | None
    job: str | None
    serial: bool
    concurrency_key: str | None
    concurrency_max: int
    unique_key: str | None
    lease_micros: int
    execution_micros: int | None
    apart: bool
    # What no script looks at.
    created_at: Instant
    cause: int
    payload: bytes | None
    lease_seconds: float | None
    rest: tuple[RunPolicy | None, int, Instant | None, float | None] | None


class Outcome(Struct, frozen=True, array_like=True):
    """What few unfinished runs have. The error may hold lone surrogates, so it is kept as bytes."""

    error: bytes | None
    result: bytes | None
    history: tuple[Event, ...]


class JobRow(Struct, frozen=True, array_like=True):
    """A job's row: what scripts look at, and the definition."""

    version: int
    name: str
    next_fire_at: Instant | None
    deleted: bool
    enabled: bool
    labels: tuple[str, ...]
    definition: bytes


pack = msgspec.msgpack.Encoder().encode
_decode_row = msgspec.msgpack.Decoder(RunRow).decode
_decode_outcome = msgspec.msgpack.Decoder(Outcome).decode
_decode_job_row = msgspec.msgpack.Decoder(JobRow).decode
_encode_json = msgspec.json.Encoder().encode
_decode_job = msgspec.json.Decoder(Job).decode

# ---- jobs -------------------------------------------------------------------------------------------------------


def encode_job(job: Job, version: int) -> bytes:
    """The row of a job under this version."""
    stored = job if job.version == version else msgspec.structs.replace(job, version=version)
    labels = tuple(text for pair in job.labels.items() for text in pair)
    row = JobRow(
        version, job.name, job.next_fire_at, job.deleted_at is not None, job.enabled, labels, _encode_json(stored)
    )
    return pack(row)


def decode_job(row: bytes) -> Job:
    return _decode_job(_decode_job_row(row).definition)


# ---- runs: to rows ----------------------------------------------------------------------------------------------


class Arguments:
    """The arguments of a script that come after its batch, and the places (from 1) under which it finds them."""

    def __init__(self, before: int) -> None:
        self.values: list[bytes] = []
        self._before = before

    def place(self, value: bytes) -> int:
        self.values.append(value)
        return self._before + len(self.values)

    def place_or_none(self, value: bytes | None) -> int | None:
        return None if value is None else self.place(value)


def encode_run(run: Run) -> bytes:
    """The row of a run."""
    seconds, limit = run.lease_seconds, run.execution_seconds
    micros = round(seconds * SECOND)
    payload = run.payload
    apart = payload is not None and len(payload) > PAYLOAD_INLINE_BYTES_MAX
    plain = run.policy is None and run.fires == 1 and run.last_fire_at is None and limit is None
    return pack(
        (
            STATE_NUMBERS[run.state],
            run.token,
            run.attempt,
            run.due_at,
            run.lease_expires_at,
            run.started_at,
            run.start_by,
            run.worker,
            run.finished_at,
            DISPOSITION_NUMBERS[run.disposition],
            run.prune_at,
            run.queue,
            run.priority,
            run.fire_at,
            run.job_id,
            run.job,
            run.serial,
            run.concurrency_key,
            run.concurrency_max,
            run.unique_key,
            micros,
            None if limit is None else round(limit * SECOND),
            apart,
            run.created_at,
            CAUSE_NUMBERS[run.cause],
            None if apart else payload,
            None if micros / SECOND == seconds else seconds,
            None if plain else (run.policy, run.fires, run.last_fire_at, limit),
        )
    )


def new_run(run: Run, arguments: Arguments) -> tuple[Any, ...]:
    """What `add_run` of the scripts is given."""
    place = arguments.place(encode_run(run))
    payload = run.payload
    if payload is not None and len(payload) > PAYLOAD_INLINE_BYTES_MAX:
        return run.id, place, _outcome(run, arguments), arguments.place_or_none(run.progress), arguments.place(payload)
    if run.error is None and run.result is None and not run.history and run.progress is None:
        return run.id, place
    return run.id, place, _outcome(run, arguments), arguments.place_or_none(run.progress)


def run_change(change: RunChange, arguments: Arguments) -> tuple[Any, ...]:
    """What `apply` of the scripts is given."""
    run = change.run
    return (
        0,
        STATE_NUMBERS[run.state],
        run.token,
        run.attempt,
        run.due_at,
        run.lease_expires_at,
        run.started_at,
        run.start_by,
        run.worker,
        run.finished_at,
        DISPOSITION_NUMBERS[run.disposition],
        run.prune_at,
        run.id,
        change.token,
        STATE_NUMBERS[change.state],
        change.held,
        _outcome(run, arguments),
        arguments.place_or_none(run.progress),
    )


def _outcome(run: Run, arguments: Arguments) -> int | None:
    if run.error is None and run.result is None and not run.history:
        return None
    error = None if run.error is None else run.error.encode("utf-8", "surrogatepass")
    return arguments.place(pack((error, run.result, run.history)))


# ---- runs: from rows --------------------------------------------------------------------------------------------

Loaded = Sequence[Sequence[bytes | None]]
"""What the scripts' `load_runs` answers: rows, outcomes, progress and payloads; a list is empty if its hash is."""


def decode_runs(ids: Sequence[str], loaded: Loaded) -> list[Run | None]:
    """The runs of these ids, in this order; None for one that does not exist."""
    rows, outcomes, progress, payloads = loaded
    if not rows:
        return [None] * len(ids)
    if not (outcomes or progress or payloads):
        return [None if row is None else _run(run_id, _decode_row(row)) for run_id, row in zip(ids, rows, strict=True)]
    nothing: list[bytes | None] = [None] * len(ids)
    columns = zip(ids, rows, outcomes or nothing, progress or nothing, payloads or nothing, strict=True)
    return [None if row is None else _whole_run(run_id, row, *rare) for run_id, row, *rare in columns]


def found_runs(ids: Sequence[bytes], loaded: Loaded) -> list[Run]:
    """The runs that a script found."""
    return list(_present(decode_runs([run_id.decode() for run_id in ids], loaded)))


def _present(runs: Sequence[Run | None]) -> Iterator[Run]:
    for run in runs:
        assert run is not None, "a script gave the id of a run that has no row"
        yield run


def _whole_run(
    run_id: str, row: bytes, outcome: bytes | None, progress: bytes | None, payload: bytes | None
) -> Run:
    run = _run(run_id, _decode_row(row))
    if outcome is None and progress is None and payload is None:
        return run
    error, result, history = (None, None, ()) if outcome is None else _outcome_parts(_decode_outcome(outcome))
    return msgspec.structs.replace(
        run,
        error=error,
        result=result,
        history=history,
        progress=progress,
        payload=run.payload if payload is None else payload,
    )


def _outcome_parts(outcome: Outcome) -> tuple[str | None, bytes | None, tuple[Event, ...]]:
    error = outcome.error
    return None if error is None else error.decode("utf-8", "surrogatepass"), outcome.result, outcome.history


def _run(run_id: str, row: RunRow) -> Run:
    policy, fires, last_fire_at, execution_seconds = row.rest or (None, 1, None, None)
    seconds, disposition = row.lease_seconds, row.disposition
    return Run(
        id=run_id,
        queue=row.queue,
        fire_at=row.fire_at,
        due_at=row.due_at,
        created_at=row.created_at,
        state=STATES[row.state],
        priority=row.priority,
        job_id=row.job_id,
        job=row.job,
        cause=CAUSES[row.cause],
        payload=row.payload,
        policy=policy,
        unique_key=row.unique_key,
        concurrency_key=row.concurrency_key,
        concurrency_max=row.concurrency_max,
        serial=row.serial,
        lease_seconds=row.lease_micros / SECOND if seconds is None else seconds,
        execution_seconds=execution_seconds,
        start_by=row.start_by,
        attempt=row.attempt,
        token=row.token,
        worker=row.worker,
        lease_expires_at=row.lease_expires_at,
        started_at=row.started_at,
        finished_at=row.finished_at,
        disposition=None if disposition is None else DISPOSITIONS[disposition],
        fires=fires,
        last_fire_at=last_fire_at,
        prune_at=row.prune_at,
    )
