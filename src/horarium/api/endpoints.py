"""What an endpoint is: one value that routes, checks and documents it.

The route table is read twice: `route` makes a handler of each entry, `openapi` a description. So the document can't
promise what the code does not do. A handler gets its query and body checked, and gives an `Answer` back: bytes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import msgspec
from litestar import Request
from litestar.enums import HttpMethod
from litestar.handlers import HTTPRouteHandler
from litestar.response.base import ASGIResponse
from litestar.types import Method
from msgspec import Struct

from horarium.access.roles import Principal, Scope
from horarium.api.limits import BODY_BYTES_MAX
from horarium.api.problems import allowed_methods
from horarium.api.reading import JSON_TYPES, read_body, read_query

Answer = ASGIResponse
AnyRequest = Request[Any, Any, Any]


class Call(Struct):
    """One request, read and checked."""

    request: AnyRequest
    query: Any = None
    body: Any = None

    @property
    def principal(self) -> Principal:
        """Who asks."""
        found: Principal = self.request.scope["user"]
        return found


class Example(Struct, frozen=True):
    """A value that the document shows."""

    name: str
    value: Any


class Endpoint(Struct, frozen=True, kw_only=True):
    """`answers`: status -> (type of the body or None, what it means). `problems`: codes besides those that every
    endpoint has. `read`: from bytes to the body; with `optional_body`, an empty body gives `None`."""

    method: Method
    path: str
    name: str
    summary: str
    tag: str
    handle: Callable[[Call], Awaitable[Answer]]
    answers: Mapping[int, tuple[Any, str]]
    description: str = ""
    problems: Sequence[str] = ()
    query: type[Struct] | None = None
    body: Any = None
    read: Callable[[bytes], Any] | None = None
    optional_body: bool = False
    body_types: tuple[str, ...] = JSON_TYPES
    body_bytes_max: int = BODY_BYTES_MAX
    headers: Mapping[str, str] = {}
    examples: Sequence[Example] = ()
    media_type: str = "application/json"
    scope: Scope | None = None
    """What the caller must be allowed, judged before the body is read (None: nothing but to be known)."""
    open: bool = False
    """Documented as answered without an API key (it is outside of /api)."""


def answer(value: Any, status: int = 200, headers: Sequence[tuple[str, str]] = ()) -> Answer:
    """A value as JSON."""
    return ASGIResponse(
        body=msgspec.json.encode(value), status_code=status, media_type="application/json", headers=headers
    )


def no_content() -> Answer:
    """204."""
    return ASGIResponse(status_code=204)


def route(endpoint: Endpoint) -> HTTPRouteHandler:
    """The handler of an endpoint."""

    async def handle(request: AnyRequest) -> ASGIResponse:
        query = None if endpoint.query is None else read_query(request, endpoint.query)
        body = await _body(request, endpoint)
        return await endpoint.handle(Call(request, query, body))

    handle.__annotations__ = {"request": Request, "return": ASGIResponse}
    return HTTPRouteHandler(
        _litestar_path(endpoint.path),
        http_method=[endpoint.method, HttpMethod.HEAD] if endpoint.method == "GET" else endpoint.method,
        name=endpoint.name,
        status_code=200,  # a default that no answer uses: each brings its own
        include_in_schema=False,
        request_max_body_size=endpoint.body_bytes_max,
        opt={"scope": endpoint.scope},
    )(handle)


async def _body(request: AnyRequest, endpoint: Endpoint) -> Any:
    if endpoint.read is None:
        return None
    text = await read_body(request, endpoint.body_types)
    if not text and endpoint.optional_body:
        return None
    return endpoint.read(text)


def options(path: str) -> HTTPRouteHandler:
    """What OPTIONS says at a path: the methods of all of its endpoints."""

    async def handle(request: AnyRequest) -> ASGIResponse:
        return ASGIResponse(status_code=204, headers=[("allow", ", ".join(allowed_methods(request)))])

    handle.__annotations__ = {"request": Request, "return": ASGIResponse}
    return HTTPRouteHandler(_litestar_path(path), http_method="OPTIONS", status_code=200, include_in_schema=False)(
        handle
    )


def _litestar_path(path: str) -> str:
    return path.replace("{name}", "{name:str}").replace("{id}", "{id:str}").replace("{file}", "{file:str}")
