"""The SQLite store beside bare apsw, in the same run, on the same disk, turn by turn.

    PYTHONPATH=src python bench/sqlite_store.py [--directory DIR] [--rounds N] [--runs N] [--history N]

Bare apsw is what anybody would write by hand for a queue: one table, one partial index, and for each batch of 100 one
durable transaction that claims (UPDATE ... WHERE id IN (SELECT ... LIMIT 100) RETURNING) and one that completes. Every
figure is the median over the rounds; the spread says how quiet the machine was.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import apsw
from msgspec.structs import replace

from horarium.model import Cause, Disposition, HandlerTarget, Job, Run, RunChange, State, run_id, uuid7
from horarium.stores.sqlite import SqliteStore

NOW = 1_800_000_000_000_000
QUEUE = "handler/report"
PAYLOAD = b'{"to": "somebody", "number": 1234567890}'
BATCH, ADD_BATCH = 100, 1_000
JOB_ID = "0198c0de-0000-7000-8000-000000000001"


class Meter:
    """Microseconds a run, by the wall and of CPU (all threads), one entry a round."""

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


# ---- bare apsw --------------------------------------------------------------------------------------------------


def raw_connection(path: Path) -> apsw.Connection:
    connection = apsw.Connection(str(path))
    connection.pragma("journal_mode", "wal")
    connection.pragma("synchronous", "full")
    connection.execute(
        "CREATE TABLE runs (id BLOB PRIMARY KEY, queue TEXT NOT NULL, state INTEGER NOT NULL,"
        " priority INTEGER NOT NULL, due_at INTEGER NOT NULL, payload BLOB, worker TEXT, lease_expires_at INTEGER)"
        " WITHOUT ROWID"
    )
    connection.execute("CREATE INDEX waiting ON runs (queue, priority, due_at, id) WHERE state = 0")
    return connection


def raw_row(run: Run) -> tuple[object, ...]:
    return bytes.fromhex(run.id.replace("-", "")), run.queue, run.priority, run.due_at, run.payload


async def raw_add(connection: apsw.Connection, runs: list[Run]) -> None:
    for start in range(0, len(runs), ADD_BATCH):
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany(
            "INSERT INTO runs (id, queue, state, priority, due_at, payload) VALUES (?, ?, 0, ?, ?, ?)",
            [raw_row(run) for run in runs[start : start + ADD_BATCH]],
        )
        connection.execute("COMMIT")


async def raw_drain(connection: apsw.Connection, count: int) -> None:
    done = 0
    while done < count:
        connection.execute("BEGIN IMMEDIATE")
        rows = connection.execute(
            "UPDATE runs SET state = 1, worker = 'w', lease_expires_at = ?1 WHERE id IN ("
            "SELECT id FROM runs WHERE queue = ?2 AND state = 0 AND due_at <= ?3"
            " ORDER BY priority, due_at, id LIMIT ?4) RETURNING id, payload",
            (NOW + 30_000_000, QUEUE, NOW, BATCH),
        ).fetchall()
        connection.execute("COMMIT")
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany("UPDATE runs SET state = 3 WHERE id = ? AND state = 1", [(row[0],) for row in rows])
        connection.execute("COMMIT")
        done += len(rows)


# ---- the store --------------------------------------------------------------------------------------------------


async def store_add(store: SqliteStore, runs: list[Run]) -> None:
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


async def store_drain(store: SqliteStore, count: int) -> None:
    done = 0
    while done < count:
        claimed = await store.claim_runs([QUEUE], BATCH, "w", NOW, NOW, NOW)
        assert all(await store.settle_runs([completed(run) for run in claimed.runs], NOW))
        done += len(claimed.runs)


async def claim_one_by_one(store: SqliteStore, count: int) -> None:
    for _ in range(count):
        (run,) = (await store.claim_runs([QUEUE], 1, "w", NOW, NOW, NOW)).runs
        await store.settle_runs([completed(run)], NOW)


async def many_callers(store: SqliteStore, count: int, callers: int) -> None:
    await asyncio.gather(*(claim_one_by_one(store, count // callers) for _ in range(callers)))


# ---- the figures ------------------------------------------------------------------------------------------------


async def turn_by_turn(meter: Meter, directory: Path, rounds: int, count: int) -> None:
    raw = raw_connection(directory / "raw.db")
    store = SqliteStore(f"sqlite:///{directory}/store.db")
    await store.open()
    await store.add_jobs([a_job()])
    half = count // 10
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
        single = new_runs(count // 5, start + 2 * count)
        await store_add(store, single)
        await meter.measure("store: one by one, 1 caller", half, lambda: claim_one_by_one(store, half))
        await meter.measure("store: one by one, 50 callers", half, lambda: many_callers(store, half, 50))
    await store.close()
    raw.close()


def a_job() -> Job:
    return Job(id=JOB_ID, name="nightly", trigger={"type": "interval"}, target=HandlerTarget(name="report"))


async def busy_loop(meter: Meter, directory: Path, count: int) -> None:
    """The same while another thread never gives up the global lock of its own accord."""
    stop = threading.Event()

    def spin() -> None:
        while not stop.is_set():
            sum(range(100))

    raw = raw_connection(directory / "raw-busy.db")
    store = SqliteStore(f"sqlite:///{directory}/store-busy.db")
    await store.open()
    await raw_add(raw, new_runs(count, 0))
    await store_add(store, new_runs(count, 0))
    thread = threading.Thread(target=spin)
    thread.start()
    try:
        await meter.measure("raw: claim + complete, GIL busy", count, lambda: raw_drain(raw, count))
        await meter.measure("store: claim + settle, GIL busy", count, lambda: store_drain(store, count))
    finally:
        stop.set()
        thread.join()
    await store.close()
    raw.close()


async def with_history(meter: Meter, directory: Path, history: int, count: int) -> None:
    store = SqliteStore(f"sqlite:///{directory}/history.db")
    await store.open()
    await store_add(store, new_runs(count, 20 * history))
    await meter.measure("store: claim + settle, no history", count, lambda: store_drain(store, count))
    for start in range(0, history, 50_000):
        done = [
            replace(run, state=State.COMPLETED, finished_at=NOW, prune_at=NOW, disposition=Disposition.RAN)
            for run in new_runs(min(50_000, history - start), start)
        ]
        await store_add(store, done)
    await store_add(store, new_runs(count, 30 * history))
    name = f"store: claim + settle, {history:,} finished"
    await meter.measure(name, count, lambda: store_drain(store, count))
    await store.close()


async def sizes(directory: Path, count: int) -> list[str]:
    lines = []
    for of_job in (False, True):
        path = directory / f"size-{of_job}.db"
        store = SqliteStore(f"sqlite:///{path}")
        await store.open()
        empty = path.stat().st_size
        await store_add(store, new_runs(count, 0, of_job=of_job))
        await store.close()
        what = "job runs" if of_job else "enqueued runs, 40-byte payload"
        lines.append(f"bytes on disk a pending run ({what}): {(path.stat().st_size - empty) / count:.0f}")
    return lines


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--directory", default=None)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--runs", type=int, default=5_000)
    parser.add_argument("--history", type=int, default=0)
    options = parser.parse_args()
    meter = Meter()
    with tempfile.TemporaryDirectory(dir=options.directory) as name:
        directory = Path(name)
        await turn_by_turn(meter, directory, options.rounds, options.runs)
        await busy_loop(meter, directory, options.runs)
        if options.history:
            await with_history(meter, directory, options.history, options.runs)
        print("\n".join(meter.line(entry) for entry in meter.wall))
        drain = meter.median("raw: claim + complete") / meter.median("store: claim + settle")
        add = meter.median("raw: add, 1,000 a batch") / meter.median("store: add, 1,000 a batch")
        print(f"claim + settle: {drain:.0%} of bare apsw;  add: {add:.0%}")
        print("\n".join(await sizes(directory, 100_000)))


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
