"""The doors in front of the API: a request below the path of an open door goes there, every other to the API."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Send

from horarium.api.answers import security_headers
from horarium.api.guards import Connection, KnownHosts, refuse_cross_site
from horarium.api.hosts import Hosts
from horarium.api.problems import PROBLEMS
from horarium.api.routing import AnyRequest
from horarium.doors.web import Door, Routes, value
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
        answer = await self._answer(routes, Request(scope, receive, send))
        answer.raw_headers.extend(security_headers({name for name, _ in answer.raw_headers}))
        await answer(scope, receive, send)

    def _behind(self, path: str) -> Routes | None:
        for prefix, routes in self._routes:
            if path == prefix or path.startswith(f"{prefix}/"):
                return routes
        return None

    async def _answer(self, routes: Routes, asked: AnyRequest) -> Response:
        try:
            for guard in self._guards:
                guard(asked)
            return await routes.answer(asked)
        except HorariumError as error:
            if isinstance(error, Forbidden):
                self._refuse(asked, error)
            return _refusal(error)
        except Exception:
            log.exception("a door could not answer %s %s", asked.scope["method"], asked.scope["path"])
            return _error(500, "Unexpected error occurred")


def _refusal(error: HorariumError) -> Response:
    """What no door has an answer of its own for."""
    answer = _error(PROBLEMS.get(error.code, (500, ""))[0], str(error))
    if answer.status_code == 401:
        answer.headers["www-authenticate"] = "Bearer"
    return answer


def _error(status: int, message: str) -> Response:
    return value({"error": message}, status)
