"""Servers that the tests of stores share."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import cast

import asyncpg  # type: ignore[import-untyped]
import pytest
import pytest_asyncio

from horarium.stores.postgres import PostgresStore, marks
from tests.servers.mongo import Mongo, Standalone
from tests.servers.postgres import Postgres
from tests.servers.redis import Redis
from tests.stores.cockroach_server import new_serializable_database
from tests.stores.postgres_server import new_database, running

SERVERS = [pytest.param(name, marks=pytest.mark.slow) for name in ("postgres", "cockroach", "redis", "mongo")]


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Postgres]:
    # Nothing here outlives the server, so nothing need reach the disk; what must is tested on servers of their own.
    with running(fsync="off", full_page_writes="off") as server:
        yield server


@pytest.fixture(scope="session")
def postgres_url(postgres_server: Postgres) -> str:
    return new_database(postgres_server)


@pytest.fixture
def fresh_postgres_url(postgres_server: Postgres) -> str:
    """A database that nothing else uses."""
    return new_database(postgres_server)


@pytest.fixture
def no_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a claim answers must not depend on how busy the machine is: low-water marks have tests of their own."""
    monkeypatch.setattr(marks, "SLOW_SECONDS", float("inf"))


@pytest_asyncio.fixture
async def store(fresh_postgres_url: str) -> AsyncIterator[PostgresStore]:
    """On PostgreSQL."""
    store = PostgresStore(fresh_postgres_url)
    await store.open()
    yield store
    await store.close()


@pytest_asyncio.fixture
async def other(fresh_postgres_url: str) -> AsyncIterator[asyncpg.Connection]:
    """A connection to the same database that is not the store's."""
    connection = await asyncpg.connect(fresh_postgres_url)
    yield connection
    await connection.close()


@pytest.fixture(scope="session")
def serializable_url(postgres_server: Postgres) -> str:
    return new_serializable_database(postgres_server)


@pytest.fixture
def fresh_serializable_url(postgres_server: Postgres) -> str:
    return new_serializable_database(postgres_server)


@pytest.fixture(scope="session")
def mongo() -> Iterator[Mongo]:
    """For tests that neither stop it nor look at what others left there."""
    server = Mongo()
    try:
        server.start()
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="session")
def standalone() -> Iterator[Standalone]:
    """A mongod in no replica set, for tests that do not stop it."""
    server = Standalone()
    try:
        server.start()
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="session")
def redis() -> Iterator[Redis]:
    """For tests with namespaces of their own, that neither stop it nor look at what others left there."""
    server = Redis("redis")
    server.start()
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture(params=["memory", "sqlite", *SERVERS])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Of each store, one after the other."""
    match request.param:
        case "memory":
            return "memory://"
        case "sqlite":
            return f"sqlite:///{tmp_path}/jobs.db"
        case "postgres":
            return cast(str, request.getfixturevalue("postgres_url"))
        case "cockroach":
            return cast(str, request.getfixturevalue("serializable_url"))
        case "redis":
            return cast(Redis, request.getfixturevalue("redis")).url
        case _:
            return cast(Mongo, request.getfixturevalue("mongo")).url
