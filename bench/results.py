"""Callers that wait for the result of a run: what they cost, and how long after its end they are answered.

    python -m bench.results [--waiting 1000] [--rates 2,20,100] [--seconds 15] [sqlite postgres valkey redis mongo]

One server holds `--waiting` requests with `wait_seconds`, for runs that do not end. First nothing happens: the CPU of
the server. Then further runs, one caller each, are performed by a process of its own, at random instants and at these
rates: from `finished_at` of the run, which that process sets before it writes the end, to the last byte of the answer.
The first rate is measured without the others that wait too, since on a busy machine most of it is no cost of theirs.
Exit status 1 where the waiting cost 3 % of a core or more, or the median of the first rate is 20 ms or more.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from bench.http_client import Connection, Served, served
from bench.lateness import quantile
from bench.stores import NAMES, a_store
from horarium import RunContext, Scheduler

SETTLES_SECONDS, LEAD_SECONDS = 5.0, 0.4
CPU_BAR, MEDIAN_MS_BAR = 0.03, 20.0


async def perform(url: str) -> None:
    """Perform the runs, until the input ends."""
    async with Scheduler(url) as scheduler:

        @scheduler.handler("probe")
        async def probe(run: RunContext) -> None: ...

        await scheduler.start()
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.read)


async def made(connection: Connection, delay_seconds: float) -> str:
    """A run that falls due so long from now."""
    run: dict[str, Any] = {"target": {"type": "handler", "name": "probe"}, "delay_seconds": delay_seconds}
    status, answer = await connection.ask("POST", "/api/v1/runs", json.dumps(run).encode())
    assert status == 201, answer
    return str(json.loads(answer)["id"])


async def wait(connection: Connection, run_id: str) -> float:
    """Seconds from the end of the run to the answer."""
    while True:
        _, answer = await connection.ask("GET", f"/api/v1/runs/{run_id}?wait_seconds=60")
        if finished := json.loads(answer)["finished_at"]:
            return connection.received_at - datetime.fromisoformat(finished).timestamp()


async def spent(server: Served, seconds: float) -> float:
    before = server.cpu_seconds
    await asyncio.sleep(seconds)
    return (server.cpu_seconds - before) / seconds


async def probes(server: Served, rate: float, seconds: float) -> tuple[list[float], float]:
    """How late each answer came, and the CPU of the server meanwhile."""

    async def probe() -> float:
        await asyncio.sleep(random.uniform(0, seconds))
        connection = await Connection.open(server.url)
        late = await wait(connection, await made(connection, LEAD_SECONDS))
        connection.close()
        return late

    before = server.cpu_seconds
    late = await asyncio.gather(*(probe() for _ in range(round(rate * seconds))))
    return sorted(late), (server.cpu_seconds - before) / seconds


async def measure(server: Served, waiting: int, rates: Sequence[float], seconds: float) -> tuple[float, float]:
    """Print it; the CPU without ends, and the median in milliseconds at the first rate."""
    alone = await spent(server, seconds)
    await say(server, rates[0], seconds)
    first = await Connection.open(server.url)
    ids = [await made(first, 86_400) for _ in range(waiting)]
    tasks = [asyncio.create_task(wait(await Connection.open(server.url), run_id)) for run_id in ids]
    await asyncio.sleep(SETTLES_SECONDS)
    held = await spent(server, seconds)
    print(f"  {waiting:,} wait: {held:.2%} of a core (nobody: {alone:.2%})", flush=True)
    medians = [await say(server, rate, seconds) for rate in rates]
    for task in tasks:
        task.cancel()
    return held, medians[0]


async def say(server: Served, rate: float, seconds: float) -> float:
    """Print how late the answers were; the median in milliseconds."""
    late, used = await probes(server, rate, seconds)
    found = {name: 1000 * quantile(late, part) for name, part in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99))}
    said = ", ".join(f"{name} {value:.1f}" for name, value in found.items())
    print(f"  {rate:g} ends a second elsewhere: {said} ms after the end; server {used:.1%}", flush=True)
    return found["p50"]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stores", nargs="*", metavar="STORE", help=f"of {', '.join(NAMES)}, or URLs")
    parser.add_argument("--waiting", type=int, default=1000)
    parser.add_argument("--rates", default="2,20,100", help="ends a second")
    parser.add_argument("--seconds", type=float, default=15.0, help="for each measurement")
    parser.add_argument("--performer", metavar="URL", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.performer:
        asyncio.run(perform(given.performer))
        return 0
    kept = True
    for name in given.stores or ("sqlite", "postgres", "valkey"):
        with tempfile.TemporaryDirectory() as folder, a_store(name, Path(folder)) as url, served(url) as server:
            print(name)
            command = [sys.executable, "-m", "bench.results", "--performer", url]
            with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
                assert other.stdin is not None
                assert other.stdout is not None
                other.stdout.readline()
                rates = [float(rate) for rate in given.rates.split(",")]
                held, median = asyncio.run(measure(server, given.waiting, rates, given.seconds))
                other.stdin.close()
            kept &= held < CPU_BAR and median < MEDIAN_MS_BAR
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
