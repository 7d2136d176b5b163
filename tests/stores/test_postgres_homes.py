"""Claims, and ends of attempts, keep to connections of their own: each connection plans each statement for itself."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from horarium.stores.postgres import PostgresStore
from horarium.stores.postgres.session import Session
from horarium.testing.contract.base import take
from horarium.testing.values import NOW, a_run, completed

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
