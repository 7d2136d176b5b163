"""Calls share at most so many connections, and one that broke takes no call with it but its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from horarium.errors import StoreUnavailable
from horarium.stores.postgres import PostgresStore
from tests.waiting import until

pytestmark = pytest.mark.slow


async def pid_of(store: PostgresStore) -> int:
    async def ask(connection: Any) -> int:
        return int(connection.get_server_pid())

    assert store._pool is not None
    return await store._pool.call(ask, transaction=False)


async def test_calls_one_after_the_other_share_a_connection(store: PostgresStore) -> None:
    assert len({await pid_of(store) for _ in range(5)}) == 1


async def test_calls_at_once_wait_for_as_many_connections_as_there_may_be(fresh_postgres_url: str) -> None:
    store = PostgresStore(f"{fresh_postgres_url}?connections_max=2")
    await store.open()
    async with held(store), held(store):
        waiting = [asyncio.ensure_future(pid_of(store)) for _ in range(5)]
        await asyncio.sleep(0)
        assert not any(call.done() for call in waiting)
    assert len(set(await asyncio.gather(*waiting))) <= 2
    await store.close()


async def test_a_call_that_waits_goes_on_where_a_connection_broke(fresh_postgres_url: str) -> None:
    store = PostgresStore(f"{fresh_postgres_url}?connections_max=1")
    await store.open()
    before = await pid_of(store)
    async with held(store, then=ConnectionError("broken")) as holding:
        waiting = [asyncio.ensure_future(pid_of(store)) for _ in range(3)]
    assert before not in await asyncio.gather(*waiting)
    with pytest.raises(StoreUnavailable):
        await holding
    await store.close()


async def test_where_a_connection_broke_no_other_is_trusted(store: PostgresStore) -> None:
    async with held(store):
        other = await pid_of(store)
    async with held(store, then=ConnectionError("broken")):
        pass
    assert await pid_of(store) != other


async def test_a_connection_that_went_away_while_idle_is_replaced(store: PostgresStore) -> None:
    gone: list[Any] = []

    async def keep(connection: Any) -> None:
        gone.append(connection)

    assert store._pool is not None
    await store._pool.call(keep, transaction=False)
    gone[0]._transport.abort()
    await until(gone[0].is_closed)
    await store.check()


@asynccontextmanager
async def held(store: PostgresStore, then: Exception | None = None) -> AsyncIterator[asyncio.Future[None]]:
    """A call that has a connection until the end, and then fails if it is told to."""
    has, done = asyncio.Event(), asyncio.Event()

    async def hold(connection: Any) -> None:
        has.set()
        await done.wait()
        if then is not None:
            raise then

    assert store._pool is not None
    holding = asyncio.ensure_future(store._pool.call(hold, transaction=False))
    await has.wait()
    yield holding
    done.set()
    await asyncio.wait([holding])
