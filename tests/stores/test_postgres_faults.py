"""The PostgreSQL store when its server fails under it: it says so, loses nothing that it acknowledged, and goes on by
itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import asyncpg  # type: ignore[import-untyped]
import pytest
import pytest_asyncio

from horarium.errors import StoreUnavailable
from horarium.model import Run
from horarium.ports import RunFilter, Topic, queue_topic
from horarium.stores.postgres import PostgresSignal, PostgresStore
from horarium.testing.contract.base import ids, take
from horarium.testing.values import NOW, a_job, a_run, completed
from tests.servers.postgres import Postgres
from tests.stores.postgres_server import execute, new_database, running
from tests.waiting import PATIENCE, until

pytestmark = pytest.mark.slow

ROUNDS_MAX = 2_000
SHORT = "?query_seconds=0.5&connect_seconds=0.5"


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    """One that may be stopped, unlike the shared one."""
    with running() as server:
        yield server


@pytest.fixture
def url(server: Postgres) -> str:
    return new_database(server)


@pytest_asyncio.fixture
async def store(url: str) -> AsyncIterator[PostgresStore]:
    """One that soon gives a call up, on a busy machine also one that should be answered: what has to succeed at the
    first try is asked of the patient one."""
    store = await opened(url + SHORT)
    yield store
    await store.close()


async def opened(url: str) -> PostgresStore:
    store = PostgresStore(url)

    async def open_it() -> bool:
        await store.open()
        return True

    await until(open_it, ignoring=StoreUnavailable)
    return store


@pytest_asyncio.fixture
async def patient(url: str) -> AsyncIterator[PostgresStore]:
    """One that waits as long as a store does by default."""
    store = PostgresStore(url)
    await store.open()
    yield store
    await store.close()


async def add_until(store: PostgresStore, start: int, stop: asyncio.Event) -> tuple[list[Run], int]:
    """Add runs one after the other until told to stop: those acknowledged, and how many calls failed."""
    acknowledged: list[Run] = []
    failures = 0
    for number in range(start, start + ROUNDS_MAX):
        if stop.is_set():
            return acknowledged, failures
        try:
            if await store.add_runs([a_run(number)]) == [True]:
                acknowledged.append(a_run(number))
        except StoreUnavailable:
            failures += 1
    return acknowledged, failures


async def insist(store: PostgresStore) -> None:
    """Return once the store works again, which it must without being opened anew."""
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                return await store.check()
            except StoreUnavailable:
                continue


async def test_connections_that_are_terminated_lose_nothing_acknowledged(patient: PostgresStore, url: str) -> None:
    store = patient
    stop = asyncio.Event()
    writers = [asyncio.ensure_future(add_until(store, n * ROUNDS_MAX, stop)) for n in range(4)]
    kill = (
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
        " AND application_name = 'horarium' AND datname = current_database()"
    )
    for _ in range(5):
        await execute(url, kill)
    stop.set()
    results = await asyncio.gather(*writers)
    await insist(store)
    acknowledged = [run for runs, _ in results for run in runs]
    assert None not in await store.get_runs(ids(acknowledged))


async def test_a_server_killed_and_restarted_keeps_what_was_acknowledged(
    patient: PostgresStore, server: Postgres, url: str
) -> None:
    store = patient
    await store.add_jobs([a_job()])
    await store.add_runs([a_run(n) for n in range(20)])
    claimed = (await take(store, 10)).runs
    assert await store.settle_runs([completed(run) for run in claimed[:5]], NOW) == [True] * 5
    server.kill()
    with pytest.raises(StoreUnavailable, match=r"127\.0\.0\.1"):
        await store.add_runs([a_run(99)])
    await asyncio.to_thread(server.start)
    await insist(store)
    found = await store.get_runs(ids([a_run(n) for n in range(20)]))
    states = [run.state.value for run in found if run is not None]
    assert states == ["completed"] * 5 + ["running"] * 5 + ["pending"] * 10
    assert await store.settle_runs([completed(run) for run in claimed[5:]], NOW) == [True] * 5
    assert len((await take(store)).runs) == 10


async def test_a_server_that_stands_still_is_given_up_in_time_and_used_again(
    store: PostgresStore, patient: PostgresStore, server: Postgres
) -> None:
    await patient.add_runs([a_run(n) for n in range(3)])
    claimed = (await take(patient, 1)).runs
    server.pause()
    try:
        calls = [store.check(), store.settle_runs([completed(claimed[0])], NOW), take(store), store.get_runs(["x"])]
        async with asyncio.timeout(PATIENCE):
            answers = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(answer) for answer in answers] == [StoreUnavailable] * 4
        assert "did not answer in time" in str(answers[0])
    finally:
        server.resume()
    await insist(store)
    everyone = (await patient.list_runs(RunFilter(), None, 10)).items
    assert len(everyone) == 3
    assert await patient.add_runs([a_run(9)]) == [True]


async def test_closing_does_not_wait_for_a_server_that_stands_still(url: str, server: Postgres) -> None:
    store = await opened(url + SHORT)
    server.pause()
    try:
        async with asyncio.timeout(PATIENCE):
            await store.close()
    finally:
        server.resume()


async def test_a_read_only_server_is_an_outage(patient: PostgresStore, url: str) -> None:
    name = url.rpartition("/")[2]
    await execute(url, f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    other = PostgresStore(url)
    with pytest.raises(StoreUnavailable, match="read-only"):
        await other.open()
    await execute(url, "SET default_transaction_read_only = off", f"ALTER DATABASE {name} RESET ALL")
    await other.open()
    await other.close()


async def test_no_more_connections_is_an_outage_and_passes(server: Postgres, url: str) -> None:
    name = url.rpartition("/")[2]
    store = PostgresStore(url)
    await store.open()
    await store.close()
    await execute(server.url, f"ALTER DATABASE {name} CONNECTION LIMIT 0")
    await execute(server.url, f"CREATE ROLE plain_{name} LOGIN")
    with pytest.raises(StoreUnavailable, match="too many connections"):
        await PostgresStore(url.replace("postgres@", f"plain_{name}@")).open()


async def test_a_deadlock_is_tried_again(patient: PostgresStore, url: str) -> None:
    """Somebody else's transaction locks two runs against the order in which we do."""
    await patient.add_runs([a_run(1), a_run(2)])
    claimed = (await take(patient)).runs
    other = await asyncpg.connect(url)
    lock = "SELECT 1 FROM horarium.runs WHERE fire_at = $1 FOR UPDATE"
    transaction = other.transaction()
    await transaction.start()
    await other.execute("SET LOCAL deadlock_timeout = '10s'")
    await other.fetch(lock, claimed[1].fire_at)
    settling = asyncio.ensure_future(patient.settle_runs([completed(run) for run in claimed], NOW))
    try:
        await _until_waiting(url)
        # We hold the first and wait for the second; now they wait for the first, and are more patient than we are.
        await other.fetch(lock, claimed[0].fire_at)
    finally:
        await transaction.rollback()
        await other.close()
    assert await settling == [True, True]


async def _until_waiting(url: str) -> None:
    watcher = await asyncpg.connect(url)
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    await until(lambda: watcher.fetchval(waiting))
    await watcher.close()


async def test_a_closed_or_unopened_store_says_so(url: str) -> None:
    store = PostgresStore(url)
    with pytest.raises(StoreUnavailable, match="not open"):
        await store.check()
    await store.open()
    await store.close()
    with pytest.raises(StoreUnavailable, match="closed"):
        await store.check()


# -- wake-ups


async def test_a_publication_wakes_subscribers_of_other_nodes(url: str) -> None:
    one, two, elsewhere = PostgresSignal(url), PostgresSignal(url), PostgresSignal(url, "elsewhere")
    woken, local, foreign = asyncio.Event(), asyncio.Event(), asyncio.Event()
    for signal in (one, two, elsewhere):
        await signal.start()
        await signal.listening.wait()
    one.subscribe(Topic("jobs"), local.set)
    unsubscribe = two.subscribe(Topic("jobs"), woken.set)
    elsewhere.subscribe(Topic("jobs"), foreign.set)
    one.publish(Topic("jobs"))
    assert local.is_set()
    async with asyncio.timeout(PATIENCE):
        await woken.wait()
    assert not foreign.is_set()
    woken.clear()
    unsubscribe()
    two.publish(Topic("jobs"))
    assert not woken.is_set()
    for signal in (one, two, elsewhere):
        await signal.stop()


async def test_after_a_lost_connection_every_subscriber_is_woken(url: str) -> None:
    signal = PostgresSignal(url)
    await signal.start()
    await signal.listening.wait()
    woken = [asyncio.Event(), asyncio.Event()]
    signal.subscribe(Topic("jobs"), woken[0].set)
    signal.subscribe(queue_topic("long\0" * 100), woken[1].set)
    await execute(
        url,
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE '%LISTEN%'"
        " AND pid <> pg_backend_pid() AND datname = current_database()",
    )
    async with asyncio.timeout(PATIENCE):
        for event in woken:
            await event.wait()
    await signal.stop()


async def test_a_signal_without_a_server_still_wakes_locally() -> None:
    signal = PostgresSignal("postgresql://postgres@127.0.0.1:1/none")
    await signal.start()
    woken = asyncio.Event()
    signal.subscribe(Topic("jobs"), woken.set)
    signal.publish(Topic("jobs"))
    assert woken.is_set()
    await signal.stop()
