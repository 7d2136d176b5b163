"""Jobs and runs as rows of Redis, and back.

A row is one MessagePack array. Of a run, the scripts read and rewrite the first places and copy the rest unseen, so the
order here and the places named in `scripts/shared_runs.lua` must agree. The numbers for states and dispositions are
part of the layout: they may grow, never change. Nothing that a script unpacks may hold bytes: the `cmsgpack` of the
servers does not know that type, so bytes travel as arguments of their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any, cast

import msgspec
from msgspec import Struct
from msgspec.structs import astuple, replace

from horarium.clock import SECOND, Instant
from horarium.model import Event, Job, Run, RunChange, RunPolicy
from horarium.model.records import Record
from horarium.policies import Rate
from horarium.stores.encoding import (
    CAUSE_NUMBERS,
    CAUSES,
    DISPOSITION_NUMBERS,
    DISPOSITIONS,
    STATE_NUMBERS,
    STATES,
    comes_alone,
    decode_text,
    encode_text,
)

PAYLOAD_INLINE_BYTES_MAX = 1_024
"""A larger payload is kept apart from the row, which is rewritten with every transition."""


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


class RecordRow(Struct, frozen=True, array_like=True):
    """A record's row: what scripts look at, and the body."""

    version: int
    labels: tuple[str, ...]
    body: bytes


_FEW, _MANY = 16, 65_536

pack = msgspec.msgpack.Encoder().encode


def pack_all(values: Sequence[Any]) -> bytes:
    """The values one after the other in MessagePack, in no array: a script reads them without building a table."""
    header = 1 if len(values) < _FEW else 3 if len(values) < _MANY else 5
    return pack(values)[header:]


_decode_row = msgspec.msgpack.Decoder(list[Any]).decode
_decode_outcome = msgspec.msgpack.Decoder(Outcome).decode
_decode_job_row = msgspec.msgpack.Decoder(JobRow).decode
_decode_record_row = msgspec.msgpack.Decoder(RecordRow).decode
_encode_json = msgspec.json.Encoder().encode
_decode_job = msgspec.json.Decoder(Job).decode

# ---- jobs -------------------------------------------------------------------------------------------------------


def encode_job(job: Job, version: int) -> bytes:
    stored = job if job.version == version else replace(job, version=version)
    labels, definition = label_texts(job.labels), _encode_json(stored)
    return pack(JobRow(version, job.name, job.next_fire_at, job.deleted_at is not None, job.active, labels, definition))


def decode_job(row: bytes) -> Job:
    return _decode_job(_decode_job_row(row).definition)


# ---- records ----------------------------------------------------------------------------------------------------


def encode_record(record: Record) -> bytes:
    return pack(RecordRow(record.version, label_texts(record.labels), record.body))


def decode_record(name: str, row: bytes) -> Record:
    version, labels, body = astuple(_decode_record_row(row))
    return Record(name=name, body=body, labels=dict(zip(labels[::2], labels[1::2], strict=True)), version=version)


def label_texts(labels: Mapping[str, str]) -> tuple[str, ...]:
    """Keys and values in turn, as scripts take them."""
    return tuple(text for pair in labels.items() for text in pair)


def come_along(runs: Sequence[Run], records: Sequence[Record], arguments: Arguments) -> int | None:
    """What `bring_along` of the scripts is given: the place of these, if there are any."""
    if not runs and not records:
        return None
    values: list[Any] = [len(runs), len(records)]
    for run in runs:
        values += new_run(run, arguments)
    for record in records:
        values += (record.name, arguments.place(encode_record(record)))
    return arguments.place(pack_all(values))


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
    """The row of a run: the changing part (12 values), the fixed part (12), the part that no script looks at (5). The
    seconds of a lease are there only if its microseconds don't give them back exactly."""
    seconds, limit = run.lease_seconds, run.execution_seconds
    micros = round(seconds * SECOND)
    payload = run.payload
    apart = payload is not None and len(payload) > PAYLOAD_INLINE_BYTES_MAX
    plain = run.policy is None and run.fires == 1 and run.last_fire_at is None and limit is None and not run.rates
    plain = plain and run.fair is None
    return pack(
        (
            *_changing(run),
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
            None if plain else (run.policy, run.fires, run.last_fire_at, limit, *_rates_and_fair(run)),
        )
    )


def _rates_and_fair(run: Run) -> tuple[Any, ...]:
    """As far as there are any."""
    return (run.rates, run.fair) if run.fair is not None else (run.rates,) if run.rates else ()


def new_run(run: Run, arguments: Arguments) -> tuple[Any, ...]:
    """What `add_run` of the scripts is given."""
    payload = run.payload
    apart = payload is not None and len(payload) > PAYLOAD_INLINE_BYTES_MAX
    return (
        run.id,
        arguments.place(encode_run(run)),
        _outcome(run, arguments),
        arguments.place_or_none(run.progress),
        arguments.place_or_none(payload if apart else None),
    )


def run_change(change: RunChange, arguments: Arguments) -> tuple[Any, ...]:
    """What `apply_change` of the scripts is given."""
    run = change.run
    return (
        run.id,
        change.token,
        STATE_NUMBERS[change.state],
        change.held,
        _outcome(run, arguments),
        arguments.place_or_none(run.progress),
        None if comes_alone(change) else come_along(change.follow_ups, change.records, arguments),
        *_changing(run),
    )


def kind_of_end(kind: Sequence[RunChange], arguments: Arguments) -> tuple[Any, ...]:
    """What the script `settle_kinds` is given for changes of one kind."""
    change, run = kind[0], kind[0].run
    changing = _changing(run)
    return (
        len(kind),
        change.token,
        STATE_NUMBERS[change.state],
        change.held,
        _outcome(run, arguments),
        arguments.place_or_none(run.progress),
        *changing[:_DUE_AT],
        *changing[_DUE_AT + 1 :],
    )


_DUE_AT = 3
"""The place of the due time among what may change."""


def _changing(run: Run) -> tuple[Any, ...]:
    """What may change, in the order in which the scripts have it."""
    return (
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
        run.deadline,
    )


def _outcome(run: Run, arguments: Arguments) -> int | None:
    if run.error is None and run.result is None and not run.history:
        return None
    return arguments.place(pack((encode_text(run.error), run.result, run.history)))


# ---- runs: from rows --------------------------------------------------------------------------------------------

Loaded = Sequence[Sequence[bytes | None]]
"""What the scripts' `load_runs` answers: rows, outcomes, progress and payloads; a list is empty if its hash is."""


def decode_runs(ids: Sequence[str], loaded: Loaded) -> list[Run | None]:
    """The runs of these ids, in this order; None for one that does not exist."""
    pairs = [(run_id, _decode_row(row)) for run_id, row in zip(ids, loaded[0], strict=True) if row is not None]
    runs = iter(_runs(pairs))
    return [
        None if row is None else _whole(next(runs), *rare)
        for row, rare in zip(loaded[0], _rare_of(len(ids), loaded), strict=True)
    ]


def found_runs(ids: Sequence[bytes], loaded: Loaded) -> list[Run]:
    """The runs that a script found."""
    rows = cast("Sequence[bytes]", loaded[0])
    pairs = ((run_id.decode(), _decode_row(row)) for run_id, row in zip(ids, rows, strict=True))
    return _with_rare(_runs(pairs), loaded)


CLAIMED_TOGETHER = 100
"""How many runs a claim answers in one text, which is how many rows are values at a time."""


def claimed_runs(count: int, texts: Sequence[bytes], loaded: Loaded) -> list[Run]:
    """The `count` runs that a claim took: in each text ids and rows in turn, and what there is besides rows."""
    return _with_rare(_runs(_pairs(count, texts)), loaded)


def _pairs(count: int, texts: Sequence[bytes]) -> Iterable[tuple[str, list[Any]]]:
    for text in texts:
        together = min(count, CLAIMED_TOGETHER)
        values = _decode_row(b"\xdc%b%b" % ((2 * together).to_bytes(2, "big"), text))
        yield from zip(values[::2], values[1::2], strict=True)
        count -= together


def _rare_of(count: int, loaded: Loaded) -> Iterable[tuple[bytes | None, ...]]:
    """Of each run its outcome, progress and large payload, if it has one."""
    nothing: list[bytes | None] = [None] * count
    return zip(*(column or nothing for column in loaded[1:]), strict=True)


def _with_rare(runs: list[Run], loaded: Loaded) -> list[Run]:
    if any(map(any, loaded[1:])):
        return [_whole(run, *rare) for run, rare in zip(runs, _rare_of(len(runs), loaded), strict=True)]
    return runs


def _runs(pairs: Iterable[tuple[str, list[Any]]]) -> list[Run]:
    alike: dict[tuple[Any, ...], Run] = {}
    runs: list[Run] = []
    for run_id, row in pairs:
        if (like := alike.get(kind := _kind(row))) is None:
            like = alike[kind] = _run(run_id, row)
        run = replace(
            like,
            id=run_id,
            fire_at=row[14],
            due_at=row[3],
            created_at=row[24],
            payload=row[26],
            lease_expires_at=row[4],
            started_at=row[5],
        )
        runs.append(_with_rest(run, row[_RARE]) if row[_RARE] else run)
    return runs


_RARE = 28
_kind = itemgetter(0, 1, 2, 6, 7, 8, 9, 10, 11, 12, 13, 15, 16, 17, 18, 19, 20, 21, 25, 27)
"""What most runs of one claim have in common: such a run costs half of what it costs to make a run of a row."""


def _whole(run: Run, outcome: bytes | None, progress: bytes | None, payload: bytes | None) -> Run:
    if outcome is None and progress is None and payload is None:
        return run
    error, result, history = (None, None, ()) if outcome is None else _outcome_parts(_decode_outcome(outcome))
    return replace(
        run,
        error=error,
        result=result,
        history=history,
        progress=progress,
        payload=run.payload if payload is None else payload,
    )


def _outcome_parts(outcome: Outcome) -> tuple[str | None, bytes | None, tuple[Event, ...]]:
    return decode_text(outcome.error), outcome.result, outcome.history


def _run(run_id: str, row: list[Any]) -> Run:
    (state, token, attempt, due_at, lease_expires_at, started_at, start_by, worker, finished_at, disposition, prune_at,
     deadline, queue, priority, fire_at, job_id, job, serial, concurrency_key, concurrency_max, unique_key,
     lease_micros,     _, _, created_at, cause, payload, lease_seconds, _) = row  # fmt: skip
    return Run(
        id=run_id,
        queue=queue,
        fire_at=fire_at,
        due_at=due_at,
        created_at=created_at,
        state=STATES[state],
        priority=priority,
        job_id=job_id,
        job=job,
        cause=CAUSES[cause],
        payload=payload,
        unique_key=unique_key,
        concurrency_key=concurrency_key,
        concurrency_max=concurrency_max,
        serial=serial,
        lease_seconds=lease_micros / SECOND if lease_seconds is None else lease_seconds,
        start_by=start_by,
        attempt=attempt,
        token=token,
        worker=worker,
        lease_expires_at=lease_expires_at,
        deadline=deadline,
        started_at=started_at,
        finished_at=finished_at,
        disposition=None if disposition is None else DISPOSITIONS[disposition],
        prune_at=prune_at,
    )


def _with_rest(run: Run, rest: list[Any]) -> Run:
    policy, fires, last_fire_at, execution_seconds, *more = rest
    return replace(
        run,
        policy=_to_policy(policy),
        fires=fires,
        last_fire_at=last_fire_at,
        execution_seconds=execution_seconds,
        rates=msgspec.convert(more[0], tuple[Rate, ...]) if more and more[0] else (),
        fair=more[1] if len(more) > 1 else None,
    )


def _to_policy(plain: Any) -> RunPolicy | None:
    return None if plain is None else msgspec.convert(plain, RunPolicy)
