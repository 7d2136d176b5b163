"""Runs through the REST API of one server process: claim and settle in batches, on connections that are kept alive.

    python -m bench.api [--runs N] [--rounds N] [--batch N] [--connections N] [STORE ...]
    python -m bench.api --busy [--jobs N] [--rounds N] [--seconds N] [--clients N] [STORE ...]
    python -m bench.api --single [--cases get-job,...] [--requests N] [--rounds N] [--clients 1,1000] [STORE ...]

The runs stand ready (backfilled); the client is a process of its own, whose share of a core is told.
Exit status 1 below 5,000 runs a second. With `--single`, one request at a time beside a bare ASGI application; exit
status 1 above twice its CPU (see bench/single.py). With `--busy`, clients beside a planner that has much to do
(bench/busy.py).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import psutil

from bench.busy import measure as busy
from bench.http_client import Connection, Served, served
from bench.single import single

BAR = 5_000
BACKFILL = 1_000
CLAIM, SETTLE = "/api/v1/runs/claim", "/api/v1/runs/settle"


async def fill(url: str, runs: int, number: int) -> None:
    """A job, and runs for fire times of the past: all are due."""
    connection = await Connection.open(url)
    job = {
        "name": f"round-{number}",
        "trigger": {"type": "interval", "every_seconds": 3600, "anchor": "2020-01-01T00:00:00Z"},
        "target": {"type": "queue", "queue": f"round-{number}", "payload": {"to": "somebody", "number": 1_234_567}},
        "starts_at": "2020-01-01T00:00:00Z",
        "catch_up": {"policy": "none"},
        "enabled": True,
    }
    status, body = await connection.ask("PUT", f"/api/v1/jobs/round-{number}", json.dumps(job).encode())
    assert status in (200, 201), body
    start = datetime(2020, 1, 1, tzinfo=UTC)
    for _ in range(0, runs, BACKFILL):
        end = start + timedelta(hours=BACKFILL)
        asked = {"start": start.isoformat(), "end": end.isoformat()}
        status, body = await connection.ask("POST", f"/api/v1/jobs/round-{number}/backfill", json.dumps(asked).encode())
        assert status == 201, body
        start = end
    connection.close()


async def drain(url: str, queue: str, batch: int, connections: int) -> tuple[int, float]:
    """Claim and settle until nothing is left. Runs, and seconds."""
    claim = json.dumps({"queues": [queue], "limit": batch, "worker": "bench"}).encode()

    async def worker() -> int:
        connection = await Connection.open(url)
        done = 0
        while True:
            status, body = await connection.ask("POST", CLAIM, claim)
            if status == 204:
                connection.close()
                return done
            runs = msgspec.json.decode(body)["runs"]
            reports = [
                {"id": run["id"], "token": run["lease"]["token"], "outcome": "completed", "result": {"ok": True}}
                for run in runs
            ]
            status, body = await connection.ask("POST", SETTLE, msgspec.json.encode(reports))
            assert status == 200, body
            assert all(answer.get("state") == "completed" for answer in msgspec.json.decode(body))
            done += len(runs)

    started = time.perf_counter()
    done = sum(await asyncio.gather(*(worker() for _ in range(connections))))
    return done, time.perf_counter() - started


def client(url: str, queue: str, batch: int, connections: int) -> None:
    """The process that claims: prints what it did."""
    done, seconds = asyncio.run(drain(url, queue, batch, connections))
    times = psutil.Process().cpu_times()
    print(json.dumps({"runs": done, "seconds": seconds, "cpu": times.user + times.system}))


def measure(server: Served, queue: str, batch: int, connections: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "bench.api", "--client", server.url, queue]
    command += ["--batch", str(batch), "--connections", str(connections)]
    before = server.cpu_seconds
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    said: dict[str, Any] = json.loads(done.stdout)
    said["server_cpu"] = server.cpu_seconds - before
    return said


def rounds(store: str, runs: int, count: int, batch: int, connections: int) -> float:
    """The median of the rounds, in runs a second."""
    rates: list[float] = []
    costs: list[float] = []
    clients: list[float] = []
    with served(store) as server:
        for number in range(count):
            asyncio.run(fill(server.url, runs, number))
            said = measure(server, f"round-{number}", batch, connections)
            assert said["runs"] >= runs, said
            rates.append(said["runs"] / said["seconds"])
            costs.append(said["server_cpu"] / said["runs"] * 1e6)
            clients.append(said["cpu"] / said["seconds"])
    kind = store.partition(":")[0]
    print(
        f"{kind:<10} claim + settle by {batch}, {connections} connections: {statistics.median(rates):8,.0f} runs/s "
        f"({min(rates):,.0f} to {max(rates):,.0f}; bar {BAR:,}), server CPU {statistics.median(costs):.0f} us a run, "
        f"client {statistics.median(clients):.0%} of a core"
    )
    return statistics.median(rates)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stores", nargs="*", help="store URLs (default: memory, and a SQLite file)")
    parser.add_argument("--runs", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--connections", type=int, default=4)
    parser.add_argument("--client", nargs=2, metavar=("URL", "QUEUE"), help=argparse.SUPPRESS)
    parser.add_argument("--single", action="store_true", help="single requests beside a bare application")
    parser.add_argument("--busy", action="store_true", help="clients beside a planner")
    parser.add_argument("--jobs", type=int, default=1_000, help="that fire each second, with --busy")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each part of a round, with --busy")
    parser.add_argument("--cases", type=lambda text: text.split(","), default=[])
    parser.add_argument("--requests", type=int, default=2_000)
    parser.add_argument("--clients", type=lambda text: [int(each) for each in text.split(",")], default=[1, 1_000])
    given = parser.parse_args(arguments)
    if given.busy:
        return busy(given.stores, given.jobs, given.clients[-1], given.rounds, given.seconds)
    if given.single:
        return single(given.stores, given.cases, given.requests, given.rounds, given.clients)
    if given.client:
        url, queue = given.client
        client(url, queue, given.batch, given.connections)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        stores = given.stores or ["memory://", f"sqlite:///{folder}/api.db"]
        rates = [rounds(store, given.runs, given.rounds, given.batch, given.connections) for store in stores]
    return 0 if min(rates) >= BAR else 1


if __name__ == "__main__":
    raise SystemExit(main())
