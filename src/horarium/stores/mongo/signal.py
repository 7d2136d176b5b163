"""Wake-ups between nodes by a change stream: they cut latency, and nothing depends on them.

To publish is to insert a small document, which the server deletes after a minute; to listen is to watch insertions.
Both are done by tasks in the background, so publishing never waits, and topics that pile up are sent together. Whenever
the watch was restarted all local subscribers are woken, since what was sent meanwhile is lost. A standalone server has
no change streams; on it there is one process, within which signals wake each other.
"""

from __future__ import annotations

import asyncio
from typing import Any
from weakref import WeakSet

from horarium.ports import Topic
from horarium.stores.mongo.connect import is_standalone, make_client, new_mark, parse_url, translated
from horarium.stores.mongo.indexes import SIGNALS
from horarium.stores.wakeups import SharedSignal

AWAIT_MILLISECONDS = 5_000
"""How long the server waits for something new before it answers that there is nothing."""


_started: WeakSet[MongoSignal] = WeakSet()


class MongoSignal(SharedSignal):
    """`ports.Signal` over all nodes of a database and namespace. Local subscribers are always woken, at once. The
    database must have been opened by a store before `start`."""

    def __init__(self, url: str, namespace: str = "default") -> None:
        super().__init__()
        self.location = parse_url(url)
        self.namespace = namespace
        self._client: Any = None
        self._sender: Any = None

    async def start(self) -> None:
        if self._client is None:
            self._client, self._sender = make_client(self.location), new_mark()
        _started.add(self)
        await super().start()

    async def stop(self) -> None:
        _started.discard(self)
        await super().stop()
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    @property
    def _signals(self) -> Any:
        return self._client[self.location.database][SIGNALS]

    async def _listen(self, went_well: asyncio.Event) -> None:
        others = {"fullDocument.n": self.namespace, "fullDocument.sender": {"$ne": self._sender}}
        pipeline = [{"$match": {"operationType": "insert", **others}}]
        with translated(self.location):
            if await self._is_alone():
                self._listens(went_well)
                await asyncio.Event().wait()
            async with await self._signals.watch(pipeline, max_await_time_ms=AWAIT_MILLISECONDS) as stream:
                self._listens(went_well)
                async for change in stream:
                    for topic in change["fullDocument"]["topics"]:
                        self.wake(topic)

    async def _send(self, went_well: asyncio.Event) -> None:
        with translated(self.location):
            alone = await self._is_alone()
        went_well.set()
        while alone:
            self._wake_here(await self._topics())
        while True:
            # An update, for only an update can have the server put its own time in.
            document = {"n": self.namespace, "sender": self._sender, "topics": await self._topics()}
            change = {"$set": document, "$currentDate": {"sent_at": True}}
            with translated(self.location):
                await self._signals.update_one({"_id": new_mark()}, change, upsert=True)
            went_well.set()

    async def _is_alone(self) -> bool:
        """Whether the server is a standalone one, which has no change streams, and this process the only one on it."""
        return is_standalone(await self._client.admin.command("hello"))

    def _wake_here(self, topics: list[Topic]) -> None:
        for other in list(_started):
            if other is not self and (other.location.shown, other.namespace) == (self.location.shown, self.namespace):
                for topic in topics:
                    other.wake(topic)
