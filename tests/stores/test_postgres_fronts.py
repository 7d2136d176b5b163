"""Claims begin at a front, so that they need not step over what was claimed before, and still find all that waits."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import asyncpg  # type: ignore[import-untyped]
import pytest

from horarium.model import Run, State
from horarium.stores.postgres import PostgresStore, fronts
from horarium.stores.postgres.connect import connect
from horarium.stores.postgres.session import QUERIES
from horarium.testing.contract.base import ids, take
from horarium.testing.values import NOW, QUEUE, a_change, a_run, completed

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _a_step_after_each_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fronts, "CLAIMED_BETWEEN", 1)
    monkeypatch.setattr(fronts, "SECONDS_BETWEEN", 0.0)


def early(number: int, **more: Any) -> Run:
    """Due at the `number`th microsecond, long before now."""
    return a_run(number, due_at=NOW - 1_000_000 + number, **more)


async def perform(store: PostgresStore, runs: Sequence[Run]) -> None:
    """Add, claim and complete them, one after the other, with a step of the front after each."""
    await store.add_runs(runs)
    for run in runs:
        (claimed,) = (await take(store, 1)).runs
        assert claimed.id == run.id
        await store._memory.fronts.settled()
        assert await store.settle_runs([completed(claimed)], NOW) == [True]


def front(store: PostgresStore) -> int:
    """The instant at which claims from the queue begin; 0: none is known."""
    memory = store._memory
    known = memory.fronts.of([QUEUE], memory.queues)
    return 0 if known is None else max(known[2])


async def test_under_a_held_snapshot_a_claim_costs_what_it_did(store: PostgresStore, other: asyncpg.Connection) -> None:
    async with other.transaction(isolation="repeatable_read"):
        await other.fetchval("SELECT count(*) FROM horarium.runs")
        await perform(store, [early(number) for number in range(8)])
        begin, few = front(store), await blocks(store)
        await store.add_runs([early(number) for number in range(10, 6_010)])
        gone = (await take(store, 6_000)).runs
        await store._memory.fronts.settled()  # else it opens a connection, and all is looked at again
        await store.settle_runs([completed(run) for run in gone], NOW)
        without = await blocks(store)
        await perform(store, [early(number) for number in range(7_000, 7_004)])
        assert front(store) > begin > 0
        many = await blocks(store)
    assert many <= 2 * few < without


async def blocks(store: PostgresStore) -> int:
    """How many the next claim touches, though there is nothing to claim."""
    memory = store._memory
    known = memory.fronts.of([QUEUE], memory.queues)
    assert known is not None
    connection = await connect(store.location)
    values = store._namespace_id, [QUEUE], 10, b"w", NOW, NOW, *known
    text = await connection.fetchval("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + QUERIES["claim_beyond"], *values)
    await connection.close()
    plan = json.loads(text)[0]["Plan"]
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


async def test_what_is_added_before_the_front_is_claimed_first(store: PostgresStore) -> None:
    await perform(store, [early(number) for number in range(10, 18)])
    assert front(store) > early(9).due_at
    later = a_run(100, due_at=NOW)
    await store.add_runs([later, early(3), early(2), early(5, priority=7), early(4, priority=-7)])
    assert ids((await take(store, 9)).runs) == ids([early(5), early(2), early(3), later, early(4)])


async def test_a_run_that_is_given_back_is_before_the_front_and_claimed_again(store: PostgresStore) -> None:
    await store.add_runs([early(0)])
    (first,) = (await take(store, 1)).runs
    await perform(store, [early(number) for number in range(10, 18)])
    assert front(store) > first.due_at
    back = a_change(first, state=State.PENDING, worker=None, lease_expires_at=None, started_at=None, attempt=0)
    assert await store.settle_runs([back], NOW) == [True]
    assert ids((await take(store, 9)).runs) == [first.id]


async def test_a_waiting_run_that_is_moved_before_the_front_is_claimed(store: PostgresStore) -> None:
    waiting = a_run(0, due_at=NOW + 1)
    await store.add_runs([waiting])
    await perform(store, [early(number) for number in range(10, 18)])
    assert front(store) > early(1).due_at
    assert await store.settle_runs([a_change(waiting, due_at=early(1).due_at)], NOW) == [True]
    assert ids((await take(store, 9)).runs) == [waiting.id]


@pytest.mark.parametrize("isolation", ["read_committed", "repeatable_read"])
async def test_what_another_transaction_adds_meanwhile_is_claimed_when_it_is_committed(
    store: PostgresStore, other: asyncpg.Connection, isolation: str
) -> None:
    await perform(store, [early(1)])
    transaction = other.transaction(isolation=isolation)
    await transaction.start()
    await store.add_runs_in(other, [early(0)])
    await perform(store, [early(number) for number in range(10, 18)])
    assert front(store) == 0, "nobody knows what the other one is adding"
    await transaction.commit()
    assert ids((await take(store, 9)).runs) == [early(0).id]
    await perform(store, [early(number) for number in range(20, 28)])
    assert front(store) > early(19).due_at


async def test_a_transaction_that_does_not_see_the_front_adds_before_it_all_the_same(
    store: PostgresStore, other: asyncpg.Connection
) -> None:
    await perform(store, [early(1)])
    async with other.transaction(isolation="repeatable_read"):
        await other.fetchval("SELECT count(*) FROM horarium.finished")
        await perform(store, [early(number) for number in range(10, 18)])
        assert front(store) > early(9).due_at
        await store.add_runs_in(other, [early(0)])
    assert ids((await take(store, 9)).runs) == [early(0).id]


async def test_what_still_waits_is_never_behind_the_front(store: PostgresStore, other: asyncpg.Connection) -> None:
    await store.add_runs([early(number) for number in range(20)])
    async with other.transaction():
        # Another claimer has it, and goes away.
        await other.execute("SELECT FROM horarium.runs WHERE due_at = $1 FOR UPDATE", early(0).due_at)
        for _ in range(8):
            await take(store, 1)
            await store._memory.fronts.settled()
        assert front(store) == 0
    assert ids((await take(store, 1)).runs) == [early(0).id]


async def test_behind_a_new_connection_nothing_is_known(store: PostgresStore) -> None:
    await perform(store, [early(number) for number in range(8)])
    assert front(store) > 0
    assert store._pool is not None
    store._pool._drop_idle()
    await take(store, 1)
    await take(store, 1)
    assert front(store) == 0


async def test_what_a_failover_brought_back_is_claimed_within_a_minute(
    store: PostgresStore, other: asyncpg.Connection
) -> None:
    await perform(store, [early(number) for number in range(8)])
    assert front(store) > early(1).due_at
    await store.add_runs([early(1_000)])
    await other.execute("UPDATE horarium.runs SET due_at = $1, late = NULL", early(1).due_at)
    assert (await take(store, 9)).runs == ()
    store._memory.fronts._known_until = 0.0
    assert ids((await take(store, 9)).runs) == [early(1_000).id]
