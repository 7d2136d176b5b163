"""How fast Horarium is on this machine, beside the bare drivers and beside other schedulers: one table.

    python -m bench [--rounds 3] [--runs 20000] [--peers DIR | --no-peers] [--quick] [STORE ...]

No-op runs end to end: added in bulk, claimed, performed by an async handler, settled, in one process. Callbacks: due at
one instant, each a signed HTTP request to a receiver in a process of its own, until its outcome is stored. Everything
of one block takes turns, round by round; the figures are medians. A peer whose runtime this machine lacks is left out.
Nothing else should run meanwhile. STORE: sqlite, postgres, redis, mongo, callbacks (left out: all).
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

from bench import callbacks, end_to_end, mongo_end_to_end, postgres_end_to_end, redis_end_to_end
from bench.figures import Figures
from bench.peers import Peers
from bench.postgres_store import a_server
from bench.stores import a_store
from tests.servers.redis import Redis

PEERS_FOLDER = Path(".venv/peers")
QUICK_RUNS, QUICK_ROUNDS = 1_000, 1
CALLBACKS = 10_000

Measure = Callable[[int, int, Peers | None], Figures]


def on_sqlite(count: int, rounds: int, peers: Peers | None) -> Figures:
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(end_to_end.measure(Path(folder), rounds, count))


def on_postgres(count: int, rounds: int, peers: Peers | None) -> Figures:
    with a_server(None) as url:
        return postgres_end_to_end.measure(url, peers, count, rounds)


def on_redis(count: int, rounds: int, peers: Peers | None) -> Figures:
    server = Redis("valkey", appendfsync="everysec")
    server.start()
    try:
        return redis_end_to_end.measure(server.url, peers, count, rounds)
    finally:
        server.stop()


def on_mongo(count: int, rounds: int, peers: Peers | None) -> Figures:
    with tempfile.TemporaryDirectory() as folder, a_store("mongo", Path(folder)) as url:
        runs = max(count // 2, 1)
        return mongo_end_to_end.measure(url, runs, rounds) | mongo_end_to_end.bursts(url, runs, rounds)


STORES: Mapping[str, tuple[str, str, Measure]] = {
    "sqlite": ("SQLite", "raw run", on_sqlite),
    "postgres": ("PostgreSQL", "raw run", on_postgres),
    "redis": ("Valkey", "raw run", on_redis),
    "mongo": ("MongoDB", "raw run, alike", on_mongo),
}
"""What to call it, the figure that is 1.00, and how it is measured."""
LEGEND = """\
  runs/s       claimed, performed and settled, in one process
  ratio        runs/s beside the first bare driver: a loop that claims and ends rows or keys by the store's own client
  CPU us       microseconds of that process for one run, where they are known"""
BARE = {
    "raw run": "bare driver, in batches",
    "raw, holders run": "bare driver, keeping leases too",
    "raw run, alike": "bare driver, one update a batch",
    "raw run, each": "bare driver, one update a run",
}


def rows(figures: Figures, raw: str) -> list[str]:
    """The fastest first, each as a part of what the bare driver does."""
    runs = {name: values for name, values in figures.items() if name in BARE or name.endswith(" run")}
    best = statistics.median(runs[raw])
    found = []
    for name, values in sorted(runs.items(), key=lambda each: -statistics.median(each[1])):
        rate, cpu = statistics.median(values), figures.get(f"{name} cpu")
        label = BARE.get(name) or name.removesuffix(" run")
        spent = f"{statistics.median(cpu):9.1f}" if cpu else " " * 9
        found.append(f"  {label:<30}{rate:>10,.0f}{rate / best:>8.2f}{spent}")
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("stores", nargs="*", metavar="STORE", help="left out: all")
    parser.add_argument("--runs", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peers", type=Path, default=PEERS_FOLDER, help="where the peers are kept")
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--quick", action="store_true", help="small and once: to see that it works")
    given = parser.parse_args(arguments)
    count, rounds = (QUICK_RUNS, QUICK_ROUNDS) if given.quick else (given.runs, given.rounds)
    wanted = given.stores or [*STORES, "callbacks"]
    if unknown := set(wanted) - {*STORES, "callbacks"}:
        parser.error(f"{', '.join(sorted(unknown))}: expected of {', '.join(STORES)}, callbacks")
    peers = None if given.no_peers else Peers(given.peers.resolve())
    of = "one small round, which shows that it works and not how fast it is" if rounds == 1 else f"medians of {rounds}"
    print(f"{os.cpu_count()} cores, Python {platform.python_version()}; {of}\n\n{LEGEND}")
    if peers is not None and (lacking := peers.lacking()):
        print(f"  left out: {lacking}")
    print(f"\n{'Runs that do nothing':<32}{'runs/s':>10}{'ratio':>8}{'CPU us':>9}")
    for store in wanted:
        if store in STORES:
            title, raw, measure = STORES[store]
            figures = measure(count, rounds, peers)
            print(title, *rows(figures, raw), sep="\n", flush=True)
            if mongo_end_to_end.BURST in figures:
                print(f"  {mongo_end_to_end.burst_line(figures)}", flush=True)
    if "callbacks" in wanted:
        print("\nCallbacks: signed HTTP requests that are all due at one instant, beside bare aiohttp posting as many")
        said = StringIO()
        with redirect_stdout(said):
            callbacks.main(["--runs", str(200 if given.quick else CALLBACKS), "--rounds", str(rounds)])
        print(said.getvalue().rstrip())


if __name__ == "__main__":
    main()
