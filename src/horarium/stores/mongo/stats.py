"""Counts by queue, from the indexes that hold unfinished runs alone; and the nodes."""

from __future__ import annotations

from typing import Any

from horarium.clock import SECOND, Instant
from horarium.model import NODES_KEPT, Node
from horarium.ports import QueueStats, Stats
from horarium.stores.counting import counted
from horarium.stores.mongo import queries
from horarium.stores.mongo.connect import delete_many, replace_one
from horarium.stores.mongo.rows import load_node, node_document
from horarium.stores.mongo.session import Document, Session

MANY_JOBS = 50_000
"""The server counts by reading an index. More jobs than this are counted again after a while only."""
COUNTED_AGAIN = 60 * SECOND


async def count(session: Session, now: Instant) -> Stats:
    async with session.at_one_instant(roughly=True) as instant:
        jobs, enabled = await _jobs(session, now, instant)
        ready = await session.group(queries.count_ready(session, now), within=instant)
        claimed = await session.group(queries.count_claimed(session), within=instant)
    waiting = {document["_id"]: document for document in ready}
    running = {document["_id"]: int(document["running"]) for document in claimed}
    queues = (_stats(queue, waiting.get(queue, {}), running.get(queue, 0)) for queue in waiting.keys() | running.keys())
    return counted(jobs, enabled, queues)


async def _jobs(session: Session, now: Instant, instant: Any) -> tuple[int, int]:
    """How many jobs there are, and how many are enabled."""
    if session.job_counts is not None:
        at, jobs, enabled = session.job_counts
        if jobs > MANY_JOBS and at <= now < at + COUNTED_AGAIN:
            return jobs, enabled
    jobs = _count(await session.group(queries.count_jobs(session, enabled=False), within=instant))
    enabled = _count(await session.group(queries.count_jobs(session, enabled=True), within=instant))
    session.job_counts = now, jobs, enabled
    return jobs, enabled


def _count(documents: list[Document]) -> int:
    return sum(int(document["all"]) for document in documents)


def _stats(queue: str, waiting: Document, running: int) -> QueueStats:
    due: int = waiting.get("due", 0)
    first: Any = waiting["first_due_at"] if due else None
    return QueueStats(queue, due, waiting.get("waiting", 0) - due, running, None if first is None else int(first))


async def beat_node(session: Session, node: Node) -> None:
    document = node_document(session, node)
    await session.nodes.bulk_write(
        [
            delete_many({"n": session.namespace, "beat_at": {"$lt": node.beat_at - NODES_KEPT}}),
            replace_one({"_id": document["_id"]}, document, upsert=True),
        ]
    )


async def list_nodes(session: Session, since: Instant) -> list[Node]:
    return [load_node(document) for document in await session.find(queries.list_nodes(session, since))]
