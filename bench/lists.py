"""Lists beside a long history: how long each takes, and how late work is while they are asked for.

    PYTHONPATH=src python bench/lists.py sqlite:///lists.db [--runs 5000000]
    PYTHONPATH=src python bench/lists.py postgresql://localhost/empty [--runs 5000000]

History is made by the database itself: a few thousand runs come through the store, then they are copied, each time
further back in time. Of each list the median and the worst of 20 are printed, in milliseconds.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from statistics import median

from horarium.clock import DAY, SECOND
from horarium.model import Cause, Run, State, uuid7
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


async def fill(store: Store, url: str, wanted: int) -> None:
    for start in range(0, SEED, BATCH):
        await store.add_runs([seed_run(number) for number in range(start, start + BATCH)])
    copies = max(wanted // SEED, 1)
    span = SEED * SPACING
    since = NOW - span + SPACING
    if isinstance(store, SqliteStore):
        connection = connect_sqlite(store.location)
        for copy in range(1, copies):
            connection.execute(COPY_SQLITE, (copy * span, since))
        connection.close()
    elif isinstance(store, PostgresStore):
        server = await connect_postgres(store.location)
        await server.execute("SET statement_timeout = 0")
        for copy in range(1, copies):
            await server.execute(COPY_POSTGRES, copy * span, since, timeout=600)
        await server.execute("ANALYZE horarium.finished", timeout=600)
        await server.close()
    old = copies * span
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


async def measure(given: argparse.Namespace) -> None:
    store: Store = SqliteStore(given.url) if given.url.startswith("sqlite") else PostgresStore(given.url)
    await store.open()
    if not (await store.list_runs(RunFilter(), None, 1)).items:
        begun = time.perf_counter()
        await fill(store, given.url, given.runs)
        print(f"{given.runs:,} runs made in {time.perf_counter() - begun:.0f} s")
    for name, where in lists(given.runs).items():
        took = []
        for _ in range(TIMES):
            begun = time.perf_counter()
            page = await store.list_runs(where, None, 50)
            took.append((time.perf_counter() - begun) * 1000)
        print(f"{name:<34} {median(took):9.1f}  {max(took):9.1f} ms   {len(page.items):3} runs")
    print(f"due_jobs beside state=running: {await lateness(store, only(State.RUNNING)):.1f} ms at most")
    await store.close()


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("--runs", type=int, default=5_000_000)
    asyncio.run(measure(parser.parse_args(arguments)))


if __name__ == "__main__":
    main()
