"""How late runs start: a burst, recurring jobs, an idle server, and jobs that are not due.

    python -m bench.lateness [burst] [recurring] [flat] [idle] [--store URL] [--seconds N]

    burst      10,000 one-off runs due in the same second, spread over 1,000 handlers' worth of one queue
    recurring  1,000 jobs that fire every second, for --seconds
    flat       a planning step with 100 and with 100,000 defined jobs of which 50 are due; memory; start-up; bytes a run
    idle       CPU and memory of `horarium serve` with nothing to do

Lateness is the start of the attempt, as the handler sees it, minus the instant it was due.
"""

from __future__ import annotations

import argparse
import asyncio
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

from horarium import RunContext, Scheduler, every
from horarium.backends import make_store
from horarium.clock import SECOND, SystemClock
from horarium.ports import Store
from horarium.services.planner import Planner
from horarium.signals import LocalSignal
from horarium.telemetry import Telemetry

BURST, JOBS = 10_000, 1_000


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


async def recurring(url: str, seconds: float) -> None:
    late: list[float] = []
    seen: set[tuple[str | None, datetime]] = set()
    scheduler = Scheduler(url)

    @scheduler.handler("tick")
    async def handle(run: RunContext) -> None:
        late.append(time.time() - run.due_at.timestamp())
        seen.add((run.job, run.fire_at))

    async with scheduler:
        for index in range(JOBS):
            await scheduler.add_job(f"job-{index}", {"type": "cron", "expression": "* * * * * *"}, handler="tick")
        await scheduler.start()
        await asyncio.sleep(3)
        late.clear()
        seen.clear()
        cpu, wall = time.process_time(), time.perf_counter()
        first = datetime.now(UTC)
        await asyncio.sleep(seconds)
        core = (time.process_time() - cpu) / (time.perf_counter() - wall)
        await scheduler.stop()
    whole = [fire for _, fire in seen if first + timedelta(seconds=1) <= fire <= first + timedelta(seconds=seconds - 1)]
    show(f"1,000 jobs every second for {seconds:g} s", late)
    expected = JOBS * len(set(whole))
    print(f"    {expected - len(whole)} missed of {expected:,}, {len(late) - len(seen)} repeated, {core:.2f} of a core")


async def planning_step(store: Store, now: int) -> float:
    """Microseconds of a step that plans 50 due jobs."""
    planner = Planner(store, LocalSignal(), Telemetry(), ahead_seconds=0.0)
    started = time.perf_counter()
    await planner.step(now)
    return (time.perf_counter() - started) * 1e6


async def flat(folder: Path) -> None:
    medians: dict[int, float] = {}
    for count in (100, 100_000):
        path = folder / f"flat-{count}.db"
        scheduler = Scheduler(f"sqlite:///{path}")
        async with scheduler:
            await fill(scheduler, count)
        process = psutil.Process()
        before, started = process.memory_info().rss, time.perf_counter()
        store = make_store(f"sqlite:///{path}")
        await store.open()
        now = SystemClock().now()
        samples = [await planning_step(store, now + step * 10 * SECOND) for step in range(1, 60)]
        medians[count] = statistics.median(samples[10:])
        grown = (process.memory_info().rss - before) / 1e6
        print(
            f"{count:>7,} jobs: a step that plans 50 of them takes {medians[count]:,.0f} us (median);"
            f" memory +{grown:.1f} MB; opened and planned within {time.perf_counter() - started:.2f} s"
        )
        await store.close()
    print(f"    ratio {medians[100_000] / medians[100]:.2f} (bar 1.20)")


async def fill(scheduler: Scheduler, count: int) -> None:
    from horarium.definitions import read_definition

    operations = scheduler._runtime.operations
    target = {"type": "handler", "name": "none"}
    busy = [
        {"name": f"due-{index}", "trigger": {"type": "interval", "every_seconds": 10}, "target": target}
        for index in range(50)
    ]
    rest = [
        {"name": f"later-{index}", "trigger": {"type": "interval", "every_seconds": 86_400 * 30}, "target": target}
        for index in range(count - 50)
    ]
    await operations.create_jobs([read_definition(job) for job in busy + rest])


async def bytes_a_run(folder: Path) -> None:
    path = folder / "size.db"
    scheduler = Scheduler(f"sqlite:///{path}")
    async with scheduler:
        await scheduler.add_job("warm", every("1h"), handler="none")
    empty = path.stat().st_size
    async with scheduler:
        args = [{"to": "somebody", "number": 1_234_567_890} for _ in range(100_000)]
        await scheduler.enqueue_many("report", args, delay=3600)
    print(f"{(path.stat().st_size - empty) / 100_000:.0f} bytes a pending run on disk (bar 400)")


def idle(seconds: float) -> None:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "horarium", "serve", "--port", "0", "--store", f"sqlite:///{folder}/idle.db"]
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
        print(
            f"idle server: {used * 100:.2f}% of a core, {process.memory_info().rss / 1e6:.0f} MB, up in {ready:.2f} s"
        )
        server.terminate()
        server.wait(20)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", nargs="*", default=["burst", "recurring", "flat", "idle"])
    parser.add_argument("--store", default=None, help="for burst and recurring (default: a SQLite file)")
    parser.add_argument("--seconds", type=float, default=60.0)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for what in options.what:
            url = options.store or f"sqlite:///{folder / what}-{os.getpid()}.db"
            match what:
                case "burst":
                    asyncio.run(burst(url))
                case "recurring":
                    asyncio.run(recurring(url, options.seconds))
                case "flat":
                    asyncio.run(flat(folder))
                    asyncio.run(bytes_a_run(folder))
                case "idle":
                    idle(min(options.seconds, 20.0))
                case _:
                    parser.error(f"what is {what!r}? one of burst, recurring, flat, idle")


if __name__ == "__main__":
    main()
