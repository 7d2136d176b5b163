"""The driver: its only import, the URL, the settings of a connection, and what its errors mean.

Every connection has planner settings that suit a queue: the plan walks an index, even if the statistics say that the
table is empty, since it may be full a second later. Behind a pooler (PgBouncer in transaction mode) a connection has no
settings and no prepared statements of its own, so there each call is one transaction and is planned as it comes.

Errors are of three kinds: an outage that may pass is `StoreUnavailable`; safe to try again at once is a transaction
that the server itself rolled back (`is_rolled_back`); everything else is a bug.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from msgspec import Struct
from msgspec.structs import replace

from horarium.errors import BrokenInvariant, InvalidSetting, StoreRefused, StoreUnavailable

CONNECT_SECONDS = 5.0
QUERY_SECONDS = 8.0
CONNECTIONS_MAX = 10
KEEPALIVE_SECONDS = 15
KEEPALIVE_PROBES = 3

ARRAYS = (
    (1000, "bool", 16),
    (1001, "bytea", 17),
    (1005, "int2", 21),
    (1007, "int4", 23),
    (1016, "int8", 20),
    (1022, "float8", 701),
)
"""The arrays that are sent: number, name and number of the type of their members. They never change."""
_TYPE_FIELDS = (
    *("oid", "ns", "name", "kind", "basetype", "elemtype", "elemdelim", "range_subtype", "attrtypoids", "attrnames"),
    *("basetype_name", "elemtype_name", "range_subtype_name"),
)

Connection = Any
"""An `asyncpg.Connection`: the driver has no types."""

ROLLED_BACK = frozenset({"40001", "40P01"})
PASSING_CLASSES = frozenset({"08", "53", "57", "58"})
PASSING = frozenset({"0A000", "25006", "25P02", "25P03", "26000", "40003", "42501", "55P03"})
"""Besides: a plan or statement that went away, read-only, idle too long, not known whether it was done, no right, no
lock."""
REFUSED = {
    "28000": "look at the role in the store's URL, and at pg_hba.conf",
    "28P01": "look at the role and the password in the store's URL",
    "3D000": "create the database, or name another in the store's URL",
}
"""Refusals of the login, and what to do about each."""

_POOLER_ONLY = ("pgbouncer", "query_seconds", "connect_seconds", "connections_max")


class Location(Struct, frozen=True):
    """Where the database is, and how to speak to it. Durations in seconds."""

    dsn: str
    shown: str
    pooler: bool = False
    query_seconds: float = QUERY_SECONDS
    connect_seconds: float = CONNECT_SECONDS
    connections_max: int = CONNECTIONS_MAX
    product: str = "PostgreSQL"
    isolation: str = "read_committed"
    """Of transactions, in the driver's words: behind a pooler a connection has no default of its own."""
    settings: dict[str, str] | None = None
    """What a connection asks of its session; None: what PostgreSQL should be asked."""


def parse_url(url: str) -> Location:
    """`postgresql://user:password@host:port/database` with the driver's own parameters and ours: `pgbouncer=true`,
    `query_seconds`, `connect_seconds`, `connections_max`. Raises InvalidSetting."""
    parts = urlsplit(url)
    if parts.scheme not in ("postgresql", "postgres"):
        raise _wrong(f"{url!r} does not begin with postgresql://")
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    ours = {name: query.pop(name) for name in _POOLER_ONLY if name in query}
    shown = urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))
    dsn = urlunsplit(("postgresql", parts.netloc, parts.path, urlencode(query), ""))
    try:
        return Location(
            dsn,
            shown,
            pooler=_boolean(ours.get("pgbouncer", "false")),
            query_seconds=_positive(ours.get("query_seconds", QUERY_SECONDS)),
            connect_seconds=_positive(ours.get("connect_seconds", CONNECT_SECONDS)),
            connections_max=int(_positive(ours.get("connections_max", CONNECTIONS_MAX))),
        )
    except ValueError as error:
        raise _wrong(f"{error} (in the parameters of {shown})") from None


def _wrong(reason: str) -> InvalidSetting:
    return InvalidSetting(f"store: {reason}; give postgresql://user:password@host:port/database", field="store")


def _boolean(text: str) -> bool:
    if text.lower() not in ("true", "false", "1", "0"):
        raise ValueError(f"{text!r} is neither true nor false")
    return text.lower() in ("true", "1")


def _positive(text: str | float) -> float:
    number = float(text)
    if not 0 < number < 1e9 or (isinstance(text, str) and not text.strip()):
        raise ValueError(f"{text!r} is not a positive number")
    return number


def driver() -> Any:
    """The module asyncpg, imported when it is first needed (`node.backends` says what to install)."""
    return import_module("asyncpg")


def settings_of(location: Location) -> dict[str, str]:
    """What a connection asks of its session."""
    if location.pooler:
        return {"application_name": "horarium"}
    if location.settings is not None:
        return location.settings
    millis = str(round(location.query_seconds * 1000))
    return {
        "application_name": "horarium",
        "search_path": "pg_catalog",
        "synchronous_commit": "on",
        "default_transaction_isolation": "read committed",
        "jit": "off",
        "plan_cache_mode": "force_generic_plan",
        "enable_seqscan": "off",
        "enable_hashjoin": "off",
        "enable_mergejoin": "off",
        "enable_sort": "off",
        "max_parallel_workers_per_gather": "0",
        "statement_timeout": millis,
        "idle_in_transaction_session_timeout": millis,
        "tcp_keepalives_idle": str(KEEPALIVE_SECONDS),
        "tcp_keepalives_interval": str(KEEPALIVE_SECONDS),
        "tcp_keepalives_count": str(KEEPALIVE_PROBES),
    }


async def connect(location: Location) -> Connection:
    """A new connection. Raises StoreUnavailable."""
    asyncpg = driver()
    with translated(location):
        async with asyncio.timeout(location.connect_seconds):
            connection = await asyncpg.connect(
                location.dsn,
                timeout=location.connect_seconds,
                command_timeout=location.query_seconds,
                statement_cache_size=0 if location.pooler else 200,
                max_cached_statement_lifetime=0,
                server_settings=settings_of(location),
            )
    teach_arrays(connection)
    _keep_alive(connection)
    return connection


async def first_value(connection: Connection, query: str, *values: Any) -> Any:
    """The first column of the first row, or None. Never `fetchval` or `fetchrow`: these leave a portal open inside a
    transaction, beside which CockroachDB begins no further statement."""
    rows = await connection.fetch(query, *values)
    return rows[0][0] if rows else None


def teach_arrays(connection: Connection) -> None:
    """What arrays there are. The driver would ask each server for itself, on each connection, by a query that takes
    CockroachDB many seconds."""
    rows = [
        {
            **dict.fromkeys(_TYPE_FIELDS),
            "oid": oid,
            "ns": "pg_catalog",
            "name": f"_{name}",
            "kind": b"b",
            "elemtype": member,
            "elemdelim": b",",
            "elemtype_name": name,
        }
        for oid, name, member in ARRAYS
    ]
    connection._protocol.get_settings().register_data_types(rows)


def _keep_alive(connection: Connection) -> None:
    """Find out within a minute that the other side is gone, though nothing is being sent."""
    sock = connection._transport.get_extra_info("socket")
    if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        ("TCP_KEEPIDLE", KEEPALIVE_SECONDS),
        ("TCP_KEEPINTVL", KEEPALIVE_SECONDS),
        ("TCP_KEEPCNT", KEEPALIVE_PROBES),
    ):
        if hasattr(socket, option):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


async def find_pooler(location: Location) -> Location:
    """The same location, with `pooler` set if a pooler is between us and the server: it refuses our settings, or the
    process that answers is not the one that we connected to."""
    if location.pooler:
        return location
    behind = replace(location, pooler=True)
    try:
        connection = await connect(location)
    except StoreUnavailable as error:
        if getattr(error.__cause__, "sqlstate", None) == "08P01" and "startup parameter" in str(error):
            return behind
        raise
    try:
        with translated(location):
            answering = await first_value(connection, "SELECT pg_catalog.pg_backend_pid()")
            return location if answering == connection.get_server_pid() else behind
    finally:
        connection.terminate()


def is_rolled_back(error: BaseException) -> bool:
    """Whether the server rolled this transaction back in favour of another: nothing of it was written."""
    return getattr(error, "sqlstate", None) in ROLLED_BACK


@contextmanager
def translated(location: Location) -> Iterator[None]:
    """Raise the driver's errors as ours. Those of `is_rolled_back` too: they were tried again already."""
    asyncpg = driver()
    try:
        yield
    except asyncpg.PostgresError as error:
        raise _meaning(location, error) from error
    except TimeoutError as error:
        raise StoreUnavailable(
            f"{location.product} at {location.shown} did not answer in time ({location.query_seconds:g} s for a query, "
            f"{location.connect_seconds:g} s to connect); look whether it is overloaded or stopped"
        ) from error
    except (asyncpg.InterfaceError, asyncpg.InternalClientError) as error:
        if isinstance(error, (ValueError, TypeError)):
            raise
        raise StoreUnavailable(f"{location.product} at {location.shown}: the connection broke ({error})") from error
    except (OSError, asyncio.IncompleteReadError) as error:
        raise StoreUnavailable(
            f"{location.product} at {location.shown} can't be reached ({str(error) or type(error).__name__}); "
            "look whether it runs"
        ) from error


def _meaning(location: Location, error: Any) -> Exception:
    state = getattr(error, "sqlstate", None) or ""
    said = f"{location.product} at {location.shown}: {error} (SQLSTATE {state or 'unknown'})"
    if state in REFUSED:
        return StoreRefused(f"{said}; {REFUSED[state]}")
    if not state or state[:2] in PASSING_CLASSES or state in PASSING or state in ROLLED_BACK:
        return StoreUnavailable(said)
    return BrokenInvariant(said)
