"""What an endpoint is: one value that routes, checks and documents it.

The route table is read twice: `route` makes a handler of each entry, `openapi` a description. So the document can't
promise what the code does not do. A handler gets its query and body checked, and gives an `Answer` back: bytes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from os import urandom
from typing import Any, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import force_setattr, replace
from starlette.responses import Response

from horarium.access.acting import acting, reading
from horarium.access.audit import AGENT_MARK, Origin
from horarium.access.roles import Principal, Scope
from horarium.api.answers import JSON, NO_CONTENT, Ready
from horarium.api.limits import BODY_BYTES_MAX
from horarium.api.reading import JSON_TYPES, BodyReader, header, peer_of, read_body, read_query
from horarium.api.refused import Part
from horarium.api.routing import AnyRequest, Route, ScopeGuard
from horarium.errors import Forbidden
from horarium.operations.facade import Operations
from horarium.operations.writing.tracing import asked_under

ONE = frozenset({"addRun", "triggerJob", "retryRun"})
SEVERAL = frozenset({"backfillJob", "retryRuns"})
"""How many these make is known only when they are made, unless they name each."""


async def spend_runs(name: str, body: Any, spend: Callable[[int], Awaitable[None]]) -> None:
    """Count the runs that a call of this endpoint asks for. Raises OverBudget, or Forbidden where they can't be
    counted."""
    listed = getattr(body, "runs", None) or getattr(body, "ids", None)
    if name in ONE:
        await spend(1)
    elif isinstance(listed, list) and name != "cancelRuns":
        await spend(len(listed))
    elif name in SEVERAL:
        raise Forbidden("a key with a budget asks for runs one by one, or in a list", [Scope.RUNS_WRITE])


Answer = Response
REQUEST_ID_BYTES = 16
AGENT_HEADER = (b"user-agent", b"horarium-mcp")


def origin_of(scope: Any, caller: Principal) -> Origin:
    """This caller, in a new request from the address that the ASGI scope names."""
    return Origin(principal=caller, request_id=request_id_of(scope), address=peer_of(scope))


def request_id_of(scope: Any) -> str:
    """A name for this request; it begins with `mcp-` where a tool of an agent asks."""
    agent = AGENT_MARK if AGENT_HEADER in scope["headers"] else ""
    return agent + urandom(REQUEST_ID_BYTES).hex()


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


H = TypeVar("H", bound=Callable[..., object])
ROWS = "horarium_rows"
"""The attribute of a method that holds its rows."""


class Row(Struct, frozen=True):
    """A row of a table of routes, which decorates the method that answers. `handle`: that method, of a row that
    `rows_of` gives."""

    method: str
    path: str
    name: str
    handle: Any = None

    def __call__(self, handle: H) -> H:
        setattr(handle, ROWS, (self, *getattr(handle, ROWS, ())))
        return handle


def rows_of(table: object) -> list[Any]:
    """The rows at the methods of this object, each with its method, in their order."""
    methods = vars(type(table)).items()
    return [replace(row, handle=getattr(table, name)) for name, method in methods for row in getattr(method, ROWS, ())]


class Endpoint(Row, frozen=True, kw_only=True):
    """`answers`: status -> (type of the body or None, what it means). `problems`: codes besides those that every
    endpoint has. `read`: from bytes to the body (left out: as JSON of that type, whose texts may hold NUL if `nul`);
    with `optional_body`, an empty body gives `None`."""

    summary: str
    tag: str
    answers: Mapping[int, tuple[Any, str]]
    description: str = ""
    problems: Sequence[str] = ()
    query: type[Struct] | None = None
    body: Any = None
    read: Callable[[bytes], Any] | None = None
    nul: bool = False
    optional_body: bool = False
    body_types: tuple[str, ...] = JSON_TYPES
    body_bytes_max: int = BODY_BYTES_MAX
    headers: Mapping[str, str] = {}
    examples: Sequence[Example] = ()
    media_type: str = JSON
    scope: Scope | None = None
    """What the caller must be allowed, judged before the body is read (None: nothing but to be known)."""
    without: Callable[..., Awaitable[Principal]] | None = None
    """A method that judges a caller who lacks the scope: as whom it may go on. Raises Forbidden."""
    bound: bool = False
    """A list that leaves out what its caller may not see, so that callers that are bound to queues may ask for it."""
    costly: bool = False
    """Its cost depends on how much is stored."""
    alone: bool = False
    """Costly, and takes much memory, from its body on: one is answered at a time."""
    open: bool = False
    """Documented as answered without an API key (it is outside of /api)."""

    def __post_init__(self) -> None:
        if self.read is None and self.body is not None:
            force_setattr(self, "read", BodyReader(self.body, nul=self.nul))


def answer(value: Any, status: int = 200, headers: Sequence[tuple[str, str]] = ()) -> Answer:
    return Ready(msgspec.json.encode(value), status=status, media_type=JSON, headers=headers)


def answer_text(text: bytes | list[bytes], status: int = 200, headers: Sequence[tuple[str, str]] = ()) -> Answer:
    return Ready(text, status=status, media_type=JSON, headers=headers)


def no_content() -> Answer:
    return Ready(status=NO_CONTENT)


class Handlers:
    """Those of one part of the API; what they do is in `Operations`."""

    def __init__(self, operations: Operations) -> None:
        self._operations, self._clock = operations, operations.clock

    def endpoints(self) -> list[Endpoint]:
        """The part of the route table that is at its methods."""
        rows: list[Endpoint] = rows_of(self)
        return [replace(row, without=partial(row.without, self)) if row.without is not None else row for row in rows]


Check = Callable[[Endpoint, AnyRequest], Awaitable[None]]


def route(endpoint: Endpoint, check: Check, refused: Note, prefix: str = "", guard: ScopeGuard | None = None) -> Route:
    """The route of an endpoint. `check`: whether a caller that is bound to queues may ask for this. `refused`: is told
    what it may not."""
    changes = endpoint.method != "GET" and endpoint.scope not in (None, Scope.WORK)
    answers: Callable[[Call], Awaitable[Answer]] = endpoint.handle

    async def handle(request: AnyRequest) -> Response:
        scope = request.scope
        try:
            caller: Principal | None = scope.get("user")
            if endpoint.without is not None and endpoint.scope is not None and caller is not None:
                lacks = caller.missing(endpoint.scope)
                caller = await endpoint.without(request, caller) if lacks else caller.narrowed(endpoint.scope)
                scope["user"] = caller
            if caller is not None and caller.bound:
                await check(endpoint, request)
            query = None if endpoint.query is None else read_query(request, endpoint.query)
            body = None
            if endpoint.read is not None:
                text = await read_body(request, endpoint.body_types, endpoint.body_bytes_max)
                body = endpoint.read(text) if text or not endpoint.optional_body else None
            call = Call(request, query, body, refused)
            if (spend := scope.get("spend")) is not None:
                await spend_runs(endpoint.name, body, spend)
            trace = header(scope, b"traceparent")
            reader = caller if endpoint.method == "GET" and caller is not None and caller.bound else None
            if not changes and reader is None and trace is None:
                return await answers(call)
            with acting(call.origin) if changes else reading(reader), asked_under(trace):
                return await answers(call)
        except Forbidden as refusal:
            refused(request, refusal, None)
            raise

    methods = ("GET", "HEAD") if endpoint.method == "GET" else (endpoint.method,)
    path, name = prefix + endpoint.path, endpoint.name
    return Route(
        path=path, methods=methods, name=name, handle=handle, scope=endpoint.scope, guard=guard, costly=endpoint.costly,
        alone=endpoint.alone, judges=endpoint.without is not None,
    )  # fmt: skip
