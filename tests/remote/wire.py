"""A worker on the wire: one connection, and every way to leave it."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, TypeVar
from urllib.parse import urlsplit

T = TypeVar("T")


class Wire:
    """One HTTP/1.1 connection. `received_at`: the wall clock at the last answer's end."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self.received_at = 0.0

    @classmethod
    async def open(cls, url: str) -> Wire:
        parts = urlsplit(url)
        wire = cls(*await asyncio.open_connection(parts.hostname, parts.port))
        _opened.append(wire)
        return wire

    def send(self, path: str, body: Any) -> None:
        text = json.dumps(body)
        head = f"POST /api/v1{path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        self._writer.write(f"{head}Content-Length: {len(text)}\r\n\r\n{text}".encode())

    async def answer(self) -> tuple[int, Any]:
        """Status and JSON (None where there is none)."""
        head = (await self._reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = next((int(line[15:]) for line in head.split("\r\n") if line.startswith("content-length:")), 0)
        body = await self._reader.readexactly(length)
        self.received_at = time.time()
        return int(head.split()[1]), json.loads(body) if body else None

    async def ask(self, path: str, body: Any) -> tuple[int, Any]:
        self.send(path, body)
        return await self.answer()

    async def claim(self, queue: str, worker: str = "w", *, limit: int = 1, wait: float = 30) -> list[dict[str, Any]]:
        status, answer = await self.ask("/runs/claim", claim(queue, worker, limit, wait))
        assert status in (200, 204), (status, answer)
        runs: list[dict[str, Any]] = answer["runs"] if status == 200 else []
        return runs

    async def first_byte(self, patience: float) -> bool:
        """Whether an answer begins to come in within so many seconds. It is left unread."""
        try:
            async with asyncio.timeout(patience):
                return await self._reader.read(1) != b""
        except TimeoutError:
            return False

    async def say_goodbye(self) -> bool:
        """End our side of the connection, and wait for the other. Whether an answer was on its way."""
        self._writer.write_eof()
        return await self._reader.read() != b""

    def hang_up(self, reset: bool = False) -> None:
        """Close the connection, in order or not."""
        if reset:
            self._writer.transport.abort()
        else:
            self._writer.close()

    async def close(self) -> None:
        self._writer.close()
        with suppress(OSError):
            await self._writer.wait_closed()


_opened: list[Wire] = []


def play(scenario: Coroutine[Any, Any, T]) -> T:
    """Run it to its end, then close every connection that it opened."""

    async def whole() -> T:
        try:
            return await scenario
        finally:
            await asyncio.gather(*(wire.close() for wire in _opened))
            _opened.clear()

    return asyncio.run(whole())


def claim(queue: str, worker: str = "w", limit: int = 1, wait: float = 30) -> dict[str, Any]:
    return {"queues": [queue], "limit": limit, "wait_seconds": wait, "worker": worker}
