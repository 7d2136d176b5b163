"""`horarium serve --processes N`: what a second process adds, and what it wastes.

    python -m bench.several [get] [work] [runs] [--store NAME|URL] [--processes 1,2] [--seconds 10] [--rounds 3]

    get   readers that ask for a page of jobs, one request after the other
    work  long-polling workers that claim ten runs at a time and settle them, of a backlog
    runs  no-op runs for pulling, added in bulk over the API

Numbers of processes take turns, round by round, each on a new namespace of the same store. Printed: requests a second,
and CPU a request of the server's processes, supervisor included, and of the store. What matters on a machine that does
other things too is the CPU a request: with N processes no more than 1.1 times that of one.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from bench.http_client import Connection, served
from bench.idle import servers
from bench.processes import cpu_of
from bench.stores import NAMES, a_store

CLIENTS = 24
WARM_UP_SECONDS = 3.0
"""Every process has loaded by then what it loads on first use."""
BATCH = 10
BACKLOG = 1_000
Figures = tuple[float, float, float]
"""Requests a second, microseconds of the server's CPU a request, and of the store's."""


async def ask(connection: Connection, method: str, path: str, value: object = None) -> bytes:
    status, answer = await connection.ask(method, path, b"" if value is None else json.dumps(value).encode())
    assert status < 300, answer
    return answer


async def define(url: str) -> None:
    connection = await Connection.open(url)
    for number in range(50):
        job = {"name": f"job-{number}", "trigger": {"type": "cron", "expression": "0 4 29 2 *"}}
        await ask(connection, "PUT", f"/api/v1/jobs/job-{number}", job | {"target": {"type": "queue", "queue": "q"}})


async def add_runs(connection: Connection, count: int) -> None:
    queue = {"type": "queue", "queue": "q"}
    await ask(
        connection, "POST", "/api/v1/runs/batch", {"runs": [{"target": queue, "payload": n} for n in range(count)]}
    )


async def get(connection: Connection) -> None:
    await ask(connection, "GET", "/api/v1/jobs?limit=20")


async def work(connection: Connection) -> None:
    """Claim some and settle them; where there are none left, add some."""
    claim = {"queues": ["q"], "limit": BATCH, "worker": f"worker-{id(connection)}"}
    answer = await ask(connection, "POST", "/api/v1/runs/claim", claim)
    claimed = json.loads(answer)["runs"] if answer else []
    if claimed:
        ended = [{"id": run["id"], "token": run["lease"]["token"], "outcome": "completed"} for run in claimed]
        await ask(connection, "POST", "/api/v1/runs/settle", ended)
    else:
        await add_runs(connection, BACKLOG)


async def runs(connection: Connection) -> None:
    await add_runs(connection, BATCH)


WORK: dict[str, Callable[[Connection], Awaitable[None]]] = {"get": get, "work": work, "runs": runs}


async def repeat(url: str, what: Callable[[Connection], Awaitable[None]], until: float) -> int:
    connection, done = await Connection.open(url), 0
    while time.perf_counter() < until:
        await what(connection)
        done += 1
    return done


async def all_repeat(url: str, what: Callable[[Connection], Awaitable[None]], until: float) -> int:
    return sum(await asyncio.gather(*(repeat(url, what, until) for _ in range(CLIENTS))))


async def one_round(store: str, what: str, processes: int, seconds: float) -> Figures:
    namespace = f"several-{os.urandom(4).hex()}"
    with served(store, "--processes", str(processes), "--namespace", namespace) as server:
        server.count_lines()
        stores = await servers(store, server.statistics.pid)
        await define(server.url)
        await all_repeat(server.url, WORK[what], time.perf_counter() + WARM_UP_SECONDS)
        own, theirs = cpu_of(server.statistics), sum(map(cpu_of, stores))
        began = time.perf_counter()
        count = await all_repeat(server.url, WORK[what], began + seconds)
        took = time.perf_counter() - began
        own, theirs = cpu_of(server.statistics) - own, sum(map(cpu_of, stores)) - theirs
    return count / took, own / count * 1e6, theirs / count * 1e6


def compare(store: str, what: str, numbers: Sequence[int], seconds: float, rounds: int) -> None:
    figures: dict[int, list[Figures]] = {number: [] for number in numbers}
    for turn in range(rounds):
        for number in numbers if turn % 2 else tuple(reversed(numbers)):
            figures[number].append(asyncio.run(one_round(store, what, number, seconds)))
    first: Figures | None = None
    for number, found in figures.items():
        rate, own, theirs = (statistics.median(each[place] for each in found) for place in range(3))
        first = first or (rate, own, theirs)
        print(
            f"{what:5} {number} process(es): {rate:8,.0f}/s ({rate / first[0]:.2f}),"
            f" CPU {own:6,.0f} us a request ({own / first[1]:.2f}), of the store {theirs:6,.0f} us"
        )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", default=list(WORK))
    parser.add_argument("--store", default="postgres", help=f"one of {', '.join(NAMES)}, or a URL")
    parser.add_argument("--processes", default="1,2", help="how many, each in its turn")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args(arguments)
    if unknown := set(given.what) - set(WORK):
        parser.error(f"what is {unknown.pop()!r}? one of {', '.join(WORK)}")
    numbers = tuple(int(number) for number in given.processes.split(","))
    with tempfile.TemporaryDirectory() as folder, a_store(given.store, Path(folder)) as url:
        for what in given.what:
            compare(url, what, numbers, given.seconds, given.rounds)


if __name__ == "__main__":
    main()
