"""Claims count what is claimed under a key from a bound on, so that they need not step over what went by, and still
count all that is claimed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

import asyncpg  # type: ignore[import-untyped]
import pytest
import pytest_asyncio

from horarium.errors import StoreUnavailable
from horarium.model import Run, State
from horarium.stores.encoding import encode_id
from horarium.stores.postgres import PostgresStore, keys
from horarium.stores.postgres.session import QUERIES, Session
from horarium.testing.contract.base import ids, take
from horarium.testing.values import NOW, a_change, a_run, completed
from tests.waiting import PATIENCE

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _learned_at_each_claim(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "LOOKS_BETWEEN", 1)


@pytest_asyncio.fixture
async def second(store: PostgresStore, fresh_postgres_url: str) -> AsyncIterator[PostgresStore]:
    """Another node on the same database."""
    node = PostgresStore(fresh_postgres_url)
    await node.open()
    yield node
    await node.close()


def keyed(number: int, maximum: int = 1, key: str = "k", **more: Any) -> Run:
    return a_run(number, concurrency_key=key, concurrency_max=maximum, **more)


async def go_by(store: PostgresStore, numbers: Sequence[int], maximum: int) -> None:
    await store.add_runs([keyed(number, maximum) for number in numbers])
    for number in numbers:
        (run,) = (await take(store, 1)).runs
        assert run.id == keyed(number).id
        assert await store.settle_runs([completed(run)], NOW) == [True]


def bound(store: PostgresStore) -> int:
    """The highest that is known on any connection."""
    return max((known.since[0] for known in store._memory.keys._known.values()), default=-1)


def below(store: PostgresStore) -> set[bytes]:
    return {run_id for known in store._memory.keys._known.values() for run_id in known.since[1]}


async def test_under_a_held_snapshot_claims_cost_what_they_did(
    store: PostgresStore, other: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While one run is claimed all the time; whether or not the next one is admitted; as few and as many wait."""
    found: dict[str, int] = {}
    rows = Session.rows

    async def counted(self: Session, name: str, *values: Any) -> list[Any]:
        if name in ("claim_gated", "claim_gates", "free_gates", "claims_until"):
            text = await self.connection.fetchval(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {QUERIES[name]}", *values)
            plan = json.loads(text)[0]["Plan"]
            found[name] = plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
        return await rows(self, name, *values)

    costs = []
    await store.add_runs([keyed(0, 2)])
    (first,) = (await take(store, 1)).runs
    async with other.transaction(isolation="repeatable_read"):
        await other.fetchval("SELECT count(*) FROM horarium.runs")
        for begin in (10, 5_000):
            monkeypatch.setattr(Session, "rows", counted)
            await store.add_runs([keyed(begin + number, 2) for number in range(300)])
            (run,) = (await take(store, 10)).runs
            assert (await take(store, 10)).runs == ()
            costs.append(dict(found))
            monkeypatch.setattr(Session, "rows", rows)
            waiting = [keyed(begin + number, 2) for number in range(1, 300)]
            gone = [a_change(one, state=State.CANCELLED, finished_at=NOW) for one in waiting]
            assert all(await store.settle_runs([*gone, completed(run)], NOW))
            if begin == 10:
                await go_by(store, range(400, 1_900), 2)
                await vacuum(store)
    assert set(costs[1]) == {"claim_gated", "claim_gates", "free_gates", "claims_until"}
    assert {name: number for name, number in costs[1].items() if number > costs[0][name] + 60} == {}
    assert await store.settle_runs([completed(first)], NOW) == [True]


async def vacuum(store: PostgresStore) -> None:
    """What it leaves the server to believe of the table's size is that it is empty."""
    assert store._pool is not None
    await store._pool.call(lambda connection: connection.execute("VACUUM horarium.runs"), transaction=False)


async def test_what_is_claimed_for_long_is_below_the_bound_and_counted(store: PostgresStore) -> None:
    await store.add_runs([keyed(0, 2)])
    (first,) = (await take(store, 1)).runs
    await go_by(store, range(10, 30), 2)
    assert below(store) == {encode_id(first.id)}
    await store.add_runs([keyed(number, 2) for number in range(100, 103)])
    assert ids((await take(store)).runs) == ids([keyed(100)])
    assert (await take(store)).runs == ()
    assert await store.settle_runs([completed(first)], NOW) == [True]
    assert ids((await take(store)).runs) == ids([keyed(101)])
    assert (await take(store)).runs == ()


async def test_of_many_that_are_claimed_for_long_each_is_counted(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More than are known by their ids."""
    monkeypatch.setattr(keys, "BELOW_MAX", 3)
    await store.add_runs([keyed(number, 8) for number in range(8)])
    held = [run for _ in range(7) for run in (await take(store, 1)).runs]
    (last,) = (await take(store, 1)).runs
    assert await store.settle_runs([completed(last)], NOW) == [True]
    await go_by(store, range(10, 40), 8)
    assert len(below(store)) <= 3
    await store.add_runs([keyed(number, 8) for number in range(100, 103)])
    assert ids((await take(store)).runs) == ids([keyed(100)])
    assert (await take(store)).runs == ()
    assert all(await store.settle_runs([completed(run) for run in held[:2]], NOW))
    assert ids((await take(store)).runs) == ids([keyed(101), keyed(102)])


async def test_a_claim_that_was_under_way_when_it_was_learned_is_counted(
    store: PostgresStore, second: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has a number below those that ended meanwhile."""
    reached, go_on = asyncio.Event(), asyncio.Event()
    rows = Session.rows

    async def delayed(self: Session, name: str, *values: Any) -> list[Any]:
        found = await rows(self, name, *values)
        if name == "claim_runs" and self.memory is store._memory:
            reached.set()
            await go_on.wait()
        return found

    monkeypatch.setattr(Session, "rows", delayed)
    await store.add_runs([keyed(0)])
    claiming = asyncio.ensure_future(take(store))
    await reached.wait()
    for number in range(10, 20):
        await second.add_runs([keyed(number, key="another", queue="pull/other")])
        (run,) = (await take(second, queues=["pull/other"])).runs
        assert await second.settle_runs([completed(run)], NOW) == [True]
    number_of_claim = bound(second) >> 20
    go_on.set()
    (first,) = (await claiming).runs
    await second.add_runs([keyed(1)])
    assert (await take(second)).runs == ()
    assert await store.settle_runs([completed(first)], NOW) == [True]
    assert ids((await take(second)).runs) == ids([keyed(1)])
    assert bound(second) >> 20 > number_of_claim


async def test_what_code_that_says_no_number_claims_is_counted(store: PostgresStore, other: asyncpg.Connection) -> None:
    """A run that was claimed before, by code that does."""
    await store.add_runs([keyed(0)])
    (first,) = (await take(store)).runs
    back = a_change(first, state=State.PENDING, worker=None, lease_expires_at=None, started_at=None)
    assert await store.settle_runs([back], NOW) == [True]
    number = await other.fetchval("SELECT claimed_in FROM horarium.runs")
    await go_around(store)
    await other.execute("UPDATE horarium.runs SET state = 1, token = token + 1 WHERE concurrency_key = 'k'")
    assert number == await other.fetchval("SELECT claimed_in FROM horarium.runs WHERE concurrency_key = 'k'")
    await store.add_runs([keyed(1), keyed(5, key="another")])
    assert bound(store) > number
    assert ids((await take(store)).runs) == ids([keyed(5, key="another")])


async def test_what_was_learned_of_another_process_of_the_server_counts_for_nothing(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.add_runs([keyed(number) for number in range(2)])
    (first,) = (await take(store)).runs
    monkeypatch.setattr(keys, "LOOKS_BETWEEN", 10**9)
    for known in store._memory.keys._known.values():
        # As a server that was promoted, and has given fewer numbers yet, is seen by a node that was elsewhere before.
        known.since = 1 << 62, [], "a mark that this one has not"
    assert (await take(store)).runs == ()
    assert await store.settle_runs([completed(first)], NOW) == [True]
    assert ids((await take(store)).runs) == ids([keyed(1)])


async def test_what_was_learned_in_a_claim_that_failed_counts_for_nothing(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.add_runs([keyed(number) for number in range(2)])
    (run,) = (await take(store)).runs
    marks: set[str] = set()

    async def fail(session: Session) -> None:
        await session.enter_gates()
        marks.add(session.since()[2])
        raise asyncpg.SerializationError("met another one")

    with pytest.raises(StoreUnavailable):
        await store._call(fail, transaction=True, kind="claim")
    monkeypatch.setattr(keys, "LOOKS_BETWEEN", 10**9)
    known = {one.since[2]: one for one in store._memory.keys._known.values()}
    (last,) = marks & set(known)
    known[last].since = 1 << 62, [], last
    assert (await take(store)).runs == ()
    assert await store.settle_runs([completed(run)], NOW) == [True]
    assert ids((await take(store)).runs) == ids([keyed(1)])


async def test_a_number_that_has_no_room_is_not_written(store: PostgresStore, other: asyncpg.Connection) -> None:
    await store.add_runs([keyed(number, 2) for number in range(3)])
    await other.execute("UPDATE horarium.runs SET token = 1048575 WHERE fire_at = $1", keyed(0).fire_at)
    assert ids((await take(store)).runs) == ids([keyed(0), keyed(1)])
    written = await other.fetch("SELECT claimed_in & 1048575 FROM horarium.runs WHERE state > 0 ORDER BY fire_at")
    assert [row[0] for row in written] == [None, 1]
    await go_around(store)
    assert (await take(store)).runs == ()


async def go_around(store: PostgresStore) -> None:
    """Let numbers pass, and learn."""
    for number in range(200, 205):
        await store.add_runs([keyed(number, key="another", queue="pull/other")])
        (run,) = (await take(store, queues=["pull/other"])).runs
        assert await store.settle_runs([completed(run)], NOW) == [True]


async def test_nodes_that_learn_all_the_time_never_claim_more_than_a_key_admits(
    store: PostgresStore, second: PostgresStore, fresh_postgres_url: str
) -> None:
    """What is given back, kept for long, ended and claimed again, on several connections of several nodes."""
    maxima = {"a": 1, "b": 2, "c": 3}
    runs = [keyed(number, maxima[key], key) for number in range(240) for key in ["abc"[number % 3]]]
    third = PostgresStore(fresh_postgres_url)
    await third.open()
    await store.add_runs(runs)
    held: dict[str, str] = {}
    done: set[str] = set()

    async def work(node: PostgresStore, kept: int) -> None:
        mine: list[Run] = []
        while len(done) < len(runs):
            for run in (await take(node, 4)).runs:
                assert run.concurrency_key is not None
                held[run.id] = run.concurrency_key
                mine.append(run)
            claimed = list(held.values())
            assert all(claimed.count(key) <= most for key, most in maxima.items())
            # The last ones are kept for a while; but not while nothing else is left.
            ready, mine = (mine, []) if len(done) + 12 > len(runs) else (mine[:-kept], mine[-kept:])
            for run in ready:
                again = run.token == 1 and hash(run.fire_at) % 4 == 0
                del held[run.id]
                change = a_change(run, state=State.PENDING, worker=None, lease_expires_at=None, started_at=None)
                assert await node.settle_runs([change if again else completed(run)], NOW) == [True]
                if not again:
                    done.add(run.id)
            if not ready and len(mine) >= kept:
                run = mine.pop(0)
                del held[run.id]
                assert await node.settle_runs([completed(run)], NOW) == [True]
                done.add(run.id)

    async with asyncio.timeout(PATIENCE):
        await asyncio.gather(work(store, 1), work(store, 1), work(second, 1), work(third, 1))
    await third.close()
