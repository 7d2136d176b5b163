"""However many clients ask at once: in one round of the loop only so many requests begin, and all else has its turn."""

from __future__ import annotations

import asyncio
from itertools import groupby
from typing import Any

from horarium.server.http import ROUND_MAX, Turns

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


class Begun:
    """Requests by number, each of which only says that it has begun; `ask` returns at once."""

    def __init__(self, round_max: int) -> None:
        self.begun: list[int] = []
        self._turns = Turns(self._app, round_max)
        self.tasks: list[asyncio.Task[None]] = []

    async def _app(self, scope: int, receive: None, send: None) -> None:
        self.begun.append(scope)

    def ask(self, *numbers: int) -> None:
        self.tasks += [asyncio.create_task(self._turns(number, None, None)) for number in numbers]


async def test_what_came_first_begins_first() -> None:
    requests, rounds = Begun(2), list[list[int]]()
    requests.ask(*range(5))
    while len(requests.begun) < 6:
        await asyncio.sleep(0)
        if len(requests.begun) == 4 and len(requests.tasks) == 5:
            requests.ask(5)  # waits behind the fifth, though this round has room
        if not rounds or rounds[-1] != requests.begun:
            rounds.append(list(requests.begun))
    assert requests.begun == [0, 1, 2, 3, 4, 5]
    assert [len(each) for each in rounds] == [2, 4, 6]


async def test_a_request_begins_at_once_where_none_is_before_it() -> None:
    requests = Begun(1)
    for number in range(3):
        requests.ask(number)
        await asyncio.sleep(0)
        assert requests.begun == list(range(number + 1))


async def test_one_that_leaves_while_it_waits_keeps_none_of_the_others() -> None:
    requests = Begun(1)
    requests.ask(0, 1, 2)
    await asyncio.sleep(0)
    requests.tasks[1].cancel()
    await asyncio.wait(requests.tasks)
    assert requests.begun == [0, 2]
