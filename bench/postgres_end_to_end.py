"""No-op handler runs end to end on PostgreSQL, beside bare asyncpg, PgQueuer and Procrastinate on the same server, turn
by turn in the same run.

    python -m bench.postgres_end_to_end [--runs N] [--rounds N] [--no-peers]

Bare asyncpg: claim + complete in batches of 100. The peers run in a virtual environment of their own, made on the spot.
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
from pathlib import Path

import asyncpg  # type: ignore[import-untyped]

from bench.postgres_store import RAW_TABLE, a_server, new_runs, raw_add, raw_drain
from horarium import Scheduler

PEERS = {
    "pgqueuer": ("pgqueuer_peer.py", ["pgqueuer", "asyncpg"]),
    "procrastinate": ("procrastinate_peer.py", ["procrastinate", "psycopg[binary,pool]"]),
}

Figures = dict[str, list[float]]


def note(figures: Figures, name: str, count: int, wall: float, cpu: float) -> None:
    figures.setdefault(name, []).append(count / wall)
    figures.setdefault(f"{name} cpu", []).append(cpu / count * 1e6)


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


async def horarium_round(figures: Figures, url: str, count: int, name: str) -> None:
    scheduler = Scheduler(url, namespace=name, roles=("planner", "rescuer"))
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


def make_environment(folder: Path) -> Path:
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    wanted = [name for _, names in PEERS.values() for name in names]
    subprocess.run([str(folder / "bin" / "pip"), "install", "-q", "--disable-pip-version-check", *wanted], check=True)
    return folder / "bin" / "python"


def peer_round(figures: Figures, python: Path, name: str, server: str, count: int) -> None:
    script = Path(__file__).parent / "peers" / PEERS[name][0]
    database = f"{name}_{len(figures.get(f'{name} run', []))}"
    asyncio.run(create_database(server, database))
    url = server.rsplit("/", 1)[0] + f"/{database}"
    done = subprocess.run([str(python), str(script), url, str(count)], capture_output=True, text=True, timeout=300)
    if done.returncode != 0:
        raise RuntimeError(f"{name}: {done.stderr[-2000:]}")
    said = json.loads(done.stdout.strip().splitlines()[-1])
    figures.setdefault(f"{name} add", []).append(said["add"])
    figures.setdefault(f"{name} run", []).append(said["run"])


async def create_database(server: str, database: str) -> None:
    connection = await asyncpg.connect(server)
    await connection.execute(f'CREATE DATABASE "{database}"')
    await connection.close()


def report(figures: Figures) -> None:
    for name, values in figures.items():
        if not name.endswith("cpu"):
            cpu = figures.get(f"{name} cpu")
            spent = f"  CPU {statistics.median(cpu):5.1f} us a run" if cpu else ""
            print(f"{name:<18} {statistics.median(values):9,.0f}/s  ({min(values):,.0f} to {max(values):,.0f}){spent}")
    for what, bar in (("run", 0.5), ("add", 0.5)):
        pairs = zip(figures[f"horarium {what}"], figures[f"raw {what}"], strict=True)
        print(f"{what}: {statistics.median(ours / raw for ours, raw in pairs):.2f} of raw (bar {bar:.2f})")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", help="a server to use instead of one of its own")
    parser.add_argument("--runs", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--no-peers", action="store_true")
    given = parser.parse_args(arguments)
    figures: Figures = {}
    with a_server(given.url) as url, tempfile.TemporaryDirectory() as folder:
        python = None if given.no_peers else make_environment(Path(folder))
        for number in range(given.rounds):
            asyncio.run(raw_round(figures, url, given.runs))
            asyncio.run(horarium_round(figures, url, given.runs, f"round-{number}"))
            if python is not None:
                peer_round(figures, python, "pgqueuer", url, given.runs)
                peer_round(figures, python, "procrastinate", url, given.runs // 10)
    report(figures)


if __name__ == "__main__":
    main()
