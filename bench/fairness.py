"""What fairness keys cost a claim, and whether they keep what is promised, on each store.

    python -m bench.fairness [--rounds 3] [--runs 20000] [sqlite postgres valkey mongo]

A claim of 100: processor time, of the store's server too, where no run has a key, all have one, and each of 10,000 has
two; in turns, with the medians as ratios to the first. Then which claim brings a key that came behind a flood of
another, and by how much the shares of ten keys of weights 1 to 10 are off in half of their runs.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
import psutil
from msgspec.structs import replace

from bench.sqlite_store import QUEUE, new_runs
from bench.stores import a_store
from horarium.clock import SECOND, SystemClock
from horarium.model import Run, uuid7s
from horarium.model.records import Record, RecordChange
from horarium.node.backends import make_store
from horarium.operations.settling.turns import QUEUES, QueueSettings, Turns
from horarium.operations.writing.context import Context
from horarium.ports import Store
from horarium.rules.fairness import STEP
from horarium.stores.wakeups import LocalSignal

CASES = (0, 1, 10_000)
"""How many keys there are; 0: no run has one."""
LIMIT, LATE = 100, 10
BAR, BAR_BATCHES, BAR_SHARES = 1.3, 2, 0.1
SERVERS = {"postgres", "valkey-server", "redis-server", "mongod"}
CLOCK = SystemClock()


def servers() -> set[int]:
    """The servers of stores that run on this machine, without the processes that they start."""
    found = {each.pid: each.ppid() for each in psutil.process_iter(["name"]) if each.info["name"] in SERVERS}
    return {pid for pid, parent in found.items() if parent not in found}


def cpu_seconds(started: set[int]) -> float:
    """Of this process, and of the servers that were started for it."""
    spent = time.process_time()
    for pid in started:
        with suppress(psutil.NoSuchProcess):
            server = psutil.Process(pid)
            for process in (server, *server.children(recursive=True)):
                times = process.cpu_times()
                spent += times.user + times.system
    return spent


def waiting(count: int, keys: int) -> list[Run]:
    """Runs at the turns that they take."""
    first = CLOCK.now() - SECOND
    runs = [
        replace(run, id=id) for run, id in zip(new_runs(count, 0), uuid7s(first, os.urandom(10), count), strict=True)
    ]
    if not keys:
        return [replace(run, due_at=first + number // 1_000) for number, run in enumerate(runs)]
    return [
        replace(run, due_at=first + STEP * (number // keys), fair=f"tenant-{number % keys}")
        for number, run in enumerate(runs)
    ]


async def claim(store: Store, limit: int = LIMIT) -> Sequence[Run]:
    now = CLOCK.now()
    return (await store.claim_runs([QUEUE], limit, "bench", now, now, CLOCK.steady())).runs


async def add(store: Store, runs: Sequence[Run]) -> None:
    for first in range(0, len(runs), 1_000):
        await store.add_runs(runs[first : first + 1_000])


async def cost(url: str, count: int, keys: int, started: set[int]) -> float:
    """Milliseconds of a claim."""
    store = make_store(url, namespace=f"cost-{keys}-{time.time_ns()}")
    await store.open()
    try:
        await add(store, waiting(count, keys))
        before = cpu_seconds(started)
        taken = 0
        while runs := await claim(store):
            taken += len(runs)
        assert taken == count, f"{taken} of {count} were claimed"
        return (cpu_seconds(started) - before) / (count / LIMIT) * 1e3
    finally:
        await store.close()


async def promises(url: str, count: int) -> tuple[int, float]:
    """Which claim brings the last of some runs that came behind a flood; and how far shares are off at most."""
    store = make_store(url, namespace=f"promises-{time.time_ns()}")
    await store.open()
    turns = Turns(Context(store, CLOCK, LocalSignal(), os.urandom))

    async def come(key: str, count: int) -> None:
        due_at = CLOCK.now()
        await add(store, await turns.taken([replace(run, due_at=due_at, fair=key) for run in new_runs(count, 0)]))

    try:
        await come("flood", count)
        await come("late", LATE)
        seen, claims = 0, 0
        while seen < LATE:
            seen += sum(run.fair == "late" for run in await claim(store))
            claims += 1
        while await claim(store, 1_000):
            pass
        weights = {f"k{number}": number for number in range(1, 11)}
        settings = Record(name=QUEUES + QUEUE, body=msgspec.json.encode(QueueSettings(weights)))
        assert await store.put_records([RecordChange(settings, 0)]) == [True]
        for key, weight in weights.items():
            await come(key, count * weight // sum(weights.values()))
        shares: Counter[str | None] = Counter()
        while shares.total() < count // 2:
            shares.update(run.fair for run in await claim(store))
        whole = sum(weights.values())
        off = max(abs(shares[key] / shares.total() * whole / weight - 1) for key, weight in weights.items())
        return claims, off
    finally:
        await store.close()


def measure(name: str, rounds: int, count: int) -> bool:
    """Print the figures of a store. Whether all are within their bars."""
    before, spent = servers(), {keys: list[float]() for keys in CASES}
    with tempfile.TemporaryDirectory() as folder, a_store(name, Path(folder)) as url:
        started = servers() - before
        for _ in range(rounds):
            for keys in CASES:
                spent[keys].append(asyncio.run(cost(url, count, keys, started)))
        claims, off = asyncio.run(promises(url, count))
    without, *others = (statistics.median(each) for each in spent.values())
    ratios = [each / without for each in others]
    print(
        f"{name:<9} a claim of {LIMIT}: {without:.2f} ms without keys; {ratios[0]:.2f} with one, {ratios[1]:.2f} with "
        f"{CASES[-1]:,} (bar {BAR}); a late key is done in claim {claims} (bar {BAR_BATCHES}), shares are "
        f"{off:.1%} off (bar {BAR_SHARES:.0%})"
    )
    return max(ratios) <= BAR and claims <= BAR_BATCHES and off <= BAR_SHARES


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stores", nargs="*", default=["sqlite", "postgres", "valkey", "mongo"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--runs", type=int, default=20_000)
    asked = parser.parse_args(arguments)
    met = [measure(name, asked.rounds, asked.runs) for name in asked.stores]
    return 0 if all(met) else 1


if __name__ == "__main__":
    raise SystemExit(main())
