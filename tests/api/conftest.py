"""The API on the memory store and a clock that stands still, reached over ASGI in the test's own loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import MutableMapping, Sequence
from functools import partial
from itertools import count
from typing import Any
from urllib.parse import unquote

import msgspec
import pytest

from horarium.api.answers import CLOSED
from horarium.api.app import MetricsFor, create_app
from horarium.api.hosts import Hosts
from horarium.api.routing import Application
from horarium.dashboard.app import dashboard
from horarium.model import Run, Target
from horarium.operations.facade import Operations
from horarium.ports import Store
from horarium.services.loop.service import Health
from horarium.services.metrics.telemetry import Telemetry
from horarium.services.polling.claims import Claims
from horarium.stores.memory import MemoryStore
from horarium.stores.wakeups import LocalSignal
from horarium.testing.clock import ManualClock
from horarium.testing.faults import Fault, FaultyStore
from horarium.testing.values import NOW, a_run

JSON = "application/json"
HOSTS = Hosts(frozenset({"testserver"}))


class Reply:
    """What came back. `unread`: chunks of the request's body that were never asked for."""

    def __init__(self, status: int, headers: dict[str, str], body: bytes, unread: int) -> None:
        self.status = status
        self.unread = unread
        self.headers = headers
        self.body = body

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.body)

    @property
    def code(self) -> str:
        """The problem's code, once it is proved to be a problem."""
        assert self.headers["content-type"] == "application/problem+json"
        assert self.json["status"] == self.status
        assert self.json["type"] == f"urn:horarium:problem:{self.json['code']}"
        code: str = self.json["code"]
        return code


async def ask(
    app: Application,
    method: str,
    url: str,
    headers: dict[str, str],
    chunks: Sequence[bytes] = (b"",),
    hang_up: asyncio.Event | None = None,
    seen: list[bytes] | None = None,
) -> Reply:
    """One request over ASGI, as a server passes it on. `seen`: gets each piece of the body as it comes."""
    path, _, query = url.partition("?")
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "scheme": "http", "method": method,
        "path": unquote(path), "raw_path": path.encode(), "root_path": "", "query_string": query.encode(),
        "headers": [(name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()],
        "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80),
        CLOSED: lambda: hang_up is not None and hang_up.is_set(),
    }  # fmt: skip
    left = deque(chunks)
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        if left:
            chunk = left.popleft()
            return {"type": "http.request", "body": chunk, "more_body": bool(left)}
        await (hang_up or asyncio.Event()).wait()
        return {"type": "http.disconnect"}

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(dict(message))
        if seen is not None:
            seen.append(message.get("body", b""))

    await app(scope, receive, send)
    answered = {name.decode().lower(): value.decode("latin-1") for name, value in sent[0]["headers"]}
    return Reply(sent[0]["status"], answered, b"".join(message.get("body", b"") for message in sent[1:]), len(left))


class Api:
    """One node's API and what stands behind it."""

    def __init__(
        self,
        api_keys: Sequence[str] = (),
        *,
        pages: bool = False,
        store: Store | None = None,
        public_url: str | None = None,
        people: Any = None,
        metrics: MetricsFor = "open",
    ) -> None:
        numbers = count(1)
        self.failing: set[str] = set()
        self.clock = ManualClock(NOW)
        self.store: Store = FaultyStore(
            store or MemoryStore(), lambda call: Fault.BEFORE if call in self.failing else None
        )
        signal = LocalSignal()
        self.checked: list[Target] = []
        self.operations = Operations(
            self.store, self.clock, signal, lambda size: next(numbers).to_bytes(size, "big"), self.checked.append
        )
        self.claims = Claims(self.operations.claiming, self.clock, signal)
        self.health = Health()
        self.telemetry = Telemetry()
        self.app: Application = create_app(
            self.operations,
            self.claims,
            health=self.health,
            telemetry=self.telemetry,
            api_keys=api_keys,
            hosts=HOSTS,
            metrics=metrics,
            pages=partial(dashboard, tally=self.telemetry.tally, public_url=public_url, people=people)
            if pages
            else None,
        )

    async def send(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        headers: dict[str, str] | None = None,
        hang_up: asyncio.Event | None = None,
        seen: list[bytes] | None = None,
    ) -> Reply:
        """A request under /api/v1 (or elsewhere, for a path that begins with two slashes). Bytes are sent as they are,
        anything else as JSON. The client closes the connection when `hang_up` is set."""
        url = path[1:] if path.startswith("//") else f"/api/v1{path}"
        headers = {"host": "testserver", **(headers or {})}
        content = b"" if body is None else body if isinstance(body, bytes) else msgspec.json.encode(body)
        if body is not None:
            headers.setdefault("content-type", JSON)
            headers.setdefault("content-length", str(len(content)))
        return await ask(self.app, method, url, headers, [content], hang_up, seen)

    async def get(self, path: str, **more: Any) -> Reply:
        return await self.send("GET", path, **more)

    async def post(self, path: str, body: Any = None, **more: Any) -> Reply:
        return await self.send("POST", path, body, **more)

    async def add_job(self, name: str = "job", **fields: Any) -> dict[str, Any]:
        """A job that workers pull from the queue `work`."""
        reply = await self.post("/jobs", a_definition(name, **fields))
        assert reply.status == 201, reply.body
        job: dict[str, Any] = reply.json
        return job

    async def add_run(self, number: int = 0, **changes: Any) -> Run:
        """A one-off run, due, in the queue `work`."""
        run = a_run(number, queue="pull/work", **changes)
        assert await self.store.add_runs([run]) == [True]
        return run

    async def claim(self, limit: int = 1) -> list[dict[str, Any]]:
        reply = await self.post("/runs/claim", {"queues": ["work"], "limit": limit, "worker": "w"})
        runs: list[dict[str, Any]] = reply.json["runs"] if reply.status == 200 else []
        return runs


def a_definition(name: str = "job", /, **fields: Any) -> dict[str, Any]:
    """A job as its owner writes it."""
    return {
        "name": name,
        "trigger": {"type": "interval", "every_seconds": 60},
        "target": {"type": "queue", "queue": "work", "payload": {"n": 1}},
        **fields,
    }


@pytest.fixture
def api() -> Api:
    return Api()


@pytest.fixture
def locked_api() -> Api:
    """An API that asks for one of two keys."""
    return Api(api_keys=["first-key-1234", "second-key-5678"])


@pytest.fixture(scope="session")
def refusing() -> Api:
    """An API for tests whose requests are all refused: nothing is ever written to it, so they may share it."""
    return Api()


@pytest.fixture(scope="session")
def refusing_locked() -> Api:
    """The same, asking for a key."""
    return Api(api_keys=["first-key-1234"])
