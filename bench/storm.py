"""Many clients that trigger one job at once, through the REST API of one server process.

    python -m bench.storm [--clients N] [--seconds N] [--overlap POLICY] [--waiting N] [STORE ...]

STORE: `sqlite`, `postgres`, `redis`, `valkey`, `mongo` (a server is started for it), or a URL. `--waiting`: runs of the
job that wait already. The clients are one process beside the server, which takes its share of the cores. Exit status 1
if a request was refused.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from pathlib import Path

from bench.http_client import Connection, Served, served
from bench.stores import NAMES, a_store

JOB = "/api/v1/jobs/storm"
WARM_UP_SECONDS = 1.0


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


async def storm(url: str, clients: int, seconds: float) -> tuple[list[float], int]:
    """Seconds of each request that was answered in time to count, and how many were refused."""
    connections = [await Connection.open(url) for _ in range(clients)]
    begins = time.perf_counter() + WARM_UP_SECONDS
    ends = begins + seconds
    took: list[float] = []
    refused = 0

    async def client(connection: Connection) -> None:
        nonlocal refused
        while (asked := time.perf_counter()) < ends:
            status, _ = await connection.ask("POST", f"{JOB}/trigger", b"{}")
            refused += status != 201
            if status == 201 and begins <= (done := time.perf_counter()) < ends:
                took.append(done - asked)

    await asyncio.gather(*map(client, connections))
    for connection in connections:
        connection.close()
    return took, refused


def measure(server: Served, name: str, given: argparse.Namespace) -> int:
    """How many requests were refused."""
    asyncio.run(define(server.url, given.overlap, given.waiting))
    before = server.cpu_seconds
    took, refused = asyncio.run(storm(server.url, given.clients, given.seconds))
    took.sort()
    cpu = (server.cpu_seconds - before) / (given.seconds + WARM_UP_SECONDS)
    p50, p99 = (took[len(took) * part // 100] * 1e3 if took else float("nan") for part in (50, 99))
    print(
        f"{name:<10} {given.clients} clients, one job ({given.overlap}, {given.waiting:,} waiting): "
        f"{len(took) / given.seconds:7,.0f} triggers/s, {refused} refused, p50 {p50:.0f} ms, p99 {p99:.0f} ms, "
        f"server {cpu:.0%} of a core",
        flush=True,
    )
    return refused


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stores", nargs="*", help=f"{', '.join(NAMES)}, or URLs (default: sqlite)")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--overlap", default="allow")
    parser.add_argument("--waiting", type=int, default=0)
    given = parser.parse_args(arguments)
    refused = 0
    with tempfile.TemporaryDirectory() as folder:
        for name in given.stores or ["sqlite"]:
            with a_store(name, Path(folder)) as url, served(url) as server:
                refused += measure(server, name, given)
    return 1 if refused else 0


if __name__ == "__main__":
    raise SystemExit(main())
