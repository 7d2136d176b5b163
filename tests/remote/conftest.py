"""A receiver, and a store of each kind that several processes can share."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.blackbox.conftest import name as name
from tests.blackbox.conftest import receiver as receiver
from tests.blackbox.outside import Server, serving
from tests.servers.postgres import Postgres
from tests.stores.conftest import postgres_server as postgres_server
from tests.stores.postgres_server import new_database

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSwMfKQ9r8GKYqr"


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
