"""The SQLite store keeps the contract."""

from __future__ import annotations

from pathlib import Path

import pytest

from horarium.ports import Store
from horarium.stores.sqlite import SqliteStore
from horarium.testing.contract import StoreContract


class TestSqliteStore(StoreContract):
    @pytest.fixture(autouse=True)
    def _file(self, tmp_path: Path) -> None:
        self.url = f"sqlite:///{tmp_path}/store.db?synchronous=normal"

    async def open_store(self, namespace: str) -> Store:
        store = SqliteStore(self.url, namespace)
        await store.open()
        return store
