"""A whole server in the test's own loop, with all doors open, reached over a real socket."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from horarium.buses.memory import MemoryBroker, MemoryBus
from horarium.node.backends import make_store
from horarium.node.runtime import Options, Runtime
from horarium.server.config import Settings
from horarium.server.http import make_server
from horarium.server.process import _app
from tests.access.issuer_server import IssuerServer, claims, signed
from tests.access.issuer_server import serving as issuer_serving

ALL = "jobs:read jobs:write runs:read runs:write"


class Reply:
    """What came back."""

    def __init__(self, status: int, headers: Any, body: bytes) -> None:
        self.status, self.headers, self.body = status, headers, body

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def said(self) -> tuple[int, Any]:
        """Status and body, the body as JSON where it is JSON."""
        if not self.body:
            return self.status, None
        is_json = self.headers["content-type"].startswith("application/json")
        return self.status, self.json if is_json else self.body.decode()


class House:
    """A server and its clients."""

    def __init__(self, url: str, session: aiohttp.ClientSession, issuer: IssuerServer, broker: MemoryBroker) -> None:
        self.url = url
        self.issuer = issuer
        self.broker = broker
        self.token: str | None = None
        self.runtime: Runtime
        self._session = session

    async def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Reply:
        """One request; a body that is text or bytes is sent as it is, any other as JSON."""
        if self.token is not None:
            headers.setdefault("authorization", f"Bearer {self.token}")
        sent = body if isinstance(body, bytes | None) else body if isinstance(body, str) else json.dumps(body)
        async with self._session.request(
            method, self.url + path, data=sent, headers=headers, allow_redirects=False
        ) as answer:
            return Reply(answer.status, answer.headers, await answer.read())

    def sign(self, **changes: Any) -> str:
        """An access token of the issuer, good for an hour."""
        now = int(time.time())
        return signed(claims(self.issuer.url, **{"exp": now + 3600, "iat": now, "scope": ALL, **changes}))


@pytest.fixture
def settings() -> dict[str, Any]:
    return {}


@pytest_asyncio.fixture
async def house(settings: dict[str, Any]) -> AsyncIterator[House]:
    broker = MemoryBroker()
    async with issuer_serving() as issuer, aiohttp.ClientSession() as session:
        asked = {
            "doors": ("rrule-scheduler", "simple-scheduler", "scrape-scheduler"),
            "door_open": True,
            "oidc_issuer": issuer.url,
            "oidc_audience": "any",
            **settings,
        }
        options = Options(allow_private_targets=True, buses={"default": MemoryBus(broker)}, grace_seconds=0.5)
        runtime = Runtime(make_store("memory://"), options)
        await runtime.open()
        await runtime.start()
        listener = socket.create_server(("127.0.0.1", 0))
        listener.setblocking(False)
        server = make_server(_app(runtime, Settings(**asked)), runtime.telemetry.refused)
        serving = asyncio.create_task(server.serve([listener]))
        made = House(f"http://127.0.0.1:{listener.getsockname()[1]}", session, issuer, broker)
        made.runtime = runtime
        yield made
        await runtime.stop()
        server.should_exit = True
        await serving
        await runtime.close()
