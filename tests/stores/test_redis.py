"""Redis and Valkey keep the contract."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from horarium.ports import Store
from horarium.stores.redis import RedisStore
from horarium.testing.contract import StoreContract
from tests.servers.redis import Redis

pytestmark = pytest.mark.slow


@pytest.fixture(scope="session", params=["valkey", "redis"])
def server(request: pytest.FixtureRequest) -> Iterator[Redis]:
    server = Redis(request.param)
    server.start()
    yield server
    server.stop()


class TestRedisStore(StoreContract):
    @pytest.fixture(autouse=True)
    def _server(self, server: Redis) -> None:
        self.url = server.url

    async def open_store(self, namespace: str) -> Store:
        store = RedisStore(self.url, namespace=namespace)
        await store.open()
        return store
