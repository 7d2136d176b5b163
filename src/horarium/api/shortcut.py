"""The short way to a route: past the framework, for the requests that need nothing of it.

The framework takes longer to find a route, to build what its handlers may ask for and to wrap an answer than most
handlers take for their work. What a request needs of all that is little: its route, the guards, the handler, the answer
to an error. Here these very objects (the framework's own routes, with their guards and error handlers) are called one
after the other, so there is one definition of each, and both ways answer alike.

Only what is plain goes this way: a route whose answer is JSON, a path that is written as the route is, a host that was
answered before. All else goes through the framework, untouched: other paths and methods, pages, streams.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

from litestar import Litestar, Request
from litestar.handlers import HTTPRouteHandler
from litestar.routes import HTTPRoute
from litestar.types import Receive, Send
from msgspec import Struct

from horarium.api.answers import Ready
from horarium.api.endpoints import Route
from horarium.api.guards import HEADER_LINES, Guard, KnownHosts, Unasked, security_headers
from horarium.api.reading import first_headers
from horarium.api.whole import whole_of

ANY = ""
"""What stands for a parameter in a path: no segment is empty."""


class Way(Struct, frozen=True):
    """A route, its guards but for that of the host, when none of them need be asked (None: never), the handler, and the
    names of its parameters in the order of the path."""

    route: Route
    guards: Sequence[Guard]
    unasked: Unasked | None
    handle: Callable[[Any], Awaitable[Ready]]
    names: tuple[str, ...]


Methods = Mapping[str, Way | None]
"""None: a handler to which only the framework leads."""


class Node:
    """A place in the tree of paths."""

    __slots__ = ("children", "methods")

    def __init__(self) -> None:
        self.children: dict[str, Node] = {}
        self.methods: Methods = {}


class Ways:
    """Which route is at a path. Chosen as the framework does: a path without parameters first, then segment by
    segment, a word before a parameter."""

    def __init__(self, routes: Iterable[HTTPRoute], hosts: KnownHosts, unasked: Mapping[Guard, Unasked | None]) -> None:
        self._plain: dict[str, Methods] = {}
        self._root = Node()
        for route in routes:
            names = tuple(each.name for each in route.path_components if not isinstance(each, str))
            methods: dict[Any, Way | None] = {
                method: _way(handler, hosts, unasked, names)
                for handler in route.route_handlers
                for method in handler.http_methods
            }
            if names:
                self._node([each if isinstance(each, str) else ANY for each in route.path_components]).methods = methods
            else:
                self._plain[route.path] = methods

    def _node(self, segments: Iterable[str]) -> Node:
        node = self._root
        for segment in segments:
            node = node.children.setdefault(segment, Node())
        return node

    def find(self, method: str, path: str) -> tuple[Way, dict[str, Any]] | None:
        """The way to take, and the values of the path's parameters."""
        methods = self._plain.get(path)
        values: list[str] = []
        if methods is None:
            node: Node | None = self._root
            for segment in path.split("/")[1:]:
                assert node is not None
                children = node.children
                node = children.get(segment) if segment else None
                if node is None:
                    node = children.get(ANY) if segment else None
                    values.append(segment)
                if node is None:
                    return None
            assert node is not None
            methods = node.methods
        way = methods.get(method)
        return None if way is None else (way, dict(zip(way.names, values, strict=True)))


def _way(
    handler: HTTPRouteHandler, hosts: KnownHosts, unasked: Mapping[Guard, Unasked | None], names: tuple[str, ...]
) -> Way | None:
    if not isinstance(handler, Route) or not handler.plain:
        return None
    asked: list[Any] = [guard for guard in handler.resolve_guards() if guard is not hosts.guard]
    return Way(handler, asked, _all_unasked([unasked.get(guard) for guard in asked]), handler.fn, names)


def _all_unasked(each: Sequence[Unasked | None]) -> Unasked | None:
    """When none of several guards need be asked."""
    headers, caller = frozenset[bytes](), None
    for unasked in each:
        if unasked is None:
            return None
        headers, caller = headers | unasked.headers, unasked.caller or caller
    return Unasked(headers, caller)


class PlainRequest(Request[Any, Any, Any]):
    """The framework's request. What it prepares beyond these three is prepared once it is asked for."""

    __slots__ = ()

    def __init__(self, scope: Any, receive: Receive, send: Send) -> None:
        self.scope, self.receive, self.send = scope, receive, send

    def __getattr__(self, name: str) -> Any:
        super().__init__(self.scope, self.receive, self.send)
        return object.__getattribute__(self, name)


class Application(Litestar):
    """The framework's application, with the short way before it. `open_short_way` opens it."""

    _ways: Ways | None = None
    _hosts: KnownHosts

    @staticmethod
    def _get_default_plugins(plugins: list[Any]) -> list[Any]:
        """Those for models of other libraries are left out: none of ours are, and where such a library is installed, it
        would be loaded for it (pydantic: 13 MB)."""
        try:
            from litestar.plugins.core import MsgspecDIPlugin
        except ImportError:  # it is elsewhere in some versions
            return Litestar._get_default_plugins(plugins)
        return [*plugins, MsgspecDIPlugin()]

    def open_short_way(self, hosts: KnownHosts, unasked: Mapping[Guard, Unasked | None]) -> Application:
        """From now on, plain requests to hosts that are known here go the short way. `unasked`: of guards that are
        not asked about each request. Itself."""
        self._hosts = hosts
        self._ways = Ways((route for route in self.routes if isinstance(route, HTTPRoute)), hosts, unasked)
        return self

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        ways = self._ways
        if ways is not None and scope["type"] == "http" and not scope.get("root_path"):
            found = ways.find(scope["method"], scope["path"])
            if found is not None and self._is_to_us(scope):
                await self._answer(found[0], found[1], scope, receive, send)
                return
        await super().__call__(scope, receive, send)

    @staticmethod
    def _passes(way: Way, scope: Any) -> bool:
        """Whether no guard need be asked of this request; who asks is then said."""
        unasked = way.unasked
        if unasked is None or not unasked.headers.isdisjoint(first_headers(scope)):
            return False
        if unasked.caller is not None:
            scope["user"] = unasked.caller
        return True

    def _is_to_us(self, scope: Any) -> bool:
        """Whether it is sent to a name that is known, and no header is given twice."""
        headers = first_headers(scope)
        return len(headers) == len(scope["headers"]) and headers.get(b"host") in self._hosts.known

    async def _answer(self, way: Way, values: dict[str, Any], scope: Any, receive: Receive, send: Send) -> None:
        route = way.route
        scope["app"] = scope["litestar_app"] = self
        scope["path_params"] = values
        scope["route_handler"] = route
        request = PlainRequest(scope, receive, send)
        try:
            if not self._passes(way, scope):
                for guard in way.guards:
                    await guard(request, route)
            answer = await way.handle(request)
        except Exception as error:
            answer = self._refusal(request, route, error)
        whole = whole_of(scope)
        if whole is not None:
            head = answer.encode_lines() + HEADER_LINES
            if whole.answer(scope, answer.status_code, head, answer.body):
                return
        headers = answer.encode_headers()
        headers = [*headers, *security_headers({name for name, _ in headers})]
        await send({"type": "http.response.start", "status": answer.status_code, "headers": headers})
        await send({"type": "http.response.body", "body": answer.body, "more_body": False})

    @staticmethod
    def _refusal(request: Request[Any, Any, Any], route: Route, error: Exception) -> Ready:
        handlers: Any = route.resolve_exception_handlers()
        handle = next(handlers[kind] for kind in type(error).__mro__ if kind in handlers)
        answer: Ready = handle(request, error).to_asgi_response(None, request)
        return answer


__all__ = ["Application", "Ways"]
