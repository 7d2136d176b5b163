"""No-op handler runs end to end on MongoDB, beside bare pymongo on the same server, turn by turn in the same run.

    python -m bench.mongo_end_to_end [--url URL] [--runs N] [--rounds N]

Bare pymongo: find, claim, read, complete in batches of 100, durably, one batch after the other. It completes in two
ways (see bench/mongo_store.py): a batch alike by one update, which is the cheapest form that there is, or each run by
an update of its own, as it must who has a result to write. The bar is held against the cheapest.
Horarium: runs are added in bulk, then claimed, performed by an async handler and settled, in one process with its
planner and rescuer running. Without --url a mongod is started for it.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from pymongo import AsyncMongoClient

from bench.figures import Figures, horarium_round, lines, note
from bench.mongo_store import new_runs, raw_add, raw_collection, raw_drain
from bench.stores import a_store
from horarium.stores.mongo.connect import parse_url


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


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", help="a server to use instead of one of its own")
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder, a_store(given.url or "mongo", Path(folder)) as url:
        report(measure(url, given.runs, given.rounds))


if __name__ == "__main__":
    main()
