"""What size costs on PostgreSQL: many defined jobs, a long history, and an hour's worth of churn.

    python -m bench.postgres_scale [planning] [claiming] [bytes] [churn] [--url URL] [--scale PART]

    planning  a planning step over 50 due jobs, with 1,000 and with 1,000,000 defined jobs
    claiming  claiming, and claiming + settling, with 0 and with 5,000,000 finished runs
    bytes     bytes that a pending run takes, its indexes included, its payload not
    churn     1,000,000 runs added, claimed and settled at full speed (an hour at 280 a second), 10,000 waiting at any
              time, autovacuum as it comes: sizes, dead rows and the time of a claim as it goes on

Rows that only have to be there are made inside the server. Sizes that are compared are measured turn by turn, in
databases of their own on the same server. `--scale 0.1`: a tenth of the sizes.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import time
from collections.abc import Awaitable, Callable

import asyncpg  # type: ignore[import-untyped]

from bench.postgres_store import (
    BATCH,
    HISTORY,
    NOW,
    QUEUE,
    a_job,
    a_server,
    bytes_of_a_run,
    completed,
    new_runs,
    store_add,
    store_drain,
)
from bench.stores import a_planner
from horarium import Scheduler
from horarium.clock import SECOND, SystemClock
from horarium.stores.postgres import PostgresStore
from horarium.wire.definitions import read_definition

ROUNDS, STEPS = 12, 10
DUE = 50
FAR = 4_000_000_000_000_000
"""When jobs are due that are not: beyond all steps."""
CLAIMED = 2_000
WAITING, CHURN, REPORTS = 10_000, 1_000_000, 10

JOBS = """
WITH sample AS MATERIALIZED (SELECT * FROM horarium.jobs LIMIT 1),
owner AS (
    INSERT INTO horarium.owners (namespace_id, job_id, name)
    SELECT sample.namespace_id, 'later-' || n, 'later-' || n FROM generate_series(1, $1::int8) AS n, sample
    RETURNING num, namespace_id, job_id
)
INSERT INTO horarium.jobs (num, namespace_id, id, name, version, enabled, next_fire_at, deleted_at, labels, definition)
SELECT owner.num, owner.namespace_id, owner.job_id, owner.job_id, 1, true, $2::int8 + owner.num, NULL, '{}',
    sample.definition
FROM owner, sample
"""


async def new_database(server: str) -> str:
    connection = await asyncpg.connect(server)
    name = f"scale_{os.urandom(4).hex()}"
    await connection.execute(f"CREATE DATABASE {name}")
    await connection.close()
    return server.rsplit("/", 1)[0] + "/" + name


async def opened(url: str) -> PostgresStore:
    store = PostgresStore(url)
    await store.open()
    return store


async def timed(work: Callable[..., Awaitable[object]], *values: object) -> float:
    """Microseconds."""
    started = time.perf_counter()
    await work(*values)
    return (time.perf_counter() - started) * 1e6


def compare(name: str, unit: str, figures: dict[int, list[float]], bar: float) -> None:
    """Medians, and the larger as a multiple of the smaller: the median over the rounds, each compared in itself."""
    small, large = sorted(figures)
    ratio = statistics.median(b / a for a, b in zip(figures[small], figures[large], strict=True))
    medians = ", ".join(f"{size:,}: {statistics.median(figures[size]):,.1f} {unit}" for size in sorted(figures))
    print(f"{name}: {medians}; ratio {ratio:.2f} (bar {bar:.2f})", flush=True)


# ---- many jobs --------------------------------------------------------------------------------------------------


async def planning(server: str, scale: float) -> None:
    stores: dict[int, PostgresStore] = {}
    for size in (1_000, max(round(1_000_000 * scale), 2_000)):
        url = await new_database(server)
        target = {"type": "handler", "name": "none"}
        trigger = {"type": "interval", "every_seconds": 10}
        async with Scheduler(url) as scheduler:
            due = [{"name": f"due-{number}", "trigger": trigger, "target": target} for number in range(DUE)]
            await scheduler._runtime.operations.jobs.create_jobs([read_definition(job) for job in due])
        stores[size] = store = await opened(url)
        connection = await asyncpg.connect(url)
        filled = await timed(connection.execute, JOBS, size - DUE, FAR)
        await connection.execute("VACUUM ANALYZE")
        await connection.close()
        print(f"    {size:,} jobs were defined within {filled / 1e6:.0f} s", flush=True)
    figures: dict[int, list[float]] = {size: [] for size in stores}
    planners = {size: a_planner(store) for size, store in stores.items()}
    at = SystemClock().now()
    for number in range(ROUNDS + 1):
        samples: dict[int, list[float]] = {size: [] for size in stores}
        for _ in range(STEPS):
            at += 10 * SECOND
            for size, planner in planners.items():
                samples[size].append(await timed(planner.step, at))
        if number:
            for size in stores:
                figures[size].append(statistics.median(samples[size]))
    compare(f"a planning step, {DUE} due jobs", "us", figures, 1.25)
    for store in stores.values():
        planned = (await store.stats(at)).queues[0].due
        assert planned >= DUE * STEPS * ROUNDS, f"every step planned {DUE} runs, {planned} are there"
        await store.close()


# ---- a long history ---------------------------------------------------------------------------------------------


async def claiming(server: str, scale: float) -> None:
    stores: dict[int, PostgresStore] = {}
    for size in (0, round(5_000_000 * scale)):
        url = await new_database(server)
        stores[size] = store = await opened(url)
        await store.add_jobs([a_job()])
        await store_add(store, new_runs(BATCH, 0, of_job=True))
        await store_drain(store, BATCH)
        connection = await asyncpg.connect(url)
        filled = await timed(connection.execute, HISTORY, "default", NOW - 10**13, size)
        await connection.execute("VACUUM ANALYZE")
        held = await connection.fetchval("SELECT pg_total_relation_size('horarium.finished')")
        await connection.close()
        print(f"    {size:,} finished runs within {filled / 1e6:.0f} s, {held / 1e6:,.0f} MB", flush=True)
    alone: dict[int, list[float]] = {size: [] for size in stores}
    both: dict[int, list[float]] = {size: [] for size in stores}
    for number in range(ROUNDS + 1):
        for size, store in stores.items():
            runs = new_runs(2 * CLAIMED, (number + 1) * 10 * CLAIMED, of_job=True)
            await store_add(store, runs[:CLAIMED])
            took, settled = await claim_and_settle(store)
            await store_add(store, runs[CLAIMED:])
            drained = await timed(store_drain, store, CLAIMED)
            if number:
                alone[size].append(took / CLAIMED)
                both[size].append((took + settled + drained) / CLAIMED / 2)
    compare("claiming a run, 100 a batch", "us", alone, 1.25)
    compare("claiming and settling it", "us", both, 1.25)
    for store in stores.values():
        await store.close()


async def claim_and_settle(store: PostgresStore) -> tuple[float, float]:
    claimed = []

    async def claim() -> None:
        for _ in range(0, CLAIMED, BATCH):
            claimed.append((await store.claim_runs([QUEUE], BATCH, "w", NOW, NOW, NOW)).runs)

    async def settle() -> None:
        for runs in claimed:
            assert all(await store.settle_runs([completed(run) for run in runs], NOW))

    return await timed(claim), await timed(settle)


# ---- churn ------------------------------------------------------------------------------------------------------

SIZES = """
SELECT pg_relation_size('horarium.runs') AS heap, pg_indexes_size('horarium.runs') AS indexes,
    pg_total_relation_size('horarium.finished') AS history,
    (SELECT n_dead_tup FROM pg_stat_user_tables WHERE relid = 'horarium.runs'::regclass) AS dead,
    (SELECT autovacuum_count FROM pg_stat_user_tables WHERE relid = 'horarium.runs'::regclass) AS vacuumed
"""


async def churn(server: str, scale: float) -> None:
    total, step = round(CHURN * scale), round(CHURN * scale / REPORTS)
    url = await new_database(server)
    store = await opened(url)
    await store.add_jobs([a_job()])
    connection = await asyncpg.connect(url)
    added = WAITING
    await store_add(store, new_runs(WAITING, 0, of_job=True))
    started = time.perf_counter()
    for done in range(0, total + 1, step):
        samples = []
        for _ in range(0, step if done else BATCH, 1_000):
            await store_add(store, new_runs(1_000, added, of_job=True))
            added += 1_000
            for _ in range(0, 1_000, BATCH):
                begun = time.perf_counter()
                claimed = (await store.claim_runs([QUEUE], BATCH, "w", NOW, NOW, NOW)).runs
                samples.append((time.perf_counter() - begun) / BATCH * 1e6)
                assert all(await store.settle_runs([completed(run) for run in claimed], NOW))
        row = await connection.fetchrow(SIZES)
        print(
            f"    {done:>9,} done: runs {row['heap'] / 1e6:6.1f} MB + indexes {row['indexes'] / 1e6:6.1f} MB,"
            f" {row['dead']:>7,} dead, vacuumed {row['vacuumed']} times; history {row['history'] / 1e6:,.0f} MB;"
            f" a claim {statistics.median(samples):.1f} us a run (median of this part)",
            flush=True,
        )
    print(f"churn: {total:,} runs added, claimed and settled in {time.perf_counter() - started:.0f} s")
    await connection.close()
    await store.close()


async def size_of_a_run(server: str, scale: float) -> None:
    size = await bytes_of_a_run(await new_database(server), 20_000)
    print(f"a pending run takes {size:.0f} bytes (bar 300)")


PARTS = {"planning": planning, "claiming": claiming, "bytes": size_of_a_run, "churn": churn}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", metavar="part", help=f"of {', '.join(PARTS)}; all by default")
    parser.add_argument("--url", help="a server to use instead of one of its own")
    parser.add_argument("--scale", type=float, default=1.0, help="1: the sizes above; 0.1: a tenth")
    given = parser.parse_args(arguments)
    if unknown := set(given.what) - set(PARTS):
        parser.error(f"no part {', '.join(sorted(unknown))}; one of {', '.join(PARTS)}")
    with a_server(given.url) as url:
        for what in given.what or PARTS:
            asyncio.run(PARTS[what](url, given.scale))


if __name__ == "__main__":
    main()
