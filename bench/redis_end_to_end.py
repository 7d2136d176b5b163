"""No-op handler runs end to end on Redis or Valkey, beside bare scripts, BullMQ and Dramatiq on the same server, turn
by turn in the same run.

    python -m bench.redis_end_to_end [--server valkey|redis] [--fsync everysec|always|no] [--runs N] [--rounds N]
                                     [--peers DIR | --no-peers]

Horarium: runs are added in bulk, then claimed, performed by an async handler and settled, in one process with its
planner and rescuer running. Raw: the least that claims and completes, in batches of 100, and one that also notes who
holds what (`bench.redis_store`), over the same client. BullMQ comes from npm and Dramatiq from PyPI, each into a folder
of its own outside the repository, and each with the concurrency at which it was fastest here. All share one server and
its settings; the order within a round changes from round to round.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from redis.asyncio import Redis as Client

from bench.redis_store import BARER_CLAIM, BARER_COMPLETE, CLAIM, COMPLETE, Bare, new_runs
from horarium import Scheduler
from tests.servers.redis import Redis

HERE = Path(__file__).parent / "peers"
NPM = ("bullmq", "ioredis")
PYPI = ("dramatiq[redis]", "hiredis")
RUN_GOAL, ADD_GOAL = 0.30, 0.40

Figures = dict[str, list[float]]


def note(figures: Figures, name: str, count: int, wall: float, cpu: float) -> None:
    figures.setdefault(name, []).append(count / wall)
    figures.setdefault(f"{name} cpu", []).append(cpu / count * 1e6)


async def raw_round(figures: Figures, url: str, count: int) -> None:
    runs = new_runs(count, 0)
    async with Client.from_url(url, protocol=2) as client:
        bare = Bare(client)
        await bare.open()
        for name, claim, complete in (("raw", BARER_CLAIM, BARER_COMPLETE), ("raw, holders", CLAIM, COMPLETE)):
            wall, cpu = time.perf_counter(), time.process_time()
            await bare.add(runs)
            note(figures, f"{name} add", count, time.perf_counter() - wall, time.process_time() - cpu)
            wall, cpu = time.perf_counter(), time.process_time()
            await bare.drain(count, claim, complete)
            note(figures, f"{name} run", count, time.perf_counter() - wall, time.process_time() - cpu)
            await client.delete("raw:runs", "raw:due", "raw:leases", "raw:done", "raw:holders")


async def horarium_round(figures: Figures, url: str, count: int, namespace: str) -> None:
    scheduler = Scheduler(url, namespace=namespace, roles=("planner", "rescuer"))
    left = count
    done = asyncio.Event()

    @scheduler.handler("report")
    async def report(run: object) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            done.set()

    async with scheduler:
        args = [{"to": "somebody", "number": index} for index in range(count)]
        wall, cpu = time.perf_counter(), time.process_time()
        await scheduler.enqueue_many("report", args)
        note(figures, "horarium add", count, time.perf_counter() - wall, time.process_time() - cpu)
        wall, cpu = time.perf_counter(), time.process_time()
        await scheduler.start()
        await done.wait()
        await scheduler.stop()
        note(figures, "horarium run", count, time.perf_counter() - wall, time.process_time() - cpu)
        assert not (await scheduler.stats()).queues, "every run is settled"


def install_peers(folder: Path) -> None:
    """Into `folder`, unless they are there."""
    if not (folder / "node_modules").exists():
        subprocess.run(["npm", "install", "--no-audit", "--no-fund", "--silent", *NPM], cwd=folder, check=True)
    if not (folder / "py").exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder / "py")], check=True)
        pip = [str(folder / "py" / "bin" / "pip"), "install", "-q", "--disable-pip-version-check"]
        subprocess.run([*pip, *PYPI], check=True)


def peer_round(figures: Figures, folder: Path, name: str, url: str, count: int) -> None:
    command = {
        "bullmq": ["node", str(HERE / "bullmq_peer.mjs")],
        "dramatiq": [str(folder / "py" / "bin" / "python"), str(HERE / "dramatiq_peer.py")],
    }[name]
    done = subprocess.run(
        [*command, url, str(count)], cwd=folder, capture_output=True, text=True, timeout=300, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(f"{name}: {done.stderr[-2000:]}")
    said = json.loads(done.stdout.strip().splitlines()[-1])
    figures.setdefault(f"{name} add", []).append(said["add"])
    figures.setdefault(f"{name} run", []).append(said["run"])


def measure(url: str, peers: Path | None, count: int, rounds: int) -> Figures:
    figures: Figures = {}

    def turns(number: int) -> list[Callable[[], None]]:
        turns: list[Callable[[], None]] = [
            lambda: asyncio.run(raw_round(figures, url, count)),
            lambda: asyncio.run(horarium_round(figures, url, count, f"round-{number}")),
        ]
        if peers is not None:
            turns.append(lambda: peer_round(figures, peers, "bullmq", url, count // 4))
            turns.append(lambda: peer_round(figures, peers, "dramatiq", url, count // 4))
        first = number % len(turns)
        return turns[first:] + turns[:first]

    for number in range(rounds):
        for turn in turns(number):
            turn()
    return figures


def report(figures: Figures) -> None:
    for name in sorted(name for name in figures if not name.endswith("cpu")):
        values, cpu = figures[name], figures.get(f"{name} cpu")
        spent = f"  CPU {statistics.median(cpu):5.1f} us a run" if cpu else ""
        print(f"{name:<18} {statistics.median(values):9,.0f}/s  ({min(values):,.0f} to {max(values):,.0f}){spent}")
    for what, goal in (("run", RUN_GOAL), ("add", ADD_GOAL)):
        parts = [
            f"{name} {statistics.median(ratios(figures, f'{name} {what}', f'raw {what}')):.2f}"
            for name in ("horarium", "bullmq", "dramatiq")
            if f"{name} {what}" in figures
        ]
        print(f"{what}, as a part of raw: {'; '.join(parts)} (goal {goal:.2f})")


def ratios(figures: Figures, ours: str, raw: str) -> list[float]:
    return [one / other for one, other in zip(figures[ours], figures[raw], strict=True)]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", choices=("valkey", "redis"), default="valkey")
    parser.add_argument("--fsync", choices=("everysec", "always", "no"), default="everysec")
    parser.add_argument("--runs", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--peers", type=Path, help="a folder where the peers are, or shall be kept")
    parser.add_argument("--no-peers", action="store_true")
    given = parser.parse_args(arguments)
    server = Redis(given.server, appendfsync=given.fsync)
    server.start()
    try:
        with tempfile.TemporaryDirectory() as temporary:
            peers = None if given.no_peers else given.peers or Path(temporary)
            if peers is not None:
                peers.mkdir(parents=True, exist_ok=True)
                install_peers(peers)
            print(f"{given.server}, appendfsync {given.fsync}, {given.runs:,} runs a round, {given.rounds} rounds")
            report(measure(server.url, peers, given.runs, given.rounds))
    finally:
        server.stop()


if __name__ == "__main__":
    main()
