"""`bench.scale fires`: 300 fires a second beside a million jobs that are not due, and beside a thousand.

A `horarium serve` in a process of its own: first with nothing to do, then 900 jobs that fire every three seconds, each
delivered to an endpoint in this process, at last with clients beside them that list, count and scrape without pause.
Lateness is the arrival at the endpoint less the fire time.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

from bench.http_client import Connection, Served, served
from bench.lateness import quantile
from bench.soak import Endpoint, put
from horarium.clock import DAY, SECOND, SystemClock
from horarium.model import Job, QueueTarget, uuid7
from horarium.model.records import Record, RecordChange
from horarium.node.backends import make_store
from horarium.ports import Store
from horarium.rules.finishing import LOOKED_THROUGH

BATCH = 1_000
FIRING, EVERY_SECONDS = 900, 3
LISTS = (
    "/api/v1/jobs?limit=50", "/api/v1/jobs?label=team=t3", "/api/v1/jobs?enabled=false", "/api/v1/runs?limit=50",
    "/api/v1/runs?state=failed", "/api/v1/runs?state=pending", "/api/v1/upcoming",
)  # fmt: skip
COUNTS = ("/metrics", "/api/v1/stats")


async def fires(url: str, scale: float, apart: bool, say: Callable[..., None]) -> None:
    """Say each figure: beside few jobs, beside many."""
    large = round(1_000_000 * scale / (5 if apart else 1))
    seconds = 30.0 if scale > 0.5 else 10.0
    few, many = [await _beside(url, size, seconds) for size in (1_000, large)]
    for name, unit in (("idle", "millicores"), *((name, "ms") for name in few if name != "idle")):
        say(name, few[name], many[name], unit)


async def _beside(url: str, size: int, seconds: float) -> dict[str, float]:
    store = make_store(url, f"fires-{os.urandom(4).hex()}")
    await store.open()
    # As the first start on an empty database leaves it; else idle would be a look through all jobs, once for each.
    await store.put_records([RecordChange(Record(name=LOOKED_THROUGH, body=b""))])
    await _fill(store, size)
    await store.close()
    late: list[float] = []
    seen: Counter[tuple[str, int]] = Counter()
    listener = await asyncio.get_running_loop().create_server(lambda: Endpoint(seen, late), "127.0.0.1", 0)
    endpoint = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}/"
    figures = {}
    with served(url, "--allow-private-targets", "--namespace", store.namespace) as server:  # type: ignore[attr-defined]
        await asyncio.sleep(5)
        figures["idle"] = await _cores(server, seconds) * 1000
        await _add_firing(server, endpoint)
        await asyncio.sleep(2 * EVERY_SECONDS)
        figures["p50 of 300 fires a second"], figures["p99 of 300 fires a second"] = await _lateness(late, seconds)
        took: dict[str, list[float]] = {}
        async with _asking(server, took):
            beside = await _lateness(late, seconds)
        figures["p50 while lists and counts are asked for"], figures["p99 while lists and counts are asked for"] = (
            beside
        )
        figures.update((f"GET {path}", statistics.median(each)) for path, each in took.items())
    listener.close()
    return figures


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


async def _cores(server: Served, seconds: float) -> float:
    before = server.cpu_seconds
    await asyncio.sleep(seconds)
    return (server.cpu_seconds - before) / seconds


async def _lateness(late: list[float], seconds: float) -> tuple[float, float]:
    late.clear()
    await asyncio.sleep(seconds)
    assert len(late) > FIRING / EVERY_SECONDS * seconds / 2, f"only {len(late)} deliveries in {seconds:g} s"
    return quantile(late, 0.5) * 1000, quantile(late, 0.99) * 1000


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
