"""Run actions on a message bus beside the client library's own confirmed publishing, turn by turn on one broker.

    python -m bench.bus [--bus rabbitmq|nats|redis] [--runs N] [--rounds N] [--store memory://|sqlite://]

Horarium, actions: runs of one job wait in the store; a dispatcher claims each, publishes its action and has it
confirmed (measured from the first claim to the last confirmation). The library: the same bodies, as durable, confirmed,
200 in flight (RabbitMQ: aio-pika, persistent and mandatory; NATS: JetStream publish of nats-py; Redis: XADD of
redis-py). Horarium, reports: `completed` statuses of these runs wait on the bus; measured until all are written.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import aio_pika
import nats
from redis.asyncio import Redis as RedisClient

from horarium import Scheduler, every
from horarium.delivery.bus import message
from horarium.model import Run, State, uuid7
from horarium.node.backends import make_bus
from horarium.ports import Bus, Report
from tests.servers.nats import Nats
from tests.servers.rabbitmq import RabbitMQ
from tests.servers.redis import Redis

Server = RabbitMQ | Nats | Redis
JOB = "bench"
QUEUE = f"scheduler.job.{JOB}"
IN_FLIGHT = 200
Figures = dict[str, list[tuple[float, float]]]


class Counted:
    """A bus that says when so many actions are confirmed, and so many reports acknowledged."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self.left = 0
        self.done = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._bus, name)

    def expect(self, count: int) -> None:
        """Count down from here."""
        self.left = count
        self.done.clear()

    def _count(self, count: int) -> None:
        self.left -= count
        if self.left <= 0:
            self.done.set()

    async def publish(self, job: str, body: bytes, expires_seconds: float) -> None:
        await self._bus.publish(job, body, expires_seconds)
        self._count(1)

    async def ack(self, reports: Sequence[Report]) -> None:
        await self._bus.ack(reports)
        self._count(len(reports))


class Watch:
    """Wall and processor time from here."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def note(self, figures: Figures, name: str, count: int) -> None:
        """Write down what it took, for so many."""
        wall, cpu = time.perf_counter() - self._wall, time.process_time() - self._cpu
        figures.setdefault(name, []).append((count / wall, cpu / count * 1e6))


async def horarium_round(figures: Figures, server: Server, store: str, count: int) -> None:
    bus = Counted(make_bus(server.url))
    scheduler = Scheduler(store, roles=("dispatcher",), buses={"default": bus})
    async with scheduler:
        job = await scheduler.add_job(
            JOB, every(86_400), bus="default", payload={"rows": 3}, timeouts={"heartbeat_seconds": 600}
        )
        now = scheduler._runtime.clock.now()
        runs = [
            Run(
                id=uuid7(now, number.to_bytes(10, "big")),
                queue="bus/default",
                fire_at=now - number,
                due_at=now,
                created_at=now,
                job=JOB,
                job_id=job.id,
                lease_seconds=600,
            )
            for number in range(count)
        ]
        await scheduler._operations.runs.add_runs(runs)
        bus.open(lambda: None)
        await bus.publish(JOB, b"{}", 1)
        bus.expect(count)
        watch = Watch()
        await scheduler.start()
        await bus.done.wait()
        watch.note(figures, "actions", count)
        await scheduler.stop()
        statuses = [
            json.dumps({"jobName": JOB, "runId": run.id, "status": "completed", "token": 1}).encode() for run in runs
        ]
        await RAW[type(server)](server.url, "status", statuses)
        bus.expect(count)
        watch = Watch()
        await scheduler.start()
        await bus.done.wait()
        watch.note(figures, "reports", count)
        last = await scheduler.get_run(runs[-1].id)
        assert last.state is State.COMPLETED, last
        await scheduler.stop()


async def raw_round(figures: Figures, server: Server, count: int) -> None:
    run = Run(id=uuid7(0, bytes(10)), queue="bus/default", fire_at=0, due_at=0, created_at=0, job=JOB)
    body = message(run, None, "run")
    wall, cpu = await RAW[type(server)](server.url, "action", [body] * count)
    figures.setdefault("library", []).append((count / wall, cpu / count * 1e6))


# ---- the libraries by themselves: publish these bodies, 200 in flight; wall and processor seconds


async def in_flight(publish: Callable[[bytes], Awaitable[object]], bodies: Sequence[bytes]) -> tuple[float, float]:
    left = iter(bodies)

    async def some() -> None:
        for body in left:
            await publish(body)

    wall, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*(some() for _ in range(IN_FLIGHT)))
    return time.perf_counter() - wall, time.process_time() - cpu


async def raw_rabbitmq(url: str, kind: str, bodies: Sequence[bytes]) -> tuple[float, float]:
    connection = await aio_pika.connect(url)
    channel = await connection.channel(publisher_confirms=True)
    exchange = await channel.get_exchange(QUEUE)
    took = await in_flight(
        lambda body: exchange.publish(aio_pika.Message(body, delivery_mode=2), kind, mandatory=True), bodies
    )
    await (await channel.get_queue(f"{QUEUE}.action")).purge()
    await connection.close()
    return took


async def raw_nats(url: str, kind: str, bodies: Sequence[bytes]) -> tuple[float, float]:
    client = await nats.connect(url)
    stream = client.jetstream()
    took = await in_flight(lambda body: stream.publish(f"{QUEUE}.{kind}", body), bodies)
    await stream.purge_stream("scheduler-actions")
    await client.close()
    return took


async def raw_redis(url: str, kind: str, bodies: Sequence[bytes]) -> tuple[float, float]:
    client = RedisClient.from_url(url, max_connections=2 * IN_FLIGHT)
    took = await in_flight(lambda body: client.xadd(f"{QUEUE}.{kind}", {"body": body}), bodies)
    await client.delete(f"{QUEUE}.action")
    await client.aclose()
    return took


RAW = {RabbitMQ: raw_rabbitmq, Nats: raw_nats, Redis: raw_redis}
SERVERS: dict[str, Callable[[], Server]] = {"rabbitmq": RabbitMQ, "nats": Nats, "redis": Redis}


async def rounds(server: Server, store: str, count: int, times: int) -> Figures:
    figures: Figures = {}
    for _ in range(times):
        with tempfile.TemporaryDirectory() as folder:
            given = store if store.startswith("memory") else f"sqlite:///{Path(folder) / 'bench.db'}"
            await horarium_round(figures, server, given, count)
        await raw_round(figures, server, count)
    return figures


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bus", choices=list(SERVERS), default="rabbitmq")
    parser.add_argument("--runs", type=int, default=5_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--store", choices=["memory://", "sqlite://"], default="sqlite://")
    options = parser.parse_args(arguments)
    logging.disable(logging.WARNING)
    server = SERVERS[options.bus]()
    server.start()
    try:
        figures = asyncio.run(rounds(server, options.store, options.runs, options.rounds))
    finally:
        server.stop()
    print(f"{options.bus}, runs in {options.store}")
    for name, rows in figures.items():
        rates, cpus = zip(*rows, strict=True)
        print(f"{name:10} {statistics.median(rates):8,.0f} a second  {statistics.median(cpus):6.0f} us CPU each")
    ratios = [ours[0] / theirs[0] for ours, theirs in zip(figures["actions"], figures["library"], strict=True)]
    spread = f"{min(ratios):.2f} to {max(ratios):.2f}, {len(ratios)} rounds"
    print(f"ratio      {statistics.median(ratios):8.2f} of the library's own (median; {spread})")


if __name__ == "__main__":
    main()
