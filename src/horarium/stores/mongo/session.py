"""The collections of one database, seen through one namespace; and transactions.

A transaction that the server aborts (another one wrote the same document first) is retried from its beginning, after a
longer pause each time. The first writer goes on, so one of several always succeeds; writes are made in the order of
`_id`, so that two batches can't stop each other again and again. A transaction that a dead node left is ended by the
node that it blocks.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar
from urllib.parse import quote

from msgspec import Struct

from horarium.clock import Instant
from horarium.errors import StoreUnavailable
from horarium.ports import BATCH_MAX
from horarium.stores.mongo.alone import Hold
from horarium.stores.mongo.connect import Location, commit, concerns, duplicates, end_abandoned, is_transient
from horarium.stores.mongo.indexes import GATES, HEALTH, JOBS, NODES, RECORDS, RUNS
from horarium.stores.mongo.writes import Write, carry_out, replacing

T = TypeVar("T")
Document = dict[str, Any]

TRIES_MAX = 20
PAUSE_SECONDS_MIN, PAUSE_SECONDS_MAX = 0.002, 0.05


Sort = list[tuple[str, int]]
Pipeline = list[Document]


class Query(Struct, frozen=True, kw_only=True):
    """A find: in which collection, by which index (None: by whole `_id`s), what, in which order, and which fields
    (None: all). The index is named, so that a plan can't change with what the server happens to have seen."""

    collection: str
    index: str | None
    where: Document
    sort: Sort = []
    fields: Document | None = None


class Grouping(Struct, frozen=True):
    """An aggregation, and the index that it begins with."""

    collection: str
    index: str
    pipeline: Pipeline


class Contended(Exception):
    """Others wrote the same document at each try; or one began to and has been silent since, but not for long enough
    to be taken for dead. Nothing is written. Never leaves the store."""


class Lost(Exception):
    """A transaction met something that it had assumed absent; nothing of it is written."""


class Unwritten(Exception):
    """Ends a transaction that has written nothing: a commit would wait for the journal all the same. `answer`: what the
    transaction gives. Never leaves the store."""

    def __init__(self, answer: Any) -> None:
        super().__init__()
        self.answer = answer


class Session:
    """Where the functions of the store find everything. `hold`: of a standalone server, which has no transactions."""

    def __init__(self, client: Any, location: Location, namespace: str, hold: Hold | None = None) -> None:
        self.hold = hold
        self.location = location
        self.namespace = namespace
        # Percent-encoded, a namespace holds no slash, so no two prefixes begin alike.
        self.prefix = quote(namespace, safe="") + "/"
        self.end = self.prefix[:-1] + "0"
        self.database = client[location.database]
        majority, self._snapshot = concerns()
        self.runs, self.jobs, self.nodes, self.gates, self.records = (
            self.database[name] for name in (RUNS, JOBS, NODES, GATES, RECORDS)
        )
        self._majority = {
            name: self.database.get_collection(name, read_concern=majority)
            for name in (RUNS, JOBS, NODES, RECORDS, HEALTH)
        }
        self._gate = asyncio.Lock()
        self.job_counts: tuple[Instant, int, int] | None = None

    @property
    def client(self) -> Any:
        """The driver's, of this store alone."""
        return self.database.client

    def key(self, text: str) -> str:
        """The `_id` of this name in this namespace."""
        return self.prefix + text

    def keys(self, texts: Iterable[str]) -> list[str]:
        """Several of them, each once, in order."""
        return [self.prefix + text for text in sorted(set(texts))]

    # -- reading

    async def find(
        self, query: Query, limit: int = 0, *, skip: int = 0, within: Any = None, fresh: bool = False
    ) -> list[Document]:
        """All that the query finds, at most `limit` (0: no limit). `within`: a transaction, or a snapshot.
        `fresh`: as the primary has it now, confirmed by a majority or not: only to look for what to write."""
        collection = self._collection(query.collection, within, fresh)
        cursor = collection.find(
            query.where, query.fields, sort=query.sort or None, skip=skip, limit=limit, session=self.real(within)
        )
        # One more than fits, so that the server closes the cursor with its first answer.
        cursor.batch_size((limit or BATCH_MAX) + 1)
        if query.index is not None:
            cursor.hint(query.index)
        found: list[Document] = await cursor.to_list()
        return found

    async def first(self, query: Query, *, within: Any = None) -> Any:
        """The only field of the first document, or None."""
        for document in await self.find(query, 1, within=within):
            return int(next(iter(document.values())))
        return None

    async def group(self, grouping: Grouping, *, within: Any = None) -> list[Document]:
        """What the aggregation gives."""
        collection = self._collection(grouping.collection, within, False)
        cursor = await collection.aggregate(
            grouping.pipeline, hint=grouping.index, session=self.real(within), batchSize=BATCH_MAX + 1
        )
        found: list[Document] = await cursor.to_list()
        return found

    def _collection(self, name: str, within: Any, fresh: bool) -> Any:
        """A transaction brings its own read concern."""
        return self.database[name] if fresh or within is not None else self._majority[name]

    def real(self, within: Any) -> Any:
        """The driver's own session of a transaction, where the server has them."""
        return within if self.hold is None else None

    @asynccontextmanager
    async def at_one_instant(self, *, roughly: bool = False) -> AsyncIterator[Any]:
        """Several readings of the same state: give what this gives as `within`. `roughly`: without snapshots rather
        of several states than at the cost of all who write."""
        if self.hold is not None:
            if roughly:
                yield None
                return
            async with self.hold.alone():
                yield None
            return
        async with self.client.start_session(snapshot=True) as session:
            yield session

    # -- writing

    async def write(self, writes: Sequence[Write], within: Any) -> None:
        """As a part of a transaction."""
        if self.hold is not None:
            within += writes
        else:
            await carry_out(self.database, writes, within=within)

    async def insert(self, collection: str, documents: Sequence[Document], within: Any) -> None:
        """Documents that are not there, as a part of a transaction."""
        if self.hold is not None:
            within += [replacing(collection, document, new=True) for document in documents]
        elif documents:
            await self.database[collection].insert_many(documents, session=within)

    async def transaction(
        self, work: Callable[[Any], Awaitable[T]], *, gate: bool = False, tries: int = TRIES_MAX
    ) -> T:
        """Carry out `work` as one transaction. `gate`: only one of this node's own at a time, since they would only
        conflict with each other. `work` may be called several times; if it raises `Lost`, nothing is written. Raises
        Contended."""
        if self.hold is not None:
            return await self.hold.whole(work)
        if not gate:
            return await self._unhindered(work, tries)
        async with self._gate:
            return await self._unhindered(work, tries)

    async def assuming(self, work: Callable[[Any], Awaitable[T]]) -> T | None:
        """Carry out `work` as one transaction that does not look for conflicts first. None: something was, or another
        transaction conflicts, and nothing is written; or the server has no transactions."""
        if self.hold is not None:
            return None
        try:
            return await self._transaction(work, 1)
        except (Lost, Contended):
            return None

    async def _unhindered(self, work: Callable[[Any], Awaitable[T]], tries: int) -> T:
        try:
            return await self._transaction(work, tries)
        except Contended:
            if not await end_abandoned(self.client):
                raise
        return await self._transaction(work, tries)

    async def _transaction(self, work: Callable[[Any], Awaitable[T]], tries: int) -> T:
        pause = PAUSE_SECONDS_MIN
        for number in range(tries):
            if number > 0:
                await asyncio.sleep(pause)
                pause = min(2 * pause, PAUSE_SECONDS_MAX)
            try:
                return await self._once(work)
            except Exception as error:
                # A unique index that was met here was not seen in the snapshot: a new one shows it.
                if not is_transient(error) and duplicates(error) is None:
                    raise
        raise Contended

    async def whole(self, work: Callable[[Any], Awaitable[T]]) -> T:
        """`transaction`, for a caller that comes again. Raises StoreUnavailable."""
        try:
            return await self.transaction(work)
        except Contended:
            raise StoreUnavailable(
                f"MongoDB at {self.location.shown}: others write the same documents; try again"
            ) from None

    async def would_conflict(self, work: Callable[[Any], Awaitable[object]]) -> bool:
        """Whether `work` would meet another transaction that is not over. It is undone."""
        async with self.client.start_session() as session:
            await session.start_transaction()
            try:
                await work(session)
            except Exception as error:
                if not is_transient(error) and duplicates(error) is None:
                    raise
                return True
            return False

    async def _once(self, work: Callable[[Any], Awaitable[T]]) -> T:
        async with self.client.start_session() as session:
            # Left by an error, the transaction is aborted with its session.
            await session.start_transaction(read_concern=self._snapshot)
            try:
                result = await work(session)
            except Unwritten as over:
                answer: T = over.answer
                return answer
            await commit(session)
            return result
