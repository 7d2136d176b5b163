"""Claims of jobs in order look for an earlier unfinished run from the job's front on, so that they need not step over
what the job performed, and still find all that holds a run back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import asyncpg  # type: ignore[import-untyped]
import pytest

from horarium.clock import DAY
from horarium.model import Run, State
from horarium.stores.postgres import PostgresStore, orders
from horarium.stores.postgres.claim import GATES
from horarium.stores.postgres.session import QUERIES, Session
from horarium.testing.contract.base import ids, take
from horarium.testing.values import NOW, a_change, a_job, a_run, completed
from tests.stores.postgres_server import waiting

pytestmark = pytest.mark.slow

JOB = a_job("job")


@pytest.fixture(autouse=True)
def _a_step_after_each_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orders, "CLAIMED_MIN", 1)
    monkeypatch.setattr(orders, "CLAIMED_MAX", 1)
    monkeypatch.setattr(orders, "SECONDS_BETWEEN", 0.0)


def turn(number: int, **more: Any) -> Run:
    return a_run(number, of=JOB, **{"serial": True, **more})


async def perform(store: PostgresStore, runs: Sequence[Run]) -> None:
    """Add and complete them, one after the other, with a step of the front after each."""
    await store.add_runs(runs)
    for run in runs:
        (claimed,) = (await take(store, 1)).runs
        assert claimed.id == run.id
        await store._memory.orders.settled()
        assert await store.settle_runs([completed(claimed)], NOW) == [True]


async def front(connection: asyncpg.Connection) -> int:
    """Where the job is clear; 0: nowhere."""
    return await connection.fetchval("SELECT max(clear_at) FROM horarium.order_fronts") or 0


async def test_under_a_held_snapshot_the_next_run_of_a_job_costs_what_it_did(
    store: PostgresStore, other: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: dict[str, int] = {}
    rows = Session.rows

    async def counted(self: Session, name: str, *values: Any) -> list[Any]:
        if name in ("claim_gated", "claim_gates", "free_gates"):
            text = await self.connection.fetchval(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {QUERIES[name]}", *values)
            plan = json.loads(text)[0]["Plan"]
            found[name] = plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
        return await rows(self, name, *values)

    costs = []
    monkeypatch.setattr(Session, "rows", counted)
    async with other.transaction(isolation="repeatable_read"):
        await other.fetchval("SELECT count(*) FROM horarium.runs")
        await perform(store, [turn(number) for number in range(4)])
        for begin in (10, 3_010):
            # Many wait behind the first, so that gates are walked as well.
            await store.add_runs([turn(begin + number) for number in range(300)])
            (run,) = (await take(store, 10)).runs
            costs.append(dict(found))
            await store._memory.orders.settled()
            rest = [one for one in (await store.unfinished_runs([JOB.id]))[JOB.id] if one.id != run.id]
            assert await store.settle_runs([completed(run)], NOW) == [True]
            await drop(store, rest)
            if begin == 10:
                gone = [turn(number, serial=False) for number in range(400, 3_000)]
                await store.add_runs(gone)
                await drop(store, gone)
                # Until here the front is where it was; the next runs move it.
                await perform(store, [turn(number) for number in range(3_000, 3_004)])
    assert set(costs[1]) == {"claim_gated", "claim_gates", "free_gates"}
    assert {name: number for name, number in costs[1].items() if number > costs[0][name] + 30} == {}


async def drop(store: PostgresStore, waiting: Sequence[Run]) -> None:
    cancelled = [a_change(run, state=State.CANCELLED, finished_at=NOW) for run in waiting]
    assert all(await store.settle_runs(cancelled, NOW))


async def test_what_is_added_before_the_front_holds_back_what_fires_later(
    store: PostgresStore, other: asyncpg.Connection
) -> None:
    await perform(store, [turn(number) for number in range(10, 14)])
    assert await front(other) > turn(9).fire_at
    # Due later, so that the other one is looked at first; and it may go out of order itself.
    await store.add_runs([turn(20), turn(3, due_at=NOW + 1), turn(5, due_at=NOW + 1, serial=False)])
    assert ids((await take(store, 9)).runs) == []
    (third,) = (await take(store, 1, until=NOW + 1)).runs
    assert third.id == turn(3).id
    assert ids((await take(store, 9)).runs) == [], "claimed, it holds back as before"
    assert await store.settle_runs([completed(third)], NOW) == [True]
    assert ids((await take(store, 9)).runs) == []
    (fifth,) = (await take(store, 9, until=NOW + 1)).runs
    assert fifth.id == turn(5).id
    assert await store.settle_runs([completed(fifth)], NOW) == [True]
    assert ids((await take(store, 9)).runs) == [turn(20).id]


async def test_behind_a_gate_that_is_walked_the_first_is_what_was_added_before_the_front(
    store: PostgresStore, other: asyncpg.Connection
) -> None:
    await perform(store, [turn(number) for number in range(10, 14)])
    assert await front(other) > turn(9).fire_at
    await store.add_runs([turn(number) for number in range(1_000, 1_300)])
    await store.add_runs([turn(3, due_at=NOW + 1)])
    assert ids((await take(store, 9)).runs) == []
    (third,) = (await take(store, 9, until=NOW + 1)).runs
    assert third.id == turn(3).id
    assert ids((await take(store, 9)).runs) == []
    assert await store.settle_runs([completed(third)], NOW) == [True]
    assert ids((await take(store, 9)).runs) == [turn(1_000).id]


async def test_what_is_added_before_the_front_while_a_claim_waits_holds_back_what_it_wants(
    store: PostgresStore, other: asyncpg.Connection, fresh_postgres_url: str
) -> None:
    await perform(store, [turn(number) for number in range(10, 14)])
    await store.add_runs([turn(20)])
    owner = await other.fetchval("SELECT owner_id FROM horarium.runs")
    transaction = other.transaction()
    await transaction.start()
    await other.fetch(QUERIES["lock_gates"], store._namespace_id, [owner % GATES])
    claiming = asyncio.ensure_future(take(store))
    await waiting(fresh_postgres_url)
    await store.add_runs_in(other, [turn(3)])
    await transaction.commit()
    assert ids((await claiming).runs) == [turn(3).id]


async def test_a_run_that_is_given_back_before_the_front_goes_first(
    store: PostgresStore, other: asyncpg.Connection
) -> None:
    await perform(store, [turn(number) for number in range(10, 14)])
    await store.add_runs([turn(3), turn(20)])
    (third,) = (await take(store, 9)).runs
    back = a_change(third, state=State.PENDING, due_at=NOW + DAY, lease_expires_at=None, worker=None, started_at=None)
    assert await store.settle_runs([back], NOW) == [True]
    assert ids((await take(store, 9)).runs) == []
    assert ids((await take(store, 9, until=NOW + DAY)).runs) == [third.id]


@pytest.mark.parametrize("isolation", ["read_committed", "repeatable_read"])
async def test_what_another_transaction_adds_meanwhile_holds_back_once_it_is_committed(
    store: PostgresStore, other: asyncpg.Connection, isolation: str
) -> None:
    await perform(store, [turn(1)])
    transaction = other.transaction(isolation=isolation)
    await transaction.start()
    await store.add_runs_in(other, [turn(0, due_at=NOW + 1)])
    await perform(store, [turn(number) for number in range(10, 18)])
    await transaction.commit()
    assert await front(other) <= turn(1).fire_at, "nobody knows what the other one is adding"
    await store.add_runs([turn(20)])
    assert ids((await take(store, 9)).runs) == []
    (first,) = (await take(store, 9, until=NOW + 1)).runs
    assert first.id == turn(0).id
    assert await store.settle_runs([completed(first)], NOW) == [True]
    assert ids((await take(store, 9)).runs) == [turn(20).id]


async def test_a_transaction_that_does_not_see_the_front_adds_before_it_all_the_same(
    store: PostgresStore, other: asyncpg.Connection
) -> None:
    await perform(store, [turn(1)])
    async with other.transaction(isolation="repeatable_read"):
        await other.fetchval("SELECT count(*) FROM horarium.finished")
        await perform(store, [turn(number) for number in range(10, 18)])
        await store.add_runs_in(other, [turn(0, due_at=NOW + 1)])
    assert await front(other) > turn(9).fire_at
    await store.add_runs([turn(20)])
    assert ids((await take(store, 9)).runs) == []
    assert ids((await take(store, 9, until=NOW + 1)).runs) == [turn(0).id]


async def test_what_was_unfinished_when_the_front_was_published_keeps_it_from_being_clear(
    store: PostgresStore, other: asyncpg.Connection
) -> None:
    await store.add_runs([turn(number) for number in range(3)])
    (first,) = (await take(store, 9)).runs
    owner = await other.fetchval("SELECT max(num) FROM horarium.owners")

    async def clear(run: Run) -> None:
        await store._call(lambda session: session.change("clear_order_fronts", [owner], [run.fire_at]))

    await store._call(lambda session: session.change("offer_order_fronts", [owner], [turn(2).fire_at]))
    await clear(turn(2))
    assert await front(other) == 0
    assert await store.settle_runs([completed(first)], NOW) == [True]
    (second,) = (await take(store, 9)).runs
    await clear(turn(1))
    assert await front(other) == turn(1).fire_at, "what is claimed is unfinished, but not before itself"
    await clear(turn(2))
    assert await front(other) == turn(1).fire_at
    assert await store.settle_runs([completed(second)], NOW) == [True]
    await clear(turn(3))
    assert await front(other) == turn(1).fire_at, "beyond what was published nobody marks anything"
    await clear(turn(2))
    assert await front(other) == turn(2).fire_at


async def test_the_front_of_a_job_that_is_forgotten_is_forgotten(
    store: PostgresStore, other: asyncpg.Connection
) -> None:
    await store.add_jobs([JOB])
    await perform(store, [turn(number) for number in range(4)])
    assert await front(other) > 0
    await other.execute("UPDATE horarium.finished SET prune_at = 1")
    await other.execute("UPDATE horarium.jobs SET deleted_at = 1")
    assert await store.prune_runs(NOW, 99) == 4
    assert await other.fetchval("SELECT count(*) FROM horarium.owners") == 0
    assert await other.fetchval("SELECT count(*) FROM horarium.order_fronts") == 0


async def test_of_jobs_that_want_no_order_nothing_is_written(store: PostgresStore, other: asyncpg.Connection) -> None:
    await perform(store, [a_run(number, of=JOB, concurrency_key="k", concurrency_max=1) for number in range(4)])
    assert await other.fetchval("SELECT count(*) FROM horarium.order_fronts") == 0
