"""Run actions on a message bus beside the client library's own confirmed publishing, turn by turn on one broker.

    python -m bench.bus [--bus rabbitmq|nats|redis] [--runs N] [--rounds N] [--store memory://|sqlite://]

Horarium, actions: runs of one job wait in the store; a dispatcher claims each, publishes its action and has it
confirmed (measured from the first claim to the last confirmation). Horarium, reports: `completed` statuses of these
runs wait on the bus; measured until all are written.

The libraries publish the same bytes with the same guarantee: on the broker's disk as far as it promises that, and
confirmed message by message. First one message for each of 200 tasks at a time, then as the library does it for many
(NATS: `publish_async`, whose futures are awaited together; RabbitMQ: aiormq, the driver beneath aio-pika; Redis:
pipelines of 200). The ratio is that of a round: what Horarium does beside what the library did right after it.
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
import aiormq
import nats
from msgspec.structs import replace
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
WAITS_SECONDS = 3_600
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
        await next(iter(LIBRARIES[type(server)].values()))(server.url, "status", statuses)
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
    body = message(replace(run, payload=b'{"rows":3}'), None, "run")
    for name, publish in LIBRARIES[type(server)].items():
        wall, cpu = await publish(server.url, "action", [body] * count)
        figures.setdefault(name, []).append((count / wall, cpu / count * 1e6))


# ---- the libraries by themselves: publish these bodies; wall and processor seconds

Took = tuple[float, float]


async def in_flight(publish: Callable[[bytes], Awaitable[object]], bodies: Sequence[bytes]) -> Took:
    """Each of 200 tasks publishes one after the other."""
    left = iter(bodies)

    async def some() -> None:
        for body in left:
            await publish(body)

    wall, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*(some() for _ in range(IN_FLIGHT)))
    return time.perf_counter() - wall, time.process_time() - cpu


async def together(publish: Callable[[Sequence[bytes]], Awaitable[object]], bodies: Sequence[bytes]) -> Took:
    """200 at a time, awaited together."""
    wall, cpu = time.perf_counter(), time.process_time()
    for start in range(0, len(bodies), IN_FLIGHT):
        await publish(bodies[start : start + IN_FLIGHT])
    return time.perf_counter() - wall, time.process_time() - cpu


async def aio_pika_publish(url: str, kind: str, bodies: Sequence[bytes]) -> Took:
    connection = await aio_pika.connect(url)
    channel = await connection.channel(publisher_confirms=True)
    exchange = await channel.get_exchange(QUEUE)

    def publish(body: bytes) -> Awaitable[object]:
        message = aio_pika.Message(
            body, content_type="application/json", delivery_mode=2, expiration=WAITS_SECONDS, message_id="1"
        )
        return exchange.publish(message, kind, mandatory=True)

    took = await in_flight(publish, bodies)
    await (await channel.get_queue(f"{QUEUE}.action")).purge()
    await connection.close()
    return took


async def aiormq_publish(url: str, kind: str, bodies: Sequence[bytes]) -> Took:
    connection = await aiormq.connect(url)
    channel = await connection.channel(publisher_confirms=True)
    numbers = iter(range(len(bodies)))

    def publish(body: bytes) -> Awaitable[object]:
        properties = aiormq.spec.Basic.Properties(
            content_type="application/json",
            delivery_mode=2,
            expiration=str(WAITS_SECONDS * 1000),
            message_id=str(next(numbers)),
        )
        return channel.basic_publish(body, exchange=QUEUE, routing_key=kind, properties=properties, mandatory=True)

    took = await in_flight(publish, bodies)
    await channel.queue_purge(f"{QUEUE}.action")
    await connection.close()
    return took


async def nats_publish(url: str, kind: str, bodies: Sequence[bytes]) -> Took:
    client = await nats.connect(url)
    stream = client.jetstream()
    name, ttl = STREAMS[kind]
    took = await in_flight(lambda body: stream.publish(f"{QUEUE}.{kind}", body, stream=name, msg_ttl=ttl), bodies)
    await stream.purge_stream("scheduler-actions")
    await client.close()
    return took


async def nats_publish_async(url: str, kind: str, bodies: Sequence[bytes]) -> Took:
    client = await nats.connect(url)
    stream = client.jetstream()
    name, ttl = STREAMS[kind]

    async def publish(some: Sequence[bytes]) -> None:
        await asyncio.gather(
            *[await stream.publish_async(f"{QUEUE}.{kind}", body, stream=name, msg_ttl=ttl) for body in some]
        )

    took = await together(publish, bodies)
    await stream.purge_stream("scheduler-actions")
    await client.close()
    return took


async def redis_xadd(url: str, kind: str, bodies: Sequence[bytes]) -> Took:
    client = RedisClient.from_url(url, max_connections=2 * IN_FLIGHT)
    took = await in_flight(lambda body: client.xadd(f"{QUEUE}.{kind}", _entry(body)), bodies)
    await client.delete(f"{QUEUE}.action")
    await client.aclose()
    return took


async def redis_pipeline(url: str, kind: str, bodies: Sequence[bytes]) -> Took:
    client = RedisClient.from_url(url)

    async def publish(some: Sequence[bytes]) -> None:
        pipe = client.pipeline(transaction=False)
        for body in some:
            pipe.xadd(f"{QUEUE}.{kind}", _entry(body))
        await pipe.execute()

    took = await together(publish, bodies)
    await client.delete(f"{QUEUE}.action")
    await client.aclose()
    return took


def _entry(body: bytes) -> Any:
    return {"body": body, "expires_at": int((time.time() + WAITS_SECONDS) * 1000)}


STREAMS = {"action": ("scheduler-actions", WAITS_SECONDS), "status": ("scheduler-reports", None)}
"""What a message on NATS says beside its body: the stream that it expects, and how long it may wait."""
LIBRARIES: dict[type, dict[str, Callable[[str, str, Sequence[bytes]], Awaitable[Took]]]] = {
    RabbitMQ: {"aio-pika publish": aio_pika_publish, "aiormq basic_publish": aiormq_publish},
    Nats: {"nats-py publish": nats_publish, "nats-py publish_async": nats_publish_async},
    Redis: {"redis-py xadd": redis_xadd, "redis-py pipeline": redis_pipeline},
}
SERVERS: dict[str, Callable[[], Server]] = {"rabbitmq": RabbitMQ, "nats": Nats, "redis": Redis}


async def rounds(server: Server, store: str, count: int, times: int) -> Figures:
    figures: Figures = {}
    for _ in range(times):
        with tempfile.TemporaryDirectory() as folder:
            given = store if store.startswith("memory") else f"sqlite:///{Path(folder) / 'bench.db'}"
            await horarium_round(figures, server, given, count)
        await raw_round(figures, server, count)
    return figures


def table(figures: Figures) -> list[str]:
    """What each did in a second and with how much CPU, and the libraries as seen from `actions`."""
    lines = [f"{'':24}{'a second':>10}{'us CPU':>8}   actions beside it: by rate       by CPU"]
    ours = figures["actions"]
    for name, rows in figures.items():
        rates, cpus = zip(*rows, strict=True)
        line = f"{name:24}{statistics.median(rates):10,.0f}{statistics.median(cpus):8.0f}"
        if name not in ("actions", "reports"):
            by_rate = [mine[0] / its[0] for mine, its in zip(ours, rows, strict=True)]
            by_cpu = [its[1] / mine[1] for mine, its in zip(ours, rows, strict=True)]
            line += f"{'':18}{_spread(by_rate)}  {_spread(by_cpu)}"
        lines.append(line)
    return lines


def _spread(ratios: Sequence[float]) -> str:
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})"


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
    print(f"{options.bus}, runs in {options.store}, {options.rounds} rounds of {options.runs:,}: medians (and spread)")
    print(*table(figures), sep="\n")


if __name__ == "__main__":
    main()
