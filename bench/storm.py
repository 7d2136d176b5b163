"""Many clients that ask for something of one job at once, through the REST API of one server process.

    python -m bench.storm [--ask trigger|patch|pause|backfill|all] [--clients N] [--seconds N] [--overlap POLICY]
        [--waiting N] [--flags ...] [STORE ...]

STORE: `sqlite`, `postgres`, `redis`, `valkey`, `mongo` (a server is started for it), or a URL. `--ask pause`: pauses
and resumes in turn; `all`: all four, mixed. `--waiting`: runs of the job that wait already. The clients are one process
beside the server, which takes its share of the cores. Exit status 1 if a request was refused.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from bench.http_client import Connection, Served, served
from bench.stores import NAMES, a_store

JOB = "/api/v1/jobs/storm"
WARM_UP_SECONDS = 1.0


Request = tuple[str, str, bytes]


def _backfill(number: int) -> bytes:
    """One fire time, another one for each number."""
    day, hour = divmod(number, 24)
    start = datetime(2021, 1, 1, hour, tzinfo=UTC) + timedelta(days=day)
    return json.dumps({"start": start.isoformat(), "end": (start + timedelta(minutes=30)).isoformat()}).encode()


def requests(ask: str) -> Iterator[Request]:
    """What the clients ask for, one after the other."""
    for number in itertools.count():
        kinds: dict[str, Request] = {
            "trigger": ("POST", f"{JOB}/trigger", b"{}"),
            "patch": ("PATCH", JOB, json.dumps({"priority": number % 100}).encode()),
            "pause": ("POST", f"{JOB}/{'resume' if number % 2 else 'pause'}", b""),
            "backfill": ("POST", f"{JOB}/backfill", _backfill(number)),
        }
        yield kinds[ask] if ask != "all" else list(kinds.values())[number // 2 % 4]


async def define(url: str, overlap: str, waiting: int) -> None:
    """The job, with runs that wait already."""
    connection = await Connection.open(url)
    job = {
        "trigger": {"type": "interval", "every_seconds": 3600, "anchor": "2020-01-01T00:00:00Z"},
        "target": {"type": "queue", "queue": "storm"},
        "overlap": overlap,
    }
    status, body = await connection.ask("PUT", JOB, json.dumps(job).encode())
    assert status in (200, 201), body
    start = "2020-01-01T00:00:00Z"
    for _ in range(0, waiting, 1_000):
        asked = {"start": start, "end": "2026-01-01T00:00:00Z"}
        status, body = await connection.ask("POST", f"{JOB}/backfill", json.dumps(asked).encode())
        assert status == 201, body
        start = json.loads(body)["next_start"] or start
    connection.close()


async def storm(url: str, ask: str, clients: int, seconds: float) -> tuple[list[float], Counter[int], int]:
    """Seconds of each request that was answered in time to count, the refusals by status, and how many were asked."""
    connections = [await Connection.open(url) for _ in range(clients)]
    begins = time.perf_counter() + WARM_UP_SECONDS
    ends = begins + seconds
    took: list[float] = []
    refused: Counter[int] = Counter()
    asks = requests(ask)
    count = 0

    async def client(connection: Connection) -> None:
        nonlocal count
        while (asked := time.perf_counter()) < ends:
            status, _ = await connection.ask(*next(asks))
            count += 1
            if status >= 300:
                refused[status] += 1
            elif begins <= (done := time.perf_counter()) < ends:
                took.append(done - asked)

    await asyncio.gather(*map(client, connections))
    for connection in connections:
        connection.close()
    return took, refused, count


def measure(server: Served, name: str, given: argparse.Namespace) -> int:
    """How many requests were refused."""
    asyncio.run(define(server.url, given.overlap, given.waiting))
    before = server.cpu_seconds
    took, refused, count = asyncio.run(storm(server.url, given.ask, given.clients, given.seconds))
    took.sort()
    cpu = server.cpu_seconds - before
    p50, p99 = (took[len(took) * part // 100] * 1e3 if took else float("nan") for part in (50, 99))
    print(
        f"{name:<10} {given.ask}, {given.clients} clients, one job ({given.overlap}, {given.waiting:,} waiting): "
        f"{len(took) / given.seconds:7,.0f}/s, refused {dict(refused) or 0}, p50 {p50:.0f} ms, p99 {p99:.0f} ms, "
        f"server {cpu / (given.seconds + WARM_UP_SECONDS):.0%} of a core, {cpu / max(1, count) * 1e3:.2f} ms a request",
        flush=True,
    )
    return refused.total()


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stores", nargs="*", help=f"{', '.join(NAMES)}, or URLs (default: sqlite)")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--overlap", default="allow")
    parser.add_argument("--waiting", type=int, default=0)
    parser.add_argument("--ask", default="trigger", choices=("trigger", "patch", "pause", "backfill", "all"))
    parser.add_argument("--flags", nargs=argparse.REMAINDER, default=[], help="for the server")
    given = parser.parse_args(arguments)
    refused = 0
    with tempfile.TemporaryDirectory() as folder:
        for name in given.stores or ["sqlite"]:
            with a_store(name, Path(folder)) as url, served(url, *given.flags) as server:
                refused += measure(server, name, given)
    return 1 if refused else 0


if __name__ == "__main__":
    raise SystemExit(main())
