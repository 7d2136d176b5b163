"""Wake-ups between nodes through a capped collection: they cut latency, and nothing depends on them.

To publish is to insert a small document, which is not waited for; to listen is to follow the end of the collection by a
tailable cursor, which costs the server nothing for other writes (a change stream reads all of them, once for each
node). Both are done by tasks in the background, so publishing never waits, and topics that pile up are sent together.
Whenever listening began again all local subscribers are woken, since wake-ups of the time between are lost. On a
standalone server there is one process, within which signals wake each other.

A lost wake-up is made up for: the primary, which is asked for its time once a second, says with it when something was
last written. While nothing is, services need not look for what others may have written: that is ten questions, each
second.
"""

from __future__ import annotations

import asyncio
from typing import Any
from weakref import WeakSet

from horarium.ports import Topic
from horarium.stores.mongo.connect import (
    follow,
    is_standalone,
    make_capped,
    make_client,
    new_mark,
    parse_url,
    translated,
    unjournaled,
)
from horarium.stores.mongo.indexes import WAKES
from horarium.stores.wakeups import SharedSignal, Written

WAKES_BYTES = 1_000_000
"""What the collection holds: some thousand wake-ups. A node that is that far behind begins again."""
AWAIT_MILLISECONDS = 5_000
"""How long the server waits for something new before it answers that there is nothing."""
QUIET = {"serverMonitoringMode": "poll", "heartbeatFrequencyMS": 10_000}
"""The driver watches the servers for the store already, which has to know of a new primary at once."""


_started: WeakSet[MongoSignal] = WeakSet()


class MongoSignal(SharedSignal):
    """`ports.Signal` over all nodes of a database and namespace. Local subscribers are always woken, at once. The
    database must have been opened by a store before `start`. `written`: what that store knows of writes."""

    def __init__(self, url: str, namespace: str = "default", *, written: Written | None = None) -> None:
        super().__init__(written)
        self.location = parse_url(url)
        self.namespace = namespace
        self._client: Any = None
        self._sender: Any = None

    async def start(self) -> None:
        if self._client is None:
            self._client, self._sender = make_client(self.location, **QUIET), new_mark()
        _started.add(self)
        await super().start()

    async def stop(self) -> None:
        _started.discard(self)
        await super().stop()
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def _collection(self) -> Any:
        """The collection, which no store knows of."""
        database = self._client[self.location.database]
        await make_capped(database, WAKES, WAKES_BYTES)
        return database.get_collection(WAKES, write_concern=unjournaled())

    async def _listen(self, went_well: asyncio.Event) -> None:
        with translated(self.location):
            if await self._is_alone():
                self._listens(went_well)
                await asyncio.Event().wait()
            wakes, here = await self._collection(), new_mark()
            # Later documents have not been heard yet.
            await wakes.insert_one({"_id": here, "n": self.namespace, "sender": self._sender, "topics": []})
            where = {"n": self.namespace, "$or": [{"_id": here}, {"sender": {"$ne": self._sender}}]}
            hears = False
            async for sent in follow(wakes, where, AWAIT_MILLISECONDS):
                if hears:
                    for topic in sent["topics"]:
                        self.wake(topic)
                elif sent["_id"] == here:
                    self._listens(went_well)
                    hears = True

    async def _send(self, went_well: asyncio.Event) -> None:
        with translated(self.location):
            alone = await self._is_alone()
        went_well.set()
        while alone:
            self._wake_here(await self._topics())
        with translated(self.location):
            wakes = await self._collection()
        while True:
            document = {"_id": new_mark(), "n": self.namespace, "sender": self._sender, "topics": await self._topics()}
            with translated(self.location):
                await wakes.insert_one(document)
            went_well.set()

    async def _is_alone(self) -> bool:
        """Whether the server is a standalone one, which has no change streams, and this process the only one on it."""
        return is_standalone(await self._client.admin.command("hello"))

    def _wake_here(self, topics: list[Topic]) -> None:
        for other in list(_started):
            if other is not self and (other.location.shown, other.namespace) == (self.location.shown, self.namespace):
                for topic in topics:
                    other.wake(topic)
