"""Records: what `ports.Store` says of them, as functions on a session inside a transaction, which writes alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

import apsw

from horarium.model import Job, Run
from horarium.model.records import Record, RecordChange, RecordFilter
from horarium.ports import Along, Page
from horarium.stores.batches import first_of_names, record_parts
from horarium.stores.encoding import decode_record, encode_json, label_bytes, record_bounds
from horarium.stores.sqlite.session import Row, Session

T = TypeVar("T", Job, Run)


def get_records(session: Session, names: Sequence[str]) -> list[Record | None]:
    found = map(decode_record, session.rows("get_records", session.namespace_id, _blobs(names)))
    by_name = {record.name: record for record in found}
    return [by_name.get(name) for name in names]


def list_records(session: Session, where: RecordFilter, after: str | None, limit: int) -> Page[Record]:
    query = "list_records"
    values: Row = (session.namespace_id, *record_bounds(where, after), limit + 1)
    if where.labels:
        labels = label_bytes(where.labels)
        query, values = "list_records_labelled", (*values, labels[0], apsw.carray(tuple(labels)))
    rows = session.rows(f"{query}_down" if where.descending else query, *values)
    found = [decode_record(row) for row in rows[: max(limit, 0)]]
    return Page(tuple(found), found[-1].name if len(rows) > limit > 0 else None)


def put_records(session: Session, changes: Sequence[RecordChange]) -> list[bool]:
    return [answer for part in record_parts(changes) for answer in _put_part(session, part)]


def _put_part(session: Session, changes: Sequence[RecordChange]) -> list[bool]:
    versions = _versions(session, [change.record.name for change in changes])
    answers = [versions.get(change.record.name, 0) == change.expected for change in changes]
    won = [change for change, wins in zip(changes, answers, strict=True) if wins]
    _delete(session, [change.record.name for change in won if change.expected])
    _insert(session, [change.record for change in won if not change.deleted])
    add_records(session, [record for change in won for record in change.records])
    return answers


def add_records(session: Session, records: Iterable[Record]) -> None:
    """Insert records, except those whose names are taken."""
    if given := first_of_names(records):
        _insert(session, given)


def add_along(session: Session, items: Sequence[T], added: Sequence[bool], along: Along) -> None:
    """Insert the records of the items that were added."""
    if along:
        won = [item.id for item, did in zip(items, added, strict=True) if did]
        add_records(session, (record for item_id in won for record in along.get(item_id, ())))


def prune_records(session: Session, prefix: str, until: str, limit: int) -> int:
    bounds = record_bounds(RecordFilter(prefix, until=until), None)
    names = [row[0].decode() for row in session.rows("old_records", session.namespace_id, *bounds, max(limit, 0))]
    _delete(session, names)
    return len(names)


def _versions(session: Session, names: Sequence[str]) -> dict[str, int]:
    rows = session.rows("record_versions", session.namespace_id, _blobs(names))
    return {name.decode(): version for name, version in rows}


def _insert(session: Session, records: Sequence[Record]) -> None:
    """Insert these, except those whose names are taken."""
    rows = [(record.name.encode(), record.version, encode_json(record.labels), record.body) for record in records]
    if len(rows) == 1:
        new = {rows[0][0]} if session.change_rows("add_records", rows, session.namespace_id) else set()
    else:
        new = set(session.first_of_rows("add_records_told", rows, session.namespace_id))
    labels = [
        (row[0], label)
        for row, record in zip(rows, records, strict=True)
        if row[0] in new
        for label in label_bytes(record.labels)
    ]
    session.change_rows("add_record_labels", labels, session.namespace_id)


def _delete(session: Session, names: Sequence[str]) -> None:
    if names:
        session.change("delete_records", session.namespace_id, _blobs(names))
        session.change("delete_record_labels", session.namespace_id, _blobs(names))


def _blobs(names: Sequence[str]) -> object:
    return apsw.carray(tuple(name.encode() for name in names))
