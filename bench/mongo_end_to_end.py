"""No-op handler runs end to end on MongoDB, beside bare pymongo on the same server, turn by turn in the same run.

    python -m bench.mongo_end_to_end [--url URL] [--runs N] [--rounds N] [--only runs|burst|every-second]

Bare pymongo: find, claim, read, complete in batches of 100, durably, one batch after the other. It completes in two
ways (see bench/mongo_store.py): a batch alike by one update, which is the cheapest form that there is, or each run by
an update of its own, as it must who has a result to write. The bar is held against the cheapest.
Horarium: runs are added in bulk, then claimed, performed by an async handler and settled, in one process with its
planner and rescuer running. Without --url a mongod is started for it.

A burst: as many runs due at one instant; how late 99 of 100 of them start. The bare driver starts a run when it
has read back what it claimed. Every second: 1,000 jobs that fire each second, in one process (bench/lateness.py).
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from pymongo import AsyncMongoClient

from bench.figures import Figures, horarium_round, lines, note
from bench.lateness import quantile, recurring
from bench.mongo_store import new_runs, raw_add, raw_collection, raw_drain
from bench.stores import a_store
from horarium import RunContext, Scheduler
from horarium.stores.mongo.connect import parse_url

LEAD_SECONDS = 1.0
"""How long before their instant the runs of a burst are there."""
RAW_BURST, BURST = "raw burst", "horarium burst"


async def raw_round(figures: Figures, url: str, count: int, *, alike: bool) -> None:
    client: AsyncMongoClient[Any] = AsyncMongoClient(url, w="majority", journal=True)
    collection = await raw_collection(client, parse_url(url).database)
    name = "raw run, alike" if alike else "raw run, each"
    wall, cpu = time.perf_counter(), time.process_time()
    await raw_add(collection, new_runs(count, 0))
    note(figures, "raw add", count, time.perf_counter() - wall, time.process_time() - cpu)
    wall, cpu = time.perf_counter(), time.process_time()
    await raw_drain(collection, count, alike=alike)
    note(figures, name, count, time.perf_counter() - wall, time.process_time() - cpu)
    await collection.drop()
    await client.close()


async def raw_burst(url: str, count: int) -> float:
    """Milliseconds from the instant to the start of the last but one of a hundred."""
    client: AsyncMongoClient[Any] = AsyncMongoClient(url, w="majority", journal=True)
    collection = await raw_collection(client, parse_url(url).database)
    await raw_add(collection, new_runs(count, 0))
    starts: list[float] = []
    began = time.perf_counter()
    await raw_drain(collection, count, alike=True, begun=lambda runs: starts.extend([time.perf_counter()] * len(runs)))
    await collection.drop()
    await client.close()
    return (quantile(starts, 0.99) - began) * 1000


async def horarium_burst(url: str, count: int, namespace: str) -> float:
    """The same; each run is seen by its handler."""
    late: list[float] = []
    done = asyncio.Event()
    scheduler = Scheduler(url, namespace=namespace, roles=("planner", "rescuer"))

    @scheduler.handler("burst")
    async def handle(run: RunContext) -> None:
        late.append(time.time() - run.due_at.timestamp())
        if len(late) == count:
            done.set()

    async with scheduler:
        await scheduler.start()
        at = datetime.now(UTC) + timedelta(seconds=LEAD_SECONDS + count / 4_000)
        await scheduler.enqueue_many("burst", [None] * count, at=at)
        await asyncio.wait_for(done.wait(), 120)
    assert min(late) >= 0
    return quantile(late, 0.99) * 1000


def bursts(url: str, count: int, rounds: int) -> Figures:
    """Milliseconds, of each round."""
    figures: Figures = {RAW_BURST: [], BURST: []}
    for number in range(rounds):
        figures[RAW_BURST].append(asyncio.run(raw_burst(url, count)))
        figures[BURST].append(asyncio.run(horarium_burst(url, count, f"burst-{os.getpid()}-{number}")))
    return figures


def burst_line(figures: Figures) -> str:
    raw, ours = figures[RAW_BURST], figures[BURST]
    ratios = [one / other for one, other in zip(ours, raw, strict=True)]
    return (
        f"p99 of the burst: {statistics.median(ours):,.0f} ms, bare driver {statistics.median(raw):,.0f} ms:"
        f" {statistics.median(ratios):.2f} times ({min(ratios):.2f} to {max(ratios):.2f}; bar 1.30)"
    )


def measure(url: str, count: int, rounds: int) -> Figures:
    figures: Figures = {}
    for number in range(rounds):
        asyncio.run(raw_round(figures, url, count, alike=True))
        asyncio.run(horarium_round(figures, url, count, namespace=f"bench-{os.getpid()}-{number}"))
        asyncio.run(raw_round(figures, url, count, alike=False))
    return figures


def report(figures: Figures) -> None:
    print(*lines(figures), sep="\n")
    for raw, bar in (("raw run, alike", " (bar 0.50)"), ("raw run, each", "")):
        ratios = [ours / theirs for ours, theirs in zip(figures["horarium run"], figures[raw], strict=True)]
        least, most = min(ratios), max(ratios)
        print(f"run: {statistics.median(ratios):.2f} of {raw!r} ({least:.2f} to {most:.2f}){bar}")
    added = zip(figures["horarium add"], figures["raw add"][::2], strict=True)
    print(f"add: {statistics.median(ours / theirs for ours, theirs in added):.2f} of raw")


ONLY = ("runs", "burst", "every-second")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", help="a server to use instead of one of its own")
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=20.0, help="of every-second")
    parser.add_argument("--only", choices=ONLY, help="left out: all")
    given = parser.parse_args(arguments)
    for what in [given.only] if given.only else ONLY:
        with tempfile.TemporaryDirectory() as folder, a_store(given.url or "mongo", Path(folder)) as url:
            match what:
                case "runs":
                    report(measure(url, given.runs, given.rounds))
                case "burst":
                    print(burst_line(bursts(url, given.runs, given.rounds)))
                case _:
                    asyncio.run(recurring(url, given.seconds, processes=1))


if __name__ == "__main__":
    main()
