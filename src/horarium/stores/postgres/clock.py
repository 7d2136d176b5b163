"""PostgreSQL's clock as a node's own."""

from __future__ import annotations

from horarium.stores.server_clock import ServerClock

QUERY = "SELECT (extract(epoch FROM pg_catalog.clock_timestamp()) * 1000000)::int8"


class PostgresClock(ServerClock):
    """The time of the PostgreSQL server that a `PostgresStore` works on."""
