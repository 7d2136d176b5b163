"""However many clients ask at once: in one round of the loop only so many requests begin, and all else has its turn."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from itertools import groupby
from typing import Any

from horarium.server.turns import ROUND_MAX, Turns

from .conftest import Receive, Send, serving

GET = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
CLIENTS = 6 * ROUND_MAX
ROUND = "round"


async def test_all_else_has_its_turn_between_the_requests_of_many_clients() -> None:
    seen: list[str] = []

    async def app(scope: dict[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            seen.append("request")
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
            await send({"type": "http.response.body", "body": b""})

    async def tick() -> None:
        while True:
            seen.append(ROUND)
            await asyncio.sleep(0)

    async with serving(app) as running:
        clients = [await running.connect() for _ in range(CLIENTS)]
        ticking = asyncio.create_task(tick())
        for client in clients:
            client.writer.write(GET)
        answers = [(await client.answer())[0] for client in clients]
        ticking.cancel()
    assert answers == [200] * CLIENTS
    assert seen.count("request") == CLIENTS
    at_once = [len(list(group)) for what, group in groupby(seen) if what == "request"]
    assert max(at_once) <= ROUND_MAX


async def test_what_came_first_begins_first() -> None:
    turns, begun, rounds = Turns(2), list[int](), list[list[int]]()
    for number in range(5):
        turns.take(lambda number=number: begun.append(number))  # type: ignore[misc]
    for _ in range(4):
        rounds.append(list(begun))
        if len(begun) == 4:
            turns.take(lambda: begun.append(5))  # waits behind the fifth, though this round has room
        await asyncio.sleep(0)
    assert rounds == [[0, 1], [0, 1, 2, 3], [0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 4, 5]]
    assert begun == [0, 1, 2, 3, 4, 5]


async def test_a_request_begins_at_once_where_none_is_before_it() -> None:
    turns, begun = Turns(1), list[str]()
    turns.take(lambda: begun.append("first"))
    assert begun == ["first"]
    await asyncio.sleep(0)
    turns.take(lambda: begun.append("second"))
    assert begun == ["first", "second"]


async def test_those_that_waited_begin_in_no_other_requests_context() -> None:
    asks: ContextVar[str] = ContextVar("asks", default="none")
    turns, begun = Turns(1), list[str]()
    done = asyncio.Event()

    async def request() -> None:
        asks.set("one")
        turns.take(lambda: begun.append("at once"))
        turns.take(lambda: (begun.append(asks.get()), done.set())[0])  # type: ignore[func-returns-value]

    await asyncio.create_task(request())
    await done.wait()
    assert begun == ["at once", "none"]
