"""A real server in a thread of the tests, and a client of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from horarium.client import Client
from tests.servers.live import live_server


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with live_server() as server:
        yield server.url


@pytest.fixture
def client(url: str) -> Iterator[Client]:
    with Client(url) as made:
        yield made
