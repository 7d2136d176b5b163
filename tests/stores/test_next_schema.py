"""Nodes of one release and of the next share a schema: code that is one migration behind goes on working, on
connections that are open while the schema is upgraded as well as on new ones, until a migration says that it needs
newer code."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import asyncpg  # type: ignore[import-untyped]
import pytest
from msgspec.structs import replace

from horarium.clock import MINUTE
from horarium.errors import InvalidSetting, StoreUnavailable
from horarium.model import Node, Plan, State
from horarium.ports import Beat, JobFilter, RunFilter, Store
from horarium.stores import sqlite
from horarium.stores.cockroach import CockroachStore
from horarium.stores.cockroach.migrate import PACKAGE as COCKROACH
from horarium.stores.cockroach.migrate import migrate as migrate_cockroach
from horarium.stores.migrations import Migration, known_migrations
from horarium.stores.postgres import PostgresStore
from horarium.stores.postgres.migrate import PACKAGE as POSTGRES
from horarium.stores.postgres.migrate import migrate as migrate_postgres
from horarium.stores.sqlite.connect import connect, parse_url
from horarium.stores.sqlite.migrate import PACKAGE as SQLITE
from horarium.stores.sqlite.migrate import migrate as migrate_sqlite
from horarium.testing.contract.base import take
from horarium.testing.values import NOW, QUEUE, a_change, a_finished_run, a_job, a_run, completed
from tests.servers.postgres import Postgres
from tests.stores.postgres_server import new_database

T = TypeVar("T")

TRIES = 12
"""How often a call may meet a connection whose plans the upgrade has made void: once for each connection."""

NEXT = {
    SQLITE: """
ALTER TABLE runs ADD COLUMN colour TEXT DEFAULT 'none';
ALTER TABLE jobs ADD COLUMN colour TEXT NOT NULL DEFAULT 'none';
ALTER TABLE nodes ADD COLUMN colour TEXT NOT NULL DEFAULT 'none';
CREATE TABLE colours (name TEXT PRIMARY KEY);
CREATE INDEX runs_by_colour ON runs (colour);
""",
    POSTGRES: """
ALTER TABLE horarium.runs ADD COLUMN colour text DEFAULT 'none';
ALTER TABLE horarium.finished ADD COLUMN colour text DEFAULT 'none';
ALTER TABLE horarium.jobs ADD COLUMN colour text NOT NULL DEFAULT 'none';
ALTER TABLE horarium.nodes ADD COLUMN colour text NOT NULL DEFAULT 'none';
CREATE TABLE horarium.colours (name text PRIMARY KEY);
CREATE INDEX runs_by_colour ON horarium.runs (colour);
""",
}
NEXT[COCKROACH] = (
    NEXT[POSTGRES]
    .replace("CREATE TABLE", "CREATE TABLE IF NOT EXISTS")
    .replace("CREATE INDEX", "CREATE INDEX IF NOT EXISTS")
    .replace("ADD COLUMN", "ADD COLUMN IF NOT EXISTS")
)

Upgrade = Callable[[list[Migration]], Awaitable[int]]


async def live(store: Store, round_: int) -> None:
    """Everything that a node asks of its store, on jobs and runs of its own."""
    first = round_ * 100
    job = a_job(f"job-{round_}", next_fire_at=NOW, labels={"round": str(round_)})
    assert await insist(lambda: store.add_jobs([job])) == [True]
    assert job in (await insist(lambda: store.due_jobs(NOW, 100)))[0]
    plan = Plan(replace(job, next_fire_at=NOW + MINUTE), (a_run(first, of=job),))
    assert await insist(lambda: store.commit_plans([plan], NOW)) == [True]
    gated = [a_run(first + n, concurrency_key=f"k{round_}", concurrency_max=1) for n in (1, 2)]
    new = [*gated, a_run(first + 3, unique_key=f"u{round_}"), a_finished_run(first + 4, of=job)]
    assert await insist(lambda: store.add_runs(new)) == [True] * 4
    claimed = (await insist(lambda: take(store))).runs
    assert len(claimed) == 3
    assert None not in await insist(lambda: store.heartbeat_runs([Beat(run.id, run.token) for run in claimed], NOW))
    again, *others = claimed
    changes = [a_change(again, state=State.PENDING, lease_expires_at=None), *map(completed, others)]
    assert await insist(lambda: store.settle_runs(changes, NOW)) == [True] * 3
    rest = (await insist(lambda: take(store))).runs
    assert len(rest) == 2 - (again.concurrency_key is not None)
    assert all(await insist(lambda: store.settle_runs([completed(run) for run in rest], NOW)))
    more = (await insist(lambda: take(store))).runs
    assert all(await insist(lambda: store.settle_runs([completed(run) for run in more], NOW)))
    assert (await insist(lambda: store.get_run_by_key(f"u{round_}"))).state is State.COMPLETED  # type: ignore[union-attr]
    assert len((await insist(lambda: store.list_runs(RunFilter(job=job.name), None, 10))).items) == 2
    assert [found.id for found in (await insist(lambda: store.list_jobs(JobFilter(labels=job.labels), None, 9))).items]
    assert await insist(lambda: store.overdue_runs(NOW, 10, NOW)) == ([], None)
    node = Node(name=f"node-{round_}", roles=("planner",), started_at=NOW, beat_at=NOW)
    await insist(lambda: store.beat_node(node))
    assert node in await insist(lambda: store.list_nodes(NOW))
    assert await insist(lambda: store.trim_runs(job.id, 0, 10)) == 2
    assert (await insist(lambda: store.stats(NOW))).queues == ()
    await insist(store.check)


async def insist(call: Callable[[], Awaitable[T]]) -> T:
    """What the services do when a store is not available: come again."""
    for _ in range(TRIES):
        try:
            return await call()
        except StoreUnavailable:
            continue
    return await call()


async def share(open_store: Callable[[], Awaitable[Store]], package: str, upgrade: Upgrade) -> None:
    known = known_migrations(package)
    newest = known[-1].number
    old = await open_store()
    await live(old, 1)
    assert await upgrade([*known, Migration(newest + 1, "colours", NEXT[package])]) == 1
    await live(old, 2)
    newly = await open_store()
    await live(newly, 3)
    await live(old, 4)
    await newly.close()
    late = Migration(newest + 2, "no way back", f"-- needs: {newest + 1}\n" + NEXT[package].replace("colour", "hue"))
    assert await upgrade([*known, Migration(newest + 1, "colours", NEXT[package]), late]) == 1
    with pytest.raises(InvalidSetting, match=f"needs a Horarium that knows version {newest + 1}, this one knows up to"):
        await open_store()
    await old.close()


async def test_sqlite(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/shared.db"

    async def open_store() -> Store:
        store = sqlite.SqliteStore(url)
        await store.open()
        return store

    async def upgrade(migrations: list[Migration]) -> int:
        connection = connect(parse_url(url))
        try:
            return migrate_sqlite(connection, migrations)
        finally:
            connection.close()

    await share(open_store, SQLITE, upgrade)


@pytest.fixture
def postgres_database(postgres_server: Postgres) -> str:
    return new_database(postgres_server)


@pytest.mark.slow
async def test_postgres(postgres_database: str) -> None:
    async def open_store() -> Store:
        store = PostgresStore(postgres_database)
        await store.open()
        return store

    async def upgrade(migrations: list[Migration]) -> int:
        connection = await asyncpg.connect(postgres_database)
        async with connection.transaction():
            count = await migrate_postgres(connection, migrations, "db")
        await connection.close()
        return count

    await share(open_store, POSTGRES, upgrade)


@pytest.mark.slow
async def test_cockroach(fresh_serializable_url: str) -> None:
    async def open_store() -> Store:
        store = CockroachStore(fresh_serializable_url)
        await store.open()
        return store

    async def upgrade(migrations: list[Migration]) -> int:
        connection = await asyncpg.connect(fresh_serializable_url.replace("cockroachdb", "postgresql", 1))
        count = await migrate_cockroach(connection, migrations, "db")
        await connection.close()
        return count

    await share(open_store, COCKROACH, upgrade)


@pytest.mark.slow
async def test_a_node_that_works_while_the_schema_is_upgraded_loses_nothing(postgres_database: str) -> None:
    """Claims and settles go on all the time; the upgrade comes in the middle."""
    store = PostgresStore(postgres_database)
    await store.open()
    await store.add_runs([a_run(n) for n in range(600)])
    done: set[str] = set()
    begun = asyncio.Event()

    async def work() -> None:
        while claimed := (await insist(lambda: take(store, 5))).runs:
            changes = [completed(run) for run in claimed]
            settled = await insist(lambda changes=changes: store.settle_runs(changes, NOW))  # type: ignore[misc]
            done.update(run.id for run, ok in zip(claimed, settled, strict=True) if ok)
            begun.set()

    workers = [asyncio.ensure_future(work()) for _ in range(4)]
    await begun.wait()
    connection = await asyncpg.connect(postgres_database)
    known = known_migrations(POSTGRES)
    upgraded = [*known, Migration(known[-1].number + 1, "c", NEXT[POSTGRES])]
    for tries_left in reversed(range(TRIES)):
        # Whoever migrates may be the one whom the server chooses to end a deadlock; a store then begins again.
        try:
            async with connection.transaction():
                await migrate_postgres(connection, upgraded, "db")
            break
        except asyncpg.DeadlockDetectedError:
            assert tries_left
    await connection.close()
    await asyncio.gather(*workers)
    assert (await store.stats(NOW)).queues == ()
    assert len(done) == 600
    assert (await take(store, queues=[QUEUE])).runs == ()
    await store.close()
