"""A connection for one purpose: its answers are read as they come.

Of the driver only its connections are loaded. Its client, with a method for each command, takes 3.7 MB.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import hiredis
from redis.asyncio.connection import AbstractConnection, ConnectionPool
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

PROTOCOL = 2
"""RESP 2: the answers of scripts are the same on every server, and nothing is pushed in between."""


@asynccontextmanager
async def connected(url: str, seconds: float) -> AsyncIterator[AbstractConnection]:
    """A connection to this server, which has so long for each answer where nothing else is said. Raises errors of the
    driver, OSError and TimeoutError."""
    pool = ConnectionPool.from_url(
        url,
        protocol=PROTOCOL,
        socket_timeout=seconds,
        socket_connect_timeout=seconds,
        retry=Retry(NoBackoff(), 0),
    )
    try:
        # Its deprecation decorator is untyped.
        yield await pool.get_connection()  # type: ignore[no-untyped-call]
    finally:
        await pool.disconnect()


async def send(connection: AbstractConnection, *command: Any) -> None:
    """Ask it something."""
    await connection.send_packed_command(hiredis.pack_command(command), check_health=False)
