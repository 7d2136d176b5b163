"""HTTP callbacks end to end, from the due run to its settled outcome, beside bare aiohttp, in turns in the same run.

    python -m bench.callbacks [one] [many] [tls] [--runs 10000] [--rounds 5] [--store NAME|URL] [--uvloop]

    one    a burst of --runs that fall due at one instant, all to one host
    many   the same to 200 hosts
    tls    the same to one host over TLS, with kept connections

Horarium: planner, dispatcher and rescuer in one process; requests are signed, judged by the guard, and bounded in time,
size and number. Bare aiohttp posts the same JSON, unsigned, with as many requests under way as ours may have. The
receiver runs in a process of its own and notes when each request came in; its own CPU is shown, so that one sees who
waits for whom. Both ask the same: CPU from the instant to the last settled outcome (or answer), and how late requests
came in. On a machine that is busy with other things, only CPU and ratios mean anything.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import aiohttp
import uvloop

from bench.lateness import quantile
from bench.receiver import Receiver, receiving
from bench.stores import a_store
from horarium import Scheduler
from horarium.delivery.connections import tls_context
from horarium.delivery.http import PER_HOST_MAX
from horarium.delivery.signing import new_secret
from tests.servers.certificate import make_certificate

SCENES = ("one", "many", "tls")
HOSTS = 200
IN_FLIGHT = 100
"""What both may have under way: the default of --http-concurrency, and of aiohttp."""
LEAD_SECONDS = 1.0
"""How long before their instant the runs are there."""
BODY = {"report": "nightly", "number": 1}
SECRET = new_secret(bytes(range(32)))


class Figures(NamedTuple):
    """One round: requests a second, CPU microseconds a request here and at the receiver, and how late requests came in,
    in milliseconds: the first, the median, and 99 of 100."""

    rate: float
    cpu: float
    there: float
    first: float
    p50: float
    p99: float


async def bare_round(receiver: Receiver, hosts: int, count: int) -> Figures:
    urls = [receiver.url(host) for host in range(hosts)]
    numbers = iter(range(count))
    connector = aiohttp.TCPConnector(limit=IN_FLIGHT, limit_per_host=PER_HOST_MAX, ssl=tls_context())
    async with aiohttp.ClientSession(connector=connector) as session:

        async def worker() -> None:
            for number in numbers:
                async with session.post(urls[number % hosts], json=BODY) as response:
                    await response.read()

        before, began, cpu = receiver.arrivals()[1], time.monotonic(), time.process_time()
        await asyncio.gather(*(worker() for _ in range(IN_FLIGHT)))
        seconds, cpu = time.monotonic() - began, time.process_time() - cpu
    return _figures(receiver, count, began, seconds, cpu, before)


async def horarium_round(receiver: Receiver, hosts: int, count: int, store: str) -> Figures:
    targets = [{"url": receiver.url(host), "body": BODY} for host in range(hosts)]
    scheduler = Scheduler(
        store, allow_private_targets=True, signing_secret=SECRET, roles=("planner", "dispatcher", "rescuer")
    )
    async with scheduler:
        await scheduler.start()
        lead = LEAD_SECONDS + count / 4_000
        at = datetime.now(UTC) + timedelta(seconds=lead)
        began = time.monotonic() + lead
        await scheduler.add_runs([{"http": targets[number % hosts], "at": at} for number in range(count)])
        before = receiver.arrivals()[1]
        await asyncio.sleep(began - time.monotonic() - 0.05)
        cpu = time.process_time()
        settled = scheduler._runtime.telemetry._settled("completed")
        async with asyncio.timeout(120):
            while next(iter(settled.collect())).samples[0].value < count:
                await asyncio.sleep(0.02)
        seconds, cpu = time.monotonic() - began, time.process_time() - cpu
    return _figures(receiver, count, began, seconds, cpu, before)


def _figures(receiver: Receiver, count: int, began: float, seconds: float, cpu: float, before: float) -> Figures:
    times, used = receiver.arrivals()
    assert len(times) == count, f"{len(times)} requests came in, {count} were meant to"
    late = [(instant - began) * 1000 for instant in times]
    here, there = cpu / count * 1e6, (used - before) / count * 1e6
    return Figures(count / seconds, here, there, late[0], quantile(late, 0.5), quantile(late, 0.99))


async def scene(name: str, receiver: Receiver, count: int, rounds: int, store: str, folder: Path) -> float:
    """Take turns; requests per CPU second, of the bare client's."""
    hosts = HOSTS if name == "many" else 1
    bare, ours = [], []
    for _ in range(rounds):
        bare.append(await bare_round(receiver, hosts, count))
        with a_store(store, folder) as url:
            ours.append(await horarium_round(receiver, hosts, count, url))
    print(f"{name}: {count:,} to {hosts} host{'s' if hosts > 1 else ''}")
    for label, rows in (("bare aiohttp", bare), ("horarium", ours)):
        rate, cpu, there, first, p50, p99 = (statistics.median(column) for column in zip(*rows, strict=True))
        print(
            f"    {label:<12} {rate:7,.0f}/s  CPU {cpu:4.0f} us a request here, {there:3.0f} us at the receiver;"
            f" came in: first {first:.0f} ms, p50 {p50:.0f} ms, p99 {p99:.0f} ms"
        )
    faster = statistics.median(o.rate / b.rate for o, b in zip(ours, bare, strict=True))
    cheaper = statistics.median(b.cpu / o.cpu for o, b in zip(ours, bare, strict=True))
    sooner = statistics.median(o.p99 / b.p99 for o, b in zip(ours, bare, strict=True))
    print(
        f"    of bare aiohttp: {faster:.2f} the rate, {cheaper:.2f} per CPU second (goal 1.0); p99 {sooner:.2f} times"
    )
    return cheaper


async def measure(scenes: Sequence[str], count: int, rounds: int, store: str) -> dict[str, float]:
    shares = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for each in scenes:
            trusted = trusting(make_certificate(folder)) if each == "tls" else nullcontext()
            with trusted as pair, receiving(pair=pair) as receiver:
                shares[each] = await scene(each, receiver, count, rounds, store, folder)
    return shares


@contextmanager
def trusting(pair: tuple[Path, Path]) -> Iterator[tuple[Path, Path]]:
    """The certificate is one that this machine trusts, for the length of the `with`."""
    before = os.environ.get("SSL_CERT_FILE")
    os.environ["SSL_CERT_FILE"] = str(pair[0])
    tls_context.cache_clear()
    try:
        yield pair
    finally:
        del os.environ["SSL_CERT_FILE"]
        if before is not None:
            os.environ["SSL_CERT_FILE"] = before
        tls_context.cache_clear()


def main(arguments: list[str] | None = None) -> dict[str, float]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenes", nargs="*", help=f"of {', '.join(SCENES)} (default: all)")
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--store", default="sqlite")
    parser.add_argument("--uvloop", action="store_true", help="run both on uvloop")
    options = parser.parse_args(arguments)
    run = uvloop.run if options.uvloop else asyncio.run
    return run(measure(options.scenes or SCENES, options.runs, options.rounds, options.store))


if __name__ == "__main__":
    main()
