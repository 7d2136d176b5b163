"""The SQLite store keeps the contract, also while its disk is full, its file locked or read-only."""

from __future__ import annotations

import resource
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import apsw
import pytest

from horarium.ports import Store
from horarium.stores.sqlite import SqliteStore
from horarium.testing.contract import StoreContract

pytestmark = pytest.mark.slow

PAGES_MAX = 0xFFFF_FFFE


@asynccontextmanager
async def full_file(store: SqliteStore) -> AsyncIterator[None]:
    """The database may not grow by a page: SQLITE_FULL in the middle of a statement."""
    await store._writer.call(lambda session: session.connection.pragma("max_page_count", 1))
    yield
    await store._writer.call(lambda session: session.connection.pragma("max_page_count", PAGES_MAX))


@asynccontextmanager
async def full_log(store: SqliteStore) -> AsyncIterator[None]:
    """The write-ahead log may not grow: every COMMIT that wants to write fails."""
    log = Path(store.location.path + "-wal")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (log.stat().st_size, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@asynccontextmanager
async def locked(store: SqliteStore) -> AsyncIterator[None]:
    """Somebody else writes for longer than we wait."""
    await store._writer.call(lambda session: session.connection.set_busy_timeout(1))
    await store._writer.call(lambda session: session.connection.setlk_timeout(1, 0))
    other = apsw.Connection(store.location.path)
    other.execute("BEGIN EXCLUSIVE")
    yield
    other.close()


@asynccontextmanager
async def read_only(store: SqliteStore) -> AsyncIterator[None]:
    """SQLITE_READONLY at the first write."""
    await store._writer.call(lambda session: session.connection.pragma("query_only", True))
    yield


class TestSqliteStore(StoreContract):
    @pytest.fixture(autouse=True)
    def _file(self, tmp_path: Path) -> None:
        # No test here cuts the power, so none needs to wait for the disk.
        self.url = f"sqlite:///{tmp_path}/store.db?synchronous=normal"

    async def open_store(self, namespace: str) -> Store:
        store = SqliteStore(self.url, namespace)
        await store.open()
        return store

    def faults(self, store: Store) -> Sequence[AbstractAsyncContextManager[None]]:
        assert isinstance(store, SqliteStore)
        return full_file(store), full_log(store), locked(store), read_only(store)
