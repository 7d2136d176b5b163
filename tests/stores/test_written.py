"""Servers that say when they were last written to: what a node sees of writes by any process."""

from __future__ import annotations

from typing import cast

import asyncpg  # type: ignore[import-untyped]
import pytest

from horarium.errors import StoreUnavailable
from horarium.node.backends import Backend, make_backend
from horarium.ports import WRITTEN, Store
from horarium.stores.mongo import MongoStore
from horarium.stores.postgres import PostgresStore
from horarium.stores.redis import RedisStore
from horarium.testing.values import a_run
from tests.servers.mongo import Mongo
from tests.servers.redis import Redis
from tests.stores.redis_server import running
from tests.waiting import until

pytestmark = pytest.mark.slow


@pytest.fixture(params=["postgres", "redis", "mongo"])
def url(request: pytest.FixtureRequest) -> str:
    match request.param:
        case "postgres":
            return cast(str, request.getfixturevalue("fresh_postgres_url"))
        case "redis":
            return cast(Redis, request.getfixturevalue("redis")).url
        case _:
            return cast(Mongo, request.getfixturevalue("mongo")).url


async def ask(store: Store) -> None:
    """What a running node does once a second."""
    assert isinstance(store, PostgresStore | MongoStore | RedisStore)
    await store.server_time()


def asking(url: str) -> Backend:
    return make_backend(url, "written")


async def test_writes_of_any_process_are_counted_and_told(url: str) -> None:
    backend, writing = asking(url), make_backend(url, "elsewhere").store
    store, signal, told = backend.store, backend.signal, 0

    def tell() -> None:
        nonlocal told
        told += 1

    signal.subscribe(WRITTEN, tell)
    await store.open()
    await writing.open()
    assert signal.writes() is None
    await ask(store)
    for number in range(20):
        before = signal.writes(), told
        await writing.add_runs([a_run(number)])
        await ask(store)
        assert signal.writes() not in {None, before[0]}
        assert told == before[1] + 1
    await writing.close()
    await store.close()


@pytest.mark.parametrize("url", ["postgres", "mongo"], indirect=True)
async def test_a_server_that_does_not_answer_is_not_known_to_be_quiet(url: str) -> None:
    backend = asking(url)
    await backend.store.open()
    await ask(backend.store)
    assert backend.signal.writes() is not None
    await backend.store.close()
    with pytest.raises(StoreUnavailable):
        await ask(backend.store)
    assert backend.signal.writes() is None


async def test_a_redis_that_is_gone_is_not_known_to_be_quiet() -> None:
    with running("redis") as server:
        store = RedisStore(server.url)
        await store.open()
        await ask(store)
        assert store.written.count() is not None
    with pytest.raises(StoreUnavailable):
        await ask(store)
    assert store.written.count() is None
    await store.close()


async def test_where_nothing_is_written_nothing_is_counted(url: str) -> None:
    """A server writes for itself now and then: so this looks for a while in which it did not."""
    backend = asking(url)
    await backend.store.open()

    async def stays() -> bool:
        seen = set()
        for _ in range(10):
            await ask(backend.store)
            seen.add(backend.signal.writes())
        return len(seen) == 1 and None not in seen

    await until(stays)
    await backend.store.close()


async def test_a_node_on_redis_asks_by_itself(redis: Redis) -> None:
    backend = asking(redis.url)
    await backend.store.open()
    signal = backend.signal
    await backend.parts[0].start()
    await until(lambda: signal.writes() is not None)
    before = signal.writes()
    await backend.store.add_runs([a_run(77)])
    await until(lambda: signal.writes() != before)
    await backend.parts[0].stop()
    await backend.store.close()


async def test_a_write_counts_when_it_can_be_seen(fresh_postgres_url: str) -> None:
    """A transaction that began before others, and is committed after them."""
    store = PostgresStore(fresh_postgres_url)
    await store.open()
    other = await asyncpg.connect(fresh_postgres_url)
    seen = []
    transaction = other.transaction()
    await transaction.start()
    await other.execute("CREATE TABLE theirs (number int)")
    await store.add_runs([a_run(1)])
    for step in (None, transaction.commit):
        if step is not None:
            await step()
        await store.server_time()
        seen.append(store.written.count())
    assert seen[0] != seen[1]
    await other.close()
    await store.close()
