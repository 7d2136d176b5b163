"""The MongoDB store beside bare pymongo, in the same run, on the same server, turn by turn.

    python -m bench.mongo_store [--url URL] [--rounds N] [--runs N] [--size]

Without --url a mongod is started for it. Bare pymongo is what anybody would write by hand for a queue: one collection,
one partial index on what waits, durable majority writes, and for each batch of 100: find, claim (update_many), read
back, complete. It completes in two ways: all of a batch alike by one update_many, or each run by an update of its own
in one bulk_write, as it must who has a result to write with each. Every figure is the median over the rounds.
--size: what 100,000 pending runs take on disk, instead.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from pymongo import AsyncMongoClient, UpdateOne

from bench.stores import a_store
from horarium.model import Cause, Disposition, HandlerTarget, Job, Plan, Run, RunChange, State, run_id, uuid7
from horarium.stores.mongo import MongoStore

NOW = 1_800_000_000_000_000
QUEUE = "handler/report"
PAYLOAD = b'{"to": "somebody", "number": 1234567890}'
BATCH, ADD_BATCH, SIZED = 100, 1_000, 100_000
JOB_ID = "0198c0de-0000-7000-8000-000000000001"
JOB = Job(id=JOB_ID, name="nightly", trigger={"type": "interval"}, target=HandlerTarget(name="report"))


class Meter:
    """Microseconds a run, by the wall and of this process's CPU, one entry a round."""

    def __init__(self) -> None:
        self.wall: dict[str, list[float]] = {}
        self.cpu: dict[str, list[float]] = {}

    async def measure(self, name: str, count: int, work: Callable[[], Awaitable[None]]) -> None:
        wall, cpu = time.perf_counter(), time.process_time()
        await work()
        self.cpu.setdefault(name, []).append((time.process_time() - cpu) / count * 1e6)
        self.wall.setdefault(name, []).append((time.perf_counter() - wall) / count * 1e6)

    def median(self, name: str) -> float:
        return statistics.median(self.wall[name])

    def line(self, name: str) -> str:
        wall, cpu = self.wall[name], statistics.median(self.cpu[name])
        return f"{name:<40} {self.median(name):8.2f} us  ({min(wall):.2f} - {max(wall):.2f})  CPU {cpu:7.2f} us"

    def ratio(self, raw: str, store: str) -> str:
        return f"{store}: {self.median(raw) / self.median(store):.0%} of {raw}"


def new_runs(count: int, start: int, *, of_job: bool = False) -> list[Run]:
    def one(index: int) -> Run:
        at = NOW - 36_000_000_000 + start + index
        run = Run(id=uuid7(at, os.urandom(10)), queue=QUEUE, fire_at=at, due_at=at, created_at=at, payload=PAYLOAD)
        if of_job:
            return replace(run, id=run_id(JOB_ID, at), job_id=JOB_ID, job="nightly", payload=None)
        return replace(run, cause=Cause.ENQUEUED)

    return [one(index) for index in range(count)]


# ---- bare pymongo -----------------------------------------------------------------------------------------------


async def raw_collection(client: Any, database: str) -> Any:
    runs = client[database].raw_runs
    await runs.drop()
    order = [("queue", 1), ("priority", -1), ("due_at", 1), ("_id", 1)]
    await runs.create_index(order, partialFilterExpression={"state": 0})
    return runs


def raw_document(run: Run) -> dict[str, Any]:
    return {
        "_id": run.id,
        "queue": run.queue,
        "state": 0,
        "priority": run.priority,
        "due_at": run.due_at,
        "payload": run.payload,
    }


async def raw_add(collection: Any, runs: list[Run]) -> None:
    for start in range(0, len(runs), ADD_BATCH):
        await collection.insert_many([raw_document(run) for run in runs[start : start + ADD_BATCH]], ordered=False)


async def raw_drain(
    collection: Any, count: int, *, alike: bool, begun: Callable[[list[Any]], object] = lambda runs: None
) -> None:
    """`begun`: called with what was claimed."""
    done = 0
    waiting = {"queue": QUEUE, "state": 0, "due_at": {"$lte": NOW}}
    order = [("priority", -1), ("due_at", 1), ("_id", 1)]
    while done < count:
        found = await collection.find(waiting, {"_id": 1}, sort=order, limit=BATCH).to_list()
        ids = [document["_id"] for document in found]
        claim = {"$set": {"state": 1, "worker": "w", "lease_expires_at": NOW + 30_000_000, "claim": done}}
        await collection.update_many({"_id": {"$in": ids}, "state": 0}, claim)
        mine = await collection.find({"_id": {"$in": ids}, "claim": done}).to_list()
        begun(mine)
        complete = {"$set": {"state": 3, "finished_at": NOW}}
        if alike:
            ids = [document["_id"] for document in mine]
            await collection.update_many({"_id": {"$in": ids}, "claim": done, "state": 1}, complete)
        else:
            await collection.bulk_write(
                [UpdateOne({"_id": run["_id"], "claim": done, "state": 1}, complete) for run in mine], ordered=False
            )
        done += len(mine)


# ---- the store --------------------------------------------------------------------------------------------------


async def store_add(store: MongoStore, runs: list[Run]) -> None:
    for start in range(0, len(runs), ADD_BATCH):
        assert all(await store.add_runs(runs[start : start + ADD_BATCH]))


def completed(run: Run, result: bytes | None = None) -> RunChange:
    done = replace(
        run,
        state=State.COMPLETED,
        finished_at=NOW,
        lease_expires_at=None,
        disposition=Disposition.RAN,
        prune_at=NOW + 604_800_000_000,
        result=result,
    )
    return RunChange(done, run.token, State.RUNNING, True)


async def store_drain(store: MongoStore, count: int, *, results: bool = False) -> None:
    done = 0
    while done < count:
        claimed = (await store.claim_runs([QUEUE], BATCH, "w", NOW, NOW, NOW)).runs
        changes = [completed(run, run.id.encode() if results else None) for run in claimed]
        assert all(await store.settle_runs(changes, NOW))
        done += len(claimed)


async def claim_one_by_one(store: MongoStore, count: int) -> None:
    for _ in range(count):
        (run,) = (await store.claim_runs([QUEUE], 1, "w", NOW, NOW, NOW)).runs
        await store.settle_runs([completed(run)], NOW)


async def plan(store: MongoStore, jobs: list[Job], at: int) -> None:
    """One fire time of each job planned, 1,000 jobs a batch."""
    plans = [Plan(job, (Run(id=run_id(job.id, at), queue="other", fire_at=at, due_at=at, created_at=at,
                            job_id=job.id, job=job.name),)) for job in jobs]  # fmt: skip
    assert all(await store.commit_plans(plans, NOW))


# ---- the figures ------------------------------------------------------------------------------------------------


async def turn_by_turn(meter: Meter, raw: Any, store: MongoStore, rounds: int, count: int) -> None:
    await store.add_jobs([JOB])
    jobs = [replace(JOB, id=f"{number:036}", name=f"job-{number}") for number in range(1_000)]
    await store.add_jobs(jobs)
    single = max(count // 50, 10)
    for number in range(rounds):
        start = number * 10 * count
        runs = new_runs(count, start)
        await meter.measure("raw: add, 1,000 a batch", count, partial(raw_add, raw, runs))
        await meter.measure("store: add, 1,000 a batch", count, partial(store_add, store, runs))
        await meter.measure("raw: drain, completed alike", count, lambda: raw_drain(raw, count, alike=True))
        await meter.measure("store: drain, settled alike", count, lambda: store_drain(store, count))
        again = new_runs(count, start + count)
        await raw_add(raw, again)
        await store_add(store, again)
        await meter.measure("raw: drain, each completed", count, lambda: raw_drain(raw, count, alike=False))
        await meter.measure("store: drain, each with a result", count, lambda: store_drain(store, count, results=True))
        of_job = new_runs(count, start + 2 * count, of_job=True)
        await meter.measure("store: add, of a job", count, partial(store_add, store, of_job))
        await meter.measure("store: drain, of a job", count, lambda: store_drain(store, count))
        await store_add(store, new_runs(single, start + 3 * count))
        await meter.measure("store: one by one", single, lambda: claim_one_by_one(store, single))
        versioned = [replace(job, version=number + 1) for job in jobs]
        at = NOW + number
        await meter.measure("store: plan, 1,000 jobs a batch", len(jobs), partial(plan, store, versioned, at))


async def measure(url: str, rounds: int, count: int) -> None:
    meter = Meter()
    store = MongoStore(url, f"bench-{os.getpid()}")
    await store.open()
    client: AsyncMongoClient[Any] = AsyncMongoClient(url, w="majority", journal=True)
    raw = await raw_collection(client, store.location.database)
    await turn_by_turn(meter, raw, store, rounds, count)
    await raw.drop()
    await client.close()
    await store.close()
    print("\n".join(meter.line(name) for name in meter.wall))
    print(meter.ratio("raw: add, 1,000 a batch", "store: add, 1,000 a batch"))
    print(meter.ratio("raw: drain, completed alike", "store: drain, settled alike"))
    print(meter.ratio("raw: drain, each completed", "store: drain, each with a result"))
    print(meter.ratio("raw: drain, each completed", "store: drain, settled alike"))


async def size(url: str) -> None:
    """Bytes on disk, compressed as the server does it, of a pending run and of its place in the indexes."""
    for name, of_job in (("one-off", False), ("of a job", True)):
        store = MongoStore(url.replace("/horarium", f"/size_{of_job:d}"))
        await store.open()
        await store.add_jobs([JOB])
        await store_add(store, new_runs(SIZED, 0, of_job=of_job))
        assert store._session is not None
        await store._session.client.admin.command("fsync")
        said = await store._session.database.command("collStats", "horarium_runs")
        document, indexes = said["storageSize"] / SIZED, said["totalIndexSize"] / SIZED
        print(f"{name}: {document + indexes:.0f} bytes a pending run: document {document:.0f}, indexes {indexes:.0f}")
        await store._session.client.drop_database(store.location.database)
        await store.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default=None)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--runs", type=int, default=2_000)
    parser.add_argument("--size", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, a_store(options.url or "mongo", Path(folder)) as url:
        asyncio.run(size(url) if options.size else measure(url, options.rounds, options.runs))


if __name__ == "__main__":
    main()
