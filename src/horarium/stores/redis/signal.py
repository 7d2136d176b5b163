"""Wake-ups between nodes over Redis' publish and subscribe.

They only cut latency, so nothing here waits for anything and nothing is repeated: what can't be sent is dropped. The
one hard thing is a connection that died in silence: it is asked for a sign of life whenever it was quiet, replaced if
it gives none, and after each replacement everybody here is woken once, since what was published meanwhile is lost.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from contextlib import suppress
from urllib.parse import quote

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from horarium.errors import StoreUnavailable
from horarium.stores.redis.server import PROTOCOL, Server, parse_url

log = logging.getLogger("horarium.redis")

QUIET_SECONDS = 5.0
"""A connection that was quiet for this long is asked for a sign of life, and has as long again to give it."""
BACKOFF_SECONDS_MIN, BACKOFF_SECONDS_MAX = 0.1, 5.0
OUTGOING_MAX = 10_000
"""Topics that wait to be sent; more are dropped."""


class RedisSignal:
    """The `ports.Signal` of the nodes of one namespace. Used on one event loop."""

    def __init__(self, url: str, namespace: str = "default", *, quiet_seconds: float = QUIET_SECONDS) -> None:
        location = parse_url(url)
        self._server = Server(location, connections=1)
        self._url, self._timeout_seconds = location.url, location.timeout_seconds
        self._channel = f"horarium:{{{quote(namespace, safe='')}}}:wake"
        self._quiet_seconds = quiet_seconds
        self._own = os.urandom(8).hex()
        self._wakes: dict[str, list[Callable[[], None]]] = {}
        self._outgoing: dict[str, None] = {}
        self._something_to_send = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self.listening = asyncio.Event()
        """Set while publications of other nodes are heard."""

    async def start(self) -> None:
        """Begin to listen and to send. Returns at once, whether the server is there or not."""
        if not self._tasks:
            self._tasks = [asyncio.create_task(self._listen()), asyncio.create_task(self._send())]

    async def stop(self) -> None:
        """Hang up. May be called twice."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
        self.listening.clear()
        await self._server.close()

    # -- the port

    def publish(self, topic: str) -> None:
        self._wake(topic)
        if len(self._outgoing) < OUTGOING_MAX:
            self._outgoing[topic] = None
            self._something_to_send.set()

    def subscribe(self, topic: str, wake: Callable[[], None]) -> Callable[[], None]:
        wakes = self._wakes.setdefault(topic, [])
        wakes.append(wake)

        def unsubscribe() -> None:
            if wake in wakes:
                wakes.remove(wake)
            if not wakes and self._wakes.get(topic) is wakes:
                del self._wakes[topic]

        return unsubscribe

    def _wake(self, topic: str) -> None:
        for wake in tuple(self._wakes.get(topic, ())):
            wake()

    # -- sending

    async def _send(self) -> None:
        """All that came up since the last message goes into one; a topic once."""
        while True:
            await self._something_to_send.wait()
            self._something_to_send.clear()
            topics, self._outgoing = list(self._outgoing), {}
            with suppress(StoreUnavailable):
                await self._server.command("PUBLISH", self._channel, "\n".join([self._own, *topics]))

    # -- listening

    async def _listen(self) -> None:
        pause = BACKOFF_SECONDS_MIN
        while True:
            try:
                await self._listen_once()
            except (RedisError, OSError, TimeoutError) as error:
                if self.listening.is_set() or pause == BACKOFF_SECONDS_MIN:
                    log.warning("no wake-ups from other nodes for now: %s", error)
                if self.listening.is_set():
                    pause = BACKOFF_SECONDS_MIN
                self.listening.clear()
            await asyncio.sleep(pause)
            pause = min(2 * pause, BACKOFF_SECONDS_MAX)

    async def _listen_once(self) -> None:
        """Listen until the connection fails, which it does by raising."""
        client = Redis.from_url(
            self._url,
            protocol=PROTOCOL,
            socket_timeout=self._timeout_seconds,
            socket_connect_timeout=self._timeout_seconds,
            retry=Retry(NoBackoff(), 0),
            decode_responses=True,
        )
        async with client, client.pubsub() as channel:
            await channel.subscribe(self._channel)
            asked = False
            while True:
                message = await channel.get_message(timeout=self._quiet_seconds)
                if message is None:
                    if asked:
                        raise TimeoutError(f"the connection was silent for {2 * self._quiet_seconds:g} s")
                    await channel.ping()
                asked = message is None
                if message is not None:
                    self._hear(message["type"], message["data"])

    def _hear(self, kind: str, data: str) -> None:
        if kind == "subscribe":
            self.listening.set()
            for topic in list(self._wakes):
                self._wake(topic)
        elif kind == "message":
            sender, *topics = data.split("\n")
            for topic in topics if sender != self._own else ():
                self._wake(topic)
