"""Counts by queue, as a store answers them: of a bounded number of queues, by name."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import nsmallest

from horarium.clock import Instant
from horarium.ports import QUEUES_MAX, QueueStats, Stats


def counted(jobs: int, jobs_enabled: int, queues: Iterable[QueueStats]) -> Stats:
    """Of too many queues those in which a due run has waited longest."""
    found = list(queues)
    left_out = max(0, len(found) - QUEUES_MAX)
    kept = nsmallest(QUEUES_MAX, found, key=_rank) if left_out else found
    return Stats(jobs, jobs_enabled, tuple(sorted(kept, key=_name)), left_out)


def _rank(one: QueueStats) -> tuple[bool, Instant, str]:
    return one.oldest_due_at is None, one.oldest_due_at or 0, one.queue


def _name(one: QueueStats) -> str:
    return one.queue
