"""Records: what `ports.Store` says of them, as functions on a session; what writes is inside a transaction.

Two transactions that insert the same name wait for each other at its index, and the second one inserts nothing; so what
counts is what an insert says that it did. Names are sent in order, so that waiting never goes round.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from horarium.model import Job, Run
from horarium.model.records import Record, RecordChange, RecordFilter
from horarium.ports import Along, Page
from horarium.stores.batches import first_of_names, record_parts
from horarium.stores.encoding import decode_record, encode_json, label_bytes, record_bounds
from horarium.stores.postgres.session import Session

T = TypeVar("T", Job, Run)


async def get_records(session: Session, names: Sequence[str]) -> list[Record | None]:
    found = map(decode_record, await session.rows("get_records", session.namespace_id, _blobs(names)))
    by_name = {record.name: record for record in found}
    return [by_name.get(name) for name in names]


async def list_records(session: Session, where: RecordFilter, after: str | None, limit: int) -> Page[Record]:
    query = "list_records"
    values: Sequence[Any] = (session.namespace_id, *record_bounds(where, after), limit + 1)
    if where.labels:
        labels = label_bytes(where.labels)
        query, values = "list_records_labelled", (*values, labels[0], labels)
    rows = await session.rows(f"{query}_down" if where.descending else query, *values)
    found = [decode_record(row) for row in rows[: max(limit, 0)]]
    return Page(tuple(found), found[-1].name if len(rows) > limit > 0 else None)


async def put_records(session: Session, changes: Sequence[RecordChange]) -> list[bool]:
    return [answer for part in record_parts(changes) for answer in await _put_part(session, part)]


async def _put_part(session: Session, changes: Sequence[RecordChange]) -> list[bool]:
    rows = await session.rows("record_versions", session.namespace_id, _blobs(change.record.name for change in changes))
    versions = {row[0].decode(): row[1] for row in rows}
    hopeful = [change for change in changes if versions.get(change.record.name, 0) == change.expected]
    await _delete(session, _blobs(change.record.name for change in hopeful if change.expected))
    added = await _insert(session, [change.record for change in hopeful if not change.deleted])
    won = [change for change in hopeful if change.deleted or change.record.name in added]
    await add_records(session, [record for change in won for record in change.records])
    names = {change.record.name for change in won}
    return [change.record.name in names for change in changes]


async def add_records(session: Session, records: Iterable[Record]) -> None:
    """Insert records, except those whose names are taken."""
    await _insert(session, first_of_names(records))


async def add_along(session: Session, items: Sequence[T], added: Sequence[bool], along: Along) -> None:
    """Insert the records of the items that were added."""
    if along:
        won = [item.id for item, did in zip(items, added, strict=True) if did]
        await add_records(session, [record for item_id in won for record in along.get(item_id, ())])


async def prune_records(session: Session, prefix: str, until: str, limit: int) -> int:
    bounds = record_bounds(RecordFilter(prefix, until=until), None)
    names = [row[0] for row in await session.rows("old_records", session.namespace_id, *bounds, max(limit, 0))]
    await _delete(session, names)
    return len(names)


async def _insert(session: Session, records: Sequence[Record]) -> set[str]:
    """The names of those inserted. No name comes twice."""
    if not records:
        return set()
    rows = sorted((record.name.encode(), record.version, encode_json(record.labels), record.body) for record in records)
    columns = [list(column) for column in zip(*rows, strict=True)]
    added = {row[0].decode() for row in await session.rows("add_records", session.namespace_id, *columns)}
    labels = [
        (record.name.encode(), label)
        for record in records
        if record.name in added
        for label in label_bytes(record.labels)
    ]
    if labels:
        names, texts = [name for name, _ in labels], [label for _, label in labels]
        await session.change("add_record_labels", session.namespace_id, names, texts)
    return added


async def _delete(session: Session, names: Sequence[bytes]) -> None:
    if names:
        await session.change("delete_record_labels", session.namespace_id, names)
        await session.change("delete_records", session.namespace_id, names)


def _blobs(names: Iterable[str]) -> list[bytes]:
    return sorted({name.encode() for name in names})
