"""The MongoDB store keeps the contract, on a real server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from horarium.ports import Store
from horarium.stores.mongo import MongoStore
from horarium.testing.contract import StoreContract
from tests.servers.mongo import Mongo

pytestmark = pytest.mark.slow


@pytest.fixture(scope="session")
def mongo() -> Iterator[Mongo]:
    server = Mongo()
    server.start()
    yield server
    server.stop()


class TestMongoStore(StoreContract):
    machine_examples = 30

    @pytest.fixture(autouse=True)
    def _url(self, mongo: Mongo) -> None:
        self.url = mongo.url

    async def open_store(self, namespace: str) -> Store:
        store = MongoStore(self.url, namespace)
        await store.open()
        return store
