"""A receiver, and a store of each kind that several processes can share."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.blackbox.outside import Receiver
from tests.servers.postgres import Postgres
from tests.stores.conftest import postgres_server as postgres_server
from tests.stores.postgres_server import new_database


@pytest.fixture(scope="session")
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    yield receiver
    receiver.close()


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A name of the test's own, for a job, a queue, a path."""
    return re.sub(r"[^A-Za-z0-9]+", "-", request.node.name).strip("-")


@pytest.fixture
def store(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/own.db"


@pytest.fixture(params=["sqlite", "postgres"])
def shared_store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/shared.db"
    server: Postgres = request.getfixturevalue("postgres_server")
    made: Callable[[Postgres], str] = new_database
    return made(server)
