"""The PostgreSQL store keeps the contract, on a real server."""

from __future__ import annotations

import pytest

from horarium.ports import Store
from horarium.stores.postgres import PostgresStore
from horarium.testing.contract import StoreContract


@pytest.mark.slow
class TestPostgresStore(StoreContract):
    @pytest.fixture(autouse=True)
    def _database(self, postgres_url: str) -> None:
        self.url = postgres_url

    async def open_store(self, namespace: str) -> Store:
        store = PostgresStore(self.url, namespace)
        await store.open()
        return store
