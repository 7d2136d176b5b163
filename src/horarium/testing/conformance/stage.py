"""The server of one scene: the real API on a store in memory, on a port of its own of loopback.

Before a request reaches the API, the scene may have it answered otherwise, or have the connection cut before or after
it was carried out. Every request is kept, with its answer. No rescuer runs: a lease that ends is given to no other
worker, so that a slow machine spoils no scene.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import Callable, MutableMapping
from typing import Any, Self

import msgspec
import uvicorn
from msgspec import UNSET, Struct, UnsetType

from horarium.api.app import create_app
from horarium.clock import SECOND, Instant, SystemClock
from horarium.model import QueueTarget, Run
from horarium.node.backends import make_store
from horarium.node.runtime import Options, Runtime
from horarium.policies import Timeouts
from horarium.wire.one_offs import RunDefinition

LEASE_SECONDS = 10.0
"""So long that a worker on a machine that stands still for seconds keeps to it; a third of it is no whole number."""
START_SECONDS = 30.0
"""How long a worker may take until its first claim."""
ANSWER_SECONDS = 20.0
"""How long it may take for anything after that."""
PREFIX = "/api/v1"
QUEUE = "conformance"

Message = MutableMapping[str, Any]


class Wrong(Exception):
    """The worker did something wrong: the sentence that says so."""


class Spoiled(Struct, frozen=True):
    """What becomes of a request instead: this problem; or the connection is cut, `after` it was carried out or not."""

    status: int = 0
    code: str = ""
    retry_after: int | None = None
    after: bool = False


CUT_AFTER = Spoiled(after=True)


class Seen(Struct, kw_only=True):
    """A request and its answer. `status` 0: it is not answered yet, or the connection was cut."""

    at: float
    method: str
    path: str
    key: str | None
    body: Any
    status: int = 0
    answer: Any = None
    spoiled: Spoiled | None = None

    @property
    def is_claim(self) -> bool:
        return self.path == "/runs/claim"


class Reported(Struct, frozen=True):
    """A report of a run's end. `status`: the answer, 0 for none."""

    at: float
    token: int
    outcome: str
    status: int


class Ahead(SystemClock):
    """A clock whose wall time is that many seconds ahead."""

    def __init__(self, seconds: float) -> None:
        self._ahead = round(seconds * SECOND)
        super().__init__()

    def now(self) -> Instant:
        return super().now() + self._ahead


async def accept_no_more(listener: socket.socket) -> None:
    """Stop taking connections from this listener; return once those that it gave are the server's, which closes them.
    In Python 3.11 a connection that asyncio makes into a transport while its server closes is never closed."""
    asyncio.get_running_loop().remove_reader(listener)
    for _ in range(3):  # its task, its transport, its protocol
        await asyncio.sleep(0)


class Stage:
    """`async with`: it serves. `spoil` decides about each request before the API does."""

    def __init__(self, clock_ahead_seconds: float = 0.0) -> None:
        self.key = secrets.token_hex(16)
        self.seen: list[Seen] = []
        self.spoil: Callable[[Seen], Spoiled | None] = lambda seen: None
        self.url = ""
        self._fault = ""
        self._news = asyncio.Condition()
        options = Options(roles=("api",), grace_seconds=0.0, node_name=QUEUE)
        self._runtime = Runtime(make_store("memory://"), options, clock=Ahead(clock_ahead_seconds))
        self._app: Any = None

    async def __aenter__(self) -> Self:
        runtime = self._runtime
        await runtime.open()
        await runtime.start()
        self._app = create_app(
            runtime.operations, runtime.claims, health=runtime.health, telemetry=runtime.telemetry, api_keys=[self.key]
        )
        config = uvicorn.Config(
            self._serve, interface="asgi3", http="httptools", lifespan="off", log_config=None, proxy_headers=False
        )
        config.load()
        self._server = uvicorn.Server(config)
        self._server.lifespan = config.lifespan_class(config)
        listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        await self._server.startup(sockets=[listener])
        self._listener = listener
        return self

    async def __aexit__(self, *error: object) -> None:
        self._runtime.claims.close()
        await accept_no_more(self._listener)
        self._abort(None)
        await self._server.shutdown(sockets=[self._listener])
        await self._runtime.close()

    # ---- what the worker asks

    async def _serve(self, scope: Message, receive: Any, send: Any) -> None:
        body = b""
        while (message := await receive())["type"] == "http.request":
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        seen = Seen(
            at=self.now(), method=scope["method"], path=scope["path"].removeprefix(PREFIX),
            key=headers.get(b"authorization"), body=_json(body),
        )  # fmt: skip
        self.seen.append(seen)
        seen.spoiled = spoiled = self.spoil(seen)
        told = _Told(body, receive, send)
        if spoiled is None:
            await self._app(scope, told.receive, told.send)
        elif spoiled.status:
            await told.answer(spoiled)
        else:
            told.is_silent = True
            if spoiled.after:
                await self._app(scope, told.receive, told.send)
            await self._cut(scope["client"], receive)
        seen.status, seen.answer = (0 if told.is_silent else told.status), _json(told.content)
        self._judge(seen, told.status)
        async with self._news:
            self._news.notify_all()

    async def _cut(self, client: tuple[str, int], receive: Any) -> None:
        """Cut the connection of this client, without an answer."""
        self._abort(client)
        while (await receive())["type"] != "http.disconnect":
            pass

    def _abort(self, client: tuple[str, int] | None) -> None:
        """Cut the connection of this client; None: all."""
        for connection in list(self._server.server_state.connections):
            transport = connection.transport
            if transport is not None and client in (None, transport.get_extra_info("peername")):
                transport.abort()

    def _judge(self, seen: Seen, status: int) -> None:
        """A request that no scene provokes, and that no worker should send. (A heartbeat that crosses the report of its
        run is answered 409, and no fault.)"""
        is_crossed = status == 409 and seen.path.endswith("/heartbeat")
        if seen.spoiled is not None or not 400 <= status < 500 or status == 429 or is_crossed:
            return
        asked = f"{seen.method} {PREFIX}{seen.path}"
        if status == 401:
            self._fault = f"{asked} came without `Authorization: Bearer KEY`, or with another key than HORARIUM_KEY"
        else:
            said = seen.answer.get("detail", "") if isinstance(seen.answer, dict) else ""
            self._fault = f"{asked} was answered {status}: {said}"

    # ---- what a scene does

    @staticmethod
    def now() -> float:
        return asyncio.get_running_loop().time()

    async def add(self, **payload: Any) -> str:
        """A run that is due; its id."""
        timeouts = Timeouts(heartbeat_seconds=LEASE_SECONDS)
        definition = RunDefinition(target=QueueTarget(QUEUE), payload=payload, timeouts=timeouts)
        return (await self._runtime.operations.one_offs.add_run(definition)).run.id

    async def run(self, id: str) -> Run:
        return await self._runtime.operations.runs.get_run(id)

    async def cancel(self, id: str) -> None:
        await self._runtime.operations.runs.cancel_run(id)

    def server_now(self) -> Instant:
        return self._runtime.clock.now()

    async def until(self, holds: Callable[[], Any], seconds: float, otherwise: str) -> Any:
        """What `holds` gives, as soon as it is true. Raises Wrong, with what else is wrong or `otherwise`."""
        try:
            async with asyncio.timeout(seconds), self._news:
                while not (found := holds()):
                    self.check()
                    await self._news.wait()
                return found
        except TimeoutError:
            self.check()
            raise Wrong(otherwise) from None

    def check(self) -> None:
        """Raises Wrong for a request that was wrong in any scene."""
        if self._fault:
            raise Wrong(self._fault)

    async def claimed(self, id: str, seconds: float = START_SECONDS) -> float:
        """When the run was handed over to the worker."""
        asks = f"POST {PREFIX}/runs/claim for the queue that HORARIUM_QUEUE names"
        return float(
            await self.until(
                lambda: next((seen.at for seen in self.seen if seen.is_claim and id in _claimed(seen)), None),
                seconds,
                f"no worker claimed the run within {seconds:g} s: it sends {asks}",
            )
        )

    async def reported(self, id: str, seconds: float = ANSWER_SECONDS) -> Reported:
        """The first report that was answered with 200."""
        await self.claimed(id)
        good = await self.until(
            lambda: [report for report in self.reports(id) if report.status == 200],
            seconds,
            f"the run was claimed, and no end of it was reported within {seconds:g} s",
        )
        return good[0]  # type: ignore[no-any-return]

    def reports(self, id: str) -> list[Reported]:
        """All reports of that run's end so far."""
        found: list[Reported] = []
        for seen in self.seen:
            if seen.path in (f"/runs/{id}/complete", f"/runs/{id}/fail") and isinstance(seen.body, dict):
                outcome = "completed" if seen.path.endswith("complete") else "failed"
                found.append(Reported(seen.at, seen.body.get("token", 0), outcome, seen.status))
            elif seen.path == "/runs/settle" and isinstance(seen.body, list):
                found += _settled(seen, id)
        return found

    def beats(self, id: str) -> list[Seen]:
        return [seen for seen in self.seen if seen.path == f"/runs/{id}/heartbeat"]

    def claims(self, since: float, until: float) -> int:
        """How many claims came in between."""
        return sum(seen.is_claim and since <= seen.at < until for seen in self.seen)


class _Told:
    """What passes between the HTTP server and the API, kept."""

    def __init__(self, body: bytes, receive: Any, send: Any) -> None:
        self.status = 0
        self.content = b""
        self.is_silent = False
        self._body: bytes | None = body
        self._receive, self._send = receive, send

    async def receive(self) -> Message:
        if self._body is None:
            message: Message = await self._receive()
            return message
        body, self._body = self._body, None
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(self, message: Message) -> None:
        self.status = message.get("status", self.status)
        self.content += message.get("body", b"")
        if not self.is_silent:
            await self._send(message)

    async def answer(self, spoiled: Spoiled) -> None:
        """A problem of this status."""
        title = spoiled.code.replace("_", " ")
        kind = f"urn:horarium:problem:{spoiled.code}"
        problem = {"type": kind, "title": title, "status": spoiled.status, "detail": title, "code": spoiled.code}
        content = msgspec.json.encode(problem)
        headers = [(b"content-type", b"application/problem+json"), (b"content-length", str(len(content)).encode())]
        if spoiled.retry_after is not None:
            headers.append((b"retry-after", str(spoiled.retry_after).encode()))
        await self.send({"type": "http.response.start", "status": spoiled.status, "headers": headers})
        await self.send({"type": "http.response.body", "body": content})


def _json(text: bytes) -> Any:
    try:
        return msgspec.json.decode(text) if text else None
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _claimed(seen: Seen) -> list[str]:
    runs = seen.answer.get("runs", []) if isinstance(seen.answer, dict) else []
    return [run["id"] for run in runs]


def _settled(seen: Seen, id: str) -> list[Reported]:
    found = []
    for index, report in enumerate(seen.body):
        if isinstance(report, dict) and report.get("id") == id:
            answered: dict[str, Any] | UnsetType = UNSET
            if isinstance(seen.answer, list):
                answered = seen.answer[index]
            problem = None if answered is UNSET else answered.get("problem")
            status = problem["status"] if problem else seen.status
            found.append(Reported(seen.at, report.get("token", 0), str(report.get("outcome")), status))
    return found
