"""Redis and Valkey keep the contract."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest
from redis.asyncio import Redis as Client

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


@asynccontextmanager
async def full_memory(url: str) -> AsyncIterator[None]:
    async with Client.from_url(url, protocol=2) as client:
        await client.config_set("maxmemory", "1")
        try:
            yield
        finally:
            await client.config_set("maxmemory", "0")


@asynccontextmanager
async def demoted(url: str) -> AsyncIterator[None]:
    """A replica of a primary that is not there."""
    async with Client.from_url(url, protocol=2) as client:
        await client.replicaof("127.0.0.1", "1")
        try:
            yield
        finally:
            await client.replicaof("NO", "ONE")


@asynccontextmanager
async def cut_off(url: str) -> AsyncIterator[None]:
    """Every connection is closed by the server."""
    async with Client.from_url(url, protocol=2) as client:
        await client.client_kill_filter(_type="normal", skipme=True)
        yield


class TestRedisStore(StoreContract):
    @pytest.fixture(autouse=True)
    def _server(self, server: Redis) -> None:
        self.url = server.url

    async def open_store(self, namespace: str) -> Store:
        store = RedisStore(self.url, namespace=namespace)
        await store.open()
        return store

    def faults(self, store: Store) -> Sequence[AbstractAsyncContextManager[None]]:
        return full_memory(self.url), demoted(self.url), cut_off(self.url)
