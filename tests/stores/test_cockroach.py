"""The CockroachDB store keeps the contract: on a serializable PostgreSQL while it gives statements and commits up, and
on a CockroachDB if HORARIUM_TEST_COCKROACH_URL names one."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from horarium.ports import Store
from horarium.stores.cockroach import CockroachStore
from horarium.testing.contract import StoreContract
from tests.stores.cockroach_server import REAL_URL, Trouble, TroubledStore
from tests.stores.postgres_server import transaction_on

pytestmark = pytest.mark.slow

SERVERS = ["giving-up", *(["cockroachdb"] if REAL_URL else [])]


class TestCockroachStore(StoreContract):
    @pytest.fixture(autouse=True, params=SERVERS)
    def _database(self, request: pytest.FixtureRequest, no_marks: None) -> None:
        self.server = request.param
        real = self.server == "cockroachdb"
        self.url = REAL_URL if real else request.getfixturevalue("serializable_url")
        self.trouble = Trouble()

    async def open_store(self, namespace: str) -> Store:
        if self.server == "giving-up":
            store: CockroachStore = TroubledStore(self.url, namespace, self.trouble)
        else:
            store = CockroachStore(self.url, namespace)
        await store.open()
        return store

    def transaction(self, store: Store) -> AbstractAsyncContextManager[Any]:
        return transaction_on(self.url.replace("cockroachdb://", "postgresql://"), isolation="serializable")
