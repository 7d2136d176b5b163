"""The driver: its only import, the URL, the settings of a connection, and what its errors mean.

Every connection is told to plan as a queue needs it: with the plan that walks an index, whatever the statistics of a
table that is empty now and full a second later. Behind a pooler (PgBouncer in transaction mode) a connection has no
settings and no prepared statements of its own, so there each call is one transaction and is planned as it comes.

The hard thing is telling errors apart: what may pass is `StoreUnavailable`; what is safe to try again at once is a
transaction that the server itself rolled back (`is_rolled_back`); everything else is a bug.
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

from horarium.errors import BrokenInvariant, InvalidSetting, StoreUnavailable

CONNECT_SECONDS = 5.0
QUERY_SECONDS = 8.0
CONNECTIONS_MAX = 10
KEEPALIVE_SECONDS = 15
KEEPALIVE_PROBES = 3

Connection = Any
"""An `asyncpg.Connection`: the driver has no types."""

ROLLED_BACK = frozenset({"40001", "40P01"})
PASSING_CLASSES = frozenset({"08", "53", "57", "58"})
PASSING = frozenset({"0A000", "25006", "25P02", "25P03", "26000", "28000", "40003", "28P01", "3D000", "42501", "55P03"})
"""Besides: a plan or statement that went away, read-only, idle too long, refused, not known whether it was done, no
database, no right, no lock."""

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
    """The module asyncpg, imported when it is first needed. Raises InvalidSetting if it is not installed."""
    try:
        return import_module("asyncpg")
    except ImportError:
        raise InvalidSetting("store: postgresql:// needs asyncpg; install horarium[postgres]", field="store") from None


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
    _keep_alive(connection)
    return connection


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
    """The same location, with `pooler` set if something stands between us and the server: it refuses our settings, or
    the process that answers is not the one that we connected to."""
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
            answering = await connection.fetchval("SELECT pg_catalog.pg_backend_pid()")
            return location if answering == connection.get_server_pid() else behind
    finally:
        connection.terminate()


def is_rolled_back(error: BaseException) -> bool:
    """Whether the server gave this transaction up for another one's sake: nothing of it was written."""
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
            f"{location.product} at {location.shown} can't be reached ({error or type(error).__name__}); look whether "
            "it runs"
        ) from error


def _meaning(location: Location, error: Any) -> Exception:
    state = getattr(error, "sqlstate", None) or ""
    told = f"{location.product} at {location.shown}: {error} (SQLSTATE {state or 'unknown'})"
    if not state or state[:2] in PASSING_CLASSES or state in PASSING or state in ROLLED_BACK:
        return StoreUnavailable(told)
    return BrokenInvariant(told)
