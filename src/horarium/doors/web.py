"""What doors have in common: a request read, an answer sent, a few routes, and who may ask.

Doors answer as the systems did whose clients they serve, down to the text of a 404, so they stand beside the API's
routes and not among them. What protects the API protects them as well: the names of this server, pages of other sites,
keys and their throttle.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol
from urllib.parse import parse_qsl, unquote

import msgspec
from msgspec import Struct

from horarium.access.acting import acting
from horarium.access.audit import Origin
from horarium.access.roles import DOOR, Principal, Role, Scope, principal
from horarium.api.endpoints import origin_of
from horarium.api.guards import Connection, Keys
from horarium.api.limits import BODY_BYTES_MAX
from horarium.clock import MICROSECOND, SECOND, Instant, to_text
from horarium.errors import Forbidden

Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]
JSON = "application/json; charset=utf-8"
TEXT = "text/plain"
ZERO_TIME = "0001-01-01T00:00:00Z"
"""How Go writes the lack of an instant."""
HEX_CHARS = 24
"""The length of an object id of MongoDB in hexadecimal."""


class DoorRequest(Struct):
    """One request. `parts`: the values of the path's placeholders."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    scope: Any
    receive: Receive
    parts: Mapping[str, str] = {}

    async def body(self, bytes_max: int = BODY_BYTES_MAX) -> bytes | None:
        """The body; None: it is larger than that."""
        found = bytearray()
        while True:
            message = await self.receive()
            if message["type"] == "http.disconnect":
                return bytes(found)
            found += message.get("body", b"")
            if len(found) > bytes_max:
                return None
            if not message.get("more_body"):
                return bytes(found)


class DoorResponse(Struct):
    """An answer."""

    status: int
    body: bytes = b""
    media_type: str = JSON
    headers: Sequence[tuple[str, str]] = ()


Handle = Callable[[DoorRequest], Awaitable[DoorResponse]]

CHANGES = frozenset({Scope.JOBS_WRITE, Scope.RUNS_WRITE, Scope.ADMIN})
NOT_FOUND = DoorResponse(404, b"404 page not found", TEXT)


class Route(Struct, frozen=True):
    """`path` with placeholders such as `{id}`; `scope`: what the caller must be allowed (None: open to all)."""

    method: str
    path: str
    handle: Handle
    scope: Scope | None = None


class Door(Protocol):
    """One door: below which paths it is, its routes, and who may come in. `shares`: what it has no route for goes to
    the API and its pages, which are below the same paths. A door whose jobs are all in one queue names it (`queue`), so
    that callers that are bound to it are let in."""

    name: str
    prefixes: tuple[str, ...]
    shares: bool

    def routes(self) -> Sequence[Route]:
        """What it answers."""

    async def admit(self, asked: DoorRequest, scope: Scope | None) -> DoorResponse | None:
        """Judge who asks, before anything is read. None: let in."""


def value(content: Any, status: int = 200) -> DoorResponse:
    return DoorResponse(status, msgspec.json.encode(content))


class Routes:
    """The routes of one door, looked up as Gin does: a slash too many is a redirect, the rest is 404, never 405."""

    def __init__(self, door: Door) -> None:
        self._door = door
        self._routes = [(route, _pattern(route.path)) for route in door.routes()]

    def takes(self, method: str, path: str) -> bool:
        """Whether the door answers, if only by a 404."""
        return not self._door.shares or self._find(method, path) is not None

    async def answer(self, asked: DoorRequest) -> DoorResponse:
        found = self._find(asked.method, asked.path)
        if found is None:
            shorter = asked.path.rstrip("/")
            if shorter != asked.path and self._find(asked.method, shorter) is not None:
                return DoorResponse(301 if asked.method == "GET" else 307, headers=[("location", shorter)])
            return NOT_FOUND
        route, parts = found
        asked.parts = {name: unquote(part) for name, part in parts.items()}
        refusal = await self._door.admit(asked, route.scope)
        if refusal is not None:
            return refusal
        self._keep_to_queues(asked.scope.get("user"))
        # Clients of one door cancel with GET: what a request changes is known by its scope.
        changes = route.scope in CHANGES
        with acting(self._origin(asked) if changes else None):
            return await route.handle(asked)

    def _keep_to_queues(self, caller: Principal | None) -> None:
        """A caller that is bound sees and touches its own alone; a door shows all that is behind it. Raises
        Forbidden."""
        if caller is None or not caller.bound:
            return
        queue: str | None = getattr(self._door, "queue", None)
        if queue is None or caller.labels is not None or not caller.may_reach(queue, {}):
            raise Forbidden(f"{caller.name} is bound to queues or labels, and this door leads to others")

    def _origin(self, asked: DoorRequest) -> Origin:
        """Who asks: as the guards know it, or the door itself, where it is open to all or has tokens of its own."""
        name = DOOR + self._door.name
        caller: Principal = asked.scope.get("user") or principal(name, name, "local", [Role.ADMIN])
        return origin_of(asked.scope, caller)

    def _find(self, method: str, path: str) -> tuple[Route, Mapping[str, str]] | None:
        for route, pattern in self._routes:
            if route.method == method and (match := pattern.fullmatch(path)) is not None:
                return route, match.groupdict()
        return None


def _pattern(path: str) -> re.Pattern[str]:
    return re.compile(re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", path))


def read_request(scope: Any, receive: Receive) -> DoorRequest:
    """A request, with the path as it was sent."""
    raw = (scope.get("raw_path") or scope["path"].encode()).partition(b"?")[0]
    headers = {name.decode("latin-1").lower(): text.decode("latin-1") for name, text in scope["headers"]}
    query = dict(parse_qsl(scope.get("query_string", b"").decode("latin-1"), keep_blank_values=True))
    return DoorRequest(scope["method"], raw.decode("latin-1"), query, headers, scope, receive)


class KeyCheck:
    """Lets in who bears a key of ours, or a token of our issuer (everyone, where there are none or `open_to_all`)."""

    def __init__(self, keys: Keys, open_to_all: bool) -> None:
        self._guard = keys.guard
        self._open = open_to_all

    async def __call__(self, asked: DoorRequest, scope: Scope | None) -> DoorResponse | None:
        """Raises what the API's guards raise."""
        if scope is not None and not self._open:
            await self._guard(Connection(asked.scope), "door", scope)
        return None


# ---- values as Go writes them -----------------------------------------------------------------------------------


def go_time(instant: Instant | None) -> str:
    """RFC 3339 in UTC, in milliseconds, without zeros at the end."""
    if instant is None:
        return ZERO_TIME
    whole, fraction = divmod(instant, SECOND)
    text = to_text(whole * SECOND).partition("+")[0].removesuffix("Z").partition(".")[0]
    millis = f"{fraction // (1000 * MICROSECOND):03d}".rstrip("0")
    return f"{text}.{millis}Z" if millis else f"{text}Z"


def short_id(run_id: str) -> str:
    """The first 96 bits of one of our ids, as 24 hexadecimal digits."""
    return run_id.replace("-", "")[:HEX_CHARS]


def is_short_id(text: str) -> bool:
    return re.fullmatch(r"[0-9a-f]{24}", text) is not None


def read_object(body: bytes | None) -> dict[str, Any] | None:
    """A JSON object, `null` counting as an empty one, its keys in small letters; None: it is none."""
    try:
        content = msgspec.json.decode(body or b"")
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    if content is None:
        return {}
    return {key.lower(): item for key, item in content.items()} if isinstance(content, dict) else None
