"""A receiver, and a store of each kind that several processes can share."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex

import pytest

from tests.blackbox.outside import Receiver, Server, serving
from tests.servers.postgres import Postgres
from tests.stores.conftest import postgres_server as postgres_server
from tests.stores.postgres_server import new_database

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSwMfKQ9r8GKYqr"


@pytest.fixture(scope="session")
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    yield receiver
    receiver.close()


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A name of this one try of the test, for a job, a queue, a path."""
    return re.sub(r"[^A-Za-z0-9]+", "-", request.node.name).strip("-") + "-" + token_hex(3)


@pytest.fixture
def store(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/own.db"


@dataclass(frozen=True)
class Nodes:
    """Two processes on one store. `whole` does everything; `api` only answers requests: it neither plans nor
    delivers."""

    whole: Server
    api: Server


@pytest.fixture(scope="session", params=["sqlite", "postgres"])
def nodes(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    if request.param == "sqlite":
        store = f"sqlite:///{tmp_path_factory.mktemp('remote')}/shared.db"
    else:
        server: Postgres = request.getfixturevalue("postgres_server")
        store = new_database(server)
    with (
        serving(store, "--allow-private-targets", "--signing-secret", SECRET) as whole,
        serving(store, "--allow-private-targets", "--roles", "api") as api,
    ):
        yield Nodes(whole, api)
