"""No-op handler runs end to end on PostgreSQL, beside bare asyncpg, graphile-worker, River, PgQueuer and Procrastinate
on the same server, turn by turn in the same run.

    python -m bench.postgres_end_to_end [--runs N] [--rounds N] [--peers DIR | --no-peers]

Bare asyncpg: claim + complete in batches of 100. The peers run in environments of
their own, made on the spot; one whose runtime (Node, Go) the machine lacks is left out.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from pathlib import Path

import asyncpg  # type: ignore[import-untyped]

from bench.figures import Figures, horarium_round, lines, note, ratio
from bench.peers import Peers
from bench.postgres_store import RAW_TABLE, a_server, new_runs, raw_add, raw_drain

PEERS = ("graphile-worker", "river", "pgqueuer", "procrastinate")
SLOW = {"procrastinate"}


async def raw_round(figures: Figures, url: str, count: int) -> None:
    connection = await asyncpg.connect(url)
    await connection.execute(RAW_TABLE)
    await connection.execute("TRUNCATE raw_runs")
    runs = new_runs(count, 0)
    wall, cpu = time.perf_counter(), time.process_time()
    await raw_add(connection, runs)
    note(figures, "raw add", count, time.perf_counter() - wall, time.process_time() - cpu)
    wall, cpu = time.perf_counter(), time.process_time()
    await raw_drain(connection, count)
    note(figures, "raw run", count, time.perf_counter() - wall, time.process_time() - cpu)
    await connection.close()


def peer_round(figures: Figures, peers: Peers, name: str, server: str, count: int) -> None:
    database = f"{name}_{len(figures.get(f'{name} run', []))}"
    asyncio.run(create_database(server, database))
    peers.round(figures, name, server.rsplit("/", 1)[0] + f"/{database}", count)


async def create_database(server: str, database: str) -> None:
    connection = await asyncpg.connect(server)
    await connection.execute(f'CREATE DATABASE "{database}"')
    await connection.close()


def measure(url: str, peers: Peers | None, count: int, rounds: int) -> Figures:
    """`count` runs a round; of the slow peers a tenth."""
    figures: Figures = {}
    able = [] if peers is None else [name for name in PEERS if peers.missing(name) is None]
    for number in range(rounds):
        asyncio.run(raw_round(figures, url, count))
        asyncio.run(horarium_round(figures, url, count, namespace=f"round-{number}"))
        for name in able:
            assert peers is not None
            peer_round(figures, peers, name, url, count // 10 if name in SLOW else count)
    return figures


def report(figures: Figures) -> None:
    print(*lines(figures), sep="\n")
    for what, bar in (("run", 0.5), ("add", 0.5)):
        print(f"{what}: {ratio(figures, f'horarium {what}', f'raw {what}'):.2f} of raw (bar {bar:.2f})")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", help="a server to use instead of one of its own")
    parser.add_argument("--runs", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--peers", type=Path, help="a folder where the peers are, or will be kept")
    parser.add_argument("--no-peers", action="store_true")
    given = parser.parse_args(arguments)
    with a_server(given.url) as url, tempfile.TemporaryDirectory() as folder:
        peers = None if given.no_peers else Peers(given.peers or Path(folder))
        report(measure(url, peers, given.runs, given.rounds))


if __name__ == "__main__":
    main()
