"""A million keys of rate limits: memory and CPU of the server that keeps them, and of a run under a new one.

    python -m bench.rate_keys [--keys 300000,1000000] [--seconds 70] [--runs 2000] [sqlite postgres valkey mongo]

The state of a key is one record. A server runs while another process writes as many as `--keys`; at each of these
figures: its memory, its CPU over `--seconds` (a look for keys to forget begins each minute), the size of the store, and
the CPU of `--runs` runs with a key each that are added, claimed and completed over the API. At the end all keys are
idle, and it is measured how long it takes until they are forgotten. Exit status 1 where the memory grew by more than
20 MB or keys are left.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from bench.http_client import Connection, Served, served
from bench.stores import NAMES, a_store
from horarium.clock import HOUR, SystemClock
from horarium.model.records import Record, RecordChange, RecordFilter
from horarium.node.backends import make_store
from horarium.operations.settling.rating import PREFIX
from horarium.policies import Limit
from horarium.ports import BATCH_MAX, Store
from horarium.rules.rates import Bucket

LIMIT = Limit(100, 60.0)
GROWTH_MAX = 20_000_000
SETTLES_SECONDS, FORGOTTEN_SECONDS = 8.0, 600.0


async def write(store: Store, first: int, end: int, at: int, version: int) -> None:
    """Give these keys this arrival time."""
    body = msgspec.json.encode(Bucket(arrival_at=at, limit=LIMIT, applied=LIMIT))
    for start in range(first, end, BATCH_MAX):
        names = [f"{PREFIX}key-{number:07}" for number in range(start, min(start + BATCH_MAX, end))]
        changes = [RecordChange(Record(name=name, body=body, version=version), version - 1) for name in names]
        assert all(await store.put_records(changes))


async def some_left(store: Store) -> bool:
    return bool((await store.list_records(RecordFilter(f"{PREFIX}key-"), None, 1)).items)


async def perform(url: str, runs: int, name: str) -> None:
    """Add, claim and complete runs, each with a key of its own."""
    connection = await Connection.open(url)

    async def ask(path: str, body: object) -> object:
        status, answer = await connection.ask("POST", f"/api/v1/runs{path}", json.dumps(body).encode())
        assert status < 300, answer
        return json.loads(answer) if answer else {"runs": []}

    target, rate = {"type": "queue", "queue": "bench"}, {"max": 100, "per_seconds": 60}
    new = [{"target": target, "rate": [{**rate, "key": f"{name}-{number}"}]} for number in range(runs)]
    for start in range(0, runs, 500):
        await ask("/batch", {"runs": new[start : start + 500]})
    done = 0
    while done < runs:
        claimed = (await ask("/claim", {"queues": ["bench"], "limit": 100, "worker": "w"}))["runs"]  # type: ignore[index]
        ended = [{"id": run["id"], "token": run["lease"]["token"], "outcome": "completed"} for run in claimed]
        if ended:
            await ask("/settle", ended)
        done += len(ended)
    connection.close()


async def size_of(url: str) -> str:
    """Of the whole store."""
    if url.startswith("sqlite"):
        return f"{sum(file.stat().st_size for file in Path(url[10:]).parent.glob('*.db*')) / 1e6:,.0f} MB"
    if url.startswith("postgresql"):
        import asyncpg  # type: ignore[import-untyped]

        connection = await asyncpg.connect(url)
        size = await connection.fetchval("SELECT pg_database_size(current_database())")
        await connection.close()
        return f"{size / 1e6:,.0f} MB"
    return "unknown"


async def measure(server: Served, url: str, name: str, seconds: float, runs: int) -> int:
    """Its memory."""
    before = server.cpu_seconds
    await asyncio.sleep(seconds)
    idle = (server.cpu_seconds - before) / seconds
    before = server.cpu_seconds
    await perform(server.url, runs, f"{name}-{time.time_ns()}")
    each = (server.cpu_seconds - before) / runs
    memory = server.memory_bytes
    print(
        f"  {name:>9} keys: {memory / 1e6:.1f} MB, {idle:.2%} of a core, {1e6 * each:,.0f} us for a run with a new key;"
        f" store {await size_of(url)}",
        flush=True,
    )
    return memory


async def keys(server: Served, url: str, marks: Sequence[int], seconds: float, runs: int) -> bool:
    """Whether the memory is flat, and keys are forgotten."""
    store, now = make_store(url, "default"), SystemClock().now()
    await store.open()
    await asyncio.sleep(SETTLES_SECONDS)
    await perform(server.url, runs, "warm")
    first, there = await measure(server, url, "no", seconds, runs), 0
    for mark in marks:
        await write(store, there, mark, now + 24 * HOUR, 1)
        there = mark
        memory = await measure(server, url, f"{mark:,}", seconds, runs)
    await write(store, 0, there, 1, 2)
    began, before = time.monotonic(), server.cpu_seconds
    while (left := await some_left(store)) and time.monotonic() - began < FORGOTTEN_SECONDS:
        await asyncio.sleep(1.0)
    took = time.monotonic() - began
    print(f"  forgotten after {took:.0f} s, CPU {server.cpu_seconds - before:.1f} s" if not left else "  keys are left")
    await measure(server, url, "no", SETTLES_SECONDS, runs)
    await store.close()
    return not left and memory - first <= GROWTH_MAX


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stores", nargs="*", metavar="STORE", help=f"of {', '.join(NAMES)}, or URLs")
    parser.add_argument("--keys", default="300000,1000000", help="how many, one measurement after the other")
    parser.add_argument("--seconds", type=float, default=70.0, help="for each measurement")
    parser.add_argument("--runs", type=int, default=2000)
    given = parser.parse_args(arguments)
    marks, kept = [int(number) for number in given.keys.split(",")], True
    for name in given.stores or ("sqlite", "postgres"):
        with tempfile.TemporaryDirectory() as folder, a_store(name, Path(folder)) as url, served(url) as server:
            print(name, flush=True)
            kept &= asyncio.run(keys(server, url, marks, given.seconds, given.runs))
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
