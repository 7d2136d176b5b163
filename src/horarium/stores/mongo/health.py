"""The health of jobs: what `ports.Store` says of it, as functions on a session.

It is counted by the command that follows the one which wrote the ends, outside of any transaction: there, many nodes
that write one document make each other begin again. A node that dies between the two leaves what it wrote uncounted.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from horarium.model import NO_HEALTH, Health, RunChange
from horarium.model.health import health_after
from horarium.stores.encoding import decode_health, health_row
from horarium.stores.mongo.connect import update_one
from horarium.stores.mongo.indexes import HEALTH, PRESENT
from horarium.stores.mongo.session import Document, Query, Session
from horarium.stores.mongo.writes import insert
from horarium.triggers.words import counted

FIELDS = ("run_id", "state", "finished_at", "error", "last_success_at", "failures", "failing_since")

log = logging.getLogger("horarium.mongo")


async def count_ends(session: Session, written: Iterable[RunChange]) -> None:
    """What these changes, which were written, end: `model.health.merged`, by the server. If it fails, they are written
    all the same, and the caller is told so."""
    from pymongo.errors import PyMongoError

    ended = health_after(written)
    writes = [
        update_one({"_id": session.key(job_id)}, _merging(session, ended[job_id]), upsert=True)
        for job_id in sorted(ended)
    ]
    try:
        if writes:
            await session.database[HEALTH].bulk_write(writes, ordered=False)
    except PyMongoError as error:
        log.warning("ends of runs are not counted in the health of %s: %s", counted(len(writes), "job"), error)


def _merging(session: Session, later: Health) -> list[Document]:
    told: Document = {"n": {"$literal": session.namespace}}
    told.update((name, {"$literal": value}) for name, value in _fields(later).items())
    if later.last_success_at is None:
        told["failures"] = {"$add": [{"$ifNull": ["$failures", 0]}, later.failures_in_a_row]}
        if "failing_since" in told:
            told["failing_since"] = {"$ifNull": ["$failing_since", told["failing_since"]]}
    kept = () if later.last_success_at is not None else ("last_success_at", "failing_since")
    gone = [name for name in FIELDS if name not in told and name not in kept]
    steps: list[Document] = [{"$set": told}]
    return [*steps, {"$unset": gone}] if gone else steps


async def job_health(session: Session, job_ids: Sequence[str]) -> dict[str, Health]:
    query = Query(collection=HEALTH, index=None, where={"_id": {"$in": session.keys(job_ids)}})
    return dict.fromkeys(job_ids, NO_HEALTH) | _by_job(session, await session.find(query))


async def failing_jobs(session: Session, limit: int) -> dict[str, Health]:
    where = {"n": session.namespace, "failing_since": PRESENT}
    query = Query(collection=HEALTH, index="jobs_failing", where=where)
    return _by_job(session, await session.find(query, limit)) if limit > 0 else {}


async def add_health(session: Session, health: Mapping[str, Health]) -> None:
    documents = [
        {"_id": session.key(job_id), "n": session.namespace, **_fields(each)}
        for job_id, each in health.items()
        if each != NO_HEALTH
    ]
    if documents:
        await insert(session.database[HEALTH], documents)


async def delete_health(session: Session, keys: Sequence[str]) -> None:
    """Of the jobs with these keys."""
    await session.database[HEALTH].delete_many({"_id": {"$in": keys}})


def _fields(health: Health) -> dict[str, Any]:
    """Without those that are not there."""
    return {name: value for name, value in zip(FIELDS, health_row(health), strict=True) if value is not None}


def _by_job(session: Session, documents: Iterable[Document]) -> dict[str, Health]:
    return {
        document["_id"][len(session.prefix) :]: decode_health([document.get(name) for name in FIELDS])
        for document in documents
    }
