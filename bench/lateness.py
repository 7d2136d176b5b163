"""How late runs start: a burst, recurring jobs, an idle server, and what does not depend on how much is stored.

    python -m bench.lateness [burst] [recurring] [flat] [idle] [--store NAME|URL] [--seconds N] [--processes N]
                             [--jobs N] [--finished N]

    burst      10,000 one-off runs due in the same second, of one queue
    recurring  1,000 jobs that fire every second, for --seconds, over --processes
    flat       a planning step with 1,000 and with --jobs defined jobs of which 50 are due; claim and settlement of 100
               runs beside no finished ones and beside --finished; memory; bytes a run (SQLite, Redis)
    idle       CPU and memory of `horarium serve` with nothing to do

The store is `sqlite` (a file), `postgres`, `redis`, `valkey` or `mongo` (a server started here), or a URL. Lateness is
the start of the attempt, as the handler sees it, minus the instant it was due.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psutil
from msgspec.structs import replace

from bench.stores import NAMES, a_planner, a_store
from horarium import RunContext, Scheduler, every
from horarium.clock import SECOND, SystemClock
from horarium.model import Cause, Disposition, Run, RunChange, State, uuid7
from horarium.node.backends import make_store
from horarium.ports import BATCH_MAX, RunFilter, Store

BURST, JOBS = 10_000, 1_000
LATE_SECONDS = 5
"""How late a start of `recurring` may be and still be seen."""


def quantile(values: list[float], part: float) -> float:
    return sorted(values)[min(int(len(values) * part), len(values) - 1)]


def show(name: str, late: list[float]) -> None:
    early = sum(value < 0 for value in late)
    print(
        f"{name}: {len(late):,} starts, first {late[0] * 1000:.1f} ms, p50 {quantile(late, 0.5) * 1000:.0f} ms,"
        f" p99 {quantile(late, 0.99) * 1000:.0f} ms, max {max(late) * 1000:.0f} ms, early {early}"
    )


async def burst(url: str) -> None:
    late: list[float] = []
    done = asyncio.Event()
    scheduler = Scheduler(url)

    @scheduler.handler("burst")
    async def handle(run: RunContext) -> None:
        late.append(time.time() - run.due_at.timestamp())
        if len(late) == BURST:
            done.set()

    async with scheduler:
        await scheduler.start()
        at = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=4)
        await scheduler.enqueue_many("burst", [None] * BURST, at=at)
        await asyncio.wait_for(done.wait(), 60)
    show("burst of 10,000", late)


async def recurring(url: str, seconds: float, processes: int) -> None:
    """Define the jobs, let other processes run them, and read what these saw."""
    async with Scheduler(url, roles=()) as scheduler:
        for index in range(JOBS):
            await scheduler.add_job(f"job-{index}", {"type": "cron", "expression": "* * * * * *"}, handler="tick")
    command = [sys.executable, "-m", "bench.lateness", "worker", "--store", url]
    workers = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(processes)
    ]
    try:
        for worker in workers:
            assert worker.stdout is not None
            assert worker.stdout.readline() == "ready\n"
        await asyncio.sleep(3)
        first = int(time.time()) + 1
        before = [cpu_seconds(worker.pid) for worker in workers]
        await asyncio.sleep(first + seconds - time.time())
        cores = [(cpu_seconds(worker.pid) - cpu) / seconds for worker, cpu in zip(workers, before, strict=True)]
        await asyncio.sleep(LATE_SECONDS)
        said = [worker.communicate("stop\n", timeout=60)[0] for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
    starts = [start for lines in said for start in json.loads(lines) if first <= start[1] < first + int(seconds)]
    distinct = {(job, fire) for job, fire, _ in starts}
    show(f"1,000 jobs every second for {seconds:g} s over {processes}", [late for _, _, late in starts])
    expected = JOBS * int(seconds)
    used = ", ".join(f"{core:.2f}" for core in cores)
    print(
        f"    {expected - len(distinct)} missed of {expected:,}, {len(starts) - len(distinct)} repeated,"
        f" {await planned_late(url, first, first + int(seconds)):,} planned late, cores {used}"
    )


async def planned_late(url: str, first: int, end: int) -> int:
    """How many runs of these seconds were made after the instant they were due."""
    store = make_store(url)
    await store.open()
    where, after, late = RunFilter(since=first * SECOND, until=end * SECOND), None, 0
    while True:
        page = await store.list_runs(where, after, BATCH_MAX)
        late += sum(run.created_at > run.due_at for run in page.items)
        if (after := page.next_after) is None:
            break
    await store.close()
    return late


def cpu_seconds(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


async def worker(url: str) -> None:
    """One of the processes of `recurring`: runs what is due until a line comes in, then prints what it saw."""
    starts: list[tuple[str | None, float, float]] = []
    scheduler = Scheduler(url)

    @scheduler.handler("tick")
    async def handle(run: RunContext) -> None:
        starts.append((run.job, run.fire_at.timestamp(), time.time() - run.due_at.timestamp()))

    async with scheduler:
        await scheduler.start()
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        await scheduler.stop()
    print(json.dumps(starts))


async def planning_step(store: Store, now: int) -> float:
    """Microseconds of a step that plans 50 due jobs."""
    planner = a_planner(store)
    started = time.perf_counter()
    await planner.step(now)
    return (time.perf_counter() - started) * 1e6


async def flat_planning(url: str, jobs: int) -> None:
    """Two namespaces, one with many jobs that are not due, step by step in turn."""
    planned: dict[int, list[float]] = {1_000: [], jobs: []}
    stores = {count: make_store(url, f"flat-{count}") for count in planned}
    process = psutil.Process()
    for count, store in stores.items():
        await fill(url, f"flat-{count}", count)
        before, started = process.memory_info().rss, time.perf_counter()
        await store.open()
        await planning_step(store, SystemClock().now())
        grown = (process.memory_info().rss - before) / 1e6
        print(f"{count:>9,} jobs: opened and planned within {time.perf_counter() - started:.2f} s, +{grown:.1f} MB")
    now = SystemClock().now()
    for step in range(1, 60):
        for count, store in stores.items():
            planned[count].append(await planning_step(store, now + step * 10 * SECOND))
    few, many = (statistics.median(samples[10:]) for samples in planned.values())
    print(f"planning 50 jobs takes {few:,.0f} us of 1,000, {many:,.0f} us of {jobs:,}: {many / few:.2f} (bar 1.20)")
    for store in stores.values():
        await store.close()


async def fill(url: str, namespace: str, count: int) -> None:
    """50 jobs that fire every ten seconds, and for the rest copies of one that fires in a month."""
    async with Scheduler(url, namespace=namespace, roles=()) as scheduler:
        for index in range(50):
            await scheduler.add_job(f"due-{index}", every("10s"), handler="none")
        await scheduler.add_job("later", every("30d"), handler="none")
    store = make_store(url, namespace)
    await store.open()
    later = next(job for job in await store.get_jobs(["later"]) if job is not None)
    for first in range(0, count - 51, BATCH_MAX):
        numbers = range(first, min(first + BATCH_MAX, count - 51))
        jobs = [replace(later, id=uuid7(later.created_at, os.urandom(10)), name=f"later-{n}") for n in numbers]
        assert all(await store.add_jobs(jobs))
    await store.close()


async def flat_claims(url: str, finished: int) -> None:
    """Two namespaces, one with many finished runs, claim by claim in turn."""
    spent: dict[int, list[float]] = {0: [], finished: []}
    stores = {count: make_store(url, f"claims-{count}") for count in spent}
    now = SystemClock().now()
    for count, store in stores.items():
        await store.open()
        for first in range(0, count, BATCH_MAX):
            runs = [one_off(now - (count - index) * 1_000) for index in range(first, min(first + BATCH_MAX, count))]
            assert all(await store.add_runs([settled(run, now) for run in runs]))
    for step in range(1, 60):
        for count, store in stores.items():
            await store.add_runs([one_off(now + step * SECOND + index) for index in range(100)])
            started = time.perf_counter()
            claimed = await store.claim_runs(
                ["none"], 100, "bench", now + 100 * SECOND, now + 100 * SECOND, now + 100 * SECOND
            )
            changes = [RunChange(settled(run, now), run.token, run.state) for run in claimed.runs]
            assert await store.settle_runs(changes, now) == [True] * 100
            spent[count].append((time.perf_counter() - started) * 1e4)
    few, many = (statistics.median(samples[10:]) for samples in spent.values())
    print(f"claim + settle takes {few:.1f} us a run beside none, {many:.1f} us beside {finished:,}: {many / few:.2f}")
    for store in stores.values():
        await store.close()


def one_off(at: int) -> Run:
    return Run(id=uuid7(at, os.urandom(10)), queue="none", fire_at=at, due_at=at, created_at=at, cause=Cause.ENQUEUED)


def settled(run: Run, now: int) -> Run:
    return replace(
        run, state=State.COMPLETED, lease_expires_at=None, finished_at=now, disposition=Disposition.RAN, prune_at=now
    )


async def bytes_a_run(folder: Path) -> None:
    """On SQLite: what 100,000 pending runs add to the file."""
    path = folder / "size.db"
    scheduler = Scheduler(f"sqlite:///{path}")
    async with scheduler:
        await scheduler.add_job("warm", every("1h"), handler="none")
    empty = path.stat().st_size
    async with scheduler:
        args = [{"to": "somebody", "number": 1_234_567_890} for _ in range(100_000)]
        await scheduler.enqueue_many("report", args, delay=3600)
    print(f"{(path.stat().st_size - empty) / 100_000:.0f} bytes a pending run on disk (bar 400)")


def idle(url: str, seconds: float) -> None:
    command = [sys.executable, "-m", "horarium", "serve", "--port", "0", "--store", url]
    started = time.perf_counter()
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert server.stderr is not None
    line = server.stderr.readline()
    ready = time.perf_counter() - started
    url = next(word for word in line.split() if word.startswith("http://"))
    urllib.request.urlopen(f"{url}/readyz").read()
    process = psutil.Process(server.pid)
    time.sleep(3)
    before = process.cpu_times()
    time.sleep(seconds)
    after = process.cpu_times()
    used = (after.user + after.system - before.user - before.system) / seconds
    print(f"idle server: {used * 100:.2f}% of a core, {process.memory_info().rss / 1e6:.0f} MB, up in {ready:.2f} s")
    server.terminate()
    server.wait(20)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", nargs="*", default=["burst", "recurring", "flat", "idle"])
    parser.add_argument("--store", default="sqlite", help=f"one of {', '.join(NAMES)}, or a URL")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--processes", type=int, default=None, help="of recurring; 2, on SQLite 1")
    parser.add_argument("--jobs", type=int, default=100_000, help="of flat, where most are not due")
    parser.add_argument("--finished", type=int, default=100_000, help="runs of flat that are there beforehand")
    options = parser.parse_args(arguments)
    if options.what == ["worker"]:
        asyncio.run(worker(options.store))
        return
    for what in options.what:
        with tempfile.TemporaryDirectory() as folder, a_store(options.store, Path(folder)) as url:
            match what:
                case "burst":
                    asyncio.run(burst(url))
                case "recurring":
                    asyncio.run(recurring(url, options.seconds, options.processes or (1 if "sqlite" in url else 2)))
                case "flat":
                    asyncio.run(flat_planning(url, options.jobs))
                    asyncio.run(flat_claims(url, options.finished))
                    if "sqlite" in url:
                        asyncio.run(bytes_a_run(Path(folder)))
                case "idle":
                    idle(url, min(options.seconds, 20.0))
                case _:
                    parser.error(f"what is {what!r}? one of burst, recurring, flat, idle")


if __name__ == "__main__":
    main()
