"""Writes as values: sent in a transaction of the server's, or stored as an intent first where it has none.

Each may be repeated: carried out once more, with nothing written in between, it changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any

from msgspec import Struct

from horarium.stores.mongo import connect

Document = dict[str, Any]


class Write(Struct, frozen=True):
    """One write. `change`: None deletes the document, a list is a pipeline that updates it, a document replaces it;
    `new`: it is inserted where it is not there, and found by its `_id`."""

    collection: str
    where: Document
    change: Document | list[Document] | None = None
    new: bool = False

    @property
    def single(self) -> bool:
        """Whether it is about one document, which the server writes as a whole."""
        return isinstance(self.where.get("_id"), str)

    def sent(self) -> Any:
        """As the driver takes it."""
        if self.change is None:
            return connect.delete_many(self.where)
        if isinstance(self.change, list):
            return connect.update_many(self.where, self.change)
        return connect.replace_one(self.where, self.change, upsert=self.new)


def replacing(collection: str, document: Document, *, new: bool = False) -> Write:
    """Put a whole document in the place of the one with its `_id`."""
    return Write(collection, {"_id": document["_id"]}, document, new)


def updating(collection: str, keys: Sequence[str], change: list[Document]) -> Write:
    return Write(collection, _these(keys), change)


def deleting(collection: str, keys: Sequence[str]) -> Write:
    return Write(collection, _these(keys))


def _these(keys: Sequence[str]) -> Document:
    return {"_id": keys[0] if len(keys) == 1 else {"$in": list(keys)}}


async def carry_out(database: Any, writes: Iterable[Write], how: Any = None, within: Any = None) -> None:
    """In their order. `how`: the write concern, unless the database has the right one."""
    for collection, some in groupby(writes, key=attrgetter("collection")):
        target = database.get_collection(collection, write_concern=how)
        await target.bulk_write([write.sent() for write in some], session=within)


def packed(writes: Sequence[Write]) -> bytes:
    return connect.encode({"writes": [[write.collection, write.where, write.change, write.new] for write in writes]})


def unpacked(body: bytes) -> list[Write]:
    """What `packed` made bytes of."""
    return [Write(*parts) for parts in connect.decode(body)["writes"]]


async def insert(collection: Any, documents: Sequence[Document]) -> list[bool]:
    """Insert each document that no unique index refuses. The server tells which those are."""
    try:
        await collection.insert_many(documents, ordered=False)
    except Exception as error:
        refused = connect.duplicates(error)
        if refused is None:
            raise
        left_out = frozenset(refused)
        return [place not in left_out for place in range(len(documents))]
    return [True] * len(documents)
