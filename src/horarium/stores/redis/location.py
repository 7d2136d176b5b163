"""Where the server is: what a store's URL says, and which of several nodes is to be talked to.

With one node there is nothing to choose. Of several, the one that says it is a primary is taken; of sentinels, the one
that they name, if it says so itself. If a node no longer gives the answer for which it was chosen (`READONLY`,
`MOVED`), or any at all, the search starts again. Two primaries that know nothing of each other are refused: one of them
was left behind by a failover, and a write to it is lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from msgspec import Struct
from redis.exceptions import RedisError

from horarium.errors import InvalidSetting, StoreUnavailable
from horarium.stores.redis.single import connected, send

SCHEMES = {"redis": "redis", "rediss": "rediss", "valkey": "redis", "valkeys": "rediss"}
PORT, SENTINEL_PORT = 6379, 26379
NODES_MAX = 20
TIMEOUT_SECONDS = 5.0
TIMEOUT_SECONDS_MAX = 300.0
ASK_SECONDS = 1.0
"""How long a node may take to say what it is, where there are several."""
REPLICAS_MAX = 100

Node = tuple[str, int]


class Location(Struct, frozen=True):
    """The parts of a store's URL. `replicas`: how many must have a write before it counts. `sentinel`: the name under
    which the nodes, which are sentinels then, know the server. `pattern`: the URL without its nodes."""

    nodes: tuple[Node, ...]
    pattern: tuple[str, str, str, str]
    shown: str
    sentinel: str | None
    replicas: int
    timeout_seconds: float

    def url(self, node: Node) -> str:
        """The URL of one node, as redis-py takes it."""
        scheme, login, path, query = self.pattern
        return urlunsplit((scheme, f"{login}{_shown(node)}", path, query, ""))


def parse_url(url: str) -> Location:
    """`redis[s]://[user:password@]host[:port][,host[:port]...][/db]`, or `valkey[s]`; `?sentinel=NAME` if the hosts are
    sentinels, `?wait=N` replicas, `?timeout=SECONDS`. Other parameters are redis-py's. Raises InvalidSetting."""
    parts = urlsplit(url)
    if parts.scheme not in SCHEMES:
        known = ", ".join(f"{scheme}://" for scheme in SCHEMES)
        raise InvalidSetting(f"store: {parts.scheme or url!r} is not one of {known}", field="store")
    query = dict(parse_qsl(parts.query))
    replicas = _number(query.pop("wait", "0"), "wait", 0, REPLICAS_MAX)
    seconds = _number(query.pop("timeout", str(TIMEOUT_SECONDS)), "timeout", 0.05, TIMEOUT_SECONDS_MAX)
    sentinel = query.pop("sentinel", None)
    login, at, hosts = parts.netloc.rpartition("@")
    nodes = tuple(_node(text, PORT if sentinel is None else SENTINEL_PORT) for text in hosts.split(","))
    if len(nodes) > NODES_MAX:
        raise InvalidSetting(f"store: {len(nodes)} hosts are more than {NODES_MAX}", field="store")
    shown = f"{','.join(map(_shown, nodes))}{parts.path}"
    pattern = (SCHEMES[parts.scheme], f"{login}{at}", parts.path, urlencode(query))
    return Location(nodes, pattern, shown, sentinel, int(replicas), seconds)


def _node(text: str, port: int) -> Node:
    try:
        parts = urlsplit(f"//{text}")
        return parts.hostname or "localhost", parts.port or port
    except ValueError as error:
        raise InvalidSetting(f"store: {text!r} of the URL can't be used: {error}", field="store") from error


def _shown(node: Node) -> str:
    host, port = node
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _number(text: str, name: str, least: float, most: float) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not least <= value <= most:
        raise InvalidSetting(f"store: ?{name}={text} is not a number from {least:g} to {most:g}", field="store")
    return value


# ---- which of them ----------------------------------------------------------------------------------------------


async def find_node(location: Location) -> Node:
    """The node to talk to. Raises StoreUnavailable if none is usable at present."""
    nodes: Sequence[Node] = location.nodes
    if location.sentinel is not None:
        nodes = await _named_by_sentinels(location)
    elif len(nodes) == 1:
        return nodes[0]
    said = await asyncio.gather(*(_ask(location, node, "INFO") for node in nodes))
    told = [set((info or b"").split()) for info in said]
    primaries = [node for node, lines in zip(nodes, told, strict=True) if b"role:master" in lines]
    in_cluster = any(b"cluster_enabled:1" in lines for lines in told)
    if not primaries:
        raise StoreUnavailable(f"Redis at {location.shown}: none of these answers as a primary")
    if len(primaries) > 1 and not in_cluster:
        which = " and ".join(map(_shown, primaries))
        raise StoreUnavailable(f"Redis: {which} each say that they are the primary; stop the one that was left behind")
    return primaries[0]


async def _named_by_sentinels(location: Location) -> Sequence[Node]:
    assert location.sentinel is not None
    for node in location.nodes:
        named = await _ask(location, node, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", location.sentinel)
        if named:
            return [(named[0].decode(), int(named[1]))]
    raise StoreUnavailable(f"Redis: none of the sentinels {location.shown} names {location.sentinel!r}")


async def _ask(location: Location, node: Node, *command: str) -> Any:
    """The answer of a node; None if there is none in time."""
    seconds = min(ASK_SECONDS, location.timeout_seconds)
    url = location.url(node)
    if command[0] == "SENTINEL":
        # Sentinels have no databases, and rarely the users of their servers.
        url = urlunsplit(urlsplit(url)._replace(path="", netloc=_shown(node)))
    with suppress(RedisError, OSError, TimeoutError):
        async with connected(url, seconds) as connection:
            await send(connection, *command)
            return await connection.read_response()
    return None
