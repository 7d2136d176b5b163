"""From a request to its route, past the guards, to an answer with our headers: the application.

A path without parameters is found first; then segment by segment, a word before a parameter. Slashes that are doubled
or stand at the end count for nothing. What is no request (the life span of a server) is Starlette's.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from msgspec import Struct
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.routing import Router
from starlette.types import Receive, Send

from horarium.access.roles import Scope
from horarium.api.answers import NO_CONTENT, Ready, security_headers
from horarium.api.problems import MethodNotAllowed, NoSuchRoute, Overloaded, Refusals
from horarium.api.questions import Messages, Questions
from horarium.api.reading import first_headers

AnyRequest = Request[Any]
Guard = Callable[[HTTPConnection[Any]], None]
ScopeGuard = Callable[[HTTPConnection[Any], str, Scope | None], Awaitable[None]]
ANY = ""
"""A parameter, in the tree of paths: no segment is empty."""
_SLASHES = re.compile("//+")


class Route(Struct, frozen=True, kw_only=True):
    """What answers to some methods at a path such as `/jobs/{name}`. `guard`: judges callers, by name and scope of the
    route; `page`: the page of the dashboard that it serves; `costly`: its cost depends on how much is stored;
    `alone`: costly, and takes much memory, so that one is answered at a time; `judges`: its handler says who lacks the
    scope and may go on; `refused`: its answer where its question is refused, if not a problem."""

    path: str
    methods: Sequence[str]
    name: str
    handle: Callable[[AnyRequest], Awaitable[Response]]
    scope: Scope | None = None
    guard: ScopeGuard | None = None
    page: Any = None
    costly: bool = False
    alone: bool = False
    judges: bool = False
    refused: Callable[[AnyRequest, Overloaded], Response] | None = None


Methods = dict[str, Route]


class Node:
    """A place in the tree of paths with parameters. `whole`: its last one is the rest of the path, slashes and all."""

    __slots__ = ("children", "methods", "names", "whole")

    def __init__(self) -> None:
        self.children: dict[str, Node] = {}
        self.methods: Methods = {}
        self.names: list[str] = []
        self.whole = False

    def below(self, segments: Iterable[str]) -> Node:
        """The place that these lead to, made where it is missing."""
        node = self
        for segment in segments:
            node = node.children.setdefault(ANY if segment.startswith("{") else segment, Node())
        return node


NOWHERE = Node()
ELSEWHERE = "*"
"""The path of what answers a browser where no other path fits."""
WHOLE = frozenset({"key", "queue"})
"""Parameters that are the rest of a path: any text."""


class Application:
    """An ASGI application. `guards`: asked about each request that has a route; `refusals`: answers errors; `closing`:
    called when the server ends."""

    def __init__(
        self,
        routes: Sequence[Route],
        guards: Sequence[Guard],
        refusals: Refusals,
        closing: Iterable[Callable[[], None]] = (),
    ) -> None:
        @asynccontextmanager
        async def lifespan(_: Any) -> AsyncIterator[None]:
            yield
            for close in closing:
                close()

        self.routes = routes
        self._guards, self._refusals = guards, refusals
        self._questions = Questions()
        self._others = Router(lifespan=lifespan)
        self._plain: dict[str, Methods] = {}
        self._root = Node()
        for route in routes:
            self._add(route)

    def _add(self, route: Route) -> None:
        segments = route.path.split("/")[1:]
        names = [each[1:-1] for each in segments if each.startswith("{")]
        if names:
            node = self._root.below(segments)
            assert node.names in ([], names), f"{route.path}: its parameters have other names elsewhere"
            node.names, methods = names, node.methods
            node.whole = names[-1] in WHOLE
        else:
            methods = self._plain.setdefault(route.path, {})
        if not methods:
            methods["OPTIONS"] = _options(route, methods)
        methods.update(dict.fromkeys(route.methods, route))

    def _find(self, scope: Any) -> Route:
        """The route of a request, whose parameters it is told. Raises NoSuchRoute, MethodNotAllowed."""
        path: str = scope["path"].removeprefix(scope.get("root_path") or "")
        if path[:1] != "/" or path[-1:] == "/" or "//" in path:
            path = _SLASHES.sub("/", f"/{path.strip('/')}")
        methods = self._plain.get(path)
        if methods is None:
            node, values = self._root, list[str]()
            for segment in path[1:].split("/"):
                if node.whole:
                    values[-1] += f"/{segment}"
                    continue
                child = node.children.get(segment)
                if child is None:
                    child = node.children.get(ANY, NOWHERE)
                    values.append(segment)
                node = child
            methods = node.methods or (self._plain.get(ELSEWHERE, {}) if _is_browser(scope, path) else {})
            scope["path_params"] = dict(zip(node.names, values, strict=False))
        route = methods.get(scope["method"])
        if route is None:
            raise MethodNotAllowed(scope["method"], sorted(methods)) if methods else NoSuchRoute(scope)
        scope["path"] = path
        return route

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._others(scope, receive, send)
            return
        request: AnyRequest = Request(scope, receive, send)
        try:
            route = self._find(scope)
            for guard in self._guards:
                guard(request)
            if route.guard is not None:
                await route.guard(request, route.name, None if route.judges else route.scope)
            if route.costly:
                messages = Messages(receive)
                asked: AnyRequest = Request(scope, messages.receive, send)
                answer = await self._ask(route, asked, messages.watch)
            else:
                answer = await route.handle(request)
        except Exception as error:
            answer = self._refusals.answer(request, error)
        answer.raw_headers.extend(security_headers({name for name, _ in answer.raw_headers}))
        await answer(scope, receive, send)

    async def _ask(self, route: Route, request: AnyRequest, receive: Receive) -> Response:
        try:
            alone = route.name if route.alone else None
            return await self._questions.ask(_caller(request), receive, lambda: route.handle(request), alone)
        except Overloaded as error:
            if route.refused is None:
                raise
            return route.refused(request, error)


def _is_browser(scope: Any, path: str) -> bool:
    """Whether a page is asked for, and nothing of the API."""
    reads = scope["method"] in ("GET", "HEAD") and not path.startswith("/api/")
    return reads and b"text/html" in first_headers(scope).get(b"accept", b"")


def _caller(request: AnyRequest) -> str:
    """Who asks: by name if that is known, and by address."""
    user, client = request.scope.get("user"), request.client
    return f"{user.name if user is not None else ''} {client.host if client else ''}"


def _options(first: Route, methods: Methods) -> Route:
    """What OPTIONS says where this is the first route: the methods that are there in the end."""

    async def handle(request: AnyRequest) -> Response:
        return Ready(status=NO_CONTENT, headers=[("allow", ", ".join(sorted(methods)))])

    return Route(path=first.path, methods=["OPTIONS"], name="", handle=handle, guard=first.guard)
