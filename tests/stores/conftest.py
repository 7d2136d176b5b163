"""Servers that the tests of stores share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.servers.mongo import Mongo
from tests.servers.postgres import Postgres
from tests.stores.cockroach_server import new_serializable_database
from tests.stores.postgres_server import new_database, running


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Postgres]:
    # Nothing here outlives the server, so nothing need reach the disk; what must is tested on servers of their own.
    with running(fsync="off", full_page_writes="off") as server:
        yield server


@pytest.fixture(scope="session")
def postgres_url(postgres_server: Postgres) -> str:
    return new_database(postgres_server)


@pytest.fixture(scope="session")
def serializable_url(postgres_server: Postgres) -> str:
    return new_serializable_database(postgres_server)


@pytest.fixture
def fresh_serializable_url(postgres_server: Postgres) -> str:
    return new_serializable_database(postgres_server)


@pytest.fixture(scope="session")
def mongo() -> Iterator[Mongo]:
    """For whoever neither stops it nor looks at what others left there."""
    server = Mongo()
    try:
        server.start()
        yield server
    finally:
        server.stop()
