"""The URL of a CockroachDB, and what a session of it is asked for.

A setting that the server doesn't know is refused when connecting, so none of PostgreSQL's planner settings is sent. A
pooler is not detected: process numbers mean something else here, so it must be declared by `pgbouncer=true`.
"""

from __future__ import annotations

from urllib.parse import parse_qsl, urlsplit, urlunsplit

from msgspec.structs import replace

from horarium.errors import InvalidSetting
from horarium.stores.postgres.connect import Location, parse_url

SCHEME = "cockroachdb"
PORT = 26257

QUERY_SECONDS = 15.0
"""Rows that a dead node had locked can be read and written again after 9 to 10 s: a call in progress outlasts that."""

PAUSES = (0.0, 0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.5, 0.5, 0.5, 0.5, 0.7, 0.7, 0.7, 0.7, 1.0, 1.0, 1.0, 1.0)
"""Seconds, on average, before each further attempt at a transaction that was rolled back: 9.4 s in all, then it is an
outage."""


def parse_cockroach_url(url: str) -> Location:
    """`cockroachdb://user:password@host:26257/database`, with the parameters of `postgres.connect.parse_url`. Raises
    InvalidSetting."""
    parts = urlsplit(url)
    if parts.scheme != SCHEME:
        raise InvalidSetting(
            f"store: {url!r} does not begin with {SCHEME}://; give {SCHEME}://user:password@host:{PORT}/database",
            field="store",
        )
    address = parts.netloc.rpartition("@")[2]
    netloc = f"{parts.netloc}:{PORT}" if address and _has_no_port(address) else parts.netloc
    location = parse_url(urlunsplit(("postgresql", netloc, parts.path, parts.query, "")))
    if "query_seconds" not in dict(parse_qsl(parts.query)):
        location = replace(location, query_seconds=QUERY_SECONDS)
    shown = urlunsplit((SCHEME, netloc.rpartition("@")[2], parts.path, "", ""))
    return replace(location, shown=shown, product="CockroachDB", isolation="serializable", settings=_settings(location))


def _has_no_port(address: str) -> bool:
    return "," not in address and ":" not in address.rpartition("]")[2]


def _settings(location: Location) -> dict[str, str]:
    millis = str(round(location.query_seconds * 1000))
    return {
        "application_name": "horarium",
        "default_transaction_isolation": "serializable",
        "statement_timeout": millis,
        "idle_in_transaction_session_timeout": millis,
    }
