"""No-op handler runs end to end on SQLite, beside bare apsw and beside Huey, turn by turn in the same run.

    python -m bench.end_to_end [--runs N] [--rounds N] [--directory DIR]

Horarium: runs are added in bulk, then claimed, performed by an async handler and settled, durably, in one process with
its planner and rescuer running. Bare apsw: claim + complete in durable batches of 100. Huey: its SqliteHuey with
`fsync`, tasks taken from its queue and executed in one thread (it deletes a task when it takes it: a crash loses it).
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
import tempfile
import time
from pathlib import Path

from bench.figures import Figures, horarium_round, lines, note, ratio
from bench.sqlite_store import new_runs, raw_add, raw_connection, raw_drain


async def raw_round(figures: Figures, path: Path, count: int) -> None:
    connection = raw_connection(path)
    runs = new_runs(count, 0)
    wall, cpu = time.perf_counter(), time.process_time()
    await raw_add(connection, runs)
    note(figures, "raw add", count, time.perf_counter() - wall, time.process_time() - cpu)
    wall, cpu = time.perf_counter(), time.process_time()
    await raw_drain(connection, count)
    note(figures, "raw run", count, time.perf_counter() - wall, time.process_time() - cpu)
    connection.close()


def huey_round(figures: Figures, path: Path, count: int) -> None:
    from huey import SqliteHuey  # type: ignore[import-untyped]

    logging.getLogger("huey").setLevel(logging.ERROR)
    huey = SqliteHuey(filename=str(path), fsync=True, results=False)
    task = huey.task()(noop)
    wall, cpu = time.perf_counter(), time.process_time()
    for index in range(count):
        task(index)
    note(figures, "huey add", count, time.perf_counter() - wall, time.process_time() - cpu)
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(count):
        taken = huey.dequeue()
        assert taken is not None
        huey.execute(taken)
    note(figures, "huey run", count, time.perf_counter() - wall, time.process_time() - cpu)
    huey.storage.close()


def noop(number: int) -> None:
    """What Huey runs."""


async def measure(directory: Path, rounds: int, count: int) -> Figures:
    figures: Figures = {}
    for number in range(rounds):
        await raw_round(figures, directory / f"raw-{number}.db", count)
        url = f"sqlite:///{directory}/horarium-{number}.db"
        await horarium_round(figures, url, count, roles=("planner", "rescuer", "pruner"))
        huey_round(figures, directory / f"huey-{number}.db", count // 10)
    return figures


def report(figures: Figures) -> None:
    print(*lines(figures), sep="\n")
    print(f"\nrun: {ratio(figures, 'horarium run', 'raw run'):.2f} of raw (bar 0.25, goal 0.40)", end="; ")
    print(f"{ratio(figures, 'horarium run', 'huey run'):.1f} times Huey (bar 3)")
    print(f"add: {ratio(figures, 'horarium add', 'raw add'):.2f} of raw (bar 0.50)")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=30_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--directory", default=None, help="where the files go (default: a temporary folder)")
    options = parser.parse_args(arguments)
    print(
        f"{options.runs:,} runs a round, {options.rounds} rounds, pid {os.getpid()}, Python {sys.version.split()[0]}\n"
    )
    with tempfile.TemporaryDirectory(dir=options.directory) as folder:
        report(asyncio.run(measure(Path(folder), options.rounds, options.runs)))


if __name__ == "__main__":
    main()
