"""How a batch is cut where its items might touch each other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from horarium.model.records import RecordChange

T = TypeVar("T")


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


def record_parts(changes: Sequence[RecordChange]) -> Iterator[list[RecordChange]]:
    """Changes of records that can be made together."""
    return parts(changes, lambda change: change.record.name, lambda change: bool(change.records))
