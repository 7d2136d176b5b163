"""What an endpoint is: one value that routes, checks and documents it.

The route table is read twice: `route` makes a handler of each entry, `openapi` a description. So the document can't
promise what the code does not do. A handler gets its query and body checked, and gives an `Answer` back: bytes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from os import urandom
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec
from litestar import Request
from litestar.connection import ASGIConnection
from litestar.enums import HttpMethod
from litestar.handlers import HTTPRouteHandler
from litestar.response.base import ASGIResponse
from litestar.types import ExceptionHandlersMap, Method
from msgspec import Struct

from horarium.access.acting import act_for, act_no_more, acting
from horarium.access.audit import Origin
from horarium.access.roles import Principal, Scope
from horarium.api.answers import JSON, NO_CONTENT, Ready
from horarium.api.limits import BODY_BYTES_MAX
from horarium.api.problems import allowed_methods
from horarium.api.reading import JSON_TYPES, body_at_hand, first_headers, header, read_body, read_query
from horarium.api.refused import Part
from horarium.errors import Forbidden
from horarium.operations.writing.tracing import asked_under

if TYPE_CHECKING:
    from litestar._signature import SignatureModel
    from litestar.utils.signature import ParsedSignature

Answer = ASGIResponse
AnyRequest = Request[Any, Any, Any]
REQUEST_ID_BYTES = 16


def origin_of(scope: Any, caller: Principal) -> Origin:
    """This caller, in a new request from the address that the ASGI scope names."""
    client = scope.get("client")
    return Origin(principal=caller, request_id=urandom(REQUEST_ID_BYTES).hex(), address=client[0] if client else "")


Note = Callable[[AnyRequest, Forbidden, Part | None], None]
"""Is told what a caller may not do."""


def _unheard(request: AnyRequest, refusal: Forbidden, part: Part | None) -> None:
    """No one listens."""


class Call(Struct):
    """One request, read and checked."""

    request: AnyRequest
    query: Any = None
    body: Any = None
    refused: Note = _unheard

    def refuse(self, refusals: Iterable[tuple[Forbidden, tuple[str, str] | None]], count: int) -> None:
        """Have it audited that `count` of many things are refused, the rest of which is done: by action and object,
        where the address of the request does not say them."""
        for refusal, change in refusals:
            self.refused(self.request, refusal, Part(count, change))

    @property
    def principal(self) -> Principal:
        """Who asks."""
        found: Principal = self.request.scope["user"]
        return found

    @property
    def origin(self) -> Origin:
        """Who changes something, by which request, from where; each time that it is asked for, of a new name."""
        return origin_of(self.request.scope, self.principal)


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
    media_type: str = JSON
    scope: Scope | None = None
    """What the caller must be allowed, judged before the body is read (None: nothing but to be known)."""
    bound: bool = False
    """A list that leaves out what its caller may not see, so that callers that are bound to queues may ask for it."""
    open: bool = False
    """Documented as answered without an API key (it is outside of /api)."""


def answer(value: Any, status: int = 200, headers: Sequence[tuple[str, str]] = ()) -> Answer:
    """A value as JSON."""
    return Ready(msgspec.json.encode(value), status=status, media_type=JSON, headers=headers)


def answer_text(text: bytes, status: int = 200, headers: Sequence[tuple[str, str]] = ()) -> Answer:
    """What is JSON already."""
    return Ready(text, status=status, media_type=JSON, headers=headers)


def no_content() -> Answer:
    """204."""
    return Ready(status=NO_CONTENT)


Check = Callable[[Endpoint, AnyRequest], Awaitable[None]]


class Route(HTTPRouteHandler):
    """A route whose guards get it as it is, and whose answers are sent as they are. The framework copies it for each
    guard, and puts its error handlers together from all layers, with each request: that costs more than the guards.
    And all take a request and give an answer: what the framework makes of that for each handler is made once."""

    _layers: ExceptionHandlersMap | None = None
    _signature: ClassVar[ParsedSignature | None] = None
    _model: ClassVar[type[SignatureModel] | None] = None

    @property
    def parsed_fn_signature(self) -> ParsedSignature:
        if Route._signature is None:
            Route._signature = super().parsed_fn_signature
        return Route._signature

    @property
    def signature_model(self) -> type[SignatureModel]:
        if Route._model is None:
            Route._model = super().signature_model
        return Route._model

    @property
    def plain(self) -> bool:
        """Whether it answers with JSON, all of it at once."""
        return bool(self.opt["media_type"] == JSON)

    async def authorize_connection(self, connection: ASGIConnection[Any, Any, Any, Any]) -> None:
        for guard in self.resolve_guards():
            await guard(connection, self)  # type: ignore[misc]

    def resolve_exception_handlers(self) -> ExceptionHandlersMap:
        if self._layers is None:
            self._layers = super().resolve_exception_handlers()
        return self._layers

    async def to_response(self, app: Any, data: Any, request: AnyRequest) -> Any:
        return data


def route(endpoint: Endpoint, check: Check, refused: Note) -> HTTPRouteHandler:
    """The handler of an endpoint. `check`: whether a caller that is bound to queues may ask for this. `refused`: is
    told what it may not."""
    changes = endpoint.method != "GET" and endpoint.scope not in (None, Scope.WORK)
    types = frozenset(each.encode() for each in endpoint.body_types)

    async def handle(request: AnyRequest) -> ASGIResponse:
        scope = request.scope
        try:
            caller: Principal | None = scope.get("user")
            if caller is not None and caller.queues is not None:
                await check(endpoint, request)
            query = None if endpoint.query is None else read_query(request, endpoint.query)
            body = None
            if endpoint.read is not None:
                text = body_at_hand(scope, types, endpoint.body_bytes_max)
                if text is None:
                    text = await read_body(request, endpoint.body_types, endpoint.body_bytes_max)
                body = endpoint.read(text) if text or not endpoint.optional_body else None
            call = Call(request, query, body, refused)
            if b"traceparent" in first_headers(scope):
                trace = header(scope, b"traceparent")
                with acting(call.origin if changes else None), asked_under(trace):
                    return await endpoint.handle(call)
            if not changes:
                return await endpoint.handle(call)
            before = act_for(origin_of(scope, scope["user"]))
            try:
                return await endpoint.handle(call)
            finally:
                act_no_more(before)
        except Forbidden as refusal:
            refused(request, refusal, None)
            raise

    handle.__annotations__ = {"request": Request, "return": ASGIResponse}
    return Route(
        _litestar_path(endpoint.path),
        http_method=[endpoint.method, HttpMethod.HEAD] if endpoint.method == "GET" else endpoint.method,
        name=endpoint.name,
        status_code=200,  # a default that no answer uses: each brings its own
        include_in_schema=False,
        request_max_body_size=endpoint.body_bytes_max,
        opt={"scope": endpoint.scope, "media_type": endpoint.media_type},
    )(handle)


def options(paths: Sequence[str]) -> HTTPRouteHandler:
    """What OPTIONS says at these paths: the methods of all endpoints of the one that is asked."""

    async def handle(request: AnyRequest) -> ASGIResponse:
        return ASGIResponse(status_code=204, headers=[("allow", ", ".join(allowed_methods(request)))])

    handle.__annotations__ = {"request": Request, "return": ASGIResponse}
    templates = [_litestar_path(path) for path in paths]
    return HTTPRouteHandler(templates, http_method="OPTIONS", status_code=200, include_in_schema=False)(handle)


def _litestar_path(path: str) -> str:
    return path.replace("{name}", "{name:str}").replace("{id}", "{id:str}").replace("{file}", "{file:str}")
