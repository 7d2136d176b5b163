"""A mongod that stands alone: the contract, what is left over when it is cut off anywhere, and who may work on it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from secrets import token_hex
from typing import Any

import pytest
import pytest_asyncio
from msgspec.structs import replace
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.errors import AutoReconnect

from horarium.errors import StoreRefused, StoreUnavailable
from horarium.model import Plan, State
from horarium.model.records import Record
from horarium.ports import Store, Topic
from horarium.stores.mongo import MongoSignal, MongoStore
from horarium.stores.mongo.alone import holding
from horarium.testing.contract import StoreContract
from horarium.testing.contract.base import job_of, take
from horarium.testing.values import NOW, QUEUE, a_change, a_job, a_run
from tests.servers.mongo import Mongo, Standalone, let_the_hold_run_out
from tests.stores import patience
from tests.waiting import PATIENCE

pytestmark = pytest.mark.slow


class TestMongoStoreAlone(StoreContract):
    machine_examples = 8

    @pytest.fixture(autouse=True)
    def _url(self, standalone: Standalone) -> None:
        self.url = standalone.url

    async def open_store(self, namespace: str) -> Store:
        store = MongoStore(self.url + patience.MONGO, namespace)
        await store.open()
        return store


@pytest_asyncio.fixture
async def store(standalone: Standalone) -> AsyncIterator[MongoStore]:
    store = MongoStore(standalone.url, token_hex(6))
    await store.open()
    yield store
    await store.close()


# ---- cut off anywhere -------------------------------------------------------------------------------------------

WRITES = ("update_one", "update_many", "insert_one", "insert_many", "delete_many", "bulk_write", "find_one_and_update")


class Cut:
    """The connection breaks at the write of this number: before it, when half of it is done, or before its answer."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.at, self.how, self.count = -1, "before", 0
        for name in WRITES:
            monkeypatch.setattr(AsyncCollection, name, self._cutting(name, getattr(AsyncCollection, name)))

    def begin(self, at: int, how: str) -> None:
        self.at, self.how, self.count = at, how, 0

    @property
    def happened(self) -> bool:
        happened, self.at = self.count > self.at, -1
        return happened

    def _cutting(self, name: str, write: Any) -> Any:
        async def cutting(collection: Any, first: Any, *others: Any, **how: Any) -> Any:
            if self.at < 0:
                return await write(collection, first, *others, **how)
            self.count += 1
            if self.count <= self.at:
                return await write(collection, first, *others, **how)
            if self.count == self.at + 1:
                some = first[: len(first) // 2] if self.how == "half" and isinstance(first, list) else first
                if self.how == "after" or (self.how == "half" and isinstance(some, list) and some):
                    await write(collection, some, *others, **how)
            raise AutoReconnect("cut")

        return cutting


class _Step:
    """A plan that does all that one can do, and what must be seen of it: all or nothing."""

    def __init__(self, number: int) -> None:
        self.job = a_job(f"job-{number}", next_fire_at=NOW)
        self.old = [a_run(number * 100 + 90 + place, of=self.job) for place in range(3)]
        self.new = tuple(a_run(number * 100 + place, of=self.job) for place in range(6))
        self.records = tuple(Record(name=f"audit/{number}/{place}", body=b"{}") for place in range(2))
        self.plan = Plan(
            replace(self.job, next_fire_at=None),
            self.new,
            (a_change(self.old[0], state=State.CANCELLED, finished_at=NOW, prune_at=NOW),),
            withdrawals=(self.old[1],),
            records=self.records,
        )

    async def prepare(self, store: Store) -> None:
        await store.add_jobs([self.job])
        await store.add_runs(self.old)

    async def seen(self, store: Store) -> bool:
        """Whether it was carried out. Everything agrees about it."""
        changed, withdrawn, left = await store.get_runs([run.id for run in self.old])
        assert changed is not None
        assert left == self.old[2]
        news = await store.get_runs([run.id for run in self.new])
        records = await store.get_records([record.name for record in self.records])
        seen = {
            (await job_of(store, self.job)).version == 2,
            changed.state is State.CANCELLED,
            withdrawn is None,
            *(run is not None for run in news),
            *(record is not None for record in records),
        }
        assert len(seen) == 1
        return seen.pop()


@pytest.mark.parametrize("how", ["before", "half", "after"])
@pytest.mark.parametrize("survives", [True, False], ids=["goes-on", "dies"])
async def test_a_plan_that_is_cut_off_at_any_write_is_whole_or_absent(
    standalone: Standalone, monkeypatch: pytest.MonkeyPatch, how: str, survives: bool
) -> None:
    """By the next call, if the process lives on, by the next process otherwise."""
    namespace, cut, carried_out = token_hex(6), Cut(monkeypatch), []
    store = MongoStore(standalone.url, namespace)
    await store.open()
    for number in range(100):
        step = _Step(number)
        await step.prepare(store)
        cut.begin(number, how)
        answer = []
        with suppress(StoreUnavailable):
            answer = await store.commit_plans([step.plan], NOW)
        happened = cut.happened
        if not survives:
            await die(store)
            let_the_hold_run_out(standalone.url)
            store = MongoStore(standalone.url, namespace)
            await store.open()
        carried_out.append(await step.seen(store))
        assert carried_out[-1] or not answer
        if not happened:
            assert answer == [True]
            break
    # The intent is the first write; once it is stored, nothing undoes it.
    assert carried_out == [how == "after"] + [True] * (len(carried_out) - 1)
    assert len(carried_out) >= 5
    await store.close()


async def die(store: MongoStore) -> None:
    """As a process does that is killed: nothing is said to the server."""
    session = store._session
    assert session is not None
    held = session.hold
    assert held is not None
    assert held._keeper is not None
    held._keeper.cancel()
    await asyncio.wait([held._keeper])
    held._keeper = None
    await store.close()


async def test_an_intent_that_fits_into_no_document_is_stored_in_parts(
    store: MongoStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(holding, "PART_BYTES", 500)
    cut = Cut(monkeypatch)
    for number in range(100):
        step = _Step(number)
        await step.prepare(store)
        cut.begin(number, "after")
        with suppress(StoreUnavailable):
            await store.commit_plans([step.plan], NOW)
        happened = cut.happened
        await step.seen(store)
        if not happened:
            break
    assert number >= 8
    assert store._session is not None
    left = await store._session.database.horarium_intents.find({}).to_list()
    assert [document["_id"] for document in left] == ["hold"]
    assert not left[0].keys() & {"intent", "parts"}


async def test_what_is_left_over_is_carried_out_though_the_server_has_become_a_set(
    mongo: Mongo, standalone: Standalone, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut, step, namespace = Cut(monkeypatch), _Step(0), token_hex(6)
    store = MongoStore(standalone.url, namespace)
    await store.open()
    await step.prepare(store)
    cut.begin(1, "before")
    with pytest.raises(StoreUnavailable):
        await store.commit_plans([step.plan], NOW)
    assert cut.happened
    session = store._session
    assert session is not None
    found = {name: await session.database[name].find({}).to_list() for name in ("horarium_intents",)}
    found |= {
        name: await session.database[name].find({"n": namespace}).to_list()
        for name in ("horarium_jobs", "horarium_runs")
    }
    await store.close()
    later = MongoStore(mongo.url.replace("/horarium?", f"/set-{namespace}?"), namespace)
    await later.open()
    assert later._session is not None
    for name, documents in found.items():
        await later._session.database[name].insert_many(documents)
    await later.close()
    await later.open()
    assert await step.seen(later)
    await later.close()


# ---- one process ------------------------------------------------------------------------------------------------

ANOTHER = """
import asyncio, sys
from horarium.stores.mongo import MongoStore
async def main():
    store = MongoStore(sys.argv[1], "beside")
    await store.open()
    print("has it", flush=True)
    await asyncio.Event().wait()
asyncio.run(main())
"""


async def test_a_second_process_is_refused_until_the_first_one_is_gone(
    standalone: Standalone, monkeypatch: pytest.MonkeyPatch
) -> None:
    with subprocess.Popen([sys.executable, "-c", ANOTHER, standalone.url], stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"has it\n"
        store = MongoStore(standalone.url, "beside")
        with pytest.raises(
            StoreRefused, match=rf"one process works at a time, and process {other.pid} on .* --replSet"
        ):
            await store.open()
        other.kill()
        other.wait()
        opening = asyncio.create_task(store.open())
        let_the_hold_run_out(standalone.url)
        await asyncio.wait_for(opening, PATIENCE)
    assert await store.add_jobs([a_job()]) == [True]
    await store.close()


async def test_who_waits_for_a_hold_gets_it_when_it_is_given_back(
    standalone: Standalone, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(holding, "LOOK_SECONDS", 0.01)
    former, waiting = MongoStore(standalone.url, "given"), MongoStore(standalone.url, "given")
    await former.open()
    monkeypatch.setattr(holding, "_holds", {})  # as in another process
    looked, find_one = asyncio.Event(), AsyncCollection.find_one

    async def looking(*args: Any, **how: Any) -> Any:
        found = await find_one(*args, **how)
        if looked.is_set():
            await former.close()  # between its look at the hold and the next
            return await find_one(*args, **how)
        looked.set()
        return found

    monkeypatch.setattr(AsyncCollection, "find_one", looking)
    await asyncio.wait_for(waiting.open(), PATIENCE)
    assert await waiting.add_jobs([a_job()]) == [True]
    await waiting.close()


async def test_who_has_lost_it_writes_nothing_any_more_and_says_so(
    standalone: Standalone, monkeypatch: pytest.MonkeyPatch
) -> None:
    namespace, step = token_hex(6), _Step(0)
    former = MongoStore(standalone.url, namespace)
    await former.open()
    await step.prepare(former)
    monkeypatch.setattr(holding, "_holds", {})  # as in another process
    let_the_hold_run_out(standalone.url)
    present = MongoStore(standalone.url, namespace)
    await present.open()
    for _ in range(2):
        with pytest.raises(StoreUnavailable, match="another process has taken it over"):
            await former.commit_plans([step.plan], NOW)
    with pytest.raises(StoreUnavailable, match="another process has taken it over"):
        await former.check()
    assert not await step.seen(present)
    await present.close()
    assert await former.commit_plans([step.plan], NOW) == [True]
    await former.close()


async def test_reading_never_sees_half_a_plan(standalone: Standalone, store: MongoStore) -> None:
    beside = MongoStore(standalone.url, store.namespace)
    await beside.open()
    steps = [_Step(number) for number in range(20)]
    for step in steps:
        await step.prepare(store)

    async def look() -> None:
        looks = 0
        while not looks or not all([(await job_of(beside, step.job)).version == 2 for step in steps]):
            looks += 1
            for step in steps:
                found = await beside.get_runs([run.id for run in (*step.new, step.old[1])])
                assert len({run is not None for run in found[:-1]} | {found[-1] is None}) == 1

    looking = asyncio.create_task(look())
    for step in steps:
        assert await store.commit_plans([step.plan], NOW) == [True]
    await asyncio.wait_for(looking, PATIENCE)
    await beside.close()


async def test_claims_behind_gates_and_plans_get_along(standalone: Standalone, store: MongoStore) -> None:
    beside = MongoStore(standalone.url, store.namespace)
    await beside.open()
    await store.add_runs([a_run(n, concurrency_key="k", concurrency_max=3) for n in range(30)])
    claims = await asyncio.gather(*(take([store, beside][n % 2], 2, worker=f"w{n}") for n in range(8)))
    taken = [run.id for claim in claims for run in claim.runs]
    assert len(taken) == len(set(taken)) == 3
    await beside.close()


async def test_signals_of_one_process_wake_each_other(standalone: Standalone) -> None:
    here, there = MongoSignal(standalone.url), MongoSignal(standalone.url)
    elsewhere = MongoSignal(standalone.url, "other")
    heard, wrong = asyncio.Event(), asyncio.Event()
    for signal in (here, there, elsewhere):
        await signal.start()
        await asyncio.wait_for(signal.listening.wait(), PATIENCE)
    there.subscribe(Topic(f"queue:{QUEUE}"), heard.set)
    elsewhere.subscribe(Topic(f"queue:{QUEUE}"), wrong.set)
    here.publish(Topic(f"queue:{QUEUE}"))
    await asyncio.wait_for(heard.wait(), PATIENCE)
    assert not wrong.is_set()
    for signal in (here, there, elsewhere):
        await signal.stop()
