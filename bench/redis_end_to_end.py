"""No-op handler runs end to end on Redis or Valkey, beside bare scripts, BullMQ, Celery and Dramatiq on the same
server, turn by turn in the same run.

    python -m bench.redis_end_to_end [--server valkey|redis] [--fsync everysec|always|no] [--runs N] [--rounds N]
                                     [--peers DIR | --no-peers]

Horarium: runs are added in bulk, then claimed, performed by an async handler and settled, in one process with its
planner and rescuer running. Raw: the least that claims and completes, in batches of 100, and one that also notes who
holds what (`bench.redis_store`), over the same client. BullMQ comes from npm, Celery and Dramatiq from PyPI, each
into a folder of its own outside the repository, and each with the concurrency at which it was fastest here. All share
one server and its settings; the order within a round changes from round to round.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from redis.asyncio import Redis as Client

from bench.figures import Figures, horarium_round, lines, note, ratio
from bench.peers import Peers
from bench.redis_store import BARER_CLAIM, BARER_COMPLETE, CLAIM, COMPLETE, Bare, new_runs
from tests.servers.redis import Redis

PEERS = ("bullmq", "celery", "dramatiq")
RUN_GOAL, ADD_GOAL = 0.30, 0.40


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


def measure(url: str, peers: Peers | None, count: int, rounds: int) -> Figures:
    figures: Figures = {}

    def turns(number: int) -> list[Callable[[], None]]:
        turns: list[Callable[[], None]] = [
            lambda: asyncio.run(raw_round(figures, url, count)),
            lambda: asyncio.run(horarium_round(figures, url, count, namespace=f"round-{number}")),
        ]
        if peers is not None:
            turns += [partial(peers.round, figures, name, url, count // 4) for name in PEERS if not peers.missing(name)]
        first = number % len(turns)
        return turns[first:] + turns[:first]

    for number in range(rounds):
        for turn in turns(number):
            turn()
    return figures


def report(figures: Figures) -> None:
    print(*sorted(lines(figures)), sep="\n")
    for what, goal in (("run", RUN_GOAL), ("add", ADD_GOAL)):
        parts = [
            f"{name} {ratio(figures, f'{name} {what}', f'raw {what}'):.2f}"
            for name in ("horarium", *PEERS)
            if f"{name} {what}" in figures
        ]
        print(f"{what}, as a part of raw: {'; '.join(parts)} (goal {goal:.2f})")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", choices=("valkey", "redis"), default="valkey")
    parser.add_argument("--fsync", choices=("everysec", "always", "no"), default="everysec")
    parser.add_argument("--runs", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--peers", type=Path, help="a folder where the peers are, or will be kept")
    parser.add_argument("--no-peers", action="store_true")
    given = parser.parse_args(arguments)
    server = Redis(given.server, appendfsync=given.fsync)
    server.start()
    try:
        with tempfile.TemporaryDirectory() as temporary:
            peers = None if given.no_peers else Peers(given.peers or Path(temporary))
            print(f"{given.server}, appendfsync {given.fsync}, {given.runs:,} runs a round, {given.rounds} rounds")
            report(measure(server.url, peers, given.runs, given.rounds))
    finally:
        server.stop()


if __name__ == "__main__":
    main()
