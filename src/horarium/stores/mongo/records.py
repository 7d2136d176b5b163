"""Records: what `ports.Store` says of them, as functions on a session.

A batch of changes is one transaction: the records of its names are read, the changes are applied in memory, and the
result is written. A concurrent write makes the transaction start again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from operator import attrgetter
from typing import Any

from horarium.model.records import Record, RecordChange, RecordFilter
from horarium.ports import Page
from horarium.stores.batches import first_of_names
from horarium.stores.mongo import record_queries as queries
from horarium.stores.mongo.indexes import RECORDS
from horarium.stores.mongo.rows import load_record, record_document
from horarium.stores.mongo.session import Session
from horarium.stores.mongo.writes import deleting, insert, replacing

AddRecords = Callable[[Session, Sequence[Record], Any], Awaitable[None]]


async def get_records(session: Session, names: Sequence[str]) -> list[Record | None]:
    found = [load_record(session, document) for document in await session.find(queries.get_records(session, names))]
    by_name = {record.name: record for record in found}
    return [by_name.get(name) for name in names]


async def list_records(session: Session, where: RecordFilter, after: str | None, limit: int) -> Page[Record]:
    documents = await session.find(queries.list_records(session, where, after), limit + 1)
    found = [load_record(session, document) for document in documents[: max(limit, 0)]]
    return Page(tuple(found), found[-1].name if len(documents) > limit > 0 else None)


async def put_records(session: Session, changes: Sequence[RecordChange]) -> list[bool]:
    if len(changes) == 1 and _is_single(changes[0]):
        return [await _put_one(session, changes[0])]
    return await session.whole(lambda within: put_records_within(session, changes, within))


def _is_single(change: RecordChange) -> bool:
    """Whether it is about one document that is there or not, as expected: the server writes that as a whole."""
    return not change.records and not (change.deleted and change.expected == 0)


async def _put_one(session: Session, change: RecordChange) -> bool:
    document = record_document(session, change.record)
    if change.expected == 0:
        return (await insert(session.records, [document]))[0]
    found = {"_id": document["_id"], "version": change.expected}
    if change.deleted:
        return bool((await session.records.delete_one(found)).deleted_count)
    return bool((await session.records.replace_one(found, document)).matched_count)


async def put_records_within(session: Session, changes: Sequence[RecordChange], within: Any) -> list[bool]:
    """`put_records` as a part of a transaction."""
    named = [record.name for change in changes for record in (change.record, *change.records)]
    shelf = await _read_shelf(session, named, within)
    answers = [shelf.change(change) for change in changes]
    await _write_shelf(session, shelf, within)
    return answers


async def add_records(session: Session, records: Sequence[Record], within: Any) -> None:
    """Insert records, except those whose names are taken."""
    if records:
        shelf = await _read_shelf(session, [record.name for record in records], within)
        shelf.add(records)
        await _write_shelf(session, shelf, within)


async def insert_records(session: Session, records: Sequence[Record], within: Any) -> None:
    """The same without looking: if a name is taken, the server refuses, and the transaction is over."""
    given = sorted(first_of_names(records), key=attrgetter("name"))
    await session.insert(RECORDS, [record_document(session, record) for record in given], within)


async def prune_records(session: Session, prefix: str, until: str, limit: int) -> int:
    if limit <= 0:
        return 0
    query = queries.list_records(session, RecordFilter(prefix, until=until), None)
    found = await session.find(query, limit, fresh=True)
    if not (keys := [document["_id"] for document in found]):
        return 0
    return int((await session.records.delete_many({"_id": {"$in": keys}})).deleted_count)


async def _read_shelf(session: Session, names: Sequence[str], within: Any) -> Shelf:
    found = await session.find(queries.get_records(session, names, whole=False), within=within)
    return Shelf({document["_id"][len(session.prefix) :]: int(document["version"]) for document in found})


async def _write_shelf(session: Session, shelf: Shelf, within: Any) -> None:
    gone, put = shelf.outcome()
    writes = [replacing(RECORDS, record_document(session, record)) for record in put if not shelf.is_new(record)]
    if gone:
        writes.insert(0, deleting(RECORDS, session.keys(gone)))
    await session.write(writes, within)
    # Most are new, as each entry of the audit is: many are inserted at a third of what it takes to look for each.
    await session.insert(RECORDS, [record_document(session, each) for each in put if shelf.is_new(each)], within)


class Shelf:
    """Some records, by their names and versions, and what becomes of them."""

    def __init__(self, versions: dict[str, int]) -> None:
        self._stored = frozenset(versions)
        self._versions = versions
        self._put: dict[str, Record | None] = {}

    def change(self, change: RecordChange) -> bool:
        """Make a change if the record has the version expected."""
        name = change.record.name
        if self._versions.get(name, 0) != change.expected:
            return False
        if change.deleted:
            self._put[name] = None
            self._versions.pop(name, None)
        else:
            self._put[name] = change.record
            self._versions[name] = change.record.version
        self.add(change.records)
        return True

    def add(self, records: Sequence[Record]) -> None:
        """Insert records, except those whose names are taken."""
        for record in records:
            if record.name not in self._versions:
                self._put[record.name] = record
                self._versions[record.name] = record.version

    def is_new(self, record: Record) -> bool:
        """Whether no record of this name is stored."""
        return record.name not in self._stored

    def outcome(self) -> tuple[list[str], list[Record]]:
        """The names that are gone, and the records to write, in the order of their names."""
        names = sorted(self._put)
        return [name for name in names if self._put[name] is None], [
            record for name in names if (record := self._put[name]) is not None
        ]
