"""What doors have in common: a request read, an answer sent, a few routes, and who may ask.

Doors answer as the systems did whose clients they serve, down to the text of a 404, so they stand beside the API's
routes and not among them. What protects the API protects them as well: the names of this server, pages of other sites,
keys and their throttle.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, Protocol
from urllib.parse import unquote

import msgspec
from msgspec import Struct
from starlette.responses import Response

from horarium.access.acting import acting
from horarium.access.audit import Origin
from horarium.access.roles import DOOR, Principal, Role, Scope, principal
from horarium.api.endpoints import origin_of
from horarium.api.guards import Keys
from horarium.api.routing import AnyRequest
from horarium.clock import MICROSECOND, SECOND, Instant, to_text
from horarium.errors import Forbidden

JSON = "application/json; charset=utf-8"
ZERO_TIME = "0001-01-01T00:00:00Z"
"""How Go writes the lack of an instant."""
HEX_CHARS = 24
"""The length of an object id of MongoDB in hexadecimal."""


Handle = Callable[[AnyRequest], Awaitable[Response]]
Admit = Callable[[AnyRequest, Scope | None], Coroutine[Any, Any, Response | None]]

CHANGES = frozenset({Scope.JOBS_WRITE, Scope.RUNS_WRITE, Scope.ADMIN})


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

    async def admit(self, asked: AnyRequest, scope: Scope | None, /) -> Response | None:
        """Judge who asks, before anything is read. None: let in."""


def value(content: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(content), status, media_type=JSON)


class Routes:
    """The routes of one door, looked up as Gin does: a slash too many is a redirect, the rest is 404, never 405."""

    def __init__(self, door: Door) -> None:
        self._door = door
        self._routes = [(route, _pattern(route.path)) for route in door.routes()]

    def takes(self, method: str, path: str) -> bool:
        """Whether the door answers, if only by a 404."""
        return not self._door.shares or self._find(method, path) is not None

    async def answer(self, asked: AnyRequest) -> Response:
        path = _path_as_sent(asked.scope)
        found = self._find(asked.method, path)
        if found is None:
            shorter = path.rstrip("/")
            if shorter != path and self._find(asked.method, shorter) is not None:
                return Response(status_code=301 if asked.method == "GET" else 307, headers={"location": shorter})
            return Response("404 page not found", 404, {"content-type": "text/plain"})
        route, parts = found
        asked.scope["path_params"] = {name: unquote(part) for name, part in parts.items()}
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

    def _origin(self, asked: AnyRequest) -> Origin:
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


def _path_as_sent(scope: Any) -> str:
    raw: bytes = scope.get("raw_path") or scope["path"].encode()
    return raw.partition(b"?")[0].decode("latin-1")


def key_check(keys: Keys, open_to_all: bool) -> Admit:
    """Lets in who bears a key of ours, or a token of our issuer (everyone, where there are none or `open_to_all`). It
    raises what the API's guards raise."""

    async def admit(asked: AnyRequest, scope: Scope | None) -> Response | None:
        if scope is not None and not open_to_all:
            await keys.guard(asked, "door", scope)
        return None

    return admit


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


def read_object(body: bytes) -> dict[str, Any] | None:
    """A JSON object, `null` counting as an empty one, its keys in small letters; None: it is none."""
    try:
        content = msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    if content is None:
        return {}
    return {key.lower(): item for key, item in content.items()} if isinstance(content, dict) else None
