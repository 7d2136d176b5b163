"""Wake-ups between nodes over Redis' publish and subscribe.

They only cut latency, so nothing here waits for anything and nothing is repeated: a wake-up that can't be sent is
dropped. The connection may die in silence: it is asked for a sign of life whenever it was quiet, replaced if it gives
none, and after each replacement all local subscribers are woken once, since wake-ups of the time between are lost.
"""

from __future__ import annotations

import asyncio
import os
from urllib.parse import quote

from redis.asyncio.connection import AbstractConnection
from redis.exceptions import RedisError

from horarium.errors import StoreUnavailable
from horarium.ports import Topic
from horarium.stores.redis.location import parse_url
from horarium.stores.redis.server import Server, is_hangup
from horarium.stores.redis.single import connected, send
from horarium.stores.wakeups import SharedSignal, Written

QUIET_SECONDS = 5.0
"""A connection that was quiet for this long is asked for a sign of life, and has as long again to give it."""


class RedisSignal(SharedSignal):
    """The `ports.Signal` of the nodes of one namespace. Used on one event loop. `store`: is asked once a second whether
    something was written."""

    def __init__(
        self,
        url: str,
        namespace: str = "default",
        *,
        written: Written | None = None,
        quiet_seconds: float = QUIET_SECONDS,
    ) -> None:
        super().__init__(written)
        location = parse_url(url)
        self._server = Server(location, connections=1)
        self._timeout_seconds = location.timeout_seconds
        self._channel = f"horarium:{{{quote(namespace, safe='')}}}:wake"
        self._quiet_seconds = quiet_seconds
        self._own = os.urandom(8).hex()

    async def stop(self) -> None:
        await super().stop()
        await self._server.close()

    async def _send(self, went_well: asyncio.Event) -> None:
        while True:
            message = "\n".join([self._own, *await self._topics()])
            await self._server.command("PUBLISH", self._channel, message)
            went_well.set()

    async def _listen(self, went_well: asyncio.Event) -> None:
        url = await self._server.node_url()
        try:
            async with connected(url, self._timeout_seconds) as connection:
                await send(connection, "SUBSCRIBE", self._channel)
                await self._hear(connection, went_well)
        except (RedisError, OSError, TimeoutError) as error:
            self._server.look_again()
            raise StoreUnavailable(f"no wake-ups from other nodes for now: {error}") from error
        except RuntimeError as error:
            if not is_hangup(error):
                raise
            self._server.look_again()
            raise StoreUnavailable("no wake-ups from other nodes for now: the server closed the connection") from error

    async def _hear(self, connection: AbstractConnection, went_well: asyncio.Event) -> None:
        """Listen until the connection fails, which it does by raising."""
        asked = False
        while True:
            message = await connection.read_response(timeout=self._quiet_seconds)
            if message is None:
                if asked:
                    raise TimeoutError(f"the connection was silent for {2 * self._quiet_seconds:g} s")
                await send(connection, "PING")
            asked = message is None
            match message:
                case [b"subscribe", *_]:
                    self._listens(went_well)
                case [b"message", _, said]:
                    sender, *topics = said.decode().split("\n")
                    for topic in topics if sender != self._own else ():
                        self.wake(Topic(topic))
