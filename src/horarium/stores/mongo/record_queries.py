"""The filters of records, as values (see `queries`)."""

from __future__ import annotations

from collections.abc import Iterable

from horarium.model.records import RecordFilter
from horarium.stores.mongo.indexes import PRESENT, RECORDS
from horarium.stores.mongo.rows import label
from horarium.stores.mongo.session import Document, Query, Session


def get_records(session: Session, names: Iterable[str], *, whole: bool = True) -> Query:
    fields = None if whole else {"version": True}
    return Query(collection=RECORDS, index=None, where={"_id": {"$in": session.keys(names)}}, fields=fields)


def list_records(session: Session, where: RecordFilter, after: str | None) -> Query:
    """Walks the names one way or the other: of one label if there is any, the rest being looked at in each record."""
    prefix = session.key(where.prefix)
    end = _successor(prefix) if where.until is None else min(_successor(prefix), prefix + where.until)
    bounds: Document = {"$gte": prefix + where.since, "$lt": end}
    if after is not None and where.descending:
        bounds["$lt"] = min(end, session.key(after))
    elif after is not None:
        bounds["$gt"] = session.key(after)
    found: Document = {"_id": bounds}
    if where.labels:
        found["n"] = session.namespace
        found["labels"] = {**PRESENT, "$all": [label(key, value) for key, value in where.labels.items()]}
    index = "records_labelled" if where.labels else "_id_"
    return Query(collection=RECORDS, index=index, where=found, sort=[("_id", -1 if where.descending else 1)])


def _successor(text: str) -> str:
    """The lowest text above all that begin with this one, which does not end in the last character there is."""
    text = text.rstrip("\U0010ffff")
    last = ord(text[-1]) + 1
    return text[:-1] + chr(0xE000 if last == 0xD800 else last)
