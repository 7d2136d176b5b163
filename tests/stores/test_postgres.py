"""The PostgreSQL store keeps the contract, on a real server."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from horarium.ports import Store
from horarium.stores.postgres import PostgresStore, marks
from horarium.testing.contract import StoreContract
from tests.stores.postgres_server import transaction_on

pytestmark = pytest.mark.slow


class TestPostgresStore(StoreContract):
    @pytest.fixture(autouse=True)
    def _database(self, postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.url = postgres_url
        # What a claim answers must not depend on how busy the machine is: low-water marks have tests of their own.
        monkeypatch.setattr(marks, "SLOW_SECONDS", float("inf"))

    async def open_store(self, namespace: str) -> Store:
        store = PostgresStore(self.url, namespace)
        await store.open()
        return store

    def transaction(self, store: Store) -> AbstractAsyncContextManager[Any]:
        return transaction_on(self.url)
