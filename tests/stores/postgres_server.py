"""One PostgreSQL for all tests of a session, and a database of its own for whoever asks."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

import asyncpg  # type: ignore[import-untyped]

from tests.servers.postgres import Postgres
from tests.waiting import until

READY_SECONDS = 120.0


async def ready(url: str) -> None:
    """Return once the server answers: its port is open before it does."""
    async with asyncio.timeout(READY_SECONDS):
        while True:
            with suppress(asyncpg.CannotConnectNowError, OSError):
                return await execute(url, "SELECT 1")


@contextmanager
def running(**settings: str) -> Iterator[Postgres]:
    """A server of one's own, once it answers."""
    server = Postgres(**settings)
    try:
        server.start()
        asyncio.run(ready(server.url))
        yield server
    finally:
        server.stop()


async def execute(url: str, *statements: str) -> None:
    """Statements on a connection of their own."""
    connection = await asyncpg.connect(url)
    try:
        for statement in statements:
            await connection.execute(statement)
    finally:
        await connection.close()


def new_database(server: Postgres) -> str:
    """The URL of a new, empty database."""
    name = f"test_{secrets.token_hex(6)}"
    asyncio.run(execute(server.url, f"CREATE DATABASE {name}"))
    return server.url.removesuffix("/postgres") + "/" + name


@asynccontextmanager
async def transaction_on(url: str, isolation: str = "read_committed") -> AsyncIterator[Any]:
    """A connection of its own, in a transaction."""
    connection = await asyncpg.connect(url)
    try:
        async with connection.transaction(isolation=isolation):
            yield connection
    finally:
        await connection.close()


async def waiting(url: str) -> None:
    """Return once a connection waits for a lock."""
    watcher = await asyncpg.connect(url)
    asked = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    await until(lambda: watcher.fetchval(asked))
    await watcher.close()
