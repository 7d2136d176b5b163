"""What the CockroachDB store is tested on: a PostgreSQL whose transactions are serializable, as it is, and with a
seeded part of all statements and commits given up by the server; and a real CockroachDB, if its URL is given."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any

from horarium.stores.cockroach import CockroachStore
from horarium.stores.cockroach.connect import PAUSES
from horarium.stores.cockroach.session import OVERTAKE
from horarium.stores.postgres.connect import Connection
from horarium.stores.postgres.pool import Pool
from tests.servers.postgres import Postgres
from tests.stores.postgres_server import execute

REAL_URL = os.environ.get("HORARIUM_TEST_COCKROACH_URL", "")
"""`cockroachdb://...`: a database that tests may fill."""

SEED = 26257
FAILING_STATEMENTS, FAILING_COMMITS = 0.03, 0.15
GIVE_UP = "DO $$ BEGIN RAISE serialization_failure USING MESSAGE = 'given up by the test'; END $$"


class Trouble:
    """Which statements and commits are given up."""

    def __init__(self, seed: int = SEED, statements: float = FAILING_STATEMENTS, commits: float = FAILING_COMMITS):
        self._random = Random(seed)
        self._statements, self._commits = statements, commits
        self.statements_failed = self.commits_failed = 0

    def at_statement(self) -> bool:
        fails = self._random.random() < self._statements
        self.statements_failed += fails
        return fails

    def at_commit(self) -> bool:
        fails = self._random.random() < self._commits
        self.commits_failed += fails
        return fails


class TroubledConnection:
    """An asyncpg connection on which the server itself gives up some statements, and some transactions at their end."""

    def __init__(self, connection: Connection, trouble: Trouble) -> None:
        self._connection, self._trouble = connection, trouble

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    async def _perhaps(self, fails: bool) -> None:
        if fails:
            await self._connection.execute(GIVE_UP)

    async def fetch(self, *given: Any, **how: Any) -> Any:
        await self._perhaps(self._trouble.at_statement())
        return await self._connection.fetch(*given, **how)

    async def fetchval(self, *given: Any, **how: Any) -> Any:
        await self._perhaps(self._trouble.at_statement())
        return await self._connection.fetchval(*given, **how)

    async def execute(self, *given: Any, **how: Any) -> Any:
        await self._perhaps(self._trouble.at_statement())
        # No reader waits for a writer on PostgreSQL, which has no priorities.
        return None if given == (OVERTAKE,) else await self._connection.execute(*given, **how)

    @asynccontextmanager
    async def transaction(self, isolation: str) -> AsyncIterator[None]:
        async with self._connection.transaction(isolation=isolation):
            yield
            await self._perhaps(self._trouble.at_commit())


class TroubledPool(Pool):
    """Connections in common trouble."""

    trouble: Trouble

    async def _connect(self) -> Connection:
        return TroubledConnection(await super()._connect(), self.trouble)


class TroubledStore(CockroachStore):
    """A store all of whose connections are troubled."""

    def __init__(self, url: str, namespace: str = "default", trouble: Trouble | None = None) -> None:
        super().__init__(url, namespace)
        self.trouble = trouble or Trouble()

    def _new_pool(self) -> Pool:
        pool = TroubledPool(self.location, PAUSES)
        pool.trouble = self.trouble
        return pool


def new_serializable_database(server: Postgres) -> str:
    """The `cockroachdb://` URL of a new database whose texts sort by their bytes and whose transactions are
    serializable, whatever a session says of it."""
    name = f"test_{secrets.token_hex(6)}"
    create = f"CREATE DATABASE {name} TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C' ENCODING 'UTF8'"
    serializable = f"ALTER DATABASE {name} SET default_transaction_isolation = 'serializable'"
    asyncio.run(execute(server.url, create, serializable))
    return server.url.replace("postgresql://", "cockroachdb://").removesuffix("/postgres") + "/" + name
