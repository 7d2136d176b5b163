"""Lists beside a long history: how long each takes, and how late work is while they are asked for.

    python -m bench.lists [sqlite] [postgres] [redis] [mongo] [URL] [--runs 5000000] [--runs-apart 1000000]

A store of that name is started for the occasion, or the one at the URL is used (and kept). On SQLite and PostgreSQL
history is made by the database itself: some runs come through the store, then they are copied, each time further back
in time. On the others every run comes through the store, so there are fewer (`--runs-apart`). Beside it the same lists
are asked for in a namespace with a hundredth of that. Of each list the median and the worst of 20 are printed, in
milliseconds, and how many runs it brought.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
import time
from pathlib import Path
from statistics import median

from bench.stores import NAMES, a_store
from horarium.clock import DAY, SECOND
from horarium.model import Cause, Run, State, uuid7
from horarium.node.backends import make_store
from horarium.ports import RunFilter, Store
from horarium.stores.postgres import PostgresStore
from horarium.stores.postgres.connect import connect as connect_postgres
from horarium.stores.sqlite import SqliteStore
from horarium.stores.sqlite.connect import connect as connect_sqlite

NOW = 1_800_000_000 * SECOND
SEED = 50_000
BATCH = 1_000
TIMES = 20
SPACING = SECOND // 10
"""Between two runs: five million are six days."""

COPY_SQLITE = """
INSERT INTO runs (namespace_id, id, queue_id, priority, state, due_at, fire_at, created_at, owner_id, cause,
    lease_seconds, lease_micros, attempt, token, finished_at, prune_at, gated)
SELECT namespace_id,
    CAST(unhex(printf('%012x', (fire_at - ?1) / 1000)) || substr(id, 7, 6) || randomblob(4) AS BLOB),
    queue_id, priority, state, due_at - ?1, fire_at - ?1, created_at - ?1, owner_id, cause, lease_seconds, lease_micros,
    attempt, token, finished_at - ?1, prune_at, gated
FROM runs WHERE state > 2 AND fire_at >= ?2
"""
COPY_POSTGRES = """
INSERT INTO horarium.finished (namespace_id, id, queue_id, priority, state, due_at, fire_at, created_at, owner_id,
    cause, lease_seconds, attempt, token, finished_at, prune_at, gated, serial)
SELECT namespace_id, decode(lpad(to_hex((fire_at - $1) / 1000), 12, '0'), 'hex') || substr(id, 7, 6)
        || decode(lpad(to_hex((random() * 2000000000)::int8), 8, '0'), 'hex'),
    queue_id, priority, state, due_at - $1, fire_at - $1, created_at - $1, owner_id, cause, lease_seconds, attempt,
    token, finished_at - $1, prune_at, gated, serial
FROM horarium.finished WHERE fire_at >= $2
    AND namespace_id = (SELECT num FROM horarium.namespaces WHERE name = $3)
"""


def seed_run(number: int) -> Run:
    at = NOW - number * SPACING
    state = State.FAILED if number % 997 == 0 else State.COMPLETED
    name = f"old-{number % 200}"
    return Run(
        id=uuid7(at, os.urandom(10)), queue=f"q{number % 10}", job=name, job_id=name, fire_at=at, due_at=at,
        created_at=at, state=state, cause=Cause.SCHEDULE, attempt=1, token=1, finished_at=at,
    )  # fmt: skip


def rare_run(number: int, back: int, state: State) -> Run:
    at = NOW - back - number * SPACING
    return Run(id=uuid7(at, os.urandom(10)), queue="rare", fire_at=at, due_at=at, created_at=at, state=state)


async def fill(store: Store, wanted: int) -> None:
    """History of `wanted` runs, and behind it a hundred of each of some states and a queue."""
    copies = wanted // SEED if isinstance(store, (SqliteStore, PostgresStore)) else 1
    through = SEED if copies > 1 else wanted
    for start in range(0, through, BATCH):
        await store.add_runs([seed_run(number) for number in range(start, start + BATCH)])
    span = SEED * SPACING
    since = NOW - span + SPACING
    if isinstance(store, SqliteStore) and copies > 1:
        connection = connect_sqlite(store.location)
        for copy in range(1, copies):
            connection.execute(COPY_SQLITE, (copy * span, since))
        connection.close()
    elif isinstance(store, PostgresStore):
        server = await connect_postgres(store.location)
        await server.execute("SET statement_timeout = 0")
        for copy in range(1, copies):
            await server.execute(COPY_POSTGRES, copy * span, since, store.namespace, timeout=600)
        await server.execute("ANALYZE horarium.finished", timeout=600)
        await server.close()
    old = wanted * SPACING
    for state in (State.PENDING, State.RUNNING, State.CANCELLED, State.COMPLETED):
        await store.add_runs([rare_run(number, old, state) for number in range(100)])


def only(state: State, **others: object) -> RunFilter:
    return RunFilter(states=frozenset({state}), **others)  # type: ignore[arg-type]


def lists(runs: int) -> dict[str, RunFilter]:
    early = NOW - runs * SPACING * 4 // 5
    return {
        "(none)": RunFilter(),
        **{f"state={state}": only(state) for state in State},
        "job=old-7&state=failed": only(State.FAILED, job="old-7"),
        "queue=q3&state=failed": only(State.FAILED, queue="q3"),
        "queue=rare": RunFilter(queue="rare"),
        "until=early": RunFilter(until=early),
        "since..until, 30 min": RunFilter(since=early, until=early + 1800 * SECOND),
        "since=a day ago&state=cancelled": only(State.CANCELLED, since=NOW - DAY),
        "queue=q3&until=early": RunFilter(queue="q3", until=early),
    }


async def lateness(store: Store, where: RunFilter) -> float:
    """The longest that asking what is due takes while the list is asked for again and again."""
    worst, over = 0.0, False

    async def ask() -> None:
        while not over:
            await store.list_runs(where, None, 50)

    asking = asyncio.ensure_future(ask())
    for _ in range(50):
        begun = time.perf_counter()
        await store.due_jobs(NOW, 100)
        worst = max(worst, time.perf_counter() - begun)
        await asyncio.sleep(0.002)
    over = True
    await asking
    return worst * 1000


async def measured(store: Store, runs: int) -> dict[str, tuple[float, float, int]]:
    """Of each list the median and the worst, in milliseconds, and how many runs it brought."""
    figures = {}
    for name, where in lists(runs).items():
        took = []
        for _ in range(TIMES):
            begun = time.perf_counter()
            page = await store.list_runs(where, None, 50)
            took.append((time.perf_counter() - begun) * 1000)
        figures[name] = median(took), max(took), len(page.items)
    return figures


async def compare(url: str, runs: int) -> float:
    """The worst median, in milliseconds."""
    figures = []
    for namespace, size in (("few", max(runs // 100 // BATCH, 1) * BATCH), ("many", runs)):
        store = make_store(url, namespace)
        await store.open()
        if not (await store.list_runs(RunFilter(), None, 1)).items:
            begun = time.perf_counter()
            await fill(store, size)
            print(f"{size:,} runs made in {time.perf_counter() - begun:.0f} s", flush=True)
        figures.append(await measured(store, size))
        if namespace == "many":
            late = await lateness(store, only(State.RUNNING))
        await store.close()
    few, many = figures
    print(f"{'':<36} {'few':>8} {'many: median':>14} {'worst':>9}")
    for name, (middle, worst, found) in many.items():
        print(f"{name:<36} {few[name][0]:8.1f} {middle:14.1f} {worst:9.1f} ms {found:4} runs")
    print(f"due_jobs beside state=running: {late:.1f} ms at most", flush=True)
    return max(middle for middle, _, _ in many.values())


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", nargs="*", help=f"of {', '.join(NAMES)}, or a URL")
    parser.add_argument("--runs", type=int, default=5_000_000)
    parser.add_argument("--runs-apart", type=int, default=1_000_000)
    given = parser.parse_args(arguments)
    for name in given.store or ("sqlite", "postgres", "redis", "mongo"):
        apart = name.startswith(("redis", "valkey", "mongo"))
        with tempfile.TemporaryDirectory() as folder, a_store(name, Path(folder)) as url:
            print(f"== {name}", flush=True)
            asyncio.run(compare(url, given.runs_apart if apart else given.runs))


if __name__ == "__main__":
    main()
