"""Claims, and ends of attempts, keep to connections of their own: each connection plans each statement for itself. Few
are opened."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from horarium.errors import StoreUnavailable
from horarium.stores.postgres import PostgresStore, pool
from horarium.stores.postgres.session import Session
from horarium.testing.contract.base import take
from horarium.testing.values import NOW, a_run, completed
from tests.waiting import until

pytestmark = pytest.mark.slow


async def test_calls_of_a_kind_stay_on_one_connection(store: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> None:
    made: dict[str, set[int]] = {}
    rows = Session.rows

    async def noted(self: Session, name: str, *values: Any) -> list[Any]:
        made.setdefault(name, set()).add(self.connection.get_server_pid())
        return await rows(self, name, *values)

    monkeypatch.setattr(Session, "rows", noted)
    await asyncio.gather(*(store.get_jobs(["a"]) for _ in range(4)))
    await store.add_runs([a_run(number) for number in range(12)])
    claimed = await take(store, 1)
    for _ in range(10):
        settling = store.settle_runs([completed(run) for run in claimed.runs], NOW)
        claiming = asyncio.ensure_future(take(store, 1))
        await asyncio.gather(claiming, settling, *(store.get_jobs(["a"]) for _ in range(2)))
        claimed = claiming.result()
        await asyncio.gather(*(store.list_nodes(0) for _ in range(3)))
    assert [len(made[name]) for name in ("claim_at_once", "finish_alike")] == [1, 1]
    assert made["claim_at_once"] != made["finish_alike"]


async def test_a_connection_of_another_kind_is_better_than_a_new_one(store: PostgresStore) -> None:
    await take(store, 1)
    assert store._pool is not None
    opened = store._pool.opened
    await store.get_jobs(["a"])
    await store.settle_runs([completed(a_run(1))], NOW)
    assert store._pool.opened == opened


async def test_a_home_that_broke_is_left(store: PostgresStore) -> None:
    await store.add_runs([a_run(1)])
    await asyncio.gather(take(store, 0), store.list_nodes(0))
    assert store._pool is not None
    store._pool._homes["claim"].terminate()
    (run,) = (await take(store, 1)).runs
    assert await store.settle_runs([completed(run)], NOW) == [True]


async def test_calls_at_once_share_what_is_open(store: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "SOON_SECONDS", 600.0)
    assert store._pool is not None
    opened = store._pool.opened
    await asyncio.gather(*(store.list_nodes(0) for _ in range(9)))
    assert store._pool.opened == opened


async def test_the_first_call_of_a_kind_waits_for_none(store: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "SOON_SECONDS", 600.0)
    async with held(store):
        await take(store, 1)
        await store.list_nodes(0)  # where the claim was made
        assert store._pool is not None
        assert len(store._pool._idle) == 1


async def test_where_calls_go_on_waiting_more_are_opened(store: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "SOON_SECONDS", 0.0)
    assert store._pool is not None
    opened = store._pool.opened
    async with held(store), held(store), held(store):
        assert store._pool.opened == opened + 2
    assert len(store._pool._idle) == opened + 2


async def test_a_call_that_waits_goes_on_where_a_connection_broke(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "SOON_SECONDS", 600.0)
    async with held(store, then=ConnectionError("broken")) as holding:
        waiting = [asyncio.ensure_future(store.list_nodes(0)) for _ in range(3)]
        await until(lambda: store._pool is not None and len(store._pool._line) == 3)
    assert await asyncio.gather(*waiting) == [[], [], []]
    with pytest.raises(StoreUnavailable):
        await holding


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
