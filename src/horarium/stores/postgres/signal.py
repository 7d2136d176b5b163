"""Wake-ups between nodes by LISTEN/NOTIFY: they cut latency, and nothing depends on them.

One connection of its own listens; another sends, in batches, so that publishing never waits. A listening connection can
die unnoticed, so it has a heartbeat: a query that must be answered in time. After every reconnection all local
subscribers are woken, since wake-ups of the time between are lost. LISTEN needs a session, which a pooler does not
give: behind one, only subscribers of the same process are woken.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from hashlib import blake2b

from horarium.errors import StoreUnavailable
from horarium.ports import WRITTEN, Topic
from horarium.stores.postgres.connect import Connection, connect, find_pooler, parse_url, translated
from horarium.stores.wakeups import SharedSignal, Written

CHANNEL = "horarium"
HEARTBEAT_SECONDS = 10.0
TOPIC_CHARS_MAX = 200

log = logging.getLogger("horarium")

_NOTIFY = "SELECT pg_catalog.pg_notify($1, topic) FROM pg_catalog.unnest($2::text[]) AS given (topic)"


def topic_id(namespace: str, topic: Topic) -> Topic:
    """The payload: the topic within its namespace, or a hash of a long one or one that can't be text."""
    text = f"{namespace}/{topic}"
    if len(text) <= TOPIC_CHARS_MAX and text.isascii() and text.isprintable():
        return Topic(text)
    return Topic(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest())


class PostgresSignal(SharedSignal):
    """`ports.Signal` over all nodes of a database and namespace. Local subscribers are always woken, server or not.
    `written`: what the store knows of writes."""

    def __init__(self, url: str, namespace: str = "default", *, written: Written | None = None) -> None:
        super().__init__(written)
        self.location = parse_url(url)
        self.namespace = namespace
        self._own_pid = 0
        """Who sends for us at the server: what it says is no news here."""

    def publish(self, topic: Topic) -> None:
        super().publish(topic_id(self.namespace, topic))

    def subscribe(self, topic: Topic, wake: Callable[[], None]) -> Callable[[], None]:
        return super().subscribe(topic_id(self.namespace, topic), wake)

    def _tell_written(self) -> None:
        self.wake(topic_id(self.namespace, WRITTEN))

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[Connection]:
        """A connection that is not shared; waits for ever behind a pooler, which has none to give."""
        location = await find_pooler(self.location)
        if location.pooler:
            log.info("%s is behind a pooler: nodes look for work by themselves", location.shown)
            await asyncio.Future()
        connection = await connect(location)
        try:
            with translated(self.location):
                yield connection
        finally:
            connection.terminate()

    async def _listen(self, went_well: asyncio.Event) -> None:
        lost = asyncio.Event()
        async with self._connection() as connection:
            connection.add_termination_listener(lambda _: lost.set())
            await connection.add_listener(CHANNEL, self._heard)
            self._listens(went_well)
            while not lost.is_set():
                with suppress(TimeoutError):
                    await asyncio.wait_for(lost.wait(), HEARTBEAT_SECONDS)
                    raise StoreUnavailable("the listening connection was lost")
                await connection.execute("SELECT 1", timeout=HEARTBEAT_SECONDS)

    def _heard(self, connection: Connection, pid: int, channel: str, payload: object) -> None:
        if isinstance(payload, str) and pid != self._own_pid:
            self.wake(Topic(payload))

    async def _send(self, went_well: asyncio.Event) -> None:
        async with self._connection() as connection:
            self._own_pid = connection.get_server_pid()
            while True:
                await connection.fetch(_NOTIFY, CHANNEL, await self._topics())
                went_well.set()
