"""A TCP proxy between a scheduler and its broker: it passes everything on, holds one direction, or cuts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

TO_BROKER, FROM_BROKER = "to", "from"
CHUNK = 65_536


class Proxy:
    """Listens on `port`. `held`: directions in which nothing passes; what was held when a connection ends is lost.
    `cut_after`: bytes to the broker after which every connection is cut, once."""

    def __init__(self, target_port: int) -> None:
        self.target_port = target_port
        self.port = 0
        self.cuts = 0
        self.cut_after: int | None = None
        self._open = {TO_BROKER: asyncio.Event(), FROM_BROKER: asyncio.Event()}
        self._connections: set[asyncio.Task[None]] = set()
        self.release()

    def hold(self, *directions: str) -> None:
        """Pass nothing on in these directions, and hang up on nobody."""
        for direction in directions:
            self._open[direction].clear()

    def release(self) -> None:
        """Pass everything on again."""
        for event in self._open.values():
            event.set()

    def cut(self) -> None:
        """End every connection; what is held is lost."""
        self.cuts += 1
        for connection in list(self._connections):
            connection.cancel()

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[Proxy]:
        """Listen; end everything at the exit."""
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            connections = list(self._connections)
            for connection in connections:
                connection.cancel()
            await asyncio.gather(*connections, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        writers = [writer]
        pumps: list[asyncio.Task[None]] = []
        try:
            behind, ahead = await asyncio.open_connection("127.0.0.1", self.target_port)
            writers.append(ahead)
            pumps = [
                asyncio.create_task(self._pump(TO_BROKER, reader, ahead)),
                asyncio.create_task(self._pump(FROM_BROKER, behind, writer)),
            ]
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        except (OSError, asyncio.CancelledError):
            task.uncancel()
        finally:
            self._connections.discard(task)
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            for end in writers:
                end.transport.abort()

    async def _pump(self, direction: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(CHUNK):
                await self._open[direction].wait()
                if direction == TO_BROKER and self.cut_after is not None:
                    if len(data) >= self.cut_after:
                        writer.write(data[: self.cut_after])
                        self.cut_after = None
                        await writer.drain()
                        self.cut()
                        return
                    self.cut_after -= len(data)
                writer.write(data)
                await writer.drain()
