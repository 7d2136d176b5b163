"""What the CockroachDB store says to its server, and what it makes of being given up: nothing in its SQL that
CockroachDB lacks, its URL, its schema, and retries that are bounded."""

from __future__ import annotations

import asyncio
import re
from importlib.resources import files
from random import Random

import asyncpg  # type: ignore[import-untyped]
import pytest

from horarium.errors import InvalidRequest, InvalidSetting, StoreUnavailable
from horarium.node.backends import make_backend
from horarium.ports import Beat
from horarium.stores.cockroach import CockroachStore
from horarium.stores.cockroach.connect import PAUSES, parse_cockroach_url
from horarium.stores.cockroach.migrate import PACKAGE, statements_of
from horarium.stores.cockroach.session import QUERIES
from horarium.stores.migrations import known_migrations
from horarium.stores.postgres.connect import settings_of
from horarium.stores.postgres.pool import Pool
from horarium.stores.server_clock import ServerClock
from horarium.stores.wakeups import LocalSignal
from horarium.testing.contract.base import take
from horarium.testing.values import NOW, a_finished_run, a_job, a_run, completed
from tests.stores.cockroach_server import Trouble, TroubledStore
from tests.stores.postgres_server import execute

LACKED = re.compile(
    r"\b(LISTEN|NOTIFY|pg_\w*advisory\w*|pg_notify|CREATE\s+(TYPE|DOMAIN|FUNCTION|TRIGGER)|fillfactor|autovacuum\w*"
    r"|plpgsql|COLLATE|starts_with|horarium\.(add_runs|owner_numbers|queue_numbers))\b",
    re.IGNORECASE,
)
COLUMN_TYPES = {"int8", "text", "bool", "bytea", "jsonb", "float8"}
COLUMN = re.compile(r"^    [a-z_]+ ([a-z]\w*(?:\[\])?)", re.MULTILINE)
STATEMENTS = [text for migration in known_migrations(PACKAGE) for text in statements_of(migration)]


# -- what is said


@pytest.mark.parametrize("name", QUERIES.names())
def test_no_query_asks_for_what_the_server_lacks(name: str) -> None:
    text = QUERIES[name]
    assert not LACKED.search(text)
    assert not re.search(r"DELETE FROM \S+ USING", text)
    assert len(re.findall(r"(?:UPDATE|DELETE FROM|INTO) horarium\.runs\b", text)) <= 1


@pytest.mark.parametrize("statement", STATEMENTS)
def test_no_statement_of_the_schema_does(statement: str) -> None:
    assert not LACKED.search(statement)
    assert " IF NOT EXISTS " in statement
    if statement.startswith("CREATE TABLE") and "LIKE" not in statement:
        assert set(COLUMN.findall(statement)) <= COLUMN_TYPES


@pytest.mark.parametrize(
    "name", ["finish_runs", "settle_runs", "amend_runs", "heartbeat_runs", "withdraw_runs", "update_jobs", "free_gates"]
)
def test_a_batch_names_its_rows_where_the_planner_sees_them(name: str) -> None:
    assert re.search(r"\bid = ANY \(\$\d+::(?:bytea|text)\[\]\)", QUERIES[name])


@pytest.mark.parametrize("name", QUERIES.names())
def test_an_optional_value_has_its_type_wherever_it_is_said(name: str) -> None:
    """Otherwise older servers take it for a string, and the statement can't be prepared."""
    for number, kind in re.findall(r"\$(\d+)::(\w+) IS NULL", QUERIES[name]):
        assert len(re.findall(rf"\${number}\b", QUERIES[name])) == len(
            re.findall(rf"\${number}::{kind}\b", QUERIES[name])
        )


@pytest.mark.parametrize("store", ["postgres", "cockroach"])
def test_no_statement_leaves_a_portal_open(store: str) -> None:
    """`fetchval` and `fetchrow` do, and inside a transaction the next statement is then refused."""
    for source in files(f"horarium.stores.{store}").iterdir():
        if source.name.endswith(".py"):
            assert not re.search(r"\.fetch(val|row)\(", source.read_text(encoding="utf-8")), source.name


@pytest.mark.slow
async def test_the_driver_asks_no_server_what_arrays_are(
    serializable_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There, the query that it asks takes many seconds or fails."""

    async def asked(*_: object, **__: object) -> None:
        raise AssertionError("the driver looked up a type")

    monkeypatch.setattr(asyncpg.Connection, "_introspect_types", asked)
    store = TroubledStore(serializable_url, "types", Trouble(statements=0, commits=0))
    await store.open()
    job = a_job(labels={"a": "b"})
    assert await store.add_jobs([job]) == [True]
    assert await store.add_runs([a_run(1, of=job, concurrency_key="k", concurrency_max=1)]) == [True]
    claimed = (await take(store)).runs
    assert await store.heartbeat_runs([Beat(claimed[0].id, 1, b"1")], NOW) != [None]
    assert await store.settle_runs([completed(run) for run in claimed], NOW) == [True]
    await store.close()


def test_a_call_outlasts_the_death_of_a_node() -> None:
    assert parse_cockroach_url("cockroachdb://root@db/h").query_seconds == 15
    assert parse_cockroach_url("cockroachdb://root@db/h?query_seconds=3").query_seconds == 3


async def test_those_who_met_pause_for_different_times(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    async def lose(*_: object) -> None:
        raise asyncpg.SerializationError("given up")

    monkeypatch.setattr("horarium.stores.postgres.pool.asyncio.sleep", sleep)
    pool = Pool(parse_cockroach_url("cockroachdb://root@db/h"), (1.0, 1.0, 1.0), Random(1).randbytes)
    monkeypatch.setattr(pool, "_once", lose)
    with pytest.raises(StoreUnavailable, match="given up"):
        await pool.call(lose, transaction=True)
    assert len(set(pauses)) == 3
    assert all(0.5 <= pause <= 1.5 for pause in pauses)


def test_no_session_is_asked_for_what_only_postgresql_has() -> None:
    settings = settings_of(parse_cockroach_url("cockroachdb://root@db/h?query_seconds=2"))
    assert settings == {
        "application_name": "horarium",
        "default_transaction_isolation": "serializable",
        "statement_timeout": "2000",
        "idle_in_transaction_session_timeout": "2000",
    }


# -- the URL


@pytest.mark.parametrize(
    ("url", "dsn", "shown"),
    [
        ("cockroachdb://u:p@db/h", "postgresql://u:p@db:26257/h", "cockroachdb://db:26257/h"),
        ("cockroachdb://db:5/h?sslmode=require", "postgresql://db:5/h?sslmode=require", "cockroachdb://db:5/h"),
        ("cockroachdb://[::1]/h", "postgresql://[::1]:26257/h", "cockroachdb://[::1]:26257/h"),
        ("cockroachdb://a:1,b:2/h", "postgresql://a:1,b:2/h", "cockroachdb://a:1,b:2/h"),
    ],
)
def test_a_url_goes_to_the_driver_as_postgresql(url: str, dsn: str, shown: str) -> None:
    location = parse_cockroach_url(url)
    assert (location.dsn, location.shown, location.product) == (dsn, shown, "CockroachDB")


@pytest.mark.parametrize("url", ["postgresql://db/h", "cockroachdb://db/h?query_seconds=0"])
def test_another_url_is_refused(url: str) -> None:
    with pytest.raises(InvalidSetting):
        CockroachStore(url)


def test_its_backend_has_the_clock_of_the_database_and_wakes_locally() -> None:
    backend = make_backend("cockroachdb://root@db/h", "n")
    assert isinstance(backend.store, CockroachStore)
    assert isinstance(backend.clock, ServerClock)
    assert isinstance(backend.signal, LocalSignal)
    assert backend.parts == (backend.clock,)


def test_runs_are_not_added_by_a_single_statement() -> None:
    with pytest.raises(InvalidRequest, match="asyncpg connection"):
        CockroachStore("cockroachdb://root@db/h").add_runs_sql([a_run(1)])


# -- being given up


@pytest.mark.slow
async def test_what_is_given_up_is_done_again_and_once(serializable_url: str) -> None:
    trouble = Trouble(statements=0, commits=0)
    store = TroubledStore(serializable_url, "once", trouble)
    await store.open()
    trouble._statements, trouble._commits = 0.1, 0.3
    job = a_job()
    await store.add_jobs([job])
    for number in range(20):
        assert await store.add_runs([a_run(number, of=job)]) == [True]
        assert await store.add_runs([a_run(number, of=job)]) == [False]
    claimed = [run for _ in range(2) for run in (await take(store, 10)).runs]
    assert len({run.id for run in claimed}) == 20
    assert {run.token for run in claimed} == {1}
    assert await store.settle_runs([completed(run) for run in claimed], NOW) == [True] * 20
    assert trouble.statements_failed > 5
    assert trouble.commits_failed > 5
    await store.close()


@pytest.mark.slow
async def test_a_server_that_gives_everything_up_is_an_outage_after_so_many_attempts(serializable_url: str) -> None:
    trouble = Trouble(statements=0, commits=0)
    store = TroubledStore(serializable_url, "outage", trouble)
    await store.open()
    pool = store._pool
    assert pool is not None
    pool._pauses = (0.0,) * len(PAUSES)
    trouble._commits = 1.0
    with pytest.raises(StoreUnavailable, match="40001"):
        await store.add_runs([a_run(1)])
    assert trouble.commits_failed == len(PAUSES) + 1
    trouble._commits = 0.0
    assert await store.add_runs([a_run(1)]) == [True]
    await store.close()


@pytest.mark.slow
async def test_of_many_nodes_that_open_a_new_database_all_find_the_schema(fresh_serializable_url: str) -> None:
    stores = [CockroachStore(fresh_serializable_url, f"space-{n % 2}") for n in range(6)]
    await asyncio.gather(*(store.open() for store in stores))
    assert await asyncio.gather(*(store.add_runs([a_run(n)]) for n, store in enumerate(stores))) == [[True]] * 6
    for store in stores:
        await store.close()


@pytest.mark.slow
async def test_a_newer_schema_is_refused(fresh_serializable_url: str) -> None:
    store = CockroachStore(fresh_serializable_url)
    await store.open()
    await store.close()
    newer = "INSERT INTO horarium.migrations VALUES (9999, 'from the future', '', 9999)"
    await execute(fresh_serializable_url.replace("cockroachdb:", "postgresql:"), newer)
    with pytest.raises(InvalidSetting, match="upgrade Horarium"):
        await CockroachStore(fresh_serializable_url).open()


@pytest.mark.slow
async def test_runs_are_added_in_the_transaction_of_the_caller(serializable_url: str) -> None:
    store = CockroachStore(serializable_url, "callers")
    await store.open()
    connection = await asyncpg.connect(serializable_url.replace("cockroachdb:", "postgresql:"))
    runs = [a_run(1), a_finished_run(2), a_run(3, of=a_job())]
    rolled_back = connection.transaction()
    await rolled_back.start()
    assert await store.add_runs_in(connection, runs) == [True] * 3
    await rolled_back.rollback()
    assert (await take(store)).runs == ()
    async with connection.transaction():
        assert await store.add_runs_in(connection, runs) == [True] * 3
        assert await store.add_runs_in(connection, runs) == [False] * 3
    assert len((await take(store)).runs) == 2
    await connection.close()
    await store.close()
