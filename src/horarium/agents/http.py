"""`/mcp` beside the API, on the same port, for the same callers: streamable HTTP, without sessions.

A tool asks the API in this process, with the Authorization header of the request that called it and nothing else of
it, so keys, roles, queues, throttles and the audit are those of the API. A caller without a key is refused before the
protocol is spoken.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import unquote

import msgspec
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from starlette.responses import Response
from starlette.types import Message, Receive, Send

from horarium.agents.server import agent_server
from horarium.agents.tools import AGENT, Request
from horarium.api.limits import BODY_BYTES_MAX

PATH = "/mcp"
PREFIX = "/api/v1"
KEPT = (b"host", b"authorization", b"sec-fetch-site", b"origin")
"""Headers of the caller's request that the API judges it by."""

App = Callable[[Any, Receive, Send], Awaitable[None]]


class Agents:
    """An ASGI application around the API."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._sessions = StreamableHTTPSessionManager(
            agent_server(self._ask), json_response=True, stateless=True, max_request_body_size=BODY_BYTES_MAX
        )

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            async with self._sessions.run():
                await self._app(scope, receive, send)
        elif scope["type"] != "http" or scope["path"].rstrip("/") != PATH:
            await self._app(scope, receive, send)
        elif scope["method"] != "POST":
            await Response(status_code=405, headers={"allow": "POST"})(scope, receive, send)
        else:
            await self._serve(scope, receive, send)

    async def _serve(self, scope: Any, receive: Receive, send: Send) -> None:
        caller = await self._call(scope, Request("GET", "/me"))
        if caller.status != 200:
            refusal = Response(caller.body, caller.status)
            refusal.raw_headers = caller.headers
            await refusal(scope, receive, send)
            return
        # The SDK takes the scope along; the path below which it stands is no concern of its.
        await self._sessions.handle_request({**scope, "path": PATH}, receive, send)

    async def _ask(self, request: Request, called_by: Any) -> tuple[int, bytes]:
        answer = await self._call(called_by.scope, request)
        return answer.status, answer.body

    async def _call(self, caller: Any, request: Request) -> _Answer:
        """Ask the API in this process."""
        body = b"" if request.body is None else msgspec.json.encode(request.body)
        path, _, query = request.target.partition("?")
        headers = [(name, value) for name, value in caller["headers"] if name in KEPT]
        headers += [(b"user-agent", AGENT.encode()), (b"content-length", str(len(body)).encode())]
        if request.body is not None:
            headers.append((b"content-type", b"application/json"))
        names = ("type", "asgi", "http_version", "scheme", "client", "server", "root_path")
        scope = {name: caller[name] for name in names if name in caller}
        scope |= {"method": request.method, "path": unquote(PREFIX + path), "raw_path": (PREFIX + path).encode()}
        scope |= {"query_string": query.encode(), "headers": headers}
        answer = _Answer(body)
        await self._app(scope, answer.receive, answer.send)
        return answer


class _Answer:
    """One request in this process."""

    def __init__(self, content: bytes) -> None:
        self._content: bytes | None = content
        self.status = 500
        self.headers: list[tuple[bytes, bytes]] = []
        self.body = b""

    async def receive(self) -> Message:
        if self._content is None:
            await asyncio.Event().wait()
        content, self._content = self._content, None
        return {"type": "http.request", "body": content, "more_body": False}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status, self.headers = message["status"], list(message["headers"])
        self.body += message.get("body", b"")
