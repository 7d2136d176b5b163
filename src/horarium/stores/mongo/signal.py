"""Wake-ups between nodes by a change stream: they cut latency, and nothing depends on them.

Who publishes inserts a small document, which the server deletes after a minute; who listens watches insertions. Both
are done by tasks in the background, so publishing never waits, and what piles up meanwhile goes out together. Whenever
the watch had to begin anew all local subscribers are woken, since what was sent meanwhile is lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from horarium.errors import HorariumError
from horarium.stores.mongo.connect import make_client, new_mark, parse_url, translated
from horarium.stores.mongo.indexes import SIGNALS

AWAIT_MILLISECONDS = 5_000
"""How long the server waits for something new before it answers that there is nothing."""
RECONNECT_SECONDS_MIN, RECONNECT_SECONDS_MAX = 0.2, 15.0
CANCEL_SECONDS = 0.2
WAITING_MAX = 1_000
"""Topics that wait to be sent, at the most; more of them wait in vain."""


class MongoSignal:
    """`ports.Signal` over all nodes of a database and namespace. Local subscribers are always woken, at once. The
    database must have been opened by a store before `start`."""

    def __init__(self, url: str, namespace: str = "default") -> None:
        self.location = parse_url(url)
        self.namespace = namespace
        self._wakes: dict[str, list[Callable[[], None]]] = {}
        self._waiting: dict[str, None] = {}
        self._sendable = asyncio.Event()
        self._listening = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._client: Any = None
        self._sender: Any = None

    def publish(self, topic: str) -> None:
        self._wake(topic)
        if self._tasks and len(self._waiting) < WAITING_MAX:
            self._waiting[topic] = None
            self._sendable.set()

    def subscribe(self, topic: str, wake: Callable[[], None]) -> Callable[[], None]:
        self._wakes.setdefault(topic, []).append(wake)

        def unsubscribe() -> None:
            wakes = self._wakes.get(topic, [])
            if wake in wakes:
                wakes.remove(wake)
            if not wakes:
                self._wakes.pop(topic, None)

        return unsubscribe

    def _wake(self, topic: str) -> None:
        for wake in tuple(self._wakes.get(topic, ())):
            wake()

    async def start(self) -> None:
        """Begin to listen and to send, and go on through every outage until `stop`."""
        if self._tasks:
            return
        self._client, self._sender = make_client(self.location), new_mark()
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._on(self._listen)), loop.create_task(self._on(self._send))]

    async def wait_listening(self) -> None:
        """Return once what other nodes publish is heard here."""
        await self._listening.wait()

    async def stop(self) -> None:
        tasks, self._tasks = set(self._tasks), []
        if not tasks:
            return
        while tasks:
            # Once may not do: in the middle of connecting the driver takes a cancellation for a failure.
            for task in tasks:
                task.cancel()
            _, tasks = await asyncio.wait(tasks, timeout=CANCEL_SECONDS)
        await self._client.close()

    async def _on(self, speak: Callable[[Any, asyncio.Event], Awaitable[None]]) -> None:
        """Speak, again and again, more slowly while it fails."""
        pause = RECONNECT_SECONDS_MIN
        signals = self._client[self.location.database][SIGNALS]
        while True:
            went_well = asyncio.Event()
            with suppress(HorariumError), translated(self.location):
                await speak(signals, went_well)
            pause = RECONNECT_SECONDS_MIN if went_well.is_set() else min(2 * pause, RECONNECT_SECONDS_MAX)
            await asyncio.sleep(pause)

    async def _listen(self, signals: Any, went_well: asyncio.Event) -> None:
        others = {"fullDocument.n": self.namespace, "fullDocument.sender": {"$ne": self._sender}}
        pipeline = [{"$match": {"operationType": "insert", **others}}]
        try:
            async with await signals.watch(pipeline, max_await_time_ms=AWAIT_MILLISECONDS) as stream:
                went_well.set()
                self._listening.set()
                for topic in tuple(self._wakes):
                    self._wake(topic)
                async for change in stream:
                    for topic in change["fullDocument"]["topics"]:
                        self._wake(topic)
        finally:
            self._listening.clear()

    async def _send(self, signals: Any, went_well: asyncio.Event) -> None:
        while True:
            await self._sendable.wait()
            self._sendable.clear()
            topics, self._waiting = list(self._waiting), {}
            if topics:
                # An update, for only an update can have the server put its own time in.
                document = {"$set": {"n": self.namespace, "sender": self._sender, "topics": topics}}
                await signals.update_one(
                    {"_id": new_mark()}, {**document, "$currentDate": {"sent_at": True}}, upsert=True
                )
                went_well.set()
