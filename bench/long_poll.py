"""Workers by HTTP long-poll: from due to received, what a waiting worker costs, and whether all get their share.

    python -m bench.long_poll [sqlite] [postgres] [--workers 200,1000] [--rate 50] [--seconds 15] [--rounds 1]

    sqlite    one `horarium serve`, everything in it, on a file
    postgres  two processes on one database: one only plans, the other only answers the claims

The workers are bare connections in one process of their own, each always waiting (limit 1, wait_seconds 60); what
they get is settled in groups over one more connection. Runs fall due one by one at random instants, `--rate` a second,
then in bursts of 50, two seconds apart. Latency is the worker's clock when the answer is in its hands, less the run's
`due_at`.
Exit status 1 if with 200 workers p50 is 10 ms or more or p99 100 ms or more at the random instants, or if any run was
lost or received twice.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import count
from typing import Any

import psutil

from bench.http_client import Connection, Served, served
from bench.lateness import quantile

QUEUE = "bench"
BURSTS, BURST_RUNS, BURST_PAUSE = 5, 50, 2.0
IDLE_SECONDS = 5.0
P50_MS_BAR, P99_MS_BAR = 10.0, 100.0
WAIT = json.dumps({"queues": [QUEUE], "limit": 1, "wait_seconds": 60, "worker": "worker-%d"})

Received = tuple[str, str, float]
"""Job, run, latency in seconds."""


# ---- the workers: a process of their own ------------------------------------------------------------------------


class Workers:
    """So many connections that wait."""

    def __init__(self, url: str, number: int) -> None:
        self._url = url
        self._number = number
        self.received: list[Received] = []
        self.counts: Counter[int] = Counter()
        self._ended: list[dict[str, Any]] = []
        self._some = asyncio.Event()

    async def work(self, number: int) -> None:
        connection = await Connection.open(self._url)
        body = (WAIT % number).encode()
        while True:
            status, answer = await connection.ask("POST", "/api/v1/runs/claim", body)
            if status == 204:
                continue
            assert status == 200, answer
            run = json.loads(answer)["runs"][0]
            due_at = datetime.fromisoformat(run["due_at"]).timestamp()
            self.received.append((run["job"], run["id"], connection.received_at - due_at))
            self.counts[number] += 1
            self._ended.append({"id": run["id"], "token": run["lease"]["token"], "outcome": "completed"})
            self._some.set()

    async def settle(self) -> None:
        await self._some.wait()  # a connection that asks nothing is closed
        connection = await Connection.open(self._url)
        while True:
            await self._some.wait()
            await asyncio.sleep(0.05)
            self._some.clear()
            ended, self._ended = self._ended, []
            status, answer = await connection.ask("POST", "/api/v1/runs/settle", json.dumps(ended).encode())
            assert status == 200, answer

    async def run(self) -> None:
        """Until a line comes in on standard input; then print what was received."""
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        threading.Thread(
            target=lambda: (sys.stdin.readline(), loop.call_soon_threadsafe(stop.set)), daemon=True
        ).start()
        tasks = [asyncio.create_task(self.settle())]
        for first in range(0, self._number, 100):
            tasks += [asyncio.create_task(self.work(n)) for n in range(first, min(first + 100, self._number))]
            await asyncio.sleep(0.05)
        stopping = asyncio.create_task(stop.wait())
        done, _ = await asyncio.wait({stopping, *tasks}, return_when=asyncio.FIRST_COMPLETED)
        for task in done - {stopping}:
            task.result()
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        counts = [self.counts[number] for number in range(self._number)]
        print(json.dumps({"received": self.received, "counts": counts}))


# ---- the measurement --------------------------------------------------------------------------------------------


def fire_times(rate: float, seconds: float, chance: random.Random) -> tuple[list[float], list[float]]:
    """Seconds from the beginning: at random, and in bursts thereafter."""
    single = sorted(chance.uniform(0, seconds) for _ in range(round(rate * seconds)))
    bursts = [seconds + BURST_PAUSE * (number + 1) for number in range(BURSTS) for _ in range(BURST_RUNS)]
    return single, bursts


async def add_jobs(url: str, prefix: str, at: list[tuple[str, float]]) -> None:
    """A job for each instant."""
    todo = iter(list(zip(count(), at, strict=False)))

    async def add() -> None:
        connection = await Connection.open(url)
        for number, (kind, instant) in todo:
            job = {
                "name": f"{prefix}.{kind}.{number}",
                "trigger": {"type": "once", "at": datetime.fromtimestamp(instant, UTC).isoformat()},
                "target": {"type": "queue", "queue": QUEUE},
            }
            status, body = await connection.ask("POST", "/api/v1/jobs", json.dumps(job).encode())
            assert status == 201, body
        connection.close()

    await asyncio.gather(*(add() for _ in range(8)))


async def waiting(url: str) -> int:
    connection = await Connection.open(url)
    _, body = await connection.ask("GET", "/api/v1/stats")
    connection.close()
    return int(json.loads(body)["workers_waiting"])


def until_waiting(url: str, number: int) -> None:
    deadline = time.monotonic() + 60
    while asyncio.run(waiting(url)) < number:
        assert time.monotonic() < deadline, "the workers did not all come to wait"
        time.sleep(0.1)


def measure(name: str, server: Served, number: int, rate: float, seconds: float) -> bool:
    """One round; prints its lines. Whether it holds what we promise."""
    before = server.memory_bytes
    command = [sys.executable, "-m", "bench.long_poll", "--client", server.url, str(number)]
    workers = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    client = psutil.Process(workers.pid)
    until_waiting(server.url, number)
    memory = (server.memory_bytes - before) / number
    cpu = server.cpu_seconds
    time.sleep(IDLE_SECONDS)
    idle = (server.cpu_seconds - cpu) / IDLE_SECONDS
    single, bursts = fire_times(rate, seconds, random.Random(number))
    began = time.time() + 3 + (len(single) + len(bursts)) / 150
    prefix = f"{number}-{round(began)}"
    at = [("single", began + after) for after in single] + [("burst", began + after) for after in bursts]
    asyncio.run(add_jobs(server.url, prefix, at))
    assert time.time() < began, "the machine is too slow: the jobs were not added in time"
    time.sleep(began - time.time())
    cpu, theirs = server.cpu_seconds, sum(client.cpu_times()[:2])
    time.sleep(began + seconds - time.time())
    load = (server.cpu_seconds - cpu) / seconds
    theirs = (sum(client.cpu_times()[:2]) - theirs) / seconds
    time.sleep(began + bursts[-1] + 3 - time.time())
    said = json.loads(workers.communicate("stop\n", timeout=60)[0])
    received: list[Received] = said["received"]
    jobs = Counter(job for job, _, _ in received)
    lost, again = len(at) - len(jobs), len(received) - len(jobs)
    late = {kind: [seconds for job, _, seconds in received if f".{kind}." in job] for kind in ("single", "burst")}
    counts = said["counts"]
    jain = sum(counts) ** 2 / (len(counts) * sum(each * each for each in counts))
    whole, rest = divmod(sum(counts), len(counts))
    best = sum(counts) ** 2 / (len(counts) * (whole**2 * len(counts) + rest * (2 * whole + 1)))
    print(
        f"{name}, {number:,} workers: {memory / 1024:.0f} KiB each; idle {idle:.2%} of a core"
        f" ({idle / number * 1e6:.0f} us/s each), at {rate:g} runs/s {load:.1%} (client {theirs:.0%});"
        f" {lost} lost, {again} twice, {min(counts)} to {max(counts)} runs each, Jain {jain:.3f} of {best:.3f} possible"
    )
    good = lost == again == 0
    for kind, values in late.items():
        p50, p99 = quantile(values, 0.5) * 1000, quantile(values, 0.99) * 1000
        early = sum(value < 0 for value in values)
        bars = f" (bars {P50_MS_BAR:g}, {P99_MS_BAR:g})" if kind == "single" and number == 200 else ""
        print(
            f"    {kind:<7} p50 {p50:6.2f} ms, p99 {p99:6.2f} ms, max {max(values) * 1000:.1f} ms{bars}, early {early}"
        )
        good = good and early == 0 and not (bars and (p50 >= P50_MS_BAR or p99 >= P99_MS_BAR))
    return good


@contextmanager
def servers(kind: str) -> Iterator[Served]:
    """The server that answers claims."""
    if kind == "sqlite":
        with tempfile.TemporaryDirectory() as folder, served(f"sqlite:///{folder}/long_poll.db") as server:
            yield server
            return
    from bench.postgres_store import a_server

    with (
        a_server(None) as url,
        served(url, "--roles", "planner,rescuer,pruner", "--node-name", "plans"),
        served(url, "--roles", "api", "--node-name", "answers") as server,
    ):
        yield server


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", help="sqlite, postgres (default: both)")
    parser.add_argument("--workers", default="200,1000")
    parser.add_argument("--rate", type=float, default=50.0)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--client", nargs=2, metavar=("URL", "NUMBER"), help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.client:
        asyncio.run(Workers(given.client[0], int(given.client[1])).run())
        return 0
    good = True
    for kind in given.kinds or ["sqlite", "postgres"]:
        for number in map(int, given.workers.split(",")):
            for _ in range(given.rounds):
                with servers(kind) as server:
                    good = measure(kind, server, number, given.rate, given.seconds) and good
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
