"""Redis and Valkey keep the contract."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from random import Random

import pytest
from redis.asyncio import Redis as Client

from horarium.model import Run
from horarium.ports import Store
from horarium.stores.memory import MemoryStore
from horarium.stores.redis import RedisStore
from horarium.testing.contract import StoreContract
from horarium.testing.contract.base import take
from horarium.testing.values import NOW, a_job, a_run, completed
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


@pytest.mark.parametrize("seed", range(8))
async def test_what_is_held_back_is_claimed_as_the_memory_store_does(server: Redis, seed: int) -> None:
    """Many gates at once, with small limits: the walk over them ends early, and must not show."""
    random = Random(seed)
    jobs = [a_job(f"job-{number}") for number in range(8)]
    runs = [
        a_run(
            number,
            of=random.choice([None, *jobs]),
            serial=random.random() < 0.6,
            concurrency_key=random.choice([None, "a", "b"]),
            concurrency_max=random.randint(1, 3),
            priority=random.randint(0, 1),
            due_at=NOW - random.randint(0, 30),
            start_by=random.choice([None, None, NOW, NOW + 1]),
        )
        for number in range(150)
    ]
    store, model = RedisStore(server.url, namespace=f"gates-{seed}-{secrets.token_hex(4)}"), MemoryStore()
    await store.open()
    assert await store.add_runs(runs) == await model.add_runs(runs)
    held: list[Run] = []
    for _ in range(60):
        limit = random.randint(1, 6)
        claimed, expected = [(await take(each, limit)).runs for each in (store, model)]
        assert claimed == expected
        held += claimed
        random.shuffle(held)
        done = [completed(held.pop()) for _ in range(random.randint(0, len(held)))]
        assert await store.settle_runs(done, NOW) == await model.settle_runs(done, NOW)
    await store.close()
