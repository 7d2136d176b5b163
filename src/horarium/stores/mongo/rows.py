"""Runs, jobs, nodes and records as documents, and back.

A field that has its default is left out, so that a document is small and is in no index that does not need it.
The numbers for states, causes and dispositions are part of the schema: they may grow, never change. Free text that a
target reports may hold anything Python can hold, lone surrogates too, so it is kept as bytes. Names that users give
never become field names. The driver gives 64-bit numbers a class of its own, which must not leave this module.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

import msgspec
from msgspec.structs import replace

from horarium.clock import SECOND
from horarium.model import Job, Node, Run, RunPolicy
from horarium.model.records import Record
from horarium.policies import Rate
from horarium.stores.encoding import (
    CAUSE_NUMBERS,
    CAUSES,
    DISPOSITION_NUMBERS,
    DISPOSITIONS,
    STATE_NUMBERS,
    STATES,
    decode_history,
    decode_text,
    encode_history,
    encode_json,
    encode_text,
    is_plain,
)
from horarium.stores.mongo.session import Document, Session

_decode_job = msgspec.json.Decoder(Job).decode
_decode_node = msgspec.json.Decoder(Node).decode
_decode_policy = msgspec.json.Decoder(RunPolicy).decode
_decode_rates = msgspec.json.Decoder(tuple[Rate, ...]).decode


# ---- jobs and nodes ---------------------------------------------------------------------------------------------


def label(key: str, value: str) -> Document:
    """A label as it is stored and as it is looked for: the order of its two fields counts."""
    return {"k": key, "v": value}


def job_document(session: Session, job: Job, version: int) -> Document:
    """`definition` is the whole job as JSON; the other fields repeat what queries look at."""
    stored = job if job.version == version else replace(job, version=version)
    document: Document = {
        "_id": session.key(job.id),
        "n": session.namespace,
        "name": job.name,
        "version": version,
        "enabled": job.active,
        "deleted": job.deleted_at is not None,
        "planned_until": job.planned_until,
        "definition": encode_json(stored).decode(),
    }
    if job.retention.runs_max is not None:
        document["runs_kept"] = True
    if job.finished_at is not None:
        document["finished"] = True
    if job.next_fire_at is not None:
        document["next_fire_at"] = job.next_fire_at
    if job.labels:
        document["labels"] = [label(key, value) for key, value in job.labels.items()]
    return document


def load_job(document: Document) -> Job:
    return _decode_job(document["definition"])


def node_document(session: Session, node: Node) -> Document:
    return {
        "_id": session.key(node.name),
        "n": session.namespace,
        "name": node.name,
        "beat_at": node.beat_at,
        "definition": encode_json(node).decode(),
    }


def load_node(document: Document) -> Node:
    return _decode_node(document["definition"])


def record_document(session: Session, record: Record) -> Document:
    document: Document = {
        "_id": session.key(record.name),
        "n": session.namespace,
        "version": record.version,
        "body": record.body,
    }
    if record.labels:
        document["labels"] = [label(key, value) for key, value in record.labels.items()]
    return document


def load_record(session: Session, document: Document) -> Record:
    labels = {pair["k"]: pair["v"] for pair in document.get("labels", ())}
    name, version = document["_id"][len(session.prefix) :], int(document["version"])
    return Record(name=name, body=bytes(document["body"]), labels=labels, version=version)


# ---- runs: to documents -----------------------------------------------------------------------------------------


def run_document(session: Session, run: Run, mark: Any) -> Document:
    """A new run. `mark` names the write that it comes with."""
    micros = round(run.lease_seconds * SECOND)
    document: Document = {
        "_id": session.prefix + run.id,
        "n": session.namespace,
        "queue": run.queue,
        "state": STATE_NUMBERS[run.state],
        "priority": run.priority,
        "due_at": run.due_at,
        "fire_at": run.fire_at,
        "created_at": run.created_at,
        "cause": CAUSE_NUMBERS[run.cause],
        "lease_micros": micros,
        "attempt": run.attempt,
        "token": run.token,
        "mark": mark,
    }
    if run.job_id is not None:
        document["job_id"] = run.job_id
    if run.job is not None:
        document["job"] = run.job
    if run.payload is not None:
        document["payload"] = run.payload
    if micros / SECOND != run.lease_seconds:
        document["lease_seconds"] = run.lease_seconds
    if not is_plain(run):
        document.update(_rest(run))
    return document


def _rest(run: Run) -> Document:
    """What few new runs have. `gated`: a key, or the order of its job, may hold it back."""
    rest: Document = {
        "policy": None if run.policy is None else encode_json(run.policy),
        "unique_key": run.unique_key,
        "concurrency_key": run.concurrency_key,
        "concurrency_max": run.concurrency_max if run.concurrency_max or run.concurrency_key is not None else None,
        "serial": run.serial or None,
        "rates": encode_json(run.rates) if run.rates else None,
        "fair": run.fair,
        "gated": run.is_gated or None,
        "gate": gate_of(run),
        "execution_seconds": run.execution_seconds,
        "execution_micros": None if run.execution_seconds is None else round(run.execution_seconds * SECOND),
        "fires": None if run.fires == 1 else run.fires,
        "last_fire_at": run.last_fire_at,
        **changing_fields(run),
    }
    return {name: value for name, value in rest.items() if value is not None}


def gate_of(run: Run) -> str | None:
    """The gate of the run, in the order of claims: runs of one gate are admitted in turn, or none of them is."""
    in_order = run.serial and run.job_id is not None
    if not in_order and run.concurrency_key is None:
        return None
    key = "" if run.concurrency_key is None else f"{run.concurrency_max}={run.concurrency_key}"
    return f"{run.priority}/{run.job_id if in_order else ''}/{key}"


def changing_fields(run: Run) -> Document:
    """Everything that a change may write. None: the field is not there."""
    return {
        "state": STATE_NUMBERS[run.state],
        "due_at": run.due_at,
        "attempt": run.attempt,
        "worker": run.worker,
        "lease_expires_at": run.lease_expires_at,
        "deadline": run.deadline,
        "started_at": run.started_at,
        "finished_at": run.finished_at,
        "progress": run.progress,
        "error": encode_text(run.error),
        "result": run.result,
        "disposition": DISPOSITION_NUMBERS[run.disposition],
        "prune_at": run.prune_at,
        "history": encode_history(run),
        "start_by": run.start_by,
        "token": run.token,
    }


def changing_columns(runs: Sequence[Run]) -> dict[str, list[Any]]:
    """The same by field: the values of these runs."""
    columns = {name: list(map(attrgetter(name), runs)) for name in CHANGING}
    for name, encode in _ENCODED:
        columns[name] = list(map(encode, columns[name]))
    columns["history"] = [encode_history(run) for run in runs]
    return columns


def change_operators(fields: Document, mark: Any) -> Document:
    """An update that writes these fields, and removes those that are None."""
    written = {name: value for name, value in fields.items() if value is not None}
    removed = {name: True for name, value in fields.items() if value is None}
    operators: Document = {"$set": {**written, "mark": mark}}
    if removed:
        operators["$unset"] = removed
    return operators


CHANGING = tuple(changing_fields(Run(id="", queue="", fire_at=0, due_at=0, created_at=0)))
"""The fields that a change writes."""

_ENCODED: tuple[tuple[str, Callable[[Any], Any]], ...] = (
    ("state", STATE_NUMBERS.__getitem__),
    ("error", encode_text),
    ("disposition", DISPOSITION_NUMBERS.__getitem__),
)


# ---- runs: from documents ---------------------------------------------------------------------------------------


def load_runs(session: Session, documents: Sequence[Document]) -> list[Run]:
    """The runs of these documents, in this order."""
    skip = len(session.prefix)
    alike: dict[tuple[Any, ...], Run] = {}
    runs: list[Run] = []
    for document in documents:
        names = tuple(document)
        kind = (names, *map(document.get, _SHARED))
        if (like := alike.get(kind)) is None:
            runs.append(load_run(document, skip))
            if PLAIN.issuperset(names):
                alike[kind] = runs[-1]
        else:
            runs.append(
                replace(
                    like,
                    id=document["_id"][skip:],
                    fire_at=int(document["fire_at"]),
                    due_at=int(document["due_at"]),
                    created_at=int(document["created_at"]),
                    job_id=document.get("job_id"),
                    job=document.get("job"),
                    payload=document.get("payload"),
                    lease_expires_at=_whole(document.get("lease_expires_at")),
                    started_at=_whole(document.get("started_at")),
                )
            )
    return runs


_SHARED = ("queue", "state", "priority", "cause", "lease_micros", "attempt", "token", "worker")
"""What most runs of one claim have in common: such a run costs a third of what it costs to make a run of a document."""
_OWN = (
    "_id", "n", "mark", "job_id", "job", "fire_at", "due_at", "created_at", "payload", "lease_expires_at", "started_at",
)  # fmt: skip
PLAIN = frozenset((*_SHARED, *_OWN))
"""The fields of a run that has nothing rare."""


def load_run(document: Document, skip: int) -> Run:
    """The run of a document whose `_id` begins with a prefix of `skip` characters."""
    get = document.get
    micros, seconds = document["lease_micros"], get("lease_seconds")
    disposition, error, history, policy = get("disposition"), get("error"), get("history"), get("policy")
    return Run(
        id=document["_id"][skip:],
        queue=document["queue"],
        fire_at=int(document["fire_at"]),
        due_at=int(document["due_at"]),
        created_at=int(document["created_at"]),
        state=STATES[document["state"]],
        priority=document["priority"],
        job_id=get("job_id"),
        job=get("job"),
        cause=CAUSES[document["cause"]],
        payload=get("payload"),
        policy=None if policy is None else _decode_policy(policy),
        unique_key=get("unique_key"),
        concurrency_key=get("concurrency_key"),
        concurrency_max=get("concurrency_max", 0),
        serial=get("serial", False),
        rates=() if (rates := get("rates")) is None else _decode_rates(rates),
        fair=get("fair"),
        lease_seconds=micros / SECOND if seconds is None else seconds,
        execution_seconds=get("execution_seconds"),
        start_by=_whole(get("start_by")),
        attempt=int(document["attempt"]),
        token=int(document["token"]),
        worker=get("worker"),
        lease_expires_at=_whole(get("lease_expires_at")),
        deadline=_whole(get("deadline")),
        started_at=_whole(get("started_at")),
        finished_at=_whole(get("finished_at")),
        progress=get("progress"),
        error=decode_text(error),
        result=get("result"),
        disposition=None if disposition is None else DISPOSITIONS[disposition],
        fires=int(get("fires", 1)),
        last_fire_at=_whole(get("last_fire_at")),
        prune_at=_whole(get("prune_at")),
        history=() if history is None else decode_history(history),
    )


def _whole(value: Any) -> int | None:
    return None if value is None else int(value)
