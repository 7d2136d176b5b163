"""Whether a server that works for a long time stays as it is: memory, descriptors and lateness, minute by minute.

    python -m bench.soak [--minutes 15] [--warm-up 4] [--jobs 300] [--churn 1] [--store NAME|URL] [--flags ...]

A `horarium serve` in a process of its own delivers so many jobs each second to an endpoint in this process. Beside them
three clients list jobs and runs, one reads the metrics, twenty workers wait by long poll and hang up at random moments,
and one client triggers and patches a job each second, and makes and deletes one (`--churn`: so many). Finished runs are
kept for half a minute, so that the store comes to rest too.

Lateness is the arrival at the endpoint less the fire time. Exit status 1 if, after the warm-up, the memory of the last
minutes is more than 2 % above that of the first ones, if a descriptor more is open at the quietest moment of the last
minutes than at that of the first ones, or if a fire time was lost or delivered twice.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from bench.http_client import Connection, Served, served
from bench.lateness import quantile
from bench.stores import NAMES, a_store

GROWTH_MAX = 1.02
KEPT_SECONDS = 30
HELD_UP_SECONDS = 5.0
POLLERS, LISTERS = 20, 3
LATEST_SECONDS = 60.0
"""How long after its fire time a delivery is waited for at the end."""
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
_FIRE_AT = re.compile(rb"^horarium-fire-at: (\S+)", re.IGNORECASE | re.MULTILINE)
_JOB = re.compile(rb"^horarium-job: (\S+)", re.IGNORECASE | re.MULTILINE)
_LENGTH = re.compile(rb"^content-length: (\d+)", re.IGNORECASE | re.MULTILINE)


class Endpoint(asyncio.Protocol):
    """Takes deliveries: `seen` counts (job, fire time), `late` holds how late those of this minute came."""

    def __init__(self, seen: Counter[tuple[str, int]], late: list[float]) -> None:
        self._seen, self._late = seen, late
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while (end := self._buffer.find(b"\r\n\r\n")) >= 0:
            head, now = self._buffer[: end + 2], time.time()
            length = _LENGTH.search(head)
            size = end + 4 + (int(length[1]) if length else 0)
            if len(self._buffer) < size:
                return
            self._buffer = self._buffer[size:]
            job, at = _JOB.search(head), _FIRE_AT.search(head)
            assert job is not None
            assert at is not None
            fire_at = datetime.fromisoformat(at[1].decode()).timestamp()
            if job[1].startswith(b"job-"):
                self._seen[job[1].decode(), round(fire_at)] += 1
                self._late.append(now - fire_at)
            self._transport.write(ANSWER)


def job(endpoint: str) -> dict[str, object]:
    return {
        "trigger": {"type": "cron", "expression": "* * * * * *"},
        "target": {"type": "http", "url": endpoint},
        "retention": {"finished_seconds": KEPT_SECONDS},
    }


async def put(connection: Connection, name: str, definition: dict[str, object]) -> None:
    status, body = await connection.ask("PUT", f"/api/v1/jobs/{name}", json.dumps(definition).encode())
    assert status in (200, 201), body


# ---- clients ----------------------------------------------------------------------------------------------------


async def read(url: str, *paths: str) -> None:
    """A client that looks at these, over and over."""
    connection = await Connection.open(url)
    while True:
        for path in paths:
            status, body = await connection.ask("GET", path)
            assert status == 200, body
            await asyncio.sleep(0.5)


async def poll(url: str, number: int) -> None:
    """A worker that waits for runs, and hangs up at some moment."""
    wait = {"queues": [f"soak-{number % 5}"], "limit": 1, "wait_seconds": 20, "worker": f"worker-{number}"}
    while True:
        connection = await Connection.open(url)
        with suppress(TimeoutError):
            async with asyncio.timeout(random.uniform(0.5, 10.0)):
                await connection.ask("POST", "/api/v1/runs/claim", json.dumps(wait).encode())
        connection.close()


async def edit(url: str, endpoint: str, churn: int) -> None:
    """A client that changes a job, asks for runs, and each second makes and deletes so many jobs."""
    connection = await Connection.open(url)
    await put(connection, "edited", job(endpoint))
    body = json.dumps(job(endpoint)).encode()
    number, due = 0, time.monotonic()
    while True:
        number += 1
        asked = [("PATCH", "edited", json.dumps({"priority": number % 100}).encode())] if number % churn == 0 else []
        asked += [("POST", "edited/trigger", b"")] if number % churn == 0 else []
        for method, name, given in (*asked, ("PUT", f"made-{number}", body), ("DELETE", f"made-{number}", b"")):
            status, answer = await connection.ask(method, f"/api/v1/jobs/{name}", given)
            assert status < 300, (method, name, status, answer)
        due = max(due + 1 / churn, time.monotonic())
        await asyncio.sleep(due - time.monotonic())


# ---- looking ----------------------------------------------------------------------------------------------------


class Memory(NamedTuple):
    """In bytes. `own`: without the pages of files (the interpreter, libraries, a store's file)."""

    all: int
    own: int


class Minute:
    """What was seen within one minute."""

    def __init__(self, number: int, memory: list[Memory], files: list[int], late: list[float], cores: float) -> None:
        self.number = number
        self.memory = sum(each.all for each in memory) / len(memory) / 1e6
        self.own = sum(each.own for each in memory) / len(memory) / 1e6
        self.files = min(files)
        self.held_up = quantile(late, 0.99) > HELD_UP_SECONDS
        share = f"p50 {quantile(late, 0.5):.3f} s, p99 {quantile(late, 0.99):.3f} s, max {max(late):.3f} s"
        print(
            f"minute {number:>3}: RSS {self.memory:6.2f} MB ({self.own:.2f} without files), "
            f"descriptors {min(files)} to {max(files)}, {len(late):,} deliveries, {share}, {cores:.2f} cores",
            flush=True,
        )


async def look(server: Served, number: int, late: list[float]) -> Minute:
    late.clear()
    before = server.cpu_seconds
    memory, files = [], []
    for _ in range(120):
        await asyncio.sleep(0.5)
        memory.append(Memory(server.memory_bytes, server.own_memory_bytes))
        files.append(server.statistics.num_fds())
    return Minute(number, memory, files, late.copy() or [0.0], (server.cpu_seconds - before) / 60)


def verdict(minutes: list[Minute], warm_up: int) -> bool:
    """Whether what came after the warm-up is flat: its first third against its last."""
    rest = minutes[warm_up:]
    third = max(1, len(rest) // 3)
    first, last = rest[:third], rest[-third:]
    before, after = (sum(each.memory for each in part) / third for part in (first, last))
    own = tuple(sum(each.own for each in part) / third for part in (first, last))
    files = min(each.files for each in first), min(each.files for each in last)
    print(
        f"after {warm_up} minutes: RSS {before:.2f} MB, at the end {after:.2f} MB, x {after / before:.3f} (bar "
        f"{GROWTH_MAX}); without pages of files {own[0]:.2f} to {own[1]:.2f} MB, x {own[1] / own[0]:.3f}; "
        f"descriptors {files[0]} to {files[1]}, {files[1] - files[0]:+d} (bar 0)"
    )
    if held_up := [str(each.number) for each in minutes if each.held_up]:
        print(
            f"1 in 100 came over {HELD_UP_SECONDS:g} s late in minutes {', '.join(held_up)}: the machine was busy with "
            "other things, and what a backlog takes stays with the allocator"
        )
    return after / before <= GROWTH_MAX and files[1] <= files[0]


async def soak(store: str, minutes: int, warm_up: int, jobs: int, churn: int, flags: list[str]) -> bool:
    seen: Counter[tuple[str, int]] = Counter()
    late: list[float] = []
    listener = await asyncio.get_running_loop().create_server(lambda: Endpoint(seen, late), "127.0.0.1", 0)
    endpoint = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}/"
    with served(store, "--allow-private-targets", *flags) as server:
        lines = server.count_lines()
        connection = await Connection.open(server.url)
        for number in range(jobs):
            await put(connection, f"job-{number}", job(endpoint))
        connection.close()
        lists = "/api/v1/runs?limit=100", "/api/v1/jobs?limit=100", "/api/v1/stats"
        clients = [asyncio.create_task(read(server.url, *lists)) for _ in range(LISTERS)]
        clients.append(asyncio.create_task(read(server.url, "/metrics", "/healthz", "/readyz")))
        clients += [asyncio.create_task(poll(server.url, number)) for number in range(POLLERS)]
        clients.append(asyncio.create_task(edit(server.url, endpoint, churn)))
        begin = int(time.time()) + 2
        looked = [await look(server, number, late) for number in range(1, minutes + 1)]
        end = int(time.time()) - 1
        failed = [task.exception() for task in clients if task.done()]
        for task in clients:
            task.cancel()
        owed = [(f"job-{number}", at) for number in range(jobs) for at in range(begin, end)]
        deadline = time.monotonic() + LATEST_SECONDS
        while time.monotonic() < deadline and not all(seen[each] for each in owed):
            await asyncio.sleep(0.5)
    listener.close()
    lost, again = sum(not seen[each] for each in owed), sum(seen[each] > 1 for each in owed)
    print(f"{len(owed):,} fire times owed, {lost} lost, {again} delivered twice; {lines[0]} lines logged")
    for error in failed:
        print(f"a client failed: {error!r}")
    return verdict(looked, warm_up) and not (lost or again or failed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=int, default=15)
    parser.add_argument("--warm-up", type=int, default=4, help="minutes that are not judged")
    parser.add_argument("--jobs", type=int, default=300)
    parser.add_argument("--churn", type=int, default=1, help="jobs that are made and deleted each second")
    parser.add_argument("--store", default="sqlite", help=f"one of {', '.join(NAMES)}, or a URL")
    parser.add_argument("--flags", nargs=argparse.REMAINDER, default=[], help="for the server")
    options = parser.parse_args()
    if options.minutes <= options.warm_up:
        parser.error("--minutes must be more than --warm-up")
    with tempfile.TemporaryDirectory() as folder, a_store(options.store, Path(folder)) as url:
        flat = asyncio.run(soak(url, options.minutes, options.warm_up, options.jobs, options.churn, options.flags))
    sys.exit(0 if flat else 1)


if __name__ == "__main__":
    main()
