"""Runs and jobs as columns, and back.

The numbers for states, causes and dispositions are part of the schema: they may grow, never change. Rare fields are
in `details`, as JSON. A batch goes to the server as one array for each column; a column that no run of it has goes as
NULL. Building a run is the hot path: what a waiting or running run never has is left to the defaults.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any

import msgspec
from msgspec.structs import replace

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
    decode_id_blobs,
    decode_text,
    encode_details,
    encode_history,
    encode_id,
    encode_ids,
    encode_json,
    encode_text,
    end_of_attempt,
    is_plain,
    label_text,
    with_details,
)

Owner = tuple[str, str]
"""A job's id and name."""

Column = Sequence[Any] | None
"""One value for each row of a batch; None: NULL in every row."""


_RARE_COLUMNS = 21

SAID_LEASE_SECONDS = 30.0
"""The lease of a finished run whose row says nothing of it. Part of the schema."""

decode_job = msgspec.json.Decoder(Job).decode

# ---- text -------------------------------------------------------------------------------------------------------


def storable(texts: Iterable[str]) -> list[str]:
    """Those that a column of type text can hold: no other can be a name that is stored."""
    return [text for text in texts if is_storable(text)]


def is_storable(text: str) -> bool:
    return (text.isascii() and "\0" not in text) or _is_utf8(text)


def _is_utf8(text: str) -> bool:
    try:
        return b"\0" not in text.encode()
    except UnicodeEncodeError:
        return False


# ---- jobs -------------------------------------------------------------------------------------------------------


def label_array(labels: Mapping[str, str]) -> str:
    """Labels as the text of an array, so that it can be one value in an array of such."""
    return "{" + ",".join(_quoted(label_text(*pair)) for pair in sorted(labels.items())) + "}"


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def job_columns(jobs: Sequence[Job], added: Sequence[int], labels: Callable[[Mapping[str, str]], str]) -> list[Column]:
    """From version to finished. `added`: by how much the stored versions are larger than the jobs'."""
    stored = [replace(job, version=job.version + more) if more else job for job, more in zip(jobs, added, strict=True)]
    return [
        [job.version for job in stored],
        [job.active for job in stored],
        [job.next_fire_at for job in stored],
        [job.deleted_at for job in stored],
        [labels(job.labels) for job in stored],
        [encode_json(job).decode() for job in stored],
        [job.planned_until for job in stored],
        [job.retention.runs_max for job in stored],
        [job.finished_at is not None for job in stored],
    ]


# ---- runs: to columns -------------------------------------------------------------------------------------------


def run_columns(namespace_id: int, runs: Sequence[Run]) -> list[Any]:
    """The arguments of the query `add_runs`."""
    queues: dict[str, int] = {}
    owners: dict[str, int] = {}
    names: list[str] = []
    rows = []
    for run in runs:
        queue = queues.setdefault(run.queue, len(queues) + 1)
        owner = None
        if run.job_id is not None:
            owner = owners.setdefault(run.job_id, len(owners) + 1)
            if owner > len(names):
                names.append(run.job or "")
        rows.append(
            (
                encode_id(run.id),
                queue,
                run.priority or None,
                run.due_at,
                run.fire_at,
                run.created_at,
                owner,
                CAUSE_NUMBERS[run.cause],
                run.lease_seconds,
                run.payload,
            )
        )
    return [namespace_id, list(queues), list(owners), names, *_columns(rows), *_rare_columns(runs)]


def _columns(rows: Sequence[tuple[Any, ...]]) -> list[Column]:
    """Rows as columns; one without any value goes as NULL."""
    nothing = (None,) * len(rows)
    return [None if column == nothing else column for column in zip(*rows, strict=True)]


def _rare_columns(runs: Sequence[Run]) -> list[Column]:
    if all(is_plain(run) for run in runs):
        return [None] * _RARE_COLUMNS
    return _columns([_rare_row(run) for run in runs])


def _rare_row(run: Run) -> tuple[Any, ...]:
    return (
        STATE_NUMBERS[run.state] or None,
        run.attempt or None,
        run.token or None,
        encode_text(run.worker),
        run.lease_expires_at,
        run.started_at,
        run.finished_at,
        DISPOSITION_NUMBERS[run.disposition],
        run.prune_at,
        run.start_by,
        run.execution_seconds,
        run.serial or None,
        encode_text(run.concurrency_key),
        run.concurrency_max or None,
        encode_text(run.unique_key),
        encode_details(run),
        run.progress,
        encode_text(run.error),
        run.result,
        encode_history(run),
        run.deadline,
    )


def change_columns(changes: Sequence[RunChange]) -> list[Column]:
    """The conditions, then everything that may change."""
    return _columns([_change_row(change) for change in changes])


def alike_columns(changes: Sequence[RunChange]) -> list[Any]:
    """The values of the query `finish_alike`, from the ids on. For changes that are alike."""
    runs, run = [change.run for change in changes], changes[0].run
    due_at = None if all(change.as_claimed for change in changes) else [run.due_at for run in runs]
    results = [run.result for run in runs]
    return [
        encode_ids([run.id for run in runs]),
        _unless_same([run.token for run in runs]),
        due_at,
        _unless_same([run.attempt for run in runs]),
        _unless_same([run.started_at for run in runs]),
        None if results.count(None) == len(results) else results,
        _unless_same([run.prune_at for run in runs]),
        STATE_NUMBERS[changes[0].state],
        changes[0].held,
        STATE_NUMBERS[run.state],
        encode_text(run.worker),
        run.lease_expires_at,
        run.finished_at,
        run.progress,
        encode_text(run.error),
        DISPOSITION_NUMBERS[run.disposition],
        encode_history(run),
        run.start_by,
        run.token,
        run.attempt,
        run.started_at,
        run.prune_at,
        run.deadline,
    ]


def _unless_same(column: list[Any]) -> Column:
    """None for a column that has one value throughout: the driver looks at each member of an array."""
    return None if column.count(column[0]) == len(column) else column


def _change_row(change: RunChange) -> tuple[Any, ...]:
    run = change.run
    return (
        encode_id(run.id),
        change.token,
        STATE_NUMBERS[change.state],
        change.held,
        STATE_NUMBERS[run.state],
        run.due_at,
        run.attempt,
        encode_text(run.worker),
        run.lease_expires_at,
        run.started_at,
        *end_of_attempt(run),
        run.token,
        run.deadline,
    )


# ---- runs: from columns -----------------------------------------------------------------------------------------

QUEUE_COLUMN, OWNER_COLUMN, BLOB_COLUMN, DETAILS_COLUMN = 12, 13, 22, 27

_NOTHING_RARE = (*(None,) * 13, False)


def decode_runs(rows: Sequence[Any], queues: Mapping[int, str], owners: Mapping[int, Owner]) -> list[Run]:
    """The runs of rows that begin with the columns of `runs` or `finished`."""
    alike: dict[tuple[Any, ...], Run] = {}
    runs: list[Run] = []
    for id, row in zip(decode_id_blobs([row[BLOB_COLUMN] for row in rows]), rows, strict=True):
        if _rare(row) != _NOTHING_RARE:
            runs.append(_decode_run(id, row, queues, owners))
            continue
        if (like := alike.get(kind := _kind(row))) is None:
            like = alike[kind] = with_details(_decode_run(id, row, queues, owners), NO_DETAILS)
        run = replace(
            like,
            id=id,
            due_at=row[0],
            fire_at=row[1],
            created_at=row[2],
            lease_expires_at=row[5],
            started_at=row[6],
            payload=row[26],
        )
        details = row[DETAILS_COLUMN]
        runs.append(run if details is None else with_details(run, decode_details(details)))
    return runs


_rare = itemgetter(7, 8, 9, 10, 15, 19, 24, 25, 28, 29, 30, 31, 32, 21)
_kind = itemgetter(12, 13, 14, 16, 17, 18, 3, 4, 23)
"""What most runs of one claim have in common: such a run costs half of what it costs to make a run of a row."""


def _decode_run(id: str, row: Any, queues: Mapping[int, str], owners: Mapping[int, Owner]) -> Run:
    """In history defaults are NULL."""
    (due_at, fire_at, created_at, lease_seconds, token, lease_expires_at, started_at, finished_at, prune_at, start_by,
     execution_seconds, _, queue_id, owner_id, attempt, concurrency_max, priority, state, cause, disposition, _,
     serial, _, worker, concurrency_key, unique_key, payload, details, progress, error, result, history, deadline,
     *_) = row  # fmt: skip
    attempt = 1 if attempt is None else attempt
    rare = None if details is None else decode_details(details)
    job_id, job = (None, None) if owner_id is None else owners[owner_id]
    return Run(
        id=id,
        queue=queues[queue_id],
        fire_at=fire_at,
        due_at=fire_at if due_at is None else due_at,
        created_at=fire_at if created_at is None else created_at,
        state=STATES[state],
        priority=priority or 0,
        job_id=job_id,
        job=job,
        cause=CAUSES[cause or 0],
        payload=payload,
        policy=None if rare is None else rare.policy,
        unique_key=decode_text(unique_key),
        concurrency_key=decode_text(concurrency_key),
        concurrency_max=concurrency_max or 0,
        serial=bool(serial),
        rates=() if rare is None else rare.rates,
        fair=None if rare is None else rare.fair,
        lease_seconds=SAID_LEASE_SECONDS if lease_seconds is None else lease_seconds,
        execution_seconds=execution_seconds,
        start_by=start_by,
        attempt=attempt,
        token=attempt if token is None else token,
        worker=decode_text(worker),
        lease_expires_at=lease_expires_at,
        deadline=deadline,
        started_at=started_at,
        finished_at=finished_at,
        progress=progress,
        error=decode_text(error),
        result=result,
        disposition=None if disposition is None else DISPOSITIONS[disposition],
        fires=1 if rare is None else rare.fires,
        last_fire_at=None if rare is None else rare.last_fire_at,
        prune_at=prune_at,
        history=decode_history(history) if history else (),
    )
