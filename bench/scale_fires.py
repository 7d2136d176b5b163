"""`bench.scale fires`: 300 fires a second beside a million jobs that are not due, and beside a thousand.

Two stores of their own, both filled before anything is measured, and a `horarium serve` for each, in a process of its
own: first both with nothing to do, in the same seconds; then in turns, three times each, 900 jobs that fire every three
seconds, each delivered to an endpoint in this process, at last with clients beside them that list, count and scrape
without pause. (One after the other they differ by as much as the machine does from one minute to the next.) Lateness is
the arrival at the endpoint less the fire time; the figures are medians of the turns.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.http_client import Connection, Served, served
from bench.lateness import quantile
from bench.soak import Endpoint, put
from bench.stores import a_store
from horarium.clock import DAY, SECOND, SystemClock
from horarium.model import Job, QueueTarget, uuid7
from horarium.node.backends import make_store
from horarium.ports import Store

BATCH = 1_000
FIRING, EVERY_SECONDS = 900, 3
ROUNDS = 3
LISTS = (
    "/api/v1/jobs?limit=50", "/api/v1/jobs?label=team=t3", "/api/v1/jobs?enabled=false", "/api/v1/runs?limit=50",
    "/api/v1/runs?state=failed", "/api/v1/runs?state=pending", "/api/v1/upcoming",
)  # fmt: skip
COUNTS = ("/metrics", "/api/v1/stats")


async def fires(url: str, name: str, scale: float, apart: bool, say: Callable[..., None]) -> None:
    """Say each figure: beside few jobs, beside many."""
    large = round(1_000_000 * scale / (5 if apart else 1))
    seconds = 30.0 if scale > 0.5 else 10.0
    with TemporaryDirectory() as folder, ExitStack() as stack:
        small_url = await asyncio.to_thread(stack.enter_context, a_store(name, Path(folder)))
        few, many = [await _beside(small_url, 1_000), await _beside(url, large)]
        async with few.serving(), many.serving():
            await asyncio.sleep(5)
            idle = [one.server.cpu_seconds for one in (few, many)]
            await asyncio.sleep(seconds)
            for one, before in zip((few, many), idle, strict=True):
                one.figures["idle"].append((one.server.cpu_seconds - before) / seconds * 1000)
            for _ in range(ROUNDS):
                for one in (few, many):
                    await one.fire(seconds / ROUNDS)
    for key, unit in (("idle", "millicores"), *((key, "ms") for key in few.figures if key != "idle")):
        say(key, statistics.median(few.figures[key]), statistics.median(many.figures[key]), unit)


class _Beside:
    """A store with so many jobs that are not due, and a server on it."""

    def __init__(self, url: str, namespace: str) -> None:
        self._url, self._namespace = url, namespace
        self._late: list[float] = []
        self.figures: dict[str, list[float]] = defaultdict(list)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        seen: Counter[tuple[str, int]] = Counter()
        loop = asyncio.get_running_loop()
        listener = await loop.create_server(lambda: Endpoint(seen, self._late), "127.0.0.1", 0)
        self._endpoint = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}/"
        with served(self._url, "--allow-private-targets", "--namespace", self._namespace) as self.server:
            yield
        listener.close()

    async def fire(self, seconds: float) -> None:
        """Let the jobs fire, first with nothing beside them; at the end there are none again."""
        await _add_firing(self.server, self._endpoint)
        await asyncio.sleep(2 * EVERY_SECONDS)
        await self._lateness("of 300 fires a second", seconds)
        took: dict[str, list[float]] = {}
        async with _asking(self.server, took):
            await self._lateness("while lists and counts are asked for", seconds)
        for path, each in took.items():
            self.figures[f"GET {path}"].append(statistics.median(each))
        await _delete_firing(self.server)

    async def _lateness(self, when: str, seconds: float) -> None:
        self._late.clear()
        await asyncio.sleep(seconds)
        owed, late = round(FIRING / EVERY_SECONDS * seconds), self._late[:]
        if len(late) < owed / 2:
            # It does not keep up: what has not come counts as late as it was waited for.
            print(f"  only {len(late)} of {owed} deliveries in {seconds:g} s")
            late += [seconds] * (owed - len(late))
        for name, part in (("p50", 0.5), ("p99", 0.99)):
            self.figures[f"{name} {when}"].append(quantile(late, part) * 1000)


async def _beside(url: str, size: int) -> _Beside:
    store = make_store(url, f"fires-{os.urandom(4).hex()}")
    await store.open()
    await _fill(store, size)
    await store.close()
    return _Beside(url, store.namespace)  # type: ignore[attr-defined]


async def _fill(store: Store, size: int) -> None:
    now = SystemClock().now()

    def idle(number: int) -> Job:
        labels = {"env": "prod", "team": f"t{number % max(size // 100, 1)}"}
        return Job(
            id=uuid7(now, os.urandom(10)), name=f"idle-{number:07}", labels=labels, target=QueueTarget(queue="idle"),
            trigger={"type": "interval", "every_seconds": 86_400.0}, anchor_at=now, planned_until=now,
            next_fire_at=now + DAY + number * SECOND // 100, created_at=now, updated_at=now,
        )  # fmt: skip

    for start in range(0, size, BATCH):
        await store.add_jobs([idle(number) for number in range(start, min(start + BATCH, size))])


async def _add_firing(server: Served, endpoint: str) -> None:
    connection = await Connection.open(server.url)
    for number in range(FIRING):
        anchor = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime()) + f".{number * EVERY_SECONDS % 1000:03}Z"
        trigger = {"type": "interval", "every_seconds": EVERY_SECONDS, "anchor": anchor}
        target = {"type": "http", "url": endpoint}
        retention = {"finished_seconds": 30}
        await put(connection, f"job-{number}", {"trigger": trigger, "target": target, "retention": retention})
    connection.close()


async def _delete_firing(server: Served) -> None:
    connection = await Connection.open(server.url)
    for number in range(FIRING):
        status, body = await connection.ask("DELETE", f"/api/v1/jobs/job-{number}")
        assert status in (200, 204), body
    connection.close()


@asynccontextmanager
async def _asking(server: Served, took: dict[str, list[float]]) -> AsyncIterator[None]:
    """Two clients that ask, each answer followed by the next question; the milliseconds of each path go to `took`."""

    async def ask(paths: tuple[str, ...]) -> None:
        connection = await Connection.open(server.url)
        while True:
            for path in paths:
                began = time.perf_counter()
                status, body = await connection.ask("GET", path)
                assert status == 200, (path, body)
                took.setdefault(path, []).append((time.perf_counter() - began) * 1000)
                await asyncio.sleep(0.01)

    asking = [asyncio.create_task(ask(paths)) for paths in (LISTS, COUNTS)]
    yield
    for task in asking:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
