"""Claims of runs that a concurrency key or their job's order may hold back: claimers wait for each other only where
they want the same, and whoever comes later sees what the earlier one took."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import asyncpg  # type: ignore[import-untyped]
import pytest

from horarium.model import Run, State
from horarium.stores.encoding import encode_text
from horarium.stores.postgres import PostgresStore
from horarium.stores.postgres.claim import GATES, gates_of
from horarium.stores.postgres.session import QUERIES, Session
from horarium.testing.contract.base import ids, take
from horarium.testing.values import NOW, a_change, a_job, a_run, completed
from tests.stores.postgres_server import waiting
from tests.waiting import PATIENCE

pytestmark = pytest.mark.slow


def gate(key: str) -> int:
    (number,) = gates_of((0, b"", None, False, encode_text(key), 1, None))
    return number


def keyed(number: int, key: str, maximum: int = 1, **more: Any) -> Run:
    return a_run(number, concurrency_key=key, concurrency_max=maximum, **more)


async def hold(connection: asyncpg.Connection, store: PostgresStore, key: str) -> None:
    await connection.fetch(QUERIES["lock_gates"], store._namespace_id, [gate(key)])


def test_every_key_has_a_gate() -> None:
    assert {gate(f"key-{n}") for n in range(2_000)} == set(range(GATES))


async def test_claims_under_different_keys_do_not_wait_for_each_other(
    store: PostgresStore, other: asyncpg.Connection, fresh_postgres_url: str
) -> None:
    mine, theirs = "mine", next(f"k{n}" for n in range(99) if gate(f"k{n}") != gate("mine"))
    await store.add_runs([keyed(1, mine, queue="pull/mine"), keyed(2, theirs, queue="pull/theirs")])
    async with other.transaction():
        await hold(other, store, theirs)
        assert ids((await take(store, queues=["pull/mine"])).runs) == [a_run(1).id]
        claiming = asyncio.ensure_future(take(store, queues=["pull/theirs"]))
        await waiting(fresh_postgres_url)
        assert not claiming.done()
    assert ids((await claiming).runs) == [a_run(2).id]


async def test_whoever_waited_sees_what_was_taken_meanwhile_and_takes_the_rest(
    store: PostgresStore, other: asyncpg.Connection, fresh_postgres_url: str
) -> None:
    await store.add_runs([*(keyed(n, "k", 2) for n in range(3)), a_run(9)])
    transaction = other.transaction()
    await transaction.start()
    await hold(other, store, "k")
    claiming = asyncio.ensure_future(take(store))
    await waiting(fresh_postgres_url)
    await other.execute(
        "UPDATE horarium.runs SET state = 1, token = 1, lease_expires_at = $2 WHERE fire_at = $1",
        a_run(1).fire_at,
        NOW + 10**9,
    )
    await transaction.commit()
    claimed = await claiming
    assert ids(claimed.runs) == ids([a_run(0), a_run(9)])
    assert claimed.next_due_at == NOW
    assert (await take(store)).runs == ()


async def test_an_earlier_run_that_was_claimed_meanwhile_holds_a_serial_one_back(
    store: PostgresStore, other: asyncpg.Connection, fresh_postgres_url: str
) -> None:
    job = a_job()
    await store.add_runs([a_run(5, of=job, serial=True)])
    owner = await other.fetchval("SELECT owner_id FROM horarium.runs")
    transaction = other.transaction()
    await transaction.start()
    await other.fetch(QUERIES["lock_gates"], store._namespace_id, [owner % GATES])
    claiming = asyncio.ensure_future(take(store))
    await waiting(fresh_postgres_url)
    await store.add_runs_in(other, [a_run(4, of=job, serial=True)])
    await transaction.commit()
    assert ids((await claiming).runs) == [a_run(4, of=job).id]


async def test_many_claimers_share_many_keys_and_jobs_without_a_deadlock(
    store: PostgresStore, fresh_postgres_url: str
) -> None:
    """Each key admits two, each job one at a time; all is done in the end, and never more at once."""
    jobs = [a_job(f"job-{n}") for n in range(4)]
    runs = [keyed(n, f"key-{n % 5}", 2) for n in range(60)]
    runs += [
        a_run(100 + n, of=jobs[n % 4], serial=True, concurrency_key=f"key-{n % 5}", concurrency_max=2)
        for n in range(40)
    ]
    await store.add_runs(runs)
    stores = [PostgresStore(fresh_postgres_url) for _ in range(4)]
    held: dict[str, Run] = {}
    order: dict[str | None, list[int]] = {}
    done: list[str] = []

    async def work(node: PostgresStore) -> None:
        while len(done) < len(runs):
            for run in (await take(node, 7)).runs:
                held[run.id] = run
                order.setdefault(run.job_id, []).append(run.fire_at)
            keys = [run.concurrency_key for run in held.values()]
            assert all(keys.count(key) <= 2 for key in keys)
            mine = [run for run in list(held.values()) if held.pop(run.id, None)]
            settled = await node.settle_runs([completed(run) for run in mine], NOW)
            assert all(settled)
            done.extend(run.id for run in mine)

    for node in stores:
        await node.open()
    async with asyncio.timeout(PATIENCE):
        await asyncio.gather(*map(work, stores))
    assert sorted(done) == sorted(ids(runs))
    assert all(order[job.id] == sorted(order[job.id]) for job in jobs)
    for node in stores:
        await node.close()


async def test_a_retry_keeps_its_place_under_its_key(store: PostgresStore) -> None:
    await store.add_runs([keyed(1, "k"), keyed(2, "k")])
    (first,) = (await take(store)).runs
    assert await store.settle_runs([a_change(first, state=State.PENDING, lease_expires_at=None)], NOW) == [True]
    assert ids((await take(store)).runs) == [first.id]


# ---- what a claim costs -----------------------------------------------------------------------------------------


@pytest.fixture
def blocks(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """How many each statement touches, by its name, the last time it was asked."""
    found: dict[str, int] = {}
    rows = Session.rows

    async def counted(self: Session, name: str, *values: Any) -> list[Any]:
        if name == "free_gates" or (name.startswith("claim") and name != "claim_runs"):
            text = await self.connection.fetchval(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {QUERIES[name]}", *values)
            plan = json.loads(text)[0]["Plan"]
            found[name] = plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
        return await rows(self, name, *values)

    monkeypatch.setattr(Session, "rows", counted)
    return found


@pytest.mark.parametrize(
    "waits",
    [
        lambda n: keyed(n, "k"),
        lambda n: a_run(n, of=a_job("job"), serial=True),
        lambda n: keyed(n, "k", of=a_job("job"), serial=True),
    ],
    ids=["key", "order", "both"],
)
async def test_a_claim_that_gets_nothing_costs_what_it_did_however_many_wait(
    store: PostgresStore, blocks: dict[str, int], waits: Callable[[int], Run]
) -> None:
    await store.add_runs([waits(number) for number in range(500)])
    assert len((await take(store, 10)).runs) == 1
    counts = []
    for more in (range(500, 600), range(600, 8_600)):
        await store.add_runs([waits(number) for number in more])
        assert (await take(store, 10)).runs == ()
        counts.append(dict(blocks))
    assert "claim_gates" in counts[1]
    assert {name: number for name, number in counts[1].items() if number > counts[0][name] + 30} == {}


async def test_the_next_run_of_a_job_in_order_costs_what_it_did_however_many_wait_behind_it(
    store: PostgresStore, blocks: dict[str, int]
) -> None:
    """Rows go by as well: what a claim looks at stays where it is, however long the job's line is."""
    job = a_job("job")
    costs: list[dict[str, int]] = []
    for more in (range(500), range(500, 8_500)):
        await store.add_runs([a_run(number, of=job, serial=True) for number in more])
        (run,) = (await take(store, 10)).runs
        costs.append(dict(blocks))
        assert await store.settle_runs([completed(run)], NOW) == [True]
    assert {"claim_gated", "claim_gates", "free_gates"} <= set(costs[1])
    assert {name: number for name, number in costs[1].items() if number > costs[0][name] + 30} == {}


async def test_a_claim_that_has_its_number_asks_for_no_more(store: PostgresStore, blocks: dict[str, int]) -> None:
    """The last that a look may find is the last that is wanted: what stands behind it is not looked for."""
    await store.add_runs([keyed(number, "k") for number in range(101)])
    assert len((await take(store, 100)).runs) == 1
    await store.add_runs([keyed(number, f"key-{number}") for number in range(200, 300)])
    blocks.clear()
    assert len((await take(store, 100)).runs) == 100
    assert "claim_gated" in blocks
    assert "claim_gates" not in blocks
    assert (await take(store, 0)).runs == ()
