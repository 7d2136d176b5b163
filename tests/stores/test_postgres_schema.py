"""The schema of the PostgreSQL store: what its migrations give, who applies them, and what is refused; and what runs
added while others move them come to."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg  # type: ignore[import-untyped]
import pytest
import pytest_asyncio

from horarium.errors import InvalidSetting
from horarium.stores.migrations import Migration, known_migrations
from horarium.stores.postgres import PostgresStore
from horarium.stores.postgres.migrate import PACKAGE, migrate
from horarium.stores.postgres.rows import change_columns
from horarium.stores.postgres.session import QUERIES
from horarium.testing.contract.base import take, take_one
from horarium.testing.values import NOW, a_finished_run, a_job, a_run, completed
from tests.servers.postgres import Postgres
from tests.stores.postgres_server import execute, new_database
from tests.waiting import PATIENCE, until

pytestmark = pytest.mark.slow

DOCS = Path(__file__).parents[2] / "docs" / "postgresql.md"
SCHEMA = Path(__file__).with_name("postgres_schema.txt")

KNOWN = known_migrations(PACKAGE)

CATALOG = """
SELECT format('%s.%s %s%s', table_name, column_name, data_type, CASE is_nullable WHEN 'NO' THEN ' NOT NULL' END) AS line
FROM information_schema.columns WHERE table_schema = 'horarium'
UNION ALL
SELECT indexdef FROM pg_indexes WHERE schemaname = 'horarium'
UNION ALL
SELECT format('%s %s', oid::regclass, array_to_string(reloptions, ', '))
FROM pg_class WHERE relnamespace = 'horarium'::regnamespace AND reloptions IS NOT NULL
UNION ALL
SELECT format('%s(%s)', proname, pg_get_function_arguments(oid))
FROM pg_proc WHERE pronamespace = 'horarium'::regnamespace
"""


@pytest.fixture
def url(postgres_server: Postgres) -> str:
    return new_database(postgres_server)


@pytest_asyncio.fixture
async def connection(url: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(url)
    yield connection
    await connection.close()


async def schema_of(connection: asyncpg.Connection) -> str:
    return "\n".join(sorted(row[0] for row in await connection.fetch(CATALOG))) + "\n"


async def opened(url: str, namespace: str = "default") -> PostgresStore:
    store = PostgresStore(url, namespace)
    await store.open()
    return store


# -- migrations


async def test_the_migrations_give_exactly_the_schema(connection: asyncpg.Connection) -> None:
    async with connection.transaction():
        assert await migrate(connection, KNOWN, "db") == len(KNOWN)
    assert await schema_of(connection) == SCHEMA.read_text()


async def test_history_has_the_columns_of_what_is_unfinished(connection: asyncpg.Connection) -> None:
    async with connection.transaction():
        await migrate(connection, KNOWN, "db")
    columns = (
        "SELECT attname, atttypid FROM pg_attribute WHERE attrelid = $1::text::regclass AND attnum > 0 ORDER BY attnum"
    )
    assert await connection.fetch(columns, "horarium.runs") == await connection.fetch(columns, "horarium.finished")


async def test_of_many_nodes_that_open_a_new_database_one_migrates(url: str, connection: asyncpg.Connection) -> None:
    stores = await asyncio.gather(*(opened(url, f"space-{n % 2}") for n in range(8)))
    numbers = [row[0] for row in await connection.fetch("SELECT number FROM horarium.migrations ORDER BY number")]
    assert numbers == [migration.number for migration in KNOWN]
    for store in stores:
        await store.close()


async def test_a_schema_that_needs_newer_code_is_refused(url: str, connection: asyncpg.Connection) -> None:
    await (await opened(url)).close()
    await connection.execute("INSERT INTO horarium.migrations VALUES (9999, 'from the future', '', 9999)")
    with pytest.raises(InvalidSetting, match="upgrade Horarium"):
        await opened(url)


async def test_a_database_of_unreleased_code_is_refused(url: str, connection: asyncpg.Connection) -> None:
    await (await opened(url)).close()
    await connection.execute("UPDATE horarium.migrations SET checksum = 'another' WHERE number = 1")
    with pytest.raises(InvalidSetting, match="is of no release of Horarium"):
        await opened(url)


async def test_a_migration_may_take_longer_than_a_query(url: str, connection: asyncpg.Connection) -> None:
    async with connection.transaction():
        await migrate(connection, KNOWN, "db")
    impatient = await asyncpg.connect(url, command_timeout=2, server_settings={"statement_timeout": "2000"})
    holding = connection.transaction()
    await holding.start()
    await connection.execute("LOCK TABLE horarium.jobs IN ROW EXCLUSIVE MODE")

    async def upgrade() -> int:
        async with impatient.transaction():
            more = Migration(KNOWN[-1].number + 1, "colours", "ALTER TABLE horarium.jobs ADD COLUMN colour text")
            return await migrate(impatient, [*KNOWN, more], "db")

    upgrading = asyncio.ensure_future(upgrade())
    await until(lambda: _waits_for_a_lock(connection))
    await asyncio.wait([upgrading], timeout=2.4)
    await holding.rollback()
    assert await upgrading == 1
    await impatient.close()


async def _waits_for_a_lock(connection: asyncpg.Connection) -> bool:
    waiting = (
        "SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    )
    found: bool = await connection.fetchval(waiting)
    return found


async def test_a_migration_that_fails_leaves_nothing(connection: asyncpg.Connection) -> None:
    broken = [*KNOWN, Migration(9000, "broken", "CREATE TABLE horarium.half (); SELECT 1 / 0")]
    with pytest.raises(asyncpg.DivisionByZeroError):
        async with connection.transaction():
            await migrate(connection, broken, "db")
    assert await connection.fetchval("SELECT to_regnamespace('horarium')") is None


async def test_the_queries_of_the_docs_run(url: str, connection: asyncpg.Connection) -> None:
    await (await opened(url)).close()
    queries = re.findall(r"^    (SELECT .*?;)$", DOCS.read_text(), re.MULTILINE | re.DOTALL)
    assert len(queries) == 5
    for query in queries:
        await connection.fetch(query)


# -- runs on the move between the two tables


@pytest.mark.parametrize("again", ["id", "key", "fire time"])
async def test_a_run_that_is_just_being_finished_is_not_added_again(
    url: str, connection: asyncpg.Connection, again: str
) -> None:
    store = await opened(url)
    job = a_job()
    claimed = await take_one(store, a_run(1, of=job, unique_key="k"))
    twin = {
        "id": a_run(9, id=claimed.id),
        "key": a_run(9, unique_key="k"),
        "fire time": a_run(1, of=job, id=a_run(9).id),
    }[again]
    finishing = connection.transaction()
    await finishing.start()
    columns = change_columns([completed(claimed)])
    namespace = await connection.fetchval("SELECT num FROM horarium.namespaces WHERE name = 'default'")
    assert len(await connection.fetch(QUERIES["finish_runs"], namespace, NOW, *columns)) == 1
    adding = asyncio.ensure_future(store.add_runs([a_run(7), twin, a_run(8)]))
    watcher = await asyncpg.connect(url)
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    async with asyncio.timeout(PATIENCE):
        while not await watcher.fetchval(waiting):
            pass
    await watcher.close()
    await finishing.commit()
    assert await adding == [True, False, True]
    assert len((await take(store)).runs) == 2
    await store.close()


async def test_runs_finished_from_the_start_enter_history_at_once(url: str, connection: asyncpg.Connection) -> None:
    store = await opened(url)
    assert await store.add_runs([a_run(1), a_finished_run(2), a_finished_run(2, of=a_job())]) == [True] * 3
    assert await connection.fetchval("SELECT count(*) FROM horarium.runs") == 1
    assert await connection.fetchval("SELECT count(*) FROM horarium.finished") == 2
    await store.close()


async def test_a_forgotten_job_leaves_no_owner_behind(url: str, connection: asyncpg.Connection) -> None:
    store = await opened(url)
    job = a_job(deleted_at=NOW)
    await store.add_jobs([job])
    adding = connection.transaction()
    await adding.start()
    await store.add_runs_in(connection, [a_finished_run(1, of=job, prune_at=NOW)])
    await store.prune_runs(NOW, 10)
    assert await store.get_jobs_by_id([job.id]) == [job]
    await adding.commit()
    assert await store.prune_runs(NOW, 10) == 1
    assert await store.get_jobs_by_id([job.id]) == [None]
    assert await connection.fetchval("SELECT count(*) FROM horarium.owners") == 0
    await store.close()


async def test_a_job_remembered_is_not_mistaken_for_a_later_one(url: str) -> None:
    store = await opened(url)
    for priority in (1, 2):
        job = a_job(priority=priority, deleted_at=NOW)
        await store.add_jobs([job])
        await store.add_runs([a_run(priority, of=job)])
        claimed = await take(store)
        assert claimed.jobs == {job.id: job}
        await store.settle_runs([completed(run) for run in claimed.runs], NOW)
        assert await store.trim_runs(job.id, 0, 10) == 1
        await store.prune_runs(NOW, 10)
    await store.close()


async def test_the_schema_stands_apart_from_tables_of_the_same_name(url: str, connection: asyncpg.Connection) -> None:
    await execute(url, "CREATE TABLE public.runs (mine int)", "CREATE TABLE public.jobs (mine int)")
    store = await opened(url)
    assert await store.add_jobs([a_job()]) == [True]
    assert await store.add_runs([a_run(1)]) == [True]
    assert await connection.fetchval("SELECT count(*) FROM public.runs") == 0
    await store.close()
