"""`horarium serve --processes N`: what a second process adds, and what it wastes.

    python -m bench.several [get] [work] [runs] [--store NAME] [--processes 2] [--seconds 10] [--rounds 3]

    get   readers that ask for a page of jobs, one request after the other
    work  long-polling workers that claim ten runs at a time and settle them, of a backlog
    runs  no-op runs for pulling, added in bulk over the API

Measured at the same time, each on a store of its own, with clients that ask one after the other: one process, N
processes of one server, and N servers of one process each that know nothing of each other, with a share of the clients
each (`apart`). So all meet the same load of the machine, whatever else it does. Printed: CPU a request of the server's
processes, supervisor included, and of the store, and statements of the store.

What N processes cost beyond one is mostly what the machine takes for a second busy process (caches, switches), and what
an idle process takes; what they cost beyond N servers apart is what they lose by being one server. That is to stay
under 1.1.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import psutil

from bench.http_client import Connection, Served, served
from bench.idle import statements
from bench.processes import cpu_of, postmaster
from bench.stores import NAMES, a_store

CLIENTS = 24
WARM_UP_SECONDS = 3.0
"""Every process has loaded by then what it loads on first use."""
BATCH = 10
BACKLOG = 1_000
SPARE = 4
"""Backlogs that lie there at the start, so that no claim goes away with nothing."""
Figures = tuple[float, ...]
"""Requests, the server's CPU, the store's, and its statements."""


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
    """Claim some and settle them."""
    claim = {"queues": ["q"], "limit": BATCH, "worker": f"worker-{id(connection)}"}
    answer = await ask(connection, "POST", "/api/v1/runs/claim", claim)
    claimed = json.loads(answer)["runs"] if answer else []
    if claimed:
        ended = [{"id": run["id"], "token": run["lease"]["token"], "outcome": "completed"} for run in claimed]
        await ask(connection, "POST", "/api/v1/runs/settle", ended)


async def runs(connection: Connection) -> None:
    await add_runs(connection, BATCH)


WORK: dict[str, Callable[[Connection], Awaitable[None]]] = {"get": get, "work": work, "runs": runs}


class Side:
    """One of the things that are compared: servers, the store that they share, and what was asked of them."""

    def __init__(self, name: str, url: str, stores: Sequence[psutil.Process], served: Sequence[Served]) -> None:
        self.name, self.url, self.stores, self.served = name, url, stores, served
        self.done = 0

    async def ask(self, connection: Connection, what: str) -> None:
        """One request. Of work, each hundredth brings as many runs as were claimed since."""
        await WORK[what](connection)
        self.done += 1
        if what == "work" and self.done % (BACKLOG // BATCH) == 0:
            await add_runs(connection, BACKLOG)

    async def read(self) -> Figures:
        """CPU seconds of the servers and of the store, and statements, so far."""
        own = sum(cpu_of(each.statistics) for each in self.served)
        return self.done, own, sum(map(cpu_of, self.stores)), await statements(self.url) or 0


async def start(stack: ExitStack, store: str, folder: Path, name: str, count: int, what: str) -> Side:
    """A store with what is to be measured on it."""
    before = {child.pid for child in psutil.Process().children()}
    url = await asyncio.to_thread(lambda: stack.enter_context(a_store(store, folder)))
    stores = [child for child in psutil.Process().children() if child.pid not in before]
    if url.startswith("postgresql") and (first := await postmaster(url)) is not None:
        stores = [first]
    numbers = [1] * count if name == "apart" else [count]
    servers = []
    for number in numbers:
        namespace = f"several-{os.urandom(4).hex()}"
        server = stack.enter_context(served(url, "--processes", str(number), "--namespace", namespace))
        server.count_lines()
        await define(server.url)
        connection = await Connection.open(server.url)
        for _ in range(SPARE if what == "work" else 0):
            await add_runs(connection, BACKLOG)
        connection.close()
        servers.append(server)
    return Side(f"{count} {name}" if count > 1 else "1 process", url, stores, servers)


async def compare(store: str, what: str, count: int, seconds: float, rounds: int) -> None:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        sides = [
            await start(stack, store, folder, *each, what)
            for each in (("process", 1), ("processes", count), ("apart", count))
        ]
        ends = asyncio.Event()

        async def client(number: int) -> None:
            opened = [await Connection.open(side.served[number % len(side.served)].url) for side in sides]
            turns = list(zip(sides, opened, strict=True))
            while not ends.is_set():
                for side, connection in turns:
                    await side.ask(connection, what)
                turns.append(turns.pop(0))

        clients = [asyncio.create_task(client(number)) for number in range(CLIENTS)]
        await asyncio.sleep(WARM_UP_SECONDS)
        figures: dict[Side, list[Figures]] = {side: [] for side in sides}
        for _ in range(rounds):
            before = [await side.read() for side in sides]
            await asyncio.sleep(seconds)
            for side, first in zip(sides, before, strict=True):
                done, *after = (now - then for now, then in zip(await side.read(), first, strict=True))
                figures[side].append((done / seconds, *(each / done for each in after)))
        ends.set()
        await asyncio.gather(*clients)
    found = {side.name: list(zip(*rounds_, strict=True)) for side, rounds_ in figures.items()}
    say(what, {name: [statistics.median(each) for each in columns] for name, columns in found.items()})


def say(what: str, figures: dict[str, list[float]]) -> None:
    one, _, apart = figures.values()
    for name, (rate, own, theirs, asked) in figures.items():
        store = f"{theirs * 1e6:6,.0f} us ({theirs / one[2] if one[2] else 0:.2f}), {asked:.2f} statements"
        print(
            f"{what:5} {name:12} {rate:6,.0f}/s, CPU {own * 1e6:6,.0f} us a request ({own / one[1]:.2f} of one process,"
            f" {own / apart[1]:.2f} of servers apart), of the store {store}"
        )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", default=list(WORK))
    parser.add_argument("--store", default="postgres", help=f"one of {', '.join(NAMES)}")
    parser.add_argument("--processes", type=int, default=2, help="how many are compared with one")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args(arguments)
    if unknown := set(given.what) - set(WORK):
        parser.error(f"what is {unknown.pop()!r}? one of {', '.join(WORK)}")
    for what in given.what:
        asyncio.run(compare(given.store, what, given.processes, given.seconds, given.rounds))


if __name__ == "__main__":
    main()
