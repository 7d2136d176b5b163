"""What tests of the Redis store share: servers of their own, and stores on them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

from horarium.errors import StoreUnavailable
from horarium.stores.redis import RedisStore
from tests.servers.redis import Redis
from tests.waiting import until


@contextmanager
def running(kind: str = "valkey", **settings: str) -> Iterator[Redis]:
    server = Redis(kind, **settings)
    server.start()
    try:
        yield server
    finally:
        server.stop()


@asynccontextmanager
async def opened(url: str, namespace: str = "default") -> AsyncIterator[RedisStore]:
    store = RedisStore(url, namespace=namespace)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def open_and_close(url: str, namespace: str) -> None:
    async with opened(url, namespace):
        pass


async def until_answered(call: Callable[[], Awaitable[object]]) -> None:
    """Return once the store answers, whatever it is that it says."""

    async def answered() -> bool:
        await call()
        return True

    await until(answered, ignoring=StoreUnavailable)
