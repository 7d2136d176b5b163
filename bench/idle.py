"""What a server with nothing to do costs: CPU of the process and of its store, wake-ups, statements, memory.

    python -m bench.idle [--store NAME|URL] [--jobs 0,1000] [--waiting 1000] [--seconds 30]

`--store`: sqlite, postgres, redis, valkey or mongo (started for the occasion), or a URL. It is measured without a job,
then with `--jobs` jobs that are far ahead, then with `--waiting` workers that wait by long-poll, all on one server with
default settings. CPU is what the kernel has counted in nanoseconds, so half a minute tells a hundredth of a percent.
Linux only.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import psutil
from msgspec import Struct

from bench.http_client import Connection
from bench.processes import postmaster
from bench.stores import NAMES, a_store

SETTLES_SECONDS = 8.0
"""What a start, or a burst of jobs, leaves to do is done by then."""
WAIT = {"queues": ["none"], "limit": 1, "wait_seconds": 60}


class Reading(Struct):
    """Counts since the start of a process: CPU in seconds, switches of its threads, statements at its store."""

    own: float
    store: float
    switches: int
    statements: int | None


def cpu_of(process: psutil.Process) -> float:
    """CPU seconds of the threads that live, to the nanosecond."""
    tasks = Path(f"/proc/{process.pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def switches_of(process: psutil.Process) -> int:
    """How often its threads went to sleep."""
    total = 0
    for task in Path(f"/proc/{process.pid}/task").iterdir():
        total += int((task / "status").read_text().split("voluntary_ctxt_switches:")[1].split()[0])
    return total


async def servers(url: str, ours: int) -> list[psutil.Process]:
    """The processes that everything of the store on this machine comes from: of a PostgreSQL the one that it names,
    else what was started for this measurement."""
    if url.startswith("postgresql") and (first := await postmaster(url)) is not None:
        return [first]
    return [] if url.startswith("sqlite") else [each for each in psutil.Process().children() if each.pid != ours]


async def statements(url: str) -> int | None:
    """How many statements, commands or operations the store has carried out; None: it does not count them."""
    if url.startswith("postgresql"):
        import asyncpg  # type: ignore[import-untyped]

        connection = await asyncpg.connect(url)
        try:
            return int(await connection.fetchval("SELECT sum(xact_commit + xact_rollback) FROM pg_stat_database"))
        finally:
            await connection.close()
    if url.startswith("redis"):
        from redis.asyncio import Redis

        async with Redis.from_url(url) as client:
            return sum(int(each["calls"]) for each in (await client.info("commandstats")).values())
    if url.startswith("mongodb"):
        from pymongo import AsyncMongoClient

        async with AsyncMongoClient[dict[str, object]](url) as mongo:
            counted = (await mongo.admin.command("serverStatus"))["opcounters"]
            return sum(int(counted[kind]) for kind in ("insert", "query", "update", "delete", "command"))
    return None


async def read(server: psutil.Process, stores: Sequence[psutil.Process], url: str) -> Reading:
    counted = await statements(url)
    theirs = 0.0
    for process in {each for first in stores for each in (first, *first.children(recursive=True))}:
        with suppress(psutil.Error, OSError):
            theirs += cpu_of(process)
    return Reading(cpu_of(server), theirs, switches_of(server), counted)


async def measure(
    what: str, server: psutil.Process, stores: Sequence[psutil.Process], url: str, seconds: float
) -> None:
    await asyncio.sleep(SETTLES_SECONDS)
    before = await read(server, stores, url)
    await asyncio.sleep(seconds)
    after = await read(server, stores, url)
    used, theirs = (after.own - before.own) / seconds, (after.store - before.store) / seconds
    asked = ""
    if before.statements is not None and after.statements is not None:
        asked = f", {(after.statements - before.statements) / seconds:.1f} statements/s"
    print(
        f"{what:22} {used:7.3%} of a core, {(after.switches - before.switches) / seconds:5.1f} wake-ups/s,"
        f" {server.memory_info().rss / 1e6:.1f} MB" + (f"; its store {theirs:.3%}{asked}" if stores or asked else "")
    )


@asynccontextmanager
async def waiting(api: str, number: int) -> AsyncIterator[None]:
    """So many workers that wait for a queue in which nothing ever falls due."""

    async def wait(worker: int) -> None:
        connection = await Connection.open(api)
        body = json.dumps(WAIT | {"worker": f"worker-{worker}"}).encode()
        while True:
            await connection.ask("POST", "/api/v1/runs/claim", body)

    workers = [asyncio.create_task(wait(worker)) for worker in range(number)]
    yield
    for worker in workers:
        worker.cancel()
    await asyncio.gather(*workers, return_exceptions=True)


async def add_jobs(api: str, number: int) -> None:
    connection = await Connection.open(api)
    for index in range(number):
        trigger = {"type": "cron", "expression": f"{index % 60} 4 29 2 *"}
        job = {"name": f"far-{index}", "trigger": trigger, "target": {"type": "queue", "queue": "none"}}
        status, answer = await connection.ask("POST", "/api/v1/jobs", json.dumps(job).encode())
        assert status == 201, answer


async def idle(url: str, jobs: Sequence[int], waiters: int, seconds: float) -> None:
    command = [sys.executable, "-m", "horarium", "serve", "--port", "0", "--store", url]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    api = next(word for line in process.stderr for word in line.split() if word.startswith("http://"))
    server, stores = psutil.Process(process.pid), await servers(url, process.pid)
    try:
        there = 0
        for number in jobs:
            await add_jobs(api, number - there)
            there = number
            await measure(f"{number:,} jobs far ahead", server, stores, url, seconds)
        if waiters:
            async with waiting(api, waiters):
                await measure(f"{waiters:,} workers wait", server, stores, url, seconds)
    finally:
        process.terminate()
        process.wait(30)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", default="sqlite", help=f"one of {', '.join(NAMES)}, or a URL")
    parser.add_argument("--jobs", default="0,1000", help="how many, one measurement after the other")
    parser.add_argument("--waiting", type=int, default=1000, help="workers; 0: none")
    parser.add_argument("--seconds", type=float, default=30.0)
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder, a_store(given.store, Path(folder)) as url:
        jobs = [int(number) for number in given.jobs.split(",")]
        asyncio.run(idle(url, jobs, given.waiting, given.seconds))


if __name__ == "__main__":
    main()
