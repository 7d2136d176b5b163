"""How a batch is cut where its items might touch each other."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import TypeVar

from horarium.model import Job, Run
from horarium.model.records import Record, RecordChange
from horarium.ports import BATCH_MAX

T = TypeVar("T")

CALL_BYTES_MAX = 4 * 1024 * 1024
"""Payloads, results and progress that one call writes, and that a claim brings: beyond this another call is made. (One
item, or one plan, is never divided.)"""


def weighed_parts(items: Sequence[T], weigh: Callable[[T], tuple[int, int]]) -> Iterator[Sequence[T]]:
    """Items together as long as they move no more rows and bytes than a call may; `weigh` says what an item moves."""
    first = rows = size = 0
    for place, item in enumerate(items):
        its_rows, its_size = weigh(item)
        if place > first and (rows + its_rows > BATCH_MAX or size + its_size > CALL_BYTES_MAX):
            yield items[first:place]
            first, rows, size = place, 0, 0
        rows += its_rows
        size += its_size
    if items:
        yield items[first:]


def parts(items: Sequence[T], key: Callable[[T], str], alone: Callable[[T], bool]) -> Iterator[list[T]]:
    """Runs of neighbours in which no key comes twice; an item for which `alone` holds is a run by itself."""
    part: list[T] = []
    keys: set[str] = set()
    for item in items:
        if part and (key(item) in keys or alone(item) or alone(part[0])):
            yield part
            part, keys = [], set()
        part.append(item)
        keys.add(key(item))
    if part:
        yield part


def unlike(items: Sequence[T], identities: Callable[[T], Sequence[Hashable]]) -> Iterator[list[T]]:
    """Neighbours that share no identity, so that of two that do the first one is kept."""
    part: list[T] = []
    seen: set[Hashable] = set()
    for item in items:
        own = identities(item)
        if not seen.isdisjoint(own):
            yield part
            part, seen = [], set()
        part.append(item)
        seen.update(own)
    if part:
        yield part


def run_identities(run: Run) -> list[Hashable]:
    """What no other run may have."""
    found: list[Hashable] = [run.id]
    if run.unique_key is not None:
        found.append(("key", run.unique_key))
    if run.job_id is not None:
        found.append((run.job_id, run.fire_at))
    return found


def job_identities(job: Job) -> list[Hashable]:
    return [job.id, ("name", job.name)]


def first_of_names(records: Iterable[Record]) -> list[Record]:
    """Of records of one name the first."""
    given: dict[str, Record] = {}
    for record in records:
        given.setdefault(record.name, record)
    return list(given.values())


def record_parts(changes: Sequence[RecordChange]) -> Iterator[list[RecordChange]]:
    """Changes of records that can be made together."""
    return parts(changes, lambda change: change.record.name, lambda change: bool(change.records))
