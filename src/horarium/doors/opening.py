"""The doors in front of the API: a request below the path of an open door goes there, every other to the API."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from horarium.api.answers import security_headers
from horarium.api.guards import Connection, KnownHosts, refuse_cross_site
from horarium.api.hosts import Hosts
from horarium.api.problems import PROBLEMS
from horarium.doors.web import JSON, Door, DoorResponse, Receive, Routes, Send, read_request
from horarium.errors import Forbidden, HorariumError

App = Callable[[Any, Receive, Send], Any]
log = logging.getLogger("horarium")


class Doors:
    """An ASGI application around another."""

    def __init__(
        self,
        app: App,
        doors: Sequence[Door],
        hosts: Hosts,
        count: Callable[[str], None],
        refuse: Callable[[Connection, Forbidden], None],
    ) -> None:
        self._app = app
        self._refuse = refuse
        self._routes = [(prefix, Routes(door)) for door in doors for prefix in door.prefixes]
        self._guards = (KnownHosts(hosts, count).guard, refuse_cross_site(count, pages=False))

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        routes = self._behind(scope["path"]) if scope["type"] == "http" else None
        if routes is None or not routes.takes(scope["method"], scope["path"]):
            await self._app(scope, receive, send)
            return
        await _send(await self._answer(routes, scope, receive), scope, send)

    def _behind(self, path: str) -> Routes | None:
        for prefix, routes in self._routes:
            if path == prefix or path.startswith(f"{prefix}/"):
                return routes
        return None

    async def _answer(self, routes: Routes, scope: Any, receive: Receive) -> DoorResponse:
        try:
            for guard in self._guards:
                guard(Connection(scope))
            return await routes.answer(read_request(scope, receive))
        except HorariumError as error:
            if isinstance(error, Forbidden):
                self._refuse(Connection(scope), error)
            return _refusal(error)
        except Exception:
            log.exception("a door could not answer %s %s", scope["method"], scope["path"])
            return _error(500, "Unexpected error occurred")


def _refusal(error: HorariumError) -> DoorResponse:
    """What no door has an answer of its own for."""
    status = PROBLEMS.get(error.code, (500, ""))[0]
    answer = _error(status, str(error))
    if status == 401:
        answer.headers = [("www-authenticate", "Bearer")]
    return answer


def _error(status: int, message: str) -> DoorResponse:
    return DoorResponse(status, msgspec.json.encode({"error": message}))


async def _send(answer: DoorResponse, scope: Any, send: Send) -> None:
    headers = [(name.encode(), text.encode("latin-1")) for name, text in answer.headers]
    if answer.body:
        headers.append((b"content-type", (answer.media_type or JSON).encode()))
    headers.append((b"content-length", str(len(answer.body)).encode()))
    headers += security_headers({name for name, _ in headers})
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    body = b"" if scope["method"] == "HEAD" else answer.body
    await send({"type": "http.response.body", "body": body, "more_body": False})
