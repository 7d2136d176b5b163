"""Runs added in a transaction of the caller's own, by real drivers: they exist, and nodes are woken, once it commits,
and neither if it is rolled back."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from typing import Any, Literal

import asyncpg  # type: ignore[import-untyped]
import psycopg
import pytest
import pytest_asyncio
import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker
from sqlalchemy.pool import NullPool

from horarium import NotFound, Scheduler, SyncScheduler
from horarium.errors import Conflict, InvalidRequest
from horarium.ports import Topic
from horarium.stores.postgres import PostgresSignal, PostgresStore
from horarium.testing.contract.base import take
from horarium.testing.values import QUEUE, a_finished_run, a_job, a_run
from tests.servers.postgres import Postgres
from tests.stores.postgres_server import new_database
from tests.waiting import PATIENCE

pytestmark = pytest.mark.slow

RUNS = [a_run(1), a_run(2, of=a_job()), a_run(3, unique_key="k"), a_finished_run(4)]


@pytest.fixture
def url(postgres_server: Postgres) -> str:
    return new_database(postgres_server)


@pytest_asyncio.fixture
async def store(url: str) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(url)
    await store.open()
    yield store
    await store.close()


Add = Callable[[Any, PostgresStore], Awaitable[list[bool]]]


async def add_in(connection: Any, store: PostgresStore) -> list[bool]:
    return await store.add_runs_in(connection, RUNS)


async def add_by_alchemy(connection: Any, store: PostgresStore) -> list[bool]:
    placeholders: Literal["$1", "%s"] = "$1" if connection.dialect.driver == "asyncpg" else "%s"
    text, values = store.add_runs_sql(RUNS, placeholders)
    found = await connection.exec_driver_sql(text, values)
    added = {bytes(blob) for blob in found.scalar_one() or ()}
    return [bytes.fromhex(run.id.replace("-", "")) in added for run in RUNS]


@asynccontextmanager
async def by_asyncpg(url: str) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(url)
    await connection.execute("BEGIN")
    yield connection, lambda: connection.execute("COMMIT"), lambda: connection.execute("ROLLBACK; BEGIN")
    await connection.close()


@asynccontextmanager
async def by_psycopg(url: str, **options: Any) -> AsyncIterator[Any]:
    connecting = psycopg.AsyncConnection.connect(url, row_factory=psycopg.rows.dict_row, **options)
    async with await connecting as connection:
        yield connection, connection.commit, connection.rollback


@asynccontextmanager
async def by_alchemy(url: str) -> AsyncIterator[Any]:
    engine = create_async_engine(url)
    async with engine.connect() as connection:
        yield connection, connection.commit, connection.rollback
    await engine.dispose()


DRIVERS: dict[str, tuple[Any, str, Add]] = {
    "asyncpg": (by_asyncpg, "postgresql", add_in),
    "psycopg": (by_psycopg, "postgresql", add_in),
    "psycopg, raw": (partial(by_psycopg, cursor_factory=psycopg.AsyncRawCursor), "postgresql", add_in),
    "SQLAlchemy over asyncpg": (by_alchemy, "postgresql+asyncpg", add_by_alchemy),
    "SQLAlchemy over psycopg": (by_alchemy, "postgresql+psycopg", add_by_alchemy),
}


@pytest.mark.parametrize("driver", DRIVERS)
async def test_runs_exist_and_nodes_are_woken_once_the_caller_commits(
    url: str, store: PostgresStore, driver: str
) -> None:
    connecting, scheme, add = DRIVERS[driver]
    signal, other = PostgresSignal(url), PostgresSignal(url)
    woken, later = asyncio.Event(), asyncio.Event()
    for node in (signal, other):
        await node.start()
        await node.listening.wait()
    signal.subscribe(Topic(f"queue:{QUEUE}"), woken.set)
    signal.subscribe(Topic("jobs"), later.set)
    async with connecting(url.replace("postgresql", scheme, 1)) as (connection, commit, rollback):
        assert await add(connection, store) == [True] * 4
        await rollback()
        assert await add(connection, store) == [True] * 4
        assert await add(connection, store) == [False] * 4
        assert (await take(store)).runs == ()
        other.publish(Topic("jobs"))
        async with asyncio.timeout(PATIENCE):
            await later.wait()
        assert not woken.is_set()
        await commit()
    async with asyncio.timeout(PATIENCE):
        await woken.wait()
    assert len((await take(store)).runs) == 3
    for node in (signal, other):
        await node.stop()


def test_a_synchronous_driver_adds_runs_by_a_statement(url: str) -> None:
    asyncio.run(_opened_once(url))
    scheduler = Scheduler(url)
    text, values = scheduler.enqueue_sql("report", [{"to": "us"}, None], placeholders="%s", priority=3)
    with psycopg.connect(url) as connection, connection.transaction():
        connection.execute("CREATE TABLE orders (id int)")
        ((ids, _),) = connection.execute(text, values).fetchall()
        assert len(ids) == 2
    engine = sqlalchemy.create_engine(url.replace("postgresql", "postgresql+psycopg", 1))
    with engine.begin() as other:
        assert len(other.exec_driver_sql(text, values).scalar_one() or ()) == 0
    engine.dispose()
    assert asyncio.run(_payloads(url)) == [b'{"to":"us"}', None]


def test_a_namespace_that_no_node_has_opened_is_named(url: str) -> None:
    asyncio.run(_opened_once(url))
    text, values = Scheduler(url, namespace="shop").enqueue_sql("report", [None], placeholders="%s")
    with psycopg.connect(url) as connection, pytest.raises(psycopg.Error, match="ever opened the namespace 'shop'"):
        connection.execute(text, values)


async def _opened_once(url: str) -> None:
    async with Scheduler(url):
        pass


async def _payloads(url: str) -> list[bytes | None]:
    store = PostgresStore(url)
    await store.open()
    claimed = await store.claim_runs(["handler/report"], 10, "w", 2**60, 2**60, 2**60)
    await store.close()
    assert {run.priority for run in claimed.runs} == {3}
    return [run.payload for run in claimed.runs]


async def test_the_scheduler_enqueues_in_the_transaction_of_the_caller(url: str) -> None:
    connection = await asyncpg.connect(url)
    async with Scheduler(url) as scheduler:
        transaction = connection.transaction()
        await transaction.start()
        run = await scheduler.enqueue("report", {"n": 1}, unique_key="k", connection=connection)
        ids = await scheduler.enqueue_many("report", [None] * 1_001, connection=connection)
        assert await scheduler._runtime.store.get_runs([run.id, ids[-1]]) == [None, None]
        with pytest.raises(Conflict, match="has not committed"):
            await scheduler.enqueue("report", unique_key="k", connection=connection)
        await transaction.commit()
        assert None not in await scheduler._runtime.store.get_runs([run.id, *ids[-900:]])
        again = await scheduler.enqueue("report", {"n": 2}, unique_key="k", connection=connection)
        assert again.id == run.id
    await connection.close()


def test_the_placeholders_of_the_statement_stand_in_their_order_each_once() -> None:
    text, values = PostgresStore("postgresql://db/h").add_runs_sql(RUNS)
    assert re.findall(r"\$\d+", text) == [f"${number + 1}" for number in range(len(values))]
    assert "%" not in text


@contextmanager
def by_plain_psycopg(url: str) -> Iterator[Any]:
    with psycopg.connect(url) as connection:
        yield connection


@contextmanager
def by_raw_psycopg(url: str) -> Iterator[Any]:
    with psycopg.connect(url, cursor_factory=psycopg.RawCursor) as connection:
        yield connection


@contextmanager
def by_connection(url: str) -> Iterator[Any]:
    engine = sqlalchemy.create_engine(url.replace("postgresql:", "postgresql+psycopg:"), poolclass=NullPool)
    with engine.begin() as connection:
        yield connection


@contextmanager
def by_session(url: str) -> Iterator[Any]:
    engine = sqlalchemy.create_engine(url.replace("postgresql:", "postgresql+psycopg:"), poolclass=NullPool)
    with Session(engine) as session, session.begin():
        yield session


@contextmanager
def by_scoped_session(url: str) -> Iterator[Any]:
    engine = sqlalchemy.create_engine(url.replace("postgresql:", "postgresql+psycopg:"), poolclass=NullPool)
    sessions = scoped_session(sessionmaker(engine))
    with sessions.begin():
        yield sessions
    sessions.remove()


SYNC = [by_plain_psycopg, by_raw_psycopg, by_connection, by_session, by_scoped_session]


@pytest.mark.parametrize("opened", SYNC, ids=lambda opened: opened.__name__)
def test_a_synchronous_connection_carries_runs(url: str, opened: Callable[[str], Any]) -> None:
    class Undone(Exception):
        pass

    with SyncScheduler(url) as scheduler:
        with suppress(Undone), opened(url) as connection:
            undone = scheduler.enqueue("report", {"n": 1}, connection=connection)
            raise Undone
        with opened(url) as connection:
            run = scheduler.enqueue("report", {"n": 2}, connection=connection, unique_key="k")
            ids = scheduler.enqueue_many("report", [{"n": 3}], connection=connection)
            with pytest.raises(NotFound):
                scheduler.get_run(run.id)
        assert [scheduler.get_run(run_id).state for run_id in (run.id, *ids)] == ["pending", "pending"]
        with pytest.raises(NotFound):
            scheduler.get_run(undone.id)


@pytest.mark.parametrize("driver", DRIVERS)
async def test_a_synchronous_scheduler_refuses_a_connection_of_an_event_loop(url: str, driver: str) -> None:
    connecting, scheme, _ = DRIVERS[driver]
    with SyncScheduler(url) as scheduler:
        async with connecting(url.replace("postgresql", scheme, 1)) as (connection, _, rollback):
            with pytest.raises(InvalidRequest, match="an event loop of its own"):
                scheduler.enqueue("report", connection=connection)
            await rollback()
        async with asyncpg.create_pool(url, min_size=1, max_size=1) as pool, pool.acquire() as lent:
            with pytest.raises(InvalidRequest, match="an event loop of its own"):
                scheduler.enqueue("report", connection=lent)


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
async def test_sessions_and_connections_of_sqlalchemy_carry_runs(url: str, driver: str) -> None:
    engine = create_async_engine(url.replace("postgresql:", f"postgresql+{driver}:"))
    async with Scheduler(url) as scheduler:
        async with AsyncSession(engine) as session, session.begin():
            await session.execute(sqlalchemy.text("SELECT 1"))
            first = await scheduler.enqueue("report", {"n": 1}, connection=session)
            with pytest.raises(NotFound):
                await scheduler.get_run(first.id)
        async with engine.begin() as connection:
            second = await scheduler.enqueue("report", {"n": 2}, connection=connection)
        async with AsyncSession(engine) as session:
            third = await scheduler.enqueue("report", {"n": 3}, connection=session)
            await session.rollback()
        assert [(await scheduler.get_run(run.id)).state for run in (first, second)] == ["pending", "pending"]
        with pytest.raises(NotFound):
            await scheduler.get_run(third.id)
        scoped = async_scoped_session(async_sessionmaker(engine), scopefunc=asyncio.current_task)
        fourth = await scheduler.enqueue("report", {"n": 4}, connection=scoped)
        with pytest.raises(NotFound):
            await scheduler.get_run(fourth.id)
        await scoped.commit()
        assert (await scheduler.get_run(fourth.id)).payload == b'{"n":4}'
        await scoped.remove()
    await engine.dispose()


async def test_a_scoped_session_is_that_of_the_thread_that_asks(url: str) -> None:
    async with Scheduler(url) as scheduler:
        with by_scoped_session(url) as sessions:
            run = await scheduler.enqueue("report", connection=sessions)
            with pytest.raises(NotFound):
                await scheduler.get_run(run.id)
        assert (await scheduler.get_run(run.id)).state == "pending"


async def test_what_can_not_carry_runs_is_refused(url: str, store: PostgresStore) -> None:
    engine = sqlalchemy.create_engine("sqlite://", poolclass=NullPool)
    with engine.connect() as connection, pytest.raises(InvalidRequest, match="SQLAlchemy's sqlite"):
        await store.add_runs_in(connection, RUNS)
    with Session(engine) as session, pytest.raises(InvalidRequest, match="SQLAlchemy's sqlite"):
        await store.add_runs_in(session, RUNS)  # which was not connected: it closes in its own thread
    with psycopg.connect(url) as owner, pytest.raises(InvalidRequest, match="connection: Cursor is no connection"):
        await store.add_runs_in(owner.cursor(), RUNS)
    with pytest.raises(InvalidRequest, match="connection: Pool is no connection"):
        await store.add_runs_in(asyncpg.create_pool(url), RUNS)
    with pytest.raises(InvalidRequest, match="SQLAlchemy's Engine is no connection"):
        await store.add_runs_in(sqlalchemy.create_engine("postgresql+psycopg://"), RUNS)
    with pytest.raises(InvalidRequest, match="enqueue_sql"):
        await store.add_runs_in(object(), RUNS)
    with pytest.raises(InvalidRequest, match="neither"):
        store.add_runs_sql(RUNS, "?")  # type: ignore[arg-type]
    scheduler = Scheduler("memory://")
    with pytest.raises(InvalidRequest, match="PostgreSQL can"):
        await scheduler.enqueue("report", connection=object())
    with pytest.raises(InvalidRequest, match="1 to 1,000"):
        scheduler.enqueue_sql("report", [])
