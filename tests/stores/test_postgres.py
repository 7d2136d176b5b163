"""The PostgreSQL store keeps the contract, on a real server."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from horarium.ports import Store
from horarium.stores.postgres import PostgresStore
from horarium.testing.contract import StoreContract
from tests.stores import patience
from tests.stores.postgres_server import transaction_on

pytestmark = pytest.mark.slow


class TestPostgresStore(StoreContract):
    @pytest.fixture(autouse=True)
    def _database(self, postgres_url: str, no_marks: None) -> None:
        self.url = postgres_url

    async def open_store(self, namespace: str) -> Store:
        store = PostgresStore(self.url + patience.POSTGRES, namespace)
        await store.open()
        return store

    def transaction(self, store: Store) -> AbstractAsyncContextManager[Any]:
        return transaction_on(self.url)
