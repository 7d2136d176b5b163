"""HTTP delivery against the bare client: requests per second and CPU for each request, 50 in flight, one local server.

    PYTHONPATH=src python -m bench.http_delivery [--requests 2000] [--rounds 7]

The receiver runs in a process of its own (see `bench.receiver`). Rounds of both alternate, so that whatever else the
machine does hits both; the median round counts. Exit status 1 if delivery does fewer requests per CPU second than the
bare client.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import statistics
import time
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp

from bench.receiver import receiving
from horarium.clock import SystemClock
from horarium.delivery.http import HttpDelivery
from horarium.delivery.signing import new_secret
from horarium.model import HttpTarget, Job, Run, Succeeded, run_id
from horarium.ports import Assignment

IN_FLIGHT = 50
SHARE_MIN = 1.0
SECRET = new_secret(bytes(range(32)))
BODY = {"report": "nightly", "run": "{{run.id}}"}

Send = Callable[[int], Awaitable[None]]


class Uncancelled:
    cancelled = False

    def when_cancelled(self, call: Callable[[], None]) -> None:
        """It never is."""

    async def heartbeat(self, progress: bytes | None = None) -> None:
        """Nothing is kept."""

    def done(self) -> None:
        """Nothing ends it."""

    def goes_on(self, over: asyncio.Future[Any]) -> None:
        raise AssertionError("a request can always be stopped")


async def measure(send: Send, requests: int) -> tuple[float, float]:
    """Requests per second, and CPU microseconds for each."""
    numbers = iter(range(requests))

    async def worker() -> None:
        for number in numbers:
            await send(number)

    wall, used = time.perf_counter(), _cpu()
    await asyncio.gather(*(worker() for _ in range(IN_FLIGHT)))
    return requests / (time.perf_counter() - wall), (_cpu() - used) / requests * 1e6


def _cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def owed_run(number: int) -> Run:
    identity = run_id("bench", number)
    return Run(id=identity, queue="http", fire_at=number, due_at=number, created_at=0, job="bench", attempt=1)


async def compare(url: str, requests: int, rounds: int) -> float:
    clock = SystemClock()
    delivery = HttpDelivery(clock, allow_private=True, signing_secret=SECRET)
    job = Job(name="bench", trigger={}, target=HttpTarget(url, body=BODY), id="bench")
    control = Uncancelled()

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=IN_FLIGHT)) as session:

        async def bare(number: int) -> None:
            async with session.post(url, json=BODY) as response:
                await response.read()

        # Made beforehand: runs come from the store, not from delivery.
        owed = [Assignment(owed_run(number), job) for number in range(requests)]

        async def ours(number: int) -> None:
            outcome = await delivery.deliver(owed[number], control)
            assert isinstance(outcome, Succeeded), outcome

        figures: dict[str, list[tuple[float, float]]] = {"bare": [], "ours": []}
        for send in (bare, ours):
            await measure(send, min(IN_FLIGHT * 4, requests))
        for _ in range(rounds):
            figures["bare"].append(await measure(bare, requests))
            figures["ours"].append(await measure(ours, requests))
    await delivery.close()
    return report(figures)


def report(figures: dict[str, list[tuple[float, float]]]) -> float:
    medians = {
        name: [statistics.median(column) for column in zip(*rows, strict=True)] for name, rows in figures.items()
    }
    for name, (rate, cpu) in medians.items():
        print(f"{name:5} {rate:7.0f} requests/s   {cpu:5.0f} us CPU/request")
    rates = statistics.median(o[0] / b[0] for o, b in zip(figures["ours"], figures["bare"], strict=True))
    share = statistics.median(b[1] / o[1] for o, b in zip(figures["ours"], figures["bare"], strict=True))
    print(f"share {rates:7.2f} of the requests/s, {share:.2f} of the requests per CPU second (at least {SHARE_MIN})")
    return min(rates, share)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--requests", type=int, default=2_000)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args(arguments)
    with receiving() as receiver:
        share = asyncio.run(compare(receiver.url(), options.requests, options.rounds))
    return 0 if share >= SHARE_MIN else 1


if __name__ == "__main__":
    raise SystemExit(main())
