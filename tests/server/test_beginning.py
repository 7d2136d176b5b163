"""Requests that need no task are answered without one, as soon as they have arrived; all others have a task each."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from horarium.server.connections import Limits
from horarium.server.turns import ROUND_MAX

from .conftest import Receive, Running, Send, serving

GET = b"GET /%s HTTP/1.1\r\nHost: localhost\r\n\r\n"
POST = b"POST /%s HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n"


class Needs:
    """An application that needs a task for what is not under `/plain` or `/waits`. Its answer says how it was asked."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()
        self.waiting = 0

    def at_once(self, scope: Any) -> Any | None:
        return self if scope["path"].startswith(("/plain", "/waits")) else None

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        said = {"path": scope["path"], "task": asyncio.current_task() is not None, "body": ""}
        if scope["method"] == "POST":
            said["body"] = (await receive())["body"].decode()
        if scope["path"] == "/waits":
            self.waiting += 1
            await self.go_on.wait()
            said["later"] = asyncio.current_task() is not None
        body = msgspec.json.encode(said)
        length = (b"content-length", str(len(body)).encode())
        await send({"type": "http.response.start", "status": 200, "headers": [length]})
        await send({"type": "http.response.body", "body": body})


async def asked(running: Running, *data: bytes) -> list[dict[str, Any]]:
    """What comes back for this, sent piece by piece, until the server has read each of them."""
    client = await running.connect()
    for each in data:
        await client.send(each)
        await asyncio.sleep(0.01)
    count = sum(each.count(b"HTTP/1.1") for each in data)
    return [msgspec.json.decode((await client.answer())[1]) for _ in range(count)]


async def test_what_needs_no_task_has_none() -> None:
    async with serving(Needs()) as running:
        assert await asked(running, GET % b"plain") == [{"path": "/plain", "task": False, "body": ""}]
        assert await asked(running, POST % b"plain" + b"{}") == [{"path": "/plain", "task": False, "body": "{}"}]
        assert await asked(running, GET % b"other") == [{"path": "/other", "task": True, "body": ""}]


async def test_a_body_that_is_still_on_its_way_is_waited_for_in_a_task() -> None:
    async with serving(Needs()) as running:
        (answer,) = await asked(running, POST % b"plain", b"{}")
    assert answer == {"path": "/plain", "task": True, "body": "{}"}


async def test_what_waits_after_all_goes_on_in_a_task_that_the_server_knows() -> None:
    app = Needs()
    async with serving(app) as running:
        client = await running.connect()
        await client.send(GET % b"waits" + GET % b"plain")
        while not app.waiting:
            await asyncio.sleep(0)
        assert len(running.server.server_state.tasks) == 1
        app.go_on.set()
        first, second = [msgspec.json.decode((await client.answer())[1]) for _ in range(2)]
        while running.server.server_state.tasks:
            await asyncio.sleep(0)
    assert first == {"path": "/waits", "task": False, "body": "", "later": True}
    assert second["path"] == "/plain"


async def test_many_requests_sent_ahead_are_answered_one_after_the_other() -> None:
    names = [b"plain%d" % number for number in range(5 * ROUND_MAX)]
    async with serving(Needs(), Limits(pipelined=len(names))) as running:
        answers = await asked(running, b"".join(GET % name for name in names))
    assert [each["path"].encode() for each in answers] == [b"/" + name for name in names]


async def test_a_request_with_rubbish_behind_it_is_not_answered() -> None:
    async with serving(Needs()) as running:
        client = await running.connect()
        await client.send(GET % b"plain" + b"\x00\x01 rubbish\r\n\r\n")
        said = await client.ended()
    assert b"/plain" not in said
