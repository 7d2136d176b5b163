"""The primary dies, a standby takes over: with both in its URL the store goes on by itself, and what was acknowledged
is there, since the standby had it first."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import asyncpg  # type: ignore[import-untyped]
import pytest

from horarium.errors import StoreUnavailable
from horarium.model import Run
from horarium.stores.postgres import PostgresSignal, PostgresStore
from horarium.testing.contract.base import ids, take
from horarium.testing.values import NOW, a_run, completed
from tests.servers.postgres import Postgres, Standby
from tests.stores.postgres_server import execute, ready
from tests.waiting import PATIENCE, until

pytestmark = pytest.mark.slow

ROUNDS_MAX = 10_000
SHORT = "target_session_attrs=primary&query_seconds=2&connect_seconds=2"


@pytest.fixture
def pair() -> Iterator[tuple[Postgres, Postgres]]:
    """A primary, and a standby that has whatever the primary says is committed."""
    servers: list[Postgres] = []
    try:
        primary = Postgres()
        servers.append(primary)
        primary.start()
        asyncio.run(ready(primary.url))
        standby = Standby(primary)
        servers.append(standby)
        standby.start()
        asyncio.run(_synchronous(primary))
        yield primary, standby
    finally:
        for server in servers:
            server.stop()


async def _synchronous(primary: Postgres) -> None:
    await execute(primary.url, "ALTER SYSTEM SET synchronous_standby_names = '*'", "SELECT pg_reload_conf()")
    connection = await asyncpg.connect(primary.url)
    await until(lambda: connection.fetchval("SELECT bool_or(sync_state = 'sync') FROM pg_stat_replication"))
    await connection.close()


async def test_after_a_failover_the_store_goes_on_with_all_that_was_acknowledged(
    pair: tuple[Postgres, Postgres],
) -> None:
    primary, standby = pair
    url = f"postgresql://postgres@127.0.0.1:{primary.port},127.0.0.1:{standby.port}/postgres?{SHORT}"
    store, signal = PostgresStore(url), PostgresSignal(url)
    await store.open()
    await signal.start()
    await signal.listening.wait()
    await store.add_runs([a_run(number) for number in range(10)])
    claimed = (await take(store, 5)).runs
    acknowledged: list[Run] = []
    failed = asyncio.Event()
    promoted = asyncio.Event()

    async def add() -> None:
        for number in range(100, 100 + ROUNDS_MAX):
            try:
                if await store.add_runs([a_run(number)]) == [True]:
                    acknowledged.append(a_run(number))
                    if promoted.is_set() and failed.is_set():
                        return
            except StoreUnavailable:
                failed.set()
                await asyncio.sleep(0.05)

    adding = asyncio.ensure_future(add())
    async with asyncio.timeout(PATIENCE):
        await until(lambda: len(acknowledged) >= 20)
        primary.kill()
        await failed.wait()
        await execute(standby.url, "SELECT pg_promote()")
        promoted.set()
        await adding
        assert None not in await store.get_runs(ids(acknowledged))
        assert await store.settle_runs([completed(run) for run in claimed], NOW) == [True] * 5
        await signal.listening.wait()
    await signal.stop()
    await store.close()
