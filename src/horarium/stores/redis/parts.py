"""Large batches become several calls: what one call may move."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

from horarium.model import Plan, Run, RunChange
from horarium.model.records import Record, RecordChange
from horarium.ports import BATCH_MAX, Beat
from horarium.stores.batches import CALL_BYTES_MAX
from horarium.stores.encoding import are_alike, comes_alone, kinds_of_end

T = TypeVar("T")


def parts(items: Sequence[T], size: int = BATCH_MAX) -> Iterator[Sequence[T]]:
    return (items[first : first + size] for first in range(0, len(items), size))


def rows_of(run: Run) -> int:
    """How many rows a run that is added counts for: a job, and even more a concurrency key, may be another one for each
    and has indexes of its own."""
    if run.concurrency_key is not None:
        return 8
    return 1 if run.job_id is None else 4


def ends_of_call(changes: Sequence[RunChange]) -> int:
    """How many of these changes go into one call. It holds up all others, for less than 10 ms as a rule."""
    if any(change.run.concurrency_key is not None for change in changes):
        return 125
    return 500 if any(change.run.job_id is not None for change in changes) else BATCH_MAX


HISTORY_SHORT = 4
"""Up to this number of lines the history of a run counts for nothing."""


def size_of_end(run: Run) -> int:
    """How many bytes say how a run ended, about."""
    size = len(run.result or b"") + len(run.progress or b"")
    if len(run.history) <= HISTORY_SHORT:
        return size
    return size + sum(len(line.message) + len(line.detail or "") for line in run.history)


def weight_of_run(run: Run) -> tuple[int, int]:
    return rows_of(run), len(run.payload or b"") + size_of_end(run)


def weight_of_change(change: RunChange) -> tuple[int, int]:
    run = change.run
    if comes_alone(change):
        return 1, size_of_end(run)
    along = [*map(weight_of_run, change.follow_ups), *map(weight_of_record, change.records)]
    return 1 + len(along), size_of_end(run) + sum(size for _, size in along)


def weight_of_beat(beat: Beat) -> tuple[int, int]:
    return 1, len(beat.progress or b"")


def weight_of_record(record: Record) -> tuple[int, int]:
    return 1, len(record.body)


def weight_of_record_change(change: RecordChange) -> tuple[int, int]:
    weights = [*map(weight_of_record, (change.record, *change.records))]
    return len(weights), sum(size for _, size in weights)


def weight_of_plan(plan: Plan) -> tuple[int, int]:
    weights = [*map(weight_of_run, plan.runs), *map(weight_of_change, plan.changes)]
    weights += map(weight_of_record, plan.records)
    weights += (weight_of_record(record) for records in plan.along.values() for record in records)
    rows = 1 + sum(rows for rows, _ in weights) + len(plan.withdrawals)
    return rows, sum(size for _, size in weights)


def kinds_of_call(changes: Sequence[RunChange]) -> list[list[RunChange]]:
    """These changes by kind; none if it takes one call for each change to say them, or several for what they write, or
    if a run comes twice."""
    if not (all(map(comes_alone, changes)) and are_alike(changes)):
        return []
    if len({change.run.id for change in changes}) < len(changes):
        return []
    kinds = kinds_of_end(changes)
    return kinds if sum(len(kind) * weight_of_change(kind[0])[1] for kind in kinds) <= CALL_BYTES_MAX else []
