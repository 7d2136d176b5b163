"""The PostgreSQL store keeps the contract, on a real server."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from horarium.ports import Store
from horarium.stores.postgres import PostgresStore, fronts, orders
from horarium.testing.contract import StoreContract
from tests.stores.postgres_server import transaction_on

pytestmark = pytest.mark.slow


class TestPostgresStore(StoreContract):
    @pytest.fixture(autouse=True)
    def _database(self, postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.url = postgres_url
        # Claims begin at fronts as soon as they can.
        monkeypatch.setattr(fronts, "CLAIMED_BETWEEN", 1)
        monkeypatch.setattr(fronts, "SECONDS_BETWEEN", 0.0)
        monkeypatch.setattr(orders, "CLAIMED_MIN", 1)
        monkeypatch.setattr(orders, "CLAIMED_MAX", 1)
        monkeypatch.setattr(orders, "SECONDS_BETWEEN", 0.0)

    async def open_store(self, namespace: str) -> Store:
        store = PostgresStore(self.url, namespace)
        await store.open()
        return store

    def transaction(self, store: Store) -> AbstractAsyncContextManager[Any]:
        return transaction_on(self.url)
