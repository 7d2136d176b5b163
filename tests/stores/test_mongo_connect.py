"""The URL, what a server must be, the schema's version, and what the driver's errors become."""

from __future__ import annotations

import asyncio
import gc
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from pymongo import errors

from horarium.clock import SECOND, SystemClock
from horarium.errors import BrokenInvariant, InvalidSetting, StoreUnavailable
from horarium.node.backends import make_store
from horarium.ports import Topic
from horarium.stores.mongo import MongoSignal, MongoStore
from horarium.stores.mongo.connect import explain, make_client, parse_url
from horarium.stores.mongo.indexes import MIGRATIONS, NODES, RECORDS, RUNS, SCHEMA, Index, Migration
from horarium.stores.mongo.migrate import migrate
from horarium.stores.server_clock import ServerClock
from horarium.testing.clock import ManualClock
from horarium.testing.values import NOW, a_job, a_run
from tests.servers.mongo import Mongo
from tests.servers.process import ServerProcess, free_port
from tests.waiting import PATIENCE

SECRET = "mongodb://user:geheim@127.0.0.1:1/horarium?serverSelectionTimeoutMS=100"
WAIT_SECONDS = PATIENCE


@pytest.fixture(scope="module")
def mongo() -> Iterator[Mongo]:
    server = Mongo()
    server.start()
    yield server
    server.stop()


@pytest.fixture(autouse=True)
def _collected() -> Iterator[None]:
    # Closed in the middle of connecting, the driver leaves a socket to the collector.
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


# ---- the URL ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "database", "shown"),
    [
        ("mongodb://localhost", "horarium", "mongodb://localhost/horarium"),
        ("mongodb://user:geheim@a:1,b:2/work?replicaSet=x", "work", "mongodb://a:1,b:2/work"),
        ("mongodb+srv://user:ge%40heim@cluster.example.org/", "horarium", "mongodb+srv://cluster.example.org/horarium"),
    ],
)
def test_a_url_names_hosts_and_a_database(url: str, database: str, shown: str) -> None:
    location = parse_url(url)
    assert (location.database, location.shown) == (database, shown)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("mongodb://", "names no MongoDB"),
        ("mongodb:///horarium", "names no MongoDB"),
        ("mongo://host/horarium", "names no MongoDB"),
        ("mongodb://host/a$b", "no database named"),
        ("mongodb://host/?w=1", "'w' can't be set"),
        ("mongodb://host/?readPreference=secondary", "'readpreference' can't be set"),
        ("mongodb://host/?retryWrites=false", "'retrywrites' can't be set"),
    ],
)
def test_a_wrong_url_is_refused_with_its_reason(url: str, why: str) -> None:
    with pytest.raises(InvalidSetting, match=why):
        MongoStore(url)


def test_both_schemes_make_a_store() -> None:
    for url in ("mongodb://localhost", "mongodb+srv://cluster.example.org"):
        assert isinstance(make_store(url, "space"), MongoStore)


async def test_a_url_may_set_timeouts_and_nothing_is_without_one() -> None:
    client = make_client(parse_url("mongodb://localhost/?socketTimeoutMS=700&maxpoolsize=3"))
    options = client.options
    assert options.pool_options.socket_timeout == 0.7
    assert options.pool_options.max_pool_size == 3
    assert options.pool_options.connect_timeout == options.server_selection_timeout == 5
    assert options.pool_options.wait_queue_timeout == 5
    assert client.write_concern.document == {"w": "majority", "j": True, "wtimeout": 6_000}
    await client.close()


async def test_an_option_that_the_driver_refuses_is_our_error() -> None:
    with pytest.raises(InvalidSetting, match="can't be used"):
        make_client(parse_url("mongodb://localhost/?authMechanism=nonsense"))
    with pytest.raises(InvalidSetting, match="can't be used"):
        make_client(parse_url("mongodb://localhost/?socketTimeout=3"))


# ---- errors -----------------------------------------------------------------------------------------------------


async def test_nobody_there_is_an_outage_that_tells_no_secret() -> None:
    store = MongoStore(SECRET)
    with pytest.raises(StoreUnavailable, match=r"mongodb://127\.0\.0\.1:1/horarium") as caught:
        await store.open()
    assert "geheim" not in str(caught.value)
    assert "user" not in str(caught.value)
    with pytest.raises(StoreUnavailable, match="not open"):
        await store.check()
    await store.close()


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (errors.AutoReconnect("a:1: closed"), "the connection was lost"),
        (errors.WaitQueueTimeoutError("t"), "raise maxPoolSize"),
        (errors.ConfigurationError("Sessions are not supported by this MongoDB deployment"), "it is starting"),
        (errors.OperationFailure("x", 18), "the password is refused"),
        (errors.OperationFailure("x", 13), "grant readWrite"),
        (errors.OperationFailure("x", 14031), "disk is full"),
        (errors.BulkWriteError({"writeErrors": [], "writeConcernErrors": [{"code": 64}]}), "the majority"),
        (errors.InvalidOperation("closed"), "open it first"),
    ],
)
def test_what_may_pass_is_an_outage(error: Exception, why: str) -> None:
    found = explain(error, parse_url(SECRET))
    assert isinstance(found, StoreUnavailable)
    assert why in found.message


def test_anything_else_is_a_bug() -> None:
    found = explain(errors.OperationFailure("no such operator", 9), parse_url(SECRET))
    assert isinstance(found, BrokenInvariant)


# ---- the server and the schema ----------------------------------------------------------------------------------


@pytest.mark.slow
async def test_a_set_that_was_never_initiated_is_refused_with_what_to_do() -> None:
    def command(folder: Path, port: int) -> list[str]:
        program = str(Path(sys.prefix) / "bin" / "mongod")
        return [
            program, "--dbpath", str(folder), "--port", str(port), "--bind_ip", "127.0.0.1", "--nounixsocket",
            "--replSet", "rs0",
        ]  # fmt: skip

    server = ServerProcess("mongo-set", command)
    server.start()
    said = r"never initiated; run once: mongosh 'mongodb://127.0.0.1:\d+/\?directConnection=true' --eval 'rs.init"
    try:
        with pytest.raises(InvalidSetting, match=said):
            await MongoStore(f"mongodb://127.0.0.1:{server.port}/horarium?directConnection=true").open()
    finally:
        server.stop()


@pytest.mark.slow
async def test_a_newer_schema_is_worked_on_unless_it_needs_newer_code(mongo: Mongo) -> None:
    newest = MIGRATIONS[-1].number
    added = Migration(newest + 1, "added", (Index(NODES, "more", {"n": 1, "beat_at": 1}),))
    changed = Migration(newest + 2, "changed", (), needs=newest + 2)
    store = MongoStore(mongo.url.replace("/horarium?", "/newer?"))
    await store.open()
    assert store._session is not None
    database, location = store._session.database, store.location
    assert await migrate(database, location, (*MIGRATIONS, added)) == 1
    older = MongoStore(location.url)
    await older.open()
    assert await older.add_jobs([a_job("job")]) == [True]
    await older.close()
    assert await migrate(database, location, (*MIGRATIONS, added, changed)) == 1
    with pytest.raises(InvalidSetting, match=f"version {newest + 2} and needs a Horarium that knows version"):
        await older.open()
    await store.close()


@pytest.mark.slow
async def test_a_schema_of_no_release_is_refused(mongo: Mongo) -> None:
    store = MongoStore(mongo.url.replace("/horarium?", "/unreleased?"))
    client = make_client(store.location)
    await client["unreleased"][SCHEMA].insert_one({"_id": "version", "number": 6, "needs": 6})
    with pytest.raises(InvalidSetting, match="its schema is of no release of Horarium; give a new database"):
        await store.open()
    await client.close()


@pytest.mark.slow
async def test_a_new_database_keeps_history_dense_and_one_that_is_there_stays_as_it_is(mongo: Mongo) -> None:
    """Also one that another node has begun to make: a collection that is there is left alone."""
    for name, compression in (("dense", ["zstd", "zstd"]), ("begun", ["default", "zstd"])):
        store = MongoStore(mongo.url.replace("/horarium?", f"/{name}?"))
        client = make_client(store.location)
        database = client[name]
        if name == "begun":
            await database.create_collection(RUNS)
        await store.open()
        found = {each["name"]: each.get("options", {}) async for each in await database.list_collections()}
        assert ["zstd" if "zstd" in str(found[each]) else "default" for each in (RUNS, RECORDS)] == compression
        assert await store.add_runs([a_run(0)]) == [True]
        await store.close()
        await store.open()
        assert await store.get_runs([a_run(0).id]) == [a_run(0)]
        await store.close()
        await client.close()


@pytest.mark.slow
async def test_a_node_whose_index_a_newer_release_dropped_says_what_to_do(mongo: Mongo) -> None:
    store = MongoStore(mongo.url.replace("/horarium?", "/dropped?"))
    await store.open()
    assert store._session is not None
    assert await store.add_runs([a_run(0)]) == [True]
    await store._session.database[RUNS].drop_indexes()
    with pytest.raises(StoreUnavailable, match="newer release has upgraded the database; upgrade this node"):
        await store.claim_runs([a_run(0).queue], 1, "node", NOW, NOW, NOW)
    await store.close()


@pytest.mark.slow
async def test_stores_that_open_an_empty_database_together_agree(mongo: Mongo) -> None:
    url = mongo.url.replace("/horarium?", "/together?")
    stores = [MongoStore(url, f"space-{number % 3}") for number in range(8)]
    await asyncio.gather(*(store.open() for store in stores))
    for store in stores:
        await store.check()
    session = stores[0]._session
    assert session is not None
    version = await session.database[SCHEMA].find_one()
    assert version is not None
    assert version["number"] == len(MIGRATIONS)
    await asyncio.gather(*(store.close() for store in stores))


def test_migrations_are_numbered_without_a_gap() -> None:
    assert [step.number for step in MIGRATIONS] == list(range(1, len(MIGRATIONS) + 1))


@pytest.mark.slow
async def test_a_namespace_that_begins_like_another_sees_nothing_of_it(mongo: Mongo) -> None:
    names = "a", "a/b", "a%2Fb", "ä b"
    stores = [MongoStore(mongo.url, name) for name in names]
    for number, store in enumerate(stores):
        await store.open()
        await store.add_jobs([a_job(priority=number)])
        await store.add_runs([a_run(number)])
    for number, store in enumerate(stores):
        assert await store.get_jobs(["job"]) == [a_job(priority=number)]
        claimed = await store.claim_runs(["http"], 10, "w", NOW, NOW, NOW)
        assert [run.id for run in claimed.runs] == [a_run(number).id]
        await store.close()


# ---- the clock --------------------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_the_clock_tells_the_servers_time_within_what_it_says(mongo: Mongo) -> None:
    store, local = MongoStore(mongo.url), SystemClock()
    await store.open()
    clock = ServerClock(store, local, 0.001)
    before, told, after = local.now(), clock.now(), local.now()
    assert before <= told <= after, "its own, until it has asked"
    await clock.start()
    assert clock.error_seconds is not None
    # One machine, one clock: what differs is the error that it admits. (The server counts in milliseconds.)
    error = (clock.error_seconds + 0.005) * SECOND
    before, told, after = local.now(), clock.now(), local.now()
    assert before - error <= told <= after + error
    await clock.stop()
    await store.close()


class Told:
    """A server that says what it is told to say."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock, self.ahead, self.takes = clock, 0, 0.0

    async def server_time(self) -> int:
        self.clock.advance(self.takes / 2)
        now = self.clock.now() + self.ahead
        self.clock.advance(self.takes / 2)
        return now


async def test_a_slow_answer_does_not_replace_a_good_one_but_a_step_is_followed() -> None:
    local = ManualClock(NOW)
    server = Told(local)
    clock = ServerClock(server, local, 0.001)
    server.ahead, server.takes = 5 * SECOND, 0.002
    await clock.measure()
    assert abs(clock.now() - local.now() - 5 * SECOND) <= 1_500
    good = clock.error_seconds
    server.takes = 2.0
    await clock.measure()
    assert clock.error_seconds == good
    server.ahead = 65 * SECOND
    await clock.measure()
    assert abs(clock.now() - local.now() - 65 * SECOND) <= 1_001_000


# ---- wake-ups ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_what_one_node_publishes_wakes_another(mongo: Mongo) -> None:
    store = MongoStore(mongo.url, "signals")
    await store.open()
    here, there = MongoSignal(mongo.url, "signals"), MongoSignal(mongo.url, "signals")
    heard, elsewhere, mine = asyncio.Event(), asyncio.Event(), asyncio.Event()
    await here.start()
    await there.start()
    await asyncio.wait_for(asyncio.gather(here.listening.wait(), there.listening.wait()), WAIT_SECONDS)
    stop = there.subscribe(Topic("queue:http"), heard.set)
    there.subscribe(Topic("queue:other"), elsewhere.set)
    here.subscribe(Topic("queue:http"), mine.set)
    here.publish(Topic("queue:http"))
    assert mine.is_set()
    await asyncio.wait_for(heard.wait(), WAIT_SECONDS)
    assert not elsewhere.is_set()
    heard.clear()
    stop()
    here.publish(Topic("queue:http"))
    here.publish(Topic("queue:other"))
    await asyncio.wait_for(elsewhere.wait(), WAIT_SECONDS)
    assert not heard.is_set()
    await here.stop()
    await there.stop()
    await store.close()


async def test_publishing_without_a_server_wakes_who_is_here() -> None:
    signal = MongoSignal(f"mongodb://127.0.0.1:{free_port()}/horarium")
    woken = asyncio.Event()
    signal.subscribe(Topic("jobs"), woken.set)
    signal.publish(Topic("jobs"))
    assert woken.is_set()
    await signal.stop()
