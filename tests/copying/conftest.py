"""The servers that stores are copied between."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.servers.mongo import Mongo
from tests.servers.redis import Redis
from tests.stores.postgres_server import running


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    with running(fsync="off", full_page_writes="off") as server:
        yield server.url


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    server = Redis(appendonly="no")
    try:
        server.start()
        yield server.url
    finally:
        server.stop()


@pytest.fixture(scope="session")
def mongo_url() -> Iterator[str]:
    server = Mongo()
    try:
        server.start()
        yield server.url
    finally:
        server.stop()
