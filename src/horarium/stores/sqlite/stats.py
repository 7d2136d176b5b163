"""Counts by queue, from the indexes that hold unfinished runs alone."""

from __future__ import annotations

from collections import defaultdict

from msgspec import Struct

from horarium.clock import Instant
from horarium.ports import QueueStats, Stats
from horarium.stores.counting import counted
from horarium.stores.sqlite.session import Session


class _Count(Struct):
    due: int = 0
    waiting: int = 0
    running: int = 0
    first_due_at: Instant | None = None


def count(session: Session, now: Instant) -> Stats:
    counts: defaultdict[int, _Count] = defaultdict(_Count)
    for query in ("count_ready", "count_gated"):
        for queue_id, due, waiting, first_due_at in session.array(query, session.namespace_id, now):
            one = counts[queue_id]
            one.due += due
            one.waiting += waiting
            one.first_due_at = min(first_due_at, one.first_due_at or first_due_at)
    for queue_id, running in session.array("count_claimed", session.namespace_id):
        counts[queue_id].running = running
    names = session.queue_names(counts)
    jobs, jobs_enabled = session.array("count_jobs", session.namespace_id)
    queues = (_stats(names[queue_id], one) for queue_id, one in counts.items())
    return counted(jobs, jobs_enabled, queues)


def _stats(queue: str, one: _Count) -> QueueStats:
    return QueueStats(queue, one.due, one.waiting - one.due, one.running, one.first_due_at if one.due else None)
