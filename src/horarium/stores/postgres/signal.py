"""Wake-ups between nodes by LISTEN/NOTIFY: they cut latency, and nothing depends on them.

One connection of its own listens; another sends, in batches, so that publishing never waits. A listening connection
can die without a word, so it is given a heartbeat: a query that must be answered in time. After every reconnection all
local subscribers are woken, since what was sent meanwhile is lost. LISTEN needs a session, which a pooler does not
give: behind one, only subscribers of the same process are woken.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from hashlib import blake2b
from typing import Any

from horarium.errors import HorariumError, StoreUnavailable
from horarium.stores.postgres.connect import Connection, connect, find_pooler, parse_url, translated

CHANNEL = "horarium"
HEARTBEAT_SECONDS = 10.0
RECONNECT_SECONDS_MIN, RECONNECT_SECONDS_MAX = 0.2, 15.0
TOPIC_CHARS_MAX = 200
WAITING_MAX = 1_000
"""Topics that wait to be sent, at the most; more of them wait in vain."""

log = logging.getLogger("horarium")

_NOTIFY = "SELECT pg_catalog.pg_notify($1, topic) FROM pg_catalog.unnest($2::text[]) AS given (topic)"


def topic_id(namespace: str, topic: str) -> str:
    """What goes over the wire: the topic within its namespace, or a hash of what is long or can't be text."""
    text = f"{namespace}/{topic}"
    if len(text) <= TOPIC_CHARS_MAX and text.isascii() and text.isprintable():
        return text
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


class PostgresSignal:
    """`ports.Signal` over all nodes of a database and namespace. Local subscribers are always woken, server or not."""

    def __init__(self, url: str, namespace: str = "default") -> None:
        self.location = parse_url(url)
        self.namespace = namespace
        self._wakes: dict[str, list[Callable[[], None]]] = {}
        self._waiting: dict[str, None] = {}
        self._sendable = asyncio.Event()
        self._listening = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    def publish(self, topic: str) -> None:
        name = topic_id(self.namespace, topic)
        self._wake(name)
        if self._tasks and len(self._waiting) < WAITING_MAX:
            self._waiting[name] = None
            self._sendable.set()

    def subscribe(self, topic: str, wake: Callable[[], None]) -> Callable[[], None]:
        name = topic_id(self.namespace, topic)
        self._wakes.setdefault(name, []).append(wake)

        def unsubscribe() -> None:
            wakes = self._wakes.get(name, [])
            if wake in wakes:
                wakes.remove(wake)
            if not wakes:
                self._wakes.pop(name, None)

        return unsubscribe

    def _wake(self, name: str) -> None:
        for wake in tuple(self._wakes.get(name, ())):
            wake()

    def _wake_all(self) -> None:
        for name in tuple(self._wakes):
            self._wake(name)

    async def start(self) -> None:
        """Begin to listen and to send, and go on through every outage until `stop`."""
        loop = asyncio.get_running_loop()
        if not self._tasks:
            self._tasks = [loop.create_task(self._on(self._listen)), loop.create_task(self._on(self._send))]

    async def wait_listening(self) -> None:
        """Return once what other nodes publish is heard here."""
        await self._listening.wait()

    async def stop(self) -> None:
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _on(self, speak: Callable[[Connection, asyncio.Event], Any]) -> None:
        """Connect and speak, again and again, more slowly while it fails."""
        pause = RECONNECT_SECONDS_MIN
        while True:
            went_well = asyncio.Event()
            with suppress(HorariumError):
                location = await find_pooler(self.location)
                if location.pooler:
                    log.info("%s is behind a pooler: nodes look for work by themselves", location.shown)
                    return
                connection = await connect(location)
                try:
                    with translated(self.location):
                        await speak(connection, went_well)
                finally:
                    connection.terminate()
            pause = RECONNECT_SECONDS_MIN if went_well.is_set() else min(2 * pause, RECONNECT_SECONDS_MAX)
            await asyncio.sleep(pause)

    async def _listen(self, connection: Connection, went_well: asyncio.Event) -> None:
        lost = asyncio.Event()
        connection.add_termination_listener(lambda _: lost.set())
        await connection.add_listener(CHANNEL, self._heard)
        went_well.set()
        self._listening.set()
        self._wake_all()
        try:
            while not lost.is_set():
                with suppress(TimeoutError):
                    await asyncio.wait_for(lost.wait(), HEARTBEAT_SECONDS)
                    raise StoreUnavailable("the listening connection was lost")
                await connection.fetchval("SELECT 1", timeout=HEARTBEAT_SECONDS)
        finally:
            self._listening.clear()

    def _heard(self, connection: Connection, pid: int, channel: str, payload: object) -> None:
        if isinstance(payload, str):
            self._wake(payload)

    async def _send(self, connection: Connection, went_well: asyncio.Event) -> None:
        while True:
            await self._sendable.wait()
            self._sendable.clear()
            topics, self._waiting = list(self._waiting), {}
            if topics:
                await connection.fetch(_NOTIFY, CHANNEL, topics)
                went_well.set()
