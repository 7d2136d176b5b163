"""Our HTTP server on a real socket, in the test's own loop, with limits that a test can reach."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import msgspec
import pytest

from horarium.api.answers import CLOSED
from horarium.server.connections import Connection, Limits, Phase
from horarium.server.http import HttpServer, make_server
from tests.waiting import PATIENCE, until

Address = tuple[str, int]
QUICK = Limits(head_seconds=0.3, body_seconds=0.3, idle_seconds=0.6, unread_seconds=0.5)
"""For clients that are too slow, whose time is soon over."""


DEFAULT = Limits()


class Running:
    """A server, and what it counted."""

    def __init__(self, server: HttpServer, address: Address, refused: Counter[str]) -> None:
        self.server = server
        self.address = address
        self.refused = refused
        self._clients: list[Client] = []

    @property
    def open(self) -> int:
        return len(self.server.server_state.connections)

    async def phase(self, phase: Phase) -> None:
        """Return once a connection is so far."""
        await until(lambda: any(each._phase is phase for each in self._connections()))

    def after(self, seconds: float) -> None:
        """Look at the deadlines as if so much time had passed."""
        now = asyncio.get_running_loop().time() + seconds
        for each in self._connections():
            each.expire(now)

    def unread(self) -> list[int]:
        """Bytes that wait in each connection."""
        return [each.transport.get_write_buffer_size() for each in self._connections()]

    def _connections(self) -> list[Connection]:
        return [each for each in self.server.server_state.connections if isinstance(each, Connection)]

    async def connect(self) -> Client:
        client = Client(*await asyncio.open_connection(*self.address))
        self._clients.append(client)
        return client

    async def hang_up(self) -> None:
        """Close every connection that was made."""
        for client in self._clients:
            client.writer.close()
            with suppress(ConnectionError):
                await client.writer.wait_closed()


class Client:
    """A raw connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        try:
            await self.writer.drain()
        except ConnectionError:
            return

    async def answer(self) -> tuple[int, bytes]:
        """Status and body of the next answer."""
        head = await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), PATIENCE)
        lines = head.decode("latin-1").lower().split("\r\n")
        length = next((int(line.split(":")[1]) for line in lines if line.startswith("content-length")), 0)
        return int(lines[0].split()[1]), await self.reader.readexactly(length)

    async def refusal(self) -> str:
        """The code of the problem with which the server ends the connection."""
        status, body = await self.answer()
        problem: dict[str, Any] = msgspec.json.decode(body)
        assert problem["status"] == status
        await self.ended()
        code: str = problem["code"]
        return code

    async def ended(self) -> bytes:
        """What is left to read before the server closes."""
        try:
            return await asyncio.wait_for(self.reader.read(), PATIENCE)
        except ConnectionError:
            return b""
        finally:
            self.writer.close()


@asynccontextmanager
async def serving(app: Any, limits: Limits = DEFAULT, connections: int = 1_000) -> AsyncIterator[Running]:
    """The application behind our server."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    listener.setblocking(False)
    refused: Counter[str] = Counter()
    server = make_server(app, lambda reason: refused.update([reason]), limits=limits, connections=connections)
    running = asyncio.create_task(server.serve([listener]))
    while not server.started:
        await asyncio.sleep(0.01)
    started = Running(server, listener.getsockname(), refused)
    try:
        yield started
    finally:
        await started.hang_up()
        server.should_exit = True
        await running


Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]


class Echo:
    """An application that answers with the body it got. `/hold` waits until it is let go, without reading,
    `/leave` until its client has hung up."""

    def __init__(self) -> None:
        self.let_go = asyncio.Event()
        self.paths: list[str] = []
        self.hung_up = 0
        self.size = 0

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise NotImplementedError(scope["type"])
        self.paths.append(scope["path"])
        body = b""
        if scope["path"] == "/hold":
            await self.let_go.wait()
        elif scope["path"] == "/leave":
            await until(scope[CLOSED])
            self.hung_up += 1
        elif scope["path"] == "/big":
            body = b"x" * self.size
        else:
            body = await self._body(receive)
        length = str(len(body)).encode()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", length)]})
        await send({"type": "http.response.body", "body": body})

    async def _body(self, receive: Receive) -> bytes:
        body: bytes = b""
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                self.hung_up += 1
                return body
            body += message["body"]
            if not message["more_body"]:
                return body


@pytest.fixture
async def echo() -> Echo:
    return Echo()


@pytest.fixture
async def running(echo: Echo) -> AsyncIterator[Running]:
    async with serving(echo) as server:
        yield server
        echo.let_go.set()


@pytest.fixture
async def hurried(echo: Echo) -> AsyncIterator[Running]:
    """A server that soon loses its patience."""
    async with serving(echo, QUICK) as server:
        yield server
        echo.let_go.set()
