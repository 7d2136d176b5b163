"""PostgreSQL's clock as a node's own."""

from __future__ import annotations

from horarium.stores.server_clock import ServerClock

_TIME = "(extract(epoch FROM pg_catalog.clock_timestamp()) * 1000000)::int8"
QUERY = f"SELECT pg_catalog.txid_current_snapshot()::text, {_TIME}"
"""The time, and which transactions have ended: it is another text as soon as one of them that wrote can be seen, in any
database of the server. The time comes last, after what the statement does before."""
QUERY_ALONE = f"SELECT NULL, {_TIME}"
"""Where a server has no such snapshot."""


class PostgresClock(ServerClock):
    """The time of the PostgreSQL server that a `PostgresStore` works on."""
