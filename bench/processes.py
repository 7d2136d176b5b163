"""Several processes on one store: what a second one adds, and whether they share recurring jobs.

    python -m bench.processes [throughput] [recurring] [--store URL] [--runs N] [--rounds N] [--seconds N]

    throughput  no-op handler runs by one process and by two, turn by turn on the same store
    recurring   1,000 jobs that fire every second over two processes: missed, started twice, lateness

Without --store a PostgreSQL is started for the occasion. Lateness is the start of the attempt, as the handler sees it,
minus the instant it was due.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from typing import Any

import asyncpg  # type: ignore[import-untyped]
import psutil

from bench.lateness import JOBS, quantile
from bench.postgres_store import a_server
from horarium import Scheduler
from horarium.node.backends import make_store

DRAIN_SECONDS = 120.0
SETTLED_SECONDS = 3.0
"""The first seconds of `recurring`, which don't count: the jobs have only just been added."""


class Workers:
    """Processes of `bench.worker`, all of which begin at the same moment."""

    def __init__(self, url: str, namespace: str, count: int) -> None:
        command = [sys.executable, "-m", "bench.worker", url, namespace]
        self._processes = [
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(count)
        ]
        for process in self._processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"

    def begin(self) -> None:
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()

    def end(self) -> list[dict[str, Any]]:
        """Stop them all; what each did."""
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.close()
        return [json.loads(process.stdout.read()) for process in self._processes if process.stdout is not None]


async def postmaster(url: str) -> psutil.Process | None:
    """The process that all of a PostgreSQL on this machine come from; None for any other store."""
    if not url.startswith("postgresql"):
        return None
    connection = await asyncpg.connect(url)
    pid = await connection.fetchval("SELECT pid FROM pg_stat_activity WHERE backend_type = 'checkpointer'")
    await connection.close()
    return psutil.Process(pid).parent()


def cpu_of(server: psutil.Process | None) -> float:
    """CPU seconds of a server and of all that it started, ended ones included."""
    if server is None:
        return 0.0
    own = server.cpu_times()
    total = own.user + own.system + own.children_user + own.children_system
    for process in server.children():
        with suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system
    return float(total)


async def throughput_round(url: str, count: int, processes: int) -> tuple[float, float, float]:
    """Runs a second, CPU of all workers (microseconds a run), and cores that the database used."""
    namespace = f"processes-{os.urandom(4).hex()}"
    async with Scheduler(url, namespace=namespace) as scheduler:
        await scheduler.enqueue_many("report", [{"to": "somebody", "number": index} for index in range(count)])
        workers = Workers(url, namespace, processes)
        server = await postmaster(url)
        wall, database = time.perf_counter(), cpu_of(server)
        workers.begin()
        async with asyncio.timeout(DRAIN_SECONDS):
            while (await scheduler.stats()).queues:
                await asyncio.sleep(0.02)
        wall, database = time.perf_counter() - wall, cpu_of(server) - database
        did = workers.end()
    assert sum(one["count"] for one in did) == count, "every run was performed once"
    return count / wall, sum(one["cpu"] for one in did) / count * 1e6, database / wall


async def throughput(url: str, count: int, rounds: int) -> None:
    figures: dict[int, list[tuple[float, float, float]]] = {1: [], 2: []}
    for number in range(rounds):
        for processes in (1, 2) if number % 2 else (2, 1):
            figures[processes].append(await throughput_round(url, count, processes))
    for processes, values in figures.items():
        speeds = [value[0] for value in values]
        cpu, database = (statistics.median(value[place] for value in values) for place in (1, 2))
        print(
            f"{processes} process(es): {statistics.median(speeds):9,.0f}/s  ({min(speeds):,.0f} to {max(speeds):,.0f})"
            f"  CPU {cpu:5.1f} us a run, database {database:.2f} cores"
        )
    pairs = zip(figures[2], figures[1], strict=True)
    print(f"two processes: {statistics.median(two[0] / one[0] for two, one in pairs):.2f} of one (bar 1.00)")


async def begun_until(url: str, namespace: str, last: float) -> None:
    """Return once all that fell due until then was planned and begun: what is late is late, not missed."""
    store, until = make_store(url, namespace), int(last * 1e6)
    await store.open()
    async with asyncio.timeout(DRAIN_SECONDS):
        while True:
            unplanned, _ = await store.due_jobs(until, 1)
            queues = (await store.stats(until)).queues
            if not unplanned and all(queue.due == 0 and queue.running == 0 for queue in queues):
                break
            await asyncio.sleep(0.1)
    await store.close()


async def recurring(url: str, seconds: float) -> None:
    namespace = f"recurring-{os.urandom(4).hex()}"
    async with Scheduler(url, namespace=namespace) as scheduler:
        for index in range(JOBS):
            trigger = {"type": "cron", "expression": "* * * * * *"}
            await scheduler.add_job(f"job-{index}", trigger, handler="tick")
        workers = Workers(url, namespace, 2)
        workers.begin()
        first = time.time() + SETTLED_SECONDS
        await asyncio.sleep(SETTLED_SECONDS + seconds)
        last = time.time() - 1
        await begun_until(url, namespace, last)
        did = workers.end()
    starts = [start for one in did for start in one["starts"]]
    counted = Counter((job, fire) for job, fire, _ in starts)
    late = [lateness for _, fire, lateness in starts if first <= fire <= last]
    instants = range(int(first) + 1, int(last) + 1)
    missed = sum((f"job-{index}", float(at)) not in counted for at in instants for index in range(JOBS))
    shares = " + ".join(f"{len(one['starts']):,}" for one in did)
    cpu = " + ".join(f"{one['cpu'] / (seconds + SETTLED_SECONDS):.2f}" for one in did)
    print(
        f"1,000 jobs every second for {seconds:g} s over two processes ({shares} starts; {cpu} of a core):"
        f" {missed} missed of {JOBS * len(instants):,}, {sum(n > 1 for n in counted.values())} twice,"
        f" early {sum(value < 0 for value in late)}, p50 {quantile(late, 0.5) * 1000:.0f} ms,"
        f" p99 {quantile(late, 0.99) * 1000:.0f} ms (bar 250), max {max(late) * 1000:.0f} ms"
    )


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", default=["throughput", "recurring"])
    parser.add_argument("--store", help="a store to use instead of a PostgreSQL of its own")
    parser.add_argument("--runs", type=int, default=40_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=60.0)
    given = parser.parse_args(arguments)
    with a_server(given.store) as url:
        for what in given.what:
            match what:
                case "throughput":
                    asyncio.run(throughput(url, given.runs, given.rounds))
                case "recurring":
                    asyncio.run(recurring(url, given.seconds))
                case _:
                    parser.error(f"what is {what!r}? one of throughput, recurring")


if __name__ == "__main__":
    main()
