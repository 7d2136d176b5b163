"""An HTTP endpoint on a real socket, and what is delivered to it."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec

from horarium.clock import SECOND, Instant
from horarium.delivery.http import HttpDelivery
from horarium.delivery.signing import new_secret
from horarium.model import (
    Failed,
    HttpTarget,
    Job,
    Outcome,
    Run,
    Succeeded,
    Target,
    run_id,
)
from horarium.ports import Assignment

NOW = 1_800_000_000 * SECOND
FIRE_AT = NOW - 5 * SECOND
SECRET = new_secret(bytes(range(32)))
OTHER_SECRET = new_secret(bytes(range(32, 64)))
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class StoppedClock:
    machine = "here"
    steady_offset = 0

    def now(self) -> int:
        return NOW

    def monotonic(self) -> float:
        return 0.0

    def steady(self) -> Instant:
        return self.now()


class Asked:
    """A control that is cancelled when told so."""

    def __init__(self) -> None:
        self.cancelled = False
        self.beats = 0
        self._at_cancel: list[Callable[[], None]] = []
        self.beat_fails: Exception | None = None

    def cancel(self) -> None:
        self.cancelled = True
        for call in self._at_cancel:
            call()

    def when_cancelled(self, call: Callable[[], None]) -> None:
        self._at_cancel.append(call)

    async def heartbeat(self, progress: bytes | None = None) -> None:
        self.beats += 1
        if self.beat_fails is not None:
            raise self.beat_fails

    def done(self) -> None:
        """Nothing ends it."""

    def goes_on(self, over: asyncio.Future[Any]) -> None:
        raise AssertionError("a request can always be stopped")


@dataclass
class Request:
    line: str
    headers: dict[str, str]
    body: bytes


Reply = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Receiver:
    """A server on a free port that answers every request with the same bytes, or as `reply` does."""

    reply: bytes | Reply = OK
    requests: list[Request] = field(default_factory=list)
    connections: int = 0
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    left: asyncio.Event = field(default_factory=asyncio.Event)
    port: int = 0

    def url(self, path: str = "/", host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.port}{path}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                self.requests.append(await read_request(reader))
                self.arrived.set()
                if isinstance(self.reply, bytes):
                    writer.write(self.reply)
                    await writer.drain()
                else:
                    await self.reply(reader, writer)
        except (asyncio.IncompleteReadError, OSError):
            pass
        finally:
            self.left.set()
            writer.close()


async def read_request(reader: asyncio.StreamReader) -> Request:
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    line, *rest = head.strip().split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (item.partition(":") for item in rest)}
    return Request(line, headers, await reader.readexactly(int(headers.get("content-length", "0"))))


@asynccontextmanager
async def receiving(reply: bytes | Reply = OK) -> AsyncIterator[Receiver]:
    receiver = Receiver(reply)
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            await receiver.serve(reader, writer)
        except asyncio.CancelledError:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    receiver.port = server.sockets[0].getsockname()[1]
    try:
        yield receiver
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@asynccontextmanager
async def delivering(**settings: Any) -> AsyncIterator[HttpDelivery]:
    delivery = HttpDelivery(StoppedClock(), **{"allow_private": True, **settings})
    try:
        yield delivery
    finally:
        await delivery.close()


def of(target: Target, **changes: Any) -> Assignment:
    run = Run(
        id=run_id("job", FIRE_AT),
        queue="http",
        fire_at=FIRE_AT,
        due_at=FIRE_AT,
        created_at=FIRE_AT,
        job="nightly",
        attempt=2,
        token=7,
    )
    job = Job(name="nightly", trigger={}, target=target, id="job")
    return Assignment(msgspec.structs.replace(run, **changes), job)


async def attempt(receiver: Receiver, delivery: HttpDelivery | None = None, **target: Any) -> Outcome | None:
    wanted = of(HttpTarget(**{"url": receiver.url(), **target}))
    if delivery is not None:
        return await delivery.deliver(wanted, Asked())
    async with delivering() as own:
        return await own.deliver(wanted, Asked())


def kept(outcome: Outcome | None) -> dict[str, Any]:
    assert isinstance(outcome, Succeeded | Failed)
    assert outcome.result is not None
    found: dict[str, Any] = json.loads(outcome.result)
    return found


def answer(status: str, *headers: str, body: bytes = b"") -> bytes:
    head = "\r\n".join([f"HTTP/1.1 {status}", *headers, f"Content-Length: {len(body)}"])
    return head.encode() + b"\r\n\r\n" + body


async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer nothing until the client goes away."""
    if not await reader.read():
        raise ConnectionResetError
