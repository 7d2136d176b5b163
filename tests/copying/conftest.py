"""The servers that stores are copied between."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from tests.servers.mongo import Mongo
from tests.servers.postgres import Postgres
from tests.servers.redis import Redis
from tests.stores.postgres_server import ready


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    server = Postgres(fsync="off", full_page_writes="off")
    try:
        server.start()
        asyncio.run(ready(server.url))
        yield server.url
    finally:
        server.stop()


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
