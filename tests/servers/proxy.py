"""A TCP proxy before a server: connections cut, refused, or swallowed in silence."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from contextlib import suppress
from typing import Self

from tests.waiting import PATIENCE

CHUNK_BYTES = 65_536


class _Link:
    """One connection and its continuation. `dead`: nothing passes any more, and nobody is told."""

    def __init__(self, *writers: asyncio.StreamWriter) -> None:
        self.writers = list(writers)
        self.dead = False

    def reset(self) -> None:
        for writer in self.writers:
            raw = writer.get_extra_info("socket")
            with suppress(OSError):
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()


class Proxy:
    """Passes bytes between whoever connects to `port` and the port behind, in a thread of its own."""

    def __init__(self, behind: int) -> None:
        self._behind = behind
        self._links: set[_Link] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._mode = "pass"
        self.port = 0

    def __enter__(self) -> Self:
        self._loop = asyncio.new_event_loop()
        started = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(started,), name="proxy", daemon=True)
        self._thread.start()
        assert started.wait(PATIENCE), "the proxy did not start"
        return self

    def __exit__(self, *exc: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE)

    def _run(self, started: threading.Event) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._accept, "127.0.0.1", 0))
        self.port = server.sockets[0].getsockname()[1]
        started.set()
        self._loop.run_forever()
        server.close()
        for link in self._links:
            link.reset()
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self._loop.close()

    # ---- faults

    def cut(self) -> None:
        """Reset every connection, and each new one, until `heal`."""
        self._turn("refuse")

    def swallow(self) -> None:
        """Nothing passes, and nobody is told, until `heal`; the connections there are by then stay dead for good, as
        behind a firewall that has forgotten them."""
        self._turn("swallow")

    def heal(self) -> None:
        """New connections pass again."""
        self._turn("pass")

    def _turn(self, mode: str) -> None:
        done = threading.Event()

        def turn() -> None:
            self._mode = mode
            for link in list(self._links):
                if mode == "refuse":
                    link.reset()
                elif mode == "swallow":
                    link.dead = True
            done.set()

        self._loop.call_soon_threadsafe(turn)
        assert done.wait(PATIENCE), "the proxy hangs"

    # ---- passing on

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = _Link(writer)
        link.dead = self._mode == "swallow"
        if self._mode == "refuse":
            link.reset()
            return
        self._links.add(link)
        try:
            if link.dead:
                await self._pump(link, reader, writer)
            else:
                await self._connected(link, reader, writer)
        except (OSError, asyncio.CancelledError):
            # The streams of asyncio complain of a cancelled task; only the end cancels one.
            pass
        finally:
            link.reset()
            self._links.discard(link)

    async def _connected(self, link: _Link, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there_reader, there_writer = await asyncio.open_connection("127.0.0.1", self._behind)
        link.writers.append(there_writer)
        pumps = [
            asyncio.ensure_future(pump)
            for pump in (self._pump(link, reader, there_writer), self._pump(link, there_reader, writer))
        ]
        try:
            # Whichever side hangs up, the other is hung up on.
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()

    async def _pump(self, link: _Link, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await source.read(CHUNK_BYTES):
                if not link.dead:
                    sink.write(data)
                    await sink.drain()
