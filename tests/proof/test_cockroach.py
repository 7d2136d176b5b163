"""The contract on a real CockroachDB: 20.1.17, which `tools/build_cockroach.sh` builds where it is missing.

It is six years old and lacks much of what the store uses, so statements are rewritten for it (`cockroach_20_1`). What
it does prove is that nothing depends on PostgreSQL's transactions or wire protocol: a portal that stays open between
two statements, a look-up of array types, a serialization failure at COMMIT each broke the store on it once.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from horarium.ports import Store
from horarium.stores.cockroach import store as module
from horarium.stores.cockroach.migrate import PACKAGE
from horarium.stores.migrations import Migration, known_migrations
from horarium.testing.contract import StoreContract
from tests.servers.process import ServerProcess, free_port
from tests.stores.cockroach_20_1 import OldConnection, OldStore
from tests.stores.postgres_server import transaction_on
from tests.stores.test_next_schema import NEXT, live

ROOT = Path(__file__).parents[2]
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
FOLDER = CACHE / "horarium" / "cockroach"
"""Outside of the tree: it is built once for all checkouts."""
BUILD_SECONDS = 3600

pytestmark = [pytest.mark.proof, pytest.mark.slow]


def program() -> Path:
    """The server's program: the one of HORARIUM_TEST_COCKROACH, or ours, built if need be."""
    found = Path(os.environ.get("HORARIUM_TEST_COCKROACH", str(FOLDER / "bin" / "cockroach")))
    if not found.exists():
        subprocess.run(
            ["bash", str(ROOT / "tools" / "build_cockroach.sh"), str(FOLDER)], check=True, timeout=BUILD_SECONDS
        )
    return found


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    """A server of one node."""
    built = str(program())

    def command(folder: Path, port: int) -> list[str]:
        where = [
            f"--store={folder / 'data'}",
            f"--listen-addr=127.0.0.1:{port}",
            f"--http-addr=127.0.0.1:{free_port()}",
        ]
        return [built, "start-single-node", "--insecure", "--cache=128MiB", "--max-sql-memory=128MiB", *where]

    server = ServerProcess("cockroach", command)
    server.start()
    try:
        yield server
    finally:
        server.stop()


def database(server: ServerProcess, name: str) -> str:
    """The URL of a new one."""
    made = [str(program()), "sql", "--insecure", f"--host=127.0.0.1:{server.port}", "-e", f"CREATE DATABASE {name}"]
    subprocess.run(made, check=True, timeout=60, capture_output=True)
    return f"cockroachdb://root@127.0.0.1:{server.port}/{name}?sslmode=disable"


@pytest.fixture(scope="module")
def url(server: ServerProcess) -> str:
    """That of the contract."""
    return database(server, "test")


async def test_a_node_goes_on_beside_one_of_the_next_version_that_migrated(
    server: ServerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A migration only adds: rows of the older node are found, and it works on meanwhile."""
    where = database(server, "before")

    async def opened(*more: Migration) -> Store:
        known = known_migrations(PACKAGE)
        monkeypatch.setattr(module, "known_migrations", lambda package: [*known, *more])
        store = OldStore(where, "default")
        await store.open()
        return store

    older = await opened()
    await live(older, 1)
    newer = await opened(Migration(2, "colours", NEXT[PACKAGE]))
    await live(newer, 2)
    await live(older, 3)
    await older.close()
    await newer.close()


class TestOldCockroachStore(StoreContract):
    """The contract, but for three tests: two need a query of gates that 20.1 can't parse (a recursive, correlated CTE),
    one the `lock_timeout` that 21.1 brought."""

    test_what_stands_behind_many_that_are_held_back_is_claimed_in_order = None  # type: ignore[assignment]
    test_a_key_that_an_open_transaction_holds_is_waited_for_a_little = None  # type: ignore[assignment]
    test_many_jobs_in_order_have_their_first_runs_claimed_in_order = None  # type: ignore[assignment]

    @pytest.fixture(autouse=True)
    def _database(self, url: str) -> None:
        self.url = url

    async def open_store(self, namespace: str) -> Store:
        store = OldStore(self.url, namespace)
        await store.open()
        return store

    @asynccontextmanager
    async def transaction(self, store: Store) -> AsyncIterator[Any]:
        url = self.url.replace("cockroachdb://", "postgresql://")
        async with transaction_on(url, isolation="serializable") as connection:
            yield OldConnection(connection)
