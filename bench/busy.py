"""The API beside a planner that is busy, and the planner beside 1,000 clients. Called as `python -m bench.api --busy`.

The jobs fire each second, so the planner owes as many runs a second as there are jobs. The clients ask as fast as they
are answered. Told are the API with and without the planner's work, and that work with and without clients, in turns:
what one takes from the other is the CPU that it needs, and neither waits for the other to be done.
"""

from __future__ import annotations

import asyncio
import math
import statistics
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime

import msgspec

from bench.http_client import Connection, Served, served
from bench.single import API, CASES, Measured, ask_for, fill

QUEUE = "ticks"
PLANNED_MIN = 0.999
"""The part of what is owed that is planned beside the clients, or the bench fails."""
SETTLES_SECONDS = 3.0


async def tick(url: str, jobs: int) -> None:
    """Let this many jobs fire each second."""
    connection = await Connection.open(url)
    target = {"type": "queue", "queue": QUEUE}
    for first in range(0, jobs, 1_000):
        names = [f"tick-{number}" for number in range(first, min(first + 1_000, jobs))]
        each = [{"name": name, "trigger": {"type": "interval", "every_seconds": 1}, "target": target} for name in names]
        status, said = await connection.ask("POST", f"{API}/import", msgspec.json.encode({"jobs": each}))
        assert status == 200, said
    connection.close()


async def planned(url: str, since: int, until: int) -> list[float]:
    """Of the runs that fell due in [since, until), how long after its instant each was planned, in seconds. (Less than
    nothing: ahead of it.)"""
    connection = await Connection.open(url)
    late: list[float] = []
    spans = "&".join(
        f"{name}={datetime.fromtimestamp(at, UTC):%Y-%m-%dT%H:%M:%SZ}"
        for name, at in (("since", since), ("until", until))
    )
    cursor = ""
    while True:
        path = f"{API}/runs?queue={QUEUE}&limit=200&{spans}{cursor}"
        status, said = await connection.ask("GET", path)
        assert status == 200, said
        page = msgspec.json.decode(said, type=RunPage)
        late += [(run.created_at - run.due_at).total_seconds() for run in page.items]
        if page.next_cursor is None:
            connection.close()
            return late
        cursor = f"&cursor={page.next_cursor}"


class Seen(msgspec.Struct):
    """What a run says of its planning."""

    due_at: datetime
    created_at: datetime


class RunPage(msgspec.Struct):
    items: list[Seen]
    next_cursor: str | None


class Planning(msgspec.Struct):
    """`part`: of the runs that were owed. `late`: the 99th percentile, in seconds after their instants."""

    part: float
    late: float


def planning(server: Served, jobs: int, seconds: float, case: str, connections: int) -> tuple[Planning, list[Measured]]:
    """How the planner does for so long, beside this many clients."""
    began = time.time()
    found = []
    if connections:
        found.append(asyncio.run(ask_for(server.url, server.statistics.pid, CASES[case], seconds, connections)))
    else:
        time.sleep(seconds)
    since, until = math.ceil(began) + 1, math.floor(time.time())
    time.sleep(SETTLES_SECONDS)
    late = asyncio.run(planned(server.url, since, until))
    return Planning(len(late) / (jobs * (until - since)), statistics.quantiles(late, n=100)[98]), found


def busy(store: str, jobs: int, case: str, connections: int, rounds: int, seconds: float) -> float:
    """Print how both do. The part of what is owed that the planner plans beside the clients."""
    alone: list[Measured] = []
    beside: list[Measured] = []
    plans: dict[str, list[Planning]] = {"alone": [], "beside": []}
    with tempfile.TemporaryDirectory() as folder:
        quiet_store, ticking_store = (store.replace("FOLDER", f"{folder}/{name}") for name in ("quiet", "ticking"))
        with served(quiet_store) as quiet, served(ticking_store) as ticking:
            for server in (quiet, ticking):
                server.count_lines()
                asyncio.run(fill(server.url, 0))
            asyncio.run(tick(ticking.url, jobs))
            time.sleep(SETTLES_SECONDS)
            for _ in range(rounds):
                alone.append(asyncio.run(ask_for(quiet.url, quiet.statistics.pid, CASES[case], seconds, connections)))
                plans["alone"].append(planning(ticking, jobs, seconds, case, 0)[0])
                did, found = planning(ticking, jobs, seconds, case, connections)
                plans["beside"].append(did)
                beside += found
    print(
        f"{store.partition(':')[0]:<8} {case:<8} {connections:>6,} clients, {jobs:,} runs owed a second\n"
        f"    the clients       alone: {_said(alone)}   beside the planner: {_said(beside)}   "
        f"p99 {_high(beside) / _high(alone):.2f} times\n"
        f"    the planner       alone: {_done(plans['alone'])}   beside the clients: {_done(plans['beside'])}",
        flush=True,
    )
    return min(did.part for did in plans["beside"])


def _done(plans: Sequence[Planning]) -> str:
    part = statistics.median(each.part for each in plans)
    late = statistics.median(each.late for each in plans)
    return f"{part:.1%} ({'p99' if late > 0 else '99% at least'} {abs(late):.2f} s {'late' if late > 0 else 'ahead'})"


def _said(found: Sequence[Measured]) -> str:
    rate = statistics.median(each.rate for each in found)
    return f"{rate:6,.0f}/s, median {_percentile(found, 50):4.0f} ms, p99 {_high(found):4.0f} ms"


def _high(found: Sequence[Measured]) -> float:
    return _percentile(found, 99)


def _percentile(found: Sequence[Measured], percent: int) -> float:
    """Of how long the clients wait, in milliseconds: the median of the rounds."""
    return statistics.median(statistics.quantiles(each.times, n=100)[percent - 1] for each in found) * 1_000


def measure(stores: Sequence[str], jobs: int, connections: int, rounds: int, seconds: float) -> int:
    """Exit status 1 where the planner falls behind because of the clients."""
    wanted = stores or ["memory://", "sqlite:///FOLDER.db"]
    parts = [
        busy(store, jobs, case, connections, rounds, seconds) for store in wanted for case in ("get-job", "add-run")
    ]
    return 0 if min(parts) >= PLANNED_MIN else 1
