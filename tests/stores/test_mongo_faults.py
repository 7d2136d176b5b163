"""The server killed, paused and cut off: what was acknowledged stays, what was not is whole or absent, all goes on."""

from __future__ import annotations

import asyncio
import gc
import warnings
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from urllib.parse import urlsplit

import pytest
from msgspec.structs import replace

from horarium.errors import StoreUnavailable
from horarium.model import Plan, Run, State
from horarium.ports import RunFilter, Store, Topic
from horarium.stores.mongo import MongoSignal, MongoStore, connect
from horarium.testing.contract.atomicity import AtomicityContract
from horarium.testing.contract.base import StoreUnderTest
from horarium.testing.values import NOW, QUEUE, a_job, a_run, completed
from tests.servers.mongo import Mongo, Standalone
from tests.waiting import PATIENCE, until

pytestmark = pytest.mark.slow

SHORT = "&socketTimeoutMS=700&serverSelectionTimeoutMS=700&connectTimeoutMS=700&heartbeatFrequencyMS=500"
"""For a server that says nothing: what is asked of one that works may be given up too, on a busy machine."""
PATIENT = SHORT.replace("socketTimeoutMS=700", "socketTimeoutMS=20000").replace(
    "connectTimeoutMS=700", "connectTimeoutMS=5000"
)
"""For one that is gone, whose connections are closed."""
BATCH = 20
ACKNOWLEDGED_MIN = 10
WAIT_SECONDS = PATIENCE


@pytest.fixture(scope="module")
def mongo() -> Iterator[Mongo]:
    server = Mongo()
    server.start()
    yield server
    server.stop()


@pytest.fixture(params=["set", "standalone"])
def mortal(request: pytest.FixtureRequest, mongo: Mongo) -> Iterator[Mongo]:
    """Each kind of server, to be killed."""
    if request.param == "set":
        yield mongo
        return
    server = Standalone()
    server.start()
    yield server
    server.stop()


@pytest.fixture(autouse=True)
def _collected() -> Iterator[None]:
    # Cut off in the middle of connecting, the driver leaves a socket to the collector.
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


async def opened(url: str, namespace: str) -> MongoStore:
    store = MongoStore(url, namespace)
    await open_at_last(store)
    return store


async def open_at_last(store: MongoStore) -> None:
    """Open it, again and again where a busy machine takes too long."""

    async def answered() -> bool:
        await store.open()
        return True

    await until(answered, ignoring=StoreUnavailable)


# ---- kill -9 ----------------------------------------------------------------------------------------------------


def batch_of(number: int) -> list[Run]:
    return [a_run(number * BATCH + place) for place in range(BATCH)]


async def test_nothing_acknowledged_is_lost_by_a_kill(mortal: Mongo) -> None:
    store = await opened(mortal.url + PATIENT, "killed")
    enough = asyncio.Event()
    acknowledged: list[int] = []
    settled: list[Run] = []

    async def work() -> None:
        for number in range(100_000):
            assert all(await store.add_runs(batch_of(number)))
            acknowledged.append(number)
            runs = (await store.claim_runs([QUEUE], BATCH // 2, "w", NOW, NOW, NOW)).runs
            assert all(await store.settle_runs([completed(run, held=True) for run in runs], NOW))
            settled.extend(runs)
            if len(acknowledged) == ACKNOWLEDGED_MIN:
                enough.set()

    working = asyncio.create_task(work())
    await asyncio.wait_for(enough.wait(), WAIT_SECONDS)
    mortal.kill()
    with pytest.raises(StoreUnavailable):
        await asyncio.wait_for(working, WAIT_SECONDS)
    await asyncio.to_thread(mortal.start)
    await until_up(store)
    for number in acknowledged:
        assert None not in await store.get_runs([run.id for run in batch_of(number)])
    for run in await store.get_runs([run.id for run in settled]):
        assert run is not None
        assert run.state is State.COMPLETED
    await store.close()


async def until_up(store: MongoStore) -> None:
    """Ask until the store answers. Each question waits for a server by itself."""

    async def up() -> bool:
        await store.check()
        return True

    await until(up, ignoring=StoreUnavailable)


async def test_a_plan_cut_short_by_a_kill_is_whole_or_absent(mortal: Mongo) -> None:
    store = await opened(mortal.url + PATIENT, "planned")
    jobs = [a_job(f"job-{number}", next_fire_at=NOW) for number in range(200)]
    await store.add_jobs(jobs)
    begun = asyncio.Event()

    async def plan() -> None:
        for start in range(0, 200, 10):
            plans = [Plan(replace(job, next_fire_at=None), tuple(runs_of(job.name))) for job in jobs[start:][:10]]
            assert all(await store.commit_plans(plans, NOW))
            begun.set()

    planning = asyncio.create_task(plan())
    await asyncio.wait_for(begun.wait(), WAIT_SECONDS)
    mortal.kill()
    with pytest.raises(StoreUnavailable):
        await asyncio.wait_for(planning, WAIT_SECONDS)
    await asyncio.to_thread(mortal.start)
    await until_up(store)
    stored = await store.get_jobs([job.name for job in jobs])
    for job in stored:
        assert job is not None
        found = await store.get_runs([run.id for run in runs_of(job.name)])
        assert {run is not None for run in found} == {job.version == 2}
    assert [job for job in stored if job is not None and job.version == 2]
    await store.close()


def runs_of(name: str) -> list[Run]:
    return [a_run(number, of=a_job(name)) for number in range(3)]


# ---- a server that says nothing ---------------------------------------------------------------------------------


async def test_a_stalled_server_is_an_outage_and_all_goes_on_by_itself(mongo: Mongo) -> None:
    store, beside = await opened(mongo.url + SHORT, "stalled"), await opened(mongo.url + PATIENT, "stalled")
    await beside.add_runs([a_run(1)])
    mongo.pause()
    try:
        for call in (store.check(), store.claim_runs([QUEUE], 1, "w", NOW, NOW, NOW), store.get_runs([a_run(1).id])):
            with pytest.raises(StoreUnavailable, match=r"mongodb://127\.0\.0\.1"):
                await asyncio.wait_for(call, WAIT_SECONDS)
    finally:
        mongo.resume()
    await until_up(store)
    await until_up(beside)
    assert await beside.add_runs([a_run(2)]) == [True]
    (first,) = await beside.get_runs([a_run(1).id])
    assert first is not None
    assert first.token in (0, 1)  # the claim's answer was lost; it may have been carried out
    await store.close()
    await beside.close()


async def test_a_signal_listens_again_after_a_restart_and_wakes_everyone(mongo: Mongo) -> None:
    store = await opened(mongo.url + PATIENT, "heard")
    signal = MongoSignal(mongo.url + SHORT, "heard")
    await signal.start()
    await asyncio.wait_for(signal.listening.wait(), WAIT_SECONDS)
    woken = asyncio.Event()
    signal.subscribe(Topic("jobs"), woken.set)
    await asyncio.to_thread(mongo.restart)
    await asyncio.wait_for(woken.wait(), WAIT_SECONDS)
    await signal.stop()
    await store.close()


# ---- a network that cuts ----------------------------------------------------------------------------------------


class Wire:
    """Between a store and the server. `requests_left`: after so many more requests everything is cut; `deaf`: answers
    are lost, and then everything is cut. None: all goes through."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.requests_left: int | None = None
        self.deaf = False

    async def start(self) -> int:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def stop(self) -> None:
        self._server.close()
        self.cut()
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(list(self._tasks))
        await self._server.wait_closed()

    def cut(self) -> None:
        for writer in self._writers:
            writer.close()
        self._writers.clear()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.requests_left == 0:
            writer.close()
            return
        try:
            there_reader, there_writer = await asyncio.open_connection("127.0.0.1", self._port)
        except OSError:
            writer.close()
            return
        self._writers |= {writer, there_writer}
        for pump in (self._pump(reader, there_writer, asked=True), self._pump(there_reader, writer, asked=False)):
            task = asyncio.get_running_loop().create_task(pump)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, asked: bool) -> None:
        with suppress(OSError):
            while data := await source.read(65_536):
                if asked and self.requests_left is not None:
                    self.requests_left = max(self.requests_left - 1, 0)
                if self.requests_left == 0 and not (asked and self.deaf):
                    self.cut()
                    return
                sink.write(data)
                await sink.drain()
        sink.close()


class WiredStore(MongoStore):
    """A store with a wire of its own."""

    def __init__(self, wire: Wire, url: str, namespace: str) -> None:
        super().__init__(url, namespace)
        self.wire = wire

    async def close(self) -> None:
        await super().close()
        await self.wire.stop()


@asynccontextmanager
async def cut_after(store: WiredStore, requests: int, *, deaf: bool) -> AsyncIterator[None]:
    """The store may ask so much; then it is cut off, and nobody answers. `deaf`: its last request still arrives."""
    store.wire.requests_left, store.wire.deaf = requests, deaf
    yield
    store.wire.requests_left = None
    # Whatever was under way at the server has ended before its effects are looked at.
    await until_up(store)


class TestMongoStoreCutOff(StoreUnderTest):
    test_whole_or_absent = AtomicityContract.test_a_write_that_fails_in_the_backend_is_whole_or_absent
    test_says_so_and_recovers = AtomicityContract.test_a_backend_that_fails_says_so_and_recovers

    @pytest.fixture(autouse=True)
    def _server(self, mongo: Mongo) -> None:
        self.port = urlsplit(mongo.url).port or 0

    async def open_store(self, namespace: str) -> Store:
        wire = Wire(self.port)
        port = await wire.start()
        url = f"mongodb://127.0.0.1:{port}/horarium?directConnection=true{PATIENT}"
        store = WiredStore(wire, url, namespace)
        await open_at_last(store)
        return store

    def faults(self, store: Store) -> Sequence[AbstractAsyncContextManager[None]]:
        assert isinstance(store, WiredStore)
        return [cut_after(store, requests, deaf=deaf) for requests, deaf in ((2, True), (3, False))]


async def test_a_claim_cut_off_half_way_gives_no_run_to_two(mongo: Mongo) -> None:
    wire = Wire(urlsplit(mongo.url).port or 0)
    port = await wire.start()
    store = WiredStore(wire, f"mongodb://127.0.0.1:{port}/horarium?directConnection=true{PATIENT}", "half")
    await open_at_last(store)
    runs = [a_run(n, concurrency_key="k" if n % 2 else None, concurrency_max=50) for n in range(100)]
    await store.add_runs(runs)
    owners: dict[str, str] = {}
    for number, (requests, deaf) in enumerate([(3, False), (5, True)]):
        async with cut_after(store, requests, deaf=deaf):
            with suppress(StoreUnavailable):
                claimed = await store.claim_runs([QUEUE], 10, f"worker-{number}", NOW, NOW, NOW)
                for run in claimed.runs:
                    assert owners.setdefault(run.id, f"worker-{number}") == f"worker-{number}"

    async def claim_rest() -> None:
        # Some of them stand behind a gate, in a transaction that nobody ends.
        running = frozenset({State.RUNNING})
        while len((await store.list_runs(RunFilter(states=running), None, 200)).items) < len(runs):
            for run in (await store.claim_runs([QUEUE], 10, "last", NOW, NOW, NOW)).runs:
                assert owners.setdefault(run.id, "last") == "last"

    await asyncio.wait_for(claim_rest(), WAIT_SECONDS)
    running = await store.get_runs([run.id for run in runs])
    assert all(run is not None and run.token == 1 and owners.get(run.id, run.worker) == run.worker for run in running)
    await store.close()


async def test_a_claimer_behind_a_gate_hinders_no_other_key(mongo: Mongo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connect, "ABANDONED_SECONDS", 60.0)
    store, dead = await opened(mongo.url, "gates"), await opened(mongo.url, "gates")
    await store.add_runs([a_run(n, concurrency_key=key, concurrency_max=1) for n, key in enumerate("ab")])
    await store.add_runs([a_run(2)])
    session = dead._session
    assert session is not None
    async with session.client.start_session() as dying:
        await dying.start_transaction()
        gate = {"_id": session.key("key/a")}
        await session.gates.update_one(gate, {"$inc": {"claims": 1}}, upsert=True, session=dying)
        claimed = await store.claim_runs([QUEUE], 10, "w", NOW, NOW, NOW)
        assert [run.id for run in claimed.runs] == [a_run(1).id, a_run(2).id]
    await store.close()
    await dead.close()


async def test_a_job_that_somebody_is_writing_hinders_no_other_plan(
    mongo: Mongo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connect, "ABANDONED_SECONDS", 60.0)
    store = await opened(mongo.url, "halved")
    jobs = [a_job(f"job-{number}", next_fire_at=NOW) for number in range(5)]
    await store.add_jobs(jobs)
    session = store._session
    assert session is not None
    async with session.client.start_session() as dying:
        await dying.start_transaction()
        await session.jobs.update_one({"_id": session.key(jobs[3].id)}, {"$inc": {"x": 1}}, session=dying)
        plans = [Plan(replace(job, next_fire_at=None), (a_run(1, of=job),)) for job in jobs]
        assert await store.commit_plans(plans, NOW) == [True, True, True, False, True]
    assert (await store.due_jobs(NOW, 10))[0] == [jobs[3]]
    await store.close()
