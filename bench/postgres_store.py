"""The PostgreSQL store beside bare asyncpg, in the same run, on the same server, turn by turn.

    PYTHONPATH=src python -m bench.postgres_store [--url URL] [--rounds N] [--runs N] [--history N]

Without a URL a server is started for the occasion (fsync on, all else at its defaults). Bare asyncpg is what anybody
would write by hand for a queue: one table, one partial index, and for each batch of 100 one statement that claims
(UPDATE ... WHERE id IN (SELECT ... FOR UPDATE SKIP LOCKED LIMIT 100) RETURNING) and one that completes; runs are added
by INSERT ... SELECT FROM unnest(arrays). Every figure is the median over the rounds, of the wall and of the CPU of this
process alone.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import contextmanager
from functools import partial
from typing import Any

import asyncpg  # type: ignore[import-untyped]
from msgspec.structs import replace

from horarium.model import Cause, Disposition, HandlerTarget, Job, Run, RunChange, State, run_id, uuid7
from horarium.stores.postgres import PostgresStore

NOW = 1_800_000_000_000_000
QUEUE = "handler/report"
PAYLOAD = b'{"to": "somebody", "number": 1234567890}'
BATCH, ADD_BATCH = 100, 1_000
JOB_ID = "0198c0de-0000-7000-8000-000000000001"
BYTES_MAX = 300

RAW_TABLE = """
DROP TABLE IF EXISTS raw_runs;
CREATE TABLE raw_runs (
    id bytea PRIMARY KEY, queue text NOT NULL, state int2 NOT NULL, priority int2 NOT NULL, due_at int8 NOT NULL,
    payload bytea, worker text, lease_expires_at int8
);
CREATE INDEX raw_waiting ON raw_runs (queue, priority DESC, due_at, id) WHERE state = 0
"""
RAW_ADD = """
INSERT INTO raw_runs (id, queue, state, priority, due_at, payload)
SELECT id, queue, 0, priority, due_at, payload
FROM unnest($1::bytea[], $2::text[], $3::int2[], $4::int8[], $5::bytea[])
    AS given (id, queue, priority, due_at, payload)
ON CONFLICT DO NOTHING
"""
RAW_CLAIM = """
UPDATE raw_runs SET state = 1, worker = 'w', lease_expires_at = $1 WHERE id IN (
    SELECT id FROM raw_runs WHERE queue = $2 AND state = 0 AND due_at <= $3
    ORDER BY priority DESC, due_at, id LIMIT $4 FOR UPDATE SKIP LOCKED
) RETURNING id, payload
"""
RAW_COMPLETE = "UPDATE raw_runs SET state = 3 WHERE id = ANY ($1::bytea[]) AND state = 1"


class Meter:
    """Microseconds a run, by the wall and of this process's CPU, one entry a round."""

    def __init__(self) -> None:
        self.wall: dict[str, list[float]] = {}
        self.cpu: dict[str, list[float]] = {}

    async def measure(self, name: str, count: int, work: Callable[[], Awaitable[None]]) -> None:
        wall, cpu = time.perf_counter(), time.process_time()
        await work()
        self.cpu.setdefault(name, []).append((time.process_time() - cpu) / count * 1e6)
        self.wall.setdefault(name, []).append((time.perf_counter() - wall) / count * 1e6)

    def median(self, name: str) -> float:
        return statistics.median(self.wall[name])

    def ratio(self, raw: str, store: str) -> float:
        """The store's speed as a share of the raw one's: the median over the rounds, each compared within itself."""
        return statistics.median(a / b for a, b in zip(self.wall[raw], self.wall[store], strict=True))

    def line(self, name: str) -> str:
        wall, cpu = self.wall[name], statistics.median(self.cpu[name])
        return f"{name:<34} {self.median(name):7.2f} us  ({min(wall):.2f} - {max(wall):.2f})  CPU {cpu:6.2f} us"


def new_runs(count: int, start: int, *, of_job: bool = False) -> list[Run]:
    def one(index: int) -> Run:
        at = NOW - 3_600_000_000 + start + index
        run = Run(id=uuid7(at, os.urandom(10)), queue=QUEUE, fire_at=at, due_at=at, created_at=at, payload=PAYLOAD)
        if of_job:
            return replace(run, id=run_id(JOB_ID, at), job_id=JOB_ID, job="nightly", payload=None)
        return replace(run, cause=Cause.ENQUEUED)

    return [one(index) for index in range(count)]


def a_job() -> Job:
    return Job(id=JOB_ID, name="nightly", trigger={"type": "interval"}, target=HandlerTarget(name="report"))


# ---- bare asyncpg -----------------------------------------------------------------------------------------------


async def raw_add(connection: Any, runs: list[Run]) -> None:
    for start in range(0, len(runs), ADD_BATCH):
        part = runs[start : start + ADD_BATCH]
        await connection.execute(
            RAW_ADD,
            [bytes.fromhex(run.id.replace("-", "")) for run in part],
            [run.queue for run in part],
            [run.priority for run in part],
            [run.due_at for run in part],
            [run.payload for run in part],
        )


async def raw_drain(connection: Any, count: int) -> None:
    done = 0
    while done < count:
        rows = await connection.fetch(RAW_CLAIM, NOW + 30_000_000, QUEUE, NOW, BATCH)
        await connection.execute(RAW_COMPLETE, [row[0] for row in rows])
        done += len(rows)


# ---- the store --------------------------------------------------------------------------------------------------


async def store_add(store: PostgresStore, runs: list[Run]) -> None:
    for start in range(0, len(runs), ADD_BATCH):
        assert all(await store.add_runs(runs[start : start + ADD_BATCH]))


def completed(run: Run) -> RunChange:
    done = replace(
        run,
        state=State.COMPLETED,
        finished_at=NOW,
        lease_expires_at=None,
        disposition=Disposition.RAN,
        prune_at=NOW + 604_800_000_000,
    )
    return RunChange(done, run.token, State.RUNNING, True)


async def store_drain(store: PostgresStore, count: int) -> None:
    done = 0
    while done < count:
        claimed = await store.claim_runs([QUEUE], BATCH, "w", NOW, NOW, NOW)
        assert all(await store.settle_runs([completed(run) for run in claimed.runs], NOW))
        done += len(claimed.runs)


# ---- the figures ------------------------------------------------------------------------------------------------


async def turn_by_turn(meter: Meter, url: str, rounds: int, count: int) -> None:
    raw = await asyncpg.connect(url)
    await raw.execute(RAW_TABLE)
    store = PostgresStore(url, namespace=f"bench-{os.urandom(4).hex()}")
    await store.open()
    await store.add_jobs([a_job()])
    for number in range(rounds):
        start = number * 10 * count
        runs = new_runs(count, start)
        await meter.measure("raw: add, 1,000 a batch", count, partial(raw_add, raw, runs))
        await meter.measure("store: add, 1,000 a batch", count, partial(store_add, store, runs))
        await meter.measure("raw: claim + complete", count, lambda: raw_drain(raw, count))
        await meter.measure("store: claim + settle", count, lambda: store_drain(store, count))
        of_job = new_runs(count, start + count, of_job=True)
        await meter.measure("store: add, of a job", count, partial(store_add, store, of_job))
        await meter.measure("store: claim + settle, of a job", count, lambda: store_drain(store, count))
    await store.close()
    await raw.close()


async def bytes_of_a_run(url: str, count: int) -> float:
    """Bytes that a pending run takes, its indexes included, its payload not."""
    store = PostgresStore(url, namespace="bytes")
    await store.open()
    connection = await asyncpg.connect(url)
    total = "SELECT pg_total_relation_size('horarium.runs')"
    await connection.execute("TRUNCATE horarium.runs")
    before = await connection.fetchval(total)
    await store_add(store, new_runs(count, 0, of_job=True))
    size = (await connection.fetchval(total) - before) / count
    await connection.execute("TRUNCATE horarium.runs")
    await store.close()
    await connection.close()
    return float(size)


HISTORY = """
INSERT INTO horarium.finished (due_at, fire_at, created_at, lease_seconds, token, finished_at, prune_at, namespace_id,
    queue_id, owner_id, attempt, priority, state, cause, disposition, gated, serial, id, worker)
SELECT $2::int8 + n, $2 + n, $2 + n, 30, 1, $2 + n, $2 + n + 604800000000, namespaces.num,
    (SELECT min(num) FROM horarium.queues), (SELECT min(num) FROM horarium.owners), 1, 0, 3, 0, 0, false, false,
    decode(lpad(to_hex(($2 + n) / 1000), 12, '0') || left(md5(n::text), 20), 'hex'), 'w'
FROM generate_series(1, $3::int8) AS n CROSS JOIN horarium.namespaces WHERE namespaces.name = $1
"""


async def with_history(meter: Meter, url: str, rounds: int, count: int, history: int) -> None:
    connection = await asyncpg.connect(url)
    store = PostgresStore(url, namespace="history")
    await store.open()
    await store_add(store, new_runs(ADD_BATCH, 0, of_job=True))
    await store_drain(store, ADD_BATCH)
    for finished in (0, history):
        if finished:
            await connection.execute(HISTORY, "history", NOW - 10**13, finished, timeout=1_800)
            await connection.execute("VACUUM ANALYZE horarium.finished", timeout=1_800)
        for number in range(rounds):
            start = finished * 10 + (number + 1) * count * 2
            await store_add(store, new_runs(count, start, of_job=True))
            name = f"store: claim, {finished:,} finished"
            await meter.measure(name, count, lambda: claim_only(store, count))
            await connection.execute("TRUNCATE horarium.runs")
            await store_add(store, new_runs(count, start + count, of_job=True))
            name = f"store: both, {finished:,} finished"
            await meter.measure(name, count, lambda: store_drain(store, count))
    await store.close()
    await connection.close()


async def claim_only(store: PostgresStore, count: int) -> None:
    done = 0
    while done < count:
        done += len((await store.claim_runs([QUEUE], BATCH, "w", NOW, NOW, NOW)).runs)


async def report(url: str, arguments: argparse.Namespace) -> int:
    meter = Meter()
    await turn_by_turn(meter, url, arguments.rounds, arguments.runs)
    size = await bytes_of_a_run(url, 20_000)
    if arguments.history:
        await with_history(meter, url, arguments.rounds, min(arguments.runs, 5_000), arguments.history)
    for name in meter.wall:
        print(meter.line(name))
    cpu = sum(statistics.median(meter.cpu[name]) for name in ("store: add, 1,000 a batch", "store: claim + settle"))
    figures = (
        ("claim + settle, share of raw", meter.ratio("raw: claim + complete", "store: claim + settle"), 0.6, 1),
        ("add, share of raw", meter.ratio("raw: add, 1,000 a batch", "store: add, 1,000 a batch"), 0.6, 1),
        ("CPU of this process, us a run", cpu, 50.0, -1),
        ("bytes a pending run", size, float(BYTES_MAX), -1),
    )
    missed = 0
    for name, value, bound, sign in figures:
        holds = value * sign >= bound * sign
        missed += not holds
        print(
            f"{name:<34} {value:7.2f}  ({'at least' if sign > 0 else 'at most'} {bound:g}){'' if holds else '  MISSED'}"
        )
    return 1 if missed else 0


@contextmanager
def a_server(url: str | None) -> Any:
    if url:
        yield url
        return
    from tests.servers.postgres import Postgres
    from tests.stores.postgres_server import ready

    server = Postgres()
    try:
        server.start()
        asyncio.run(ready(server.url))
        yield server.url
    finally:
        server.stop()


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", help="a database to use; its schema `horarium` is written to")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--history", type=int, default=1_000_000, help="finished runs to claim beside; 0: leave out")
    given = parser.parse_args(arguments)
    with a_server(given.url) as url:
        return asyncio.run(report(url, given))


if __name__ == "__main__":
    sys.exit(main())
