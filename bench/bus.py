"""Run actions on RabbitMQ beside aio-pika's own confirmed publishing, turn by turn on the same broker.

    python -m bench.bus [--runs N] [--rounds N] [--store URL]

Horarium: runs of one job wait in the store; a dispatcher claims each, publishes its action and has it confirmed
(measured from the first claim to the last confirmation). aio-pika: the same bodies, persistent, mandatory and
confirmed, 200 in flight.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import statistics
import tempfile
import time
from pathlib import Path

import aio_pika

from horarium import Scheduler, every
from horarium.buses.rabbitmq import RabbitBus
from horarium.delivery.bus import message
from horarium.model import Run, uuid7
from tests.servers.rabbitmq import RabbitMQ

JOB = "bench"
IN_FLIGHT = 200
Figures = dict[str, list[tuple[float, float]]]


class CountingBus(RabbitBus):
    """Says when so many actions are confirmed."""

    left = 0
    done: asyncio.Event

    async def publish(self, job: str, body: bytes, expires_seconds: float) -> None:
        await super().publish(job, body, expires_seconds)
        self.left -= 1
        if self.left == 0:
            self.done.set()


def note(figures: Figures, name: str, count: int, wall: float, cpu: float) -> None:
    figures.setdefault(name, []).append((count / wall, cpu / count * 1e6))


async def horarium_round(figures: Figures, url: str, store: str, count: int) -> None:
    bus = CountingBus(url)
    bus.done = asyncio.Event()
    scheduler = Scheduler(store, roles=("dispatcher",), buses={"default": bus})
    async with scheduler:
        job = await scheduler.add_job(JOB, every(86_400), bus="default", payload={"rows": 3})
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
            )
            for number in range(count)
        ]
        await scheduler._operations.add_runs(runs)
        bus.open(lambda: None)
        await bus.publish(JOB, b"{}", 1)
        bus.left = count
        wall, cpu = time.perf_counter(), time.process_time()
        await scheduler.start()
        await bus.done.wait()
        note(figures, "horarium", count, time.perf_counter() - wall, time.process_time() - cpu)
        await scheduler.stop()


async def aio_pika_round(figures: Figures, url: str, count: int) -> None:
    connection = await aio_pika.connect(url)
    channel = await connection.channel(publisher_confirms=True)
    exchange = await channel.get_exchange(f"scheduler.job.{JOB}")
    run = Run(id=uuid7(0, bytes(10)), queue="bus/default", fire_at=0, due_at=0, created_at=0, job=JOB)
    body = message(run, None, "run")
    left = count

    async def publish_some() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            await exchange.publish(aio_pika.Message(body, delivery_mode=2), "action", mandatory=True)

    wall, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*(publish_some() for _ in range(IN_FLIGHT)))
    note(figures, "aio-pika", count, time.perf_counter() - wall, time.process_time() - cpu)
    await (await channel.get_queue(f"scheduler.job.{JOB}.action")).purge()
    await connection.close()


async def rounds(url: str, store: str, count: int, times: int) -> Figures:
    figures: Figures = {}
    for _ in range(times):
        with tempfile.TemporaryDirectory() as folder:
            given = store if store.startswith("memory") else f"sqlite:///{Path(folder) / 'bench.db'}"
            await horarium_round(figures, url, given, count)
        await aio_pika_round(figures, url, count)
    return figures


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=5_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--store", choices=["memory://", "sqlite://"], default="memory://")
    options = parser.parse_args(arguments)
    logging.disable(logging.WARNING)
    server = RabbitMQ()
    server.start()
    try:
        figures = asyncio.run(rounds(server.url, options.store, options.runs, options.rounds))
    finally:
        server.stop()
    for name, rows in figures.items():
        rates, cpus = zip(*rows, strict=True)
        print(f"{name:10} {statistics.median(rates):8,.0f} actions/s  {statistics.median(cpus):6.0f} us CPU each")
    ratios = [ours[0] / theirs[0] for ours, theirs in zip(figures["horarium"], figures["aio-pika"], strict=True)]
    print(f"ratio      {statistics.median(ratios):8.2f} of aio-pika's own (median of {len(ratios)} rounds)")


if __name__ == "__main__":
    main()
