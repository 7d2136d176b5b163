"""How answers leave: in as few pieces as they can, in order, and never later than what they say is known."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from horarium.server import connections
from horarium.server.connections import Answers
from tests.waiting import PATIENCE

from .conftest import Echo, Receive, Running, Send, serving

GET = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
HEAD = b"HEAD / HTTP/1.1\r\nHost: localhost\r\n\r\n"


class Kept:
    """A transport that keeps what it is given."""

    def __init__(self, behind: asyncio.Transport | None = None) -> None:
        self.got: list[bytes] = []
        self.closed = False
        self._behind = behind

    def write(self, data: bytes) -> None:
        assert not self.closed
        self.got.append(data)
        if self._behind is not None:
            self._behind.write(data)

    def close(self) -> None:
        self.closed = True
        if self._behind is not None:
            self._behind.close()

    def is_closing(self) -> bool:
        return self.closed if self._behind is None else self._behind.is_closing()


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> list[Kept]:
    """What answers give to the transports of the server."""
    seen: list[Kept] = []

    class Seen(Answers):
        def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
            seen.append(Kept(transport))
            super().__init__(seen[-1], loop)  # type: ignore[arg-type]

    monkeypatch.setattr(connections, "Answers", Seen)
    return seen


async def test_head_and_body_are_one_piece(kept: list[Kept], running: Running) -> None:
    client = await running.connect()
    for _ in range(2):
        await client.send(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nhello")
        assert await client.answer() == (200, b"hello")
    assert [piece.endswith(b"\r\n\r\nhello") for piece in kept[0].got] == [True, True]


async def test_a_head_does_not_wait_for_a_body_that_takes_its_time() -> None:
    read = asyncio.Event()

    async def slow(scope: dict[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise NotImplementedError
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await read.wait()
        await send({"type": "http.response.body", "body": b"event", "more_body": True})
        read.clear()
        await read.wait()
        await send({"type": "http.response.body", "body": b"end"})

    async with serving(slow) as running:
        client = await running.connect()
        await client.send(GET)
        head = await asyncio.wait_for(client.reader.readuntil(b"\r\n\r\n"), PATIENCE)
        assert head.startswith(b"HTTP/1.1 200")
        read.set()
        assert await asyncio.wait_for(client.reader.readuntil(b"event\r\n"), PATIENCE) == b"5\r\nevent\r\n"
        read.set()
        assert await asyncio.wait_for(client.reader.readuntil(b"0\r\n\r\n"), PATIENCE) == b"3\r\nend\r\n0\r\n\r\n"


async def test_answers_without_bodies_keep_their_order(running: Running, echo: Echo) -> None:
    client = await running.connect()
    await client.send(HEAD * 3 + GET)
    for _ in range(4):
        assert (await client.answer())[0] == 200
    assert len(echo.paths) == 4


async def test_what_waits_is_sent_before_anything_else() -> None:
    kept = Kept()
    answers = Answers(kept, asyncio.get_running_loop())  # type: ignore[arg-type]
    answers.write(b"head")
    assert kept.got == []
    answers.flush()
    answers.flush()
    assert kept.got == [b"head"]
    answers.write(b"next ")
    answers.write(b"body")
    answers.write(b"")
    answers.write(b"last")
    answers.close()
    assert (kept.got, kept.closed, answers.is_closing()) == ([b"head", b"next body", b"last"], True, True)
    answers.write(b"too late")
    await asyncio.sleep(0)
    assert len(kept.got) == 3
