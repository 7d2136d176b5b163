"""A node that died in the middle of a transaction: what it was writing is free again within seconds, not a minute."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec.structs import replace

from horarium.errors import StoreUnavailable
from horarium.model import Plan
from horarium.stores.mongo import MongoStore, connect
from horarium.testing.values import NOW, QUEUE, a_job, a_run, completed
from tests.blackbox.outside import environment
from tests.servers.mongo import Mongo
from tests.waiting import PATIENCE, until

pytestmark = pytest.mark.slow

JOBS = 40
WAIT_SECONDS = PATIENCE
"""Long before the server would notice by itself."""


@pytest.fixture(scope="module", params=["anybody", "a user"])
def mongo(request: pytest.FixtureRequest) -> Iterator[Mongo]:
    server = Mongo(private=request.param == "a user")
    server.start()
    yield server
    server.stop()


async def opened(url: str, namespace: str) -> MongoStore:
    store = MongoStore(url, namespace)
    await store.open()
    return store


PLANNER = """
import asyncio, sys
from msgspec.structs import replace
from horarium.errors import StoreUnavailable
from horarium.model import Plan
from horarium.stores.mongo import MongoStore, session
from horarium.testing.values import NOW, a_job, a_run

async def stop_before_commit(within):
    print("written", flush=True)
    await asyncio.sleep(600)

async def main(url, namespace, count):
    store = MongoStore(url, namespace)
    await store.open()
    jobs = [a_job(f"job-{number}", next_fire_at=NOW) for number in range(count)]
    await store.add_jobs(jobs)
    session.commit = stop_before_commit
    await store.commit_plans([Plan(replace(job, next_fire_at=None), (a_run(1, of=job),)) for job in jobs], NOW)

asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
"""


def die_while_planning(url: str, namespace: str) -> None:
    """Another node writes plans of all jobs, and is killed before it commits them."""
    arguments = [sys.executable, "-c", PLANNER, url, namespace, str(JOBS)]
    node = subprocess.Popen(arguments, env=environment(), stdout=subprocess.PIPE, text=True)
    assert node.stdout is not None
    try:
        assert node.stdout.readline() == "written\n"
    finally:
        node.kill()
        node.wait(PATIENCE)
        node.stdout.close()


async def test_jobs_that_a_dead_node_was_planning_are_planned_by_others(mongo: Mongo) -> None:
    await asyncio.to_thread(die_while_planning, mongo.url, "killed")
    store = await opened(mongo.url, "killed")

    async def plan_all() -> None:
        while jobs := (await store.due_jobs(NOW, JOBS))[0]:
            await store.commit_plans([Plan(replace(job, next_fire_at=None), (a_run(1, of=job),)) for job in jobs], NOW)

    await asyncio.wait_for(plan_all(), WAIT_SECONDS)
    found = await store.get_runs([a_run(1, of=a_job(f"job-{number}")).id for number in range(JOBS)])
    assert None not in found
    await store.close()


@asynccontextmanager
async def left_behind(dead: MongoStore, collection: str, key: str) -> Any:
    """A transaction that has written one document and goes no further."""
    session = dead._session
    assert session is not None
    async with session.client.start_session() as dying:
        await dying.start_transaction()
        where = {"_id": session.key(key)}
        await session.database[collection].update_one(where, {"$inc": {"x": 1}}, upsert=True, session=dying)
        yield


async def test_an_outcome_waits_for_a_dead_node_for_seconds_only(mongo: Mongo) -> None:
    store, dead = await opened(mongo.url, "settled"), await opened(mongo.url, "settled")
    await store.add_runs([a_run(1), a_run(2)])
    claimed = (await store.claim_runs([QUEUE], 2, "w", NOW, NOW, NOW)).runs
    async with left_behind(dead, "horarium_runs", a_run(1).id):
        settling = store.settle_runs([completed(run) for run in claimed], NOW)
        assert await asyncio.wait_for(settling, WAIT_SECONDS) == [True, True]
    await store.close()
    await dead.close()


async def test_a_claim_waits_for_a_dead_node_for_seconds_only(mongo: Mongo) -> None:
    store, dead = await opened(mongo.url, "claimed"), await opened(mongo.url, "claimed")
    await store.add_runs([a_run(1, concurrency_key="a", concurrency_max=1)])
    async with left_behind(dead, "horarium_gates", "key/a"):

        async def claim() -> None:
            while not (await store.claim_runs([QUEUE], 2, "w", NOW, NOW, NOW)).runs:
                pass

        await asyncio.wait_for(claim(), WAIT_SECONDS)
    await store.close()
    await dead.close()


async def test_other_programs_transactions_are_left_alone(mongo: Mongo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connect, "ABANDONED_SECONDS", 0.0)
    store, other = await opened(mongo.url, "alone"), await opened(mongo.url + "&appName=other", "alone")
    assert store._session is not None
    async with left_behind(other, "horarium_gates", "key/b"):
        assert not await connect.end_abandoned(store._session.client)
    async with left_behind(store, "horarium_gates", "key/b"):
        assert await connect.end_abandoned(store._session.client)
    await store.close()
    await other.close()


SLOW = {"$where": "sleep(50); return false"}
"""Looked at one by one, for a while; an end from outside is noticed at once."""


async def transactions(store: MongoStore, *, active: bool) -> list[dict[str, Any]]:
    """Those of a store, as the server shows them; `active`: with a command under way."""
    assert store._session is not None
    where = {"appName": store._session.client.options.pool_options.appname, "transaction": {"$exists": True}}
    cursor = await store._session.client.admin.aggregate(
        [{"$currentOp": {"idleSessions": True, "allUsers": False}}, {"$match": {**where, "active": active}}]
    )
    found: list[dict[str, Any]] = await cursor.to_list()
    return found


async def test_a_transaction_that_was_cut_short_in_a_command_begins_again(mongo: Mongo) -> None:
    """The server puts no label on the error of such a command."""
    store = await opened(mongo.url + "&appName=cut", "cut")
    await store.add_runs([a_run(number) for number in range(200)])
    session = store._session
    assert session is not None
    tries = 0

    async def work(within: Any) -> int:
        nonlocal tries
        tries += 1
        await session.runs.update_one({"_id": session.key(a_run(1).id)}, {"$inc": {"x": 1}}, session=within)
        if tries == 1:
            await session.runs.find(SLOW, session=within).to_list()
        return tries

    working = asyncio.create_task(session.transaction(work))
    (under_way,) = await until(lambda: transactions(store, active=True))
    await session.client.admin.command("killSessions", [{"id": under_way["lsid"]["id"]}])
    assert await working == 2
    written = await session.runs.find_one({"_id": session.key(a_run(1).id)})
    assert written is not None
    assert written["x"] == 1
    await store.close()


async def test_a_transaction_with_a_command_under_way_is_left_alone(
    mongo: Mongo, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long it was inactive in all: that a live one of many commands is, too."""
    store = await opened(mongo.url + "&appName=live", "live")
    await store.add_runs([a_run(number) for number in range(200)])
    session = store._session
    assert session is not None
    monkeypatch.setattr(connect, "ABANDONED_SECONDS", 0.0)
    async with session.client.start_session() as live:
        await live.start_transaction()
        await session.runs.update_one({"_id": session.key(a_run(1).id)}, {"$inc": {"x": 1}}, session=live)
        reading = asyncio.create_task(session.runs.find(SLOW, session=live).to_list())
        await until(lambda: transactions(store, active=True))
        assert not await connect.end_abandoned(session.client)
        assert not reading.done()
        reading.cancel()
    await asyncio.wait([reading])
    await store.close()


async def test_a_transaction_that_goes_on_while_it_is_watched_is_left_alone(
    mongo: Mongo, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await opened(mongo.url + "&appName=watched", "watched")
    session = store._session
    assert session is not None
    monkeypatch.setattr(connect, "ABANDONED_SECONDS", 0.0)
    looks = 0
    look = connect._idle_transactions

    async with session.client.start_session() as live:
        await live.start_transaction()
        touched = {"_id": session.key("touched")}

        async def looking(client: Any) -> Any:
            nonlocal looks
            looks += 1
            if looks == 2:
                await session.gates.update_one(touched, {"$inc": {"x": 1}}, upsert=True, session=live)
            return await look(client)

        await session.gates.update_one(touched, {"$inc": {"x": 1}}, upsert=True, session=live)
        monkeypatch.setattr(connect, "_idle_transactions", looking)
        assert not await connect.end_abandoned(session.client)
        assert await connect.end_abandoned(session.client)
    await store.close()


class Interrupted:
    """A session whose commit is interrupted a few times."""

    def __init__(self, times: int) -> None:
        self.left = times

    async def commit_transaction(self) -> None:
        from pymongo.errors import OperationFailure

        self.left -= 1
        if self.left >= 0:
            raise OperationFailure("operation was interrupted", 11601)


async def test_a_commit_that_was_interrupted_is_asked_for_again_and_never_taken_for_undone() -> None:
    await connect.commit(Interrupted(connect.COMMITS_MAX - 1))
    with pytest.raises(StoreUnavailable, match="unknown") as raised:
        await connect.commit(Interrupted(connect.COMMITS_MAX))
    assert not connect.is_transient(raised.value)
