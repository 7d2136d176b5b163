"""The memory store keeps the contract."""

from __future__ import annotations

import pytest

from horarium.ports import Store
from horarium.stores.memory import MemoryDatabase, MemoryStore
from horarium.testing.contract import StoreContract


class TestMemoryStore(StoreContract):
    @pytest.fixture(autouse=True)
    def _database(self) -> None:
        self.database = MemoryDatabase()

    async def open_store(self, namespace: str) -> Store:
        store = MemoryStore(namespace, database=self.database)
        await store.open()
        return store
