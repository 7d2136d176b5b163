"""What tests of the Redis store share: servers of their own, and stores on them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager

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
    """A store. On a busy machine, which may answer too late, its opening is tried again and again."""
    store: RedisStore

    async def open_one() -> None:
        nonlocal store
        store = RedisStore(url, namespace=namespace)
        try:
            await store.open()
        except StoreUnavailable:
            await store.close()
            raise

    await until_answered(open_one)
    try:
        yield store
    finally:
        await store.close()


def hasty(url: str, namespace: str) -> AbstractAsyncContextManager[RedisStore]:
    """A store that soon gives a call up, on a busy machine also one that should be answered: what has to succeed at the
    first try is asked of another one."""
    return opened(f"{url}?timeout=0.2", namespace)


async def open_and_close(url: str, namespace: str) -> None:
    async with opened(url, namespace):
        pass


async def until_answered(call: Callable[[], Awaitable[object]]) -> None:
    """Return once the store answers, whatever it is that it says."""

    async def answered() -> bool:
        await call()
        return True

    await until(answered, ignoring=StoreUnavailable)
