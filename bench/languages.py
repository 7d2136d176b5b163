"""The three workers of ours, beside each other: runs a second on one core, and how late a run reaches a waiting worker.

    python -m bench.languages [--runs 5000] [--slots 8] [--single 300]

Each worker is that of the conformance kit (Python, TypeScript, Go) in a process of its own, bound to the last core; the
server, on SQLite, has all others. First so many no-op runs wait, and the worker takes them; its figure is from the
first beginning to the last end. Then it waits by long-poll, and runs are added one by one at random instants: the
latency is from due to begun, by the server's clock.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from horarium.client import Client
from tests.clients.toolchains import build_go, build_typescript, node
from tests.servers.process import free_port

ROOT = Path(__file__).parents[1]
PAYLOAD = {"do": "complete", "result": 1}
GAP_SECONDS = 0.05


def commands(folder: Path) -> dict[str, list[str]]:
    """How each worker is started."""
    compiled = build_typescript(folder / "typescript")
    return {
        "Python": [sys.executable, str(ROOT / "tests" / "conformance" / "python_worker.py")],
        "TypeScript": [node(), str(compiled / "conformance" / "worker.js")],
        "Go": [str(build_go(folder / "go"))],
    }


@contextmanager
def server(folder: Path) -> Iterator[Client]:
    """A client of a server of its own."""
    port = free_port()
    command = ["-m", "horarium", "serve", "--store", f"sqlite:///{folder}/bench.db", "--port", str(port)]
    process = subprocess.Popen([sys.executable, *command], stderr=subprocess.DEVNULL)
    try:
        with Client(f"http://127.0.0.1:{port}") as client:
            yield client
    finally:
        process.terminate()
        process.wait(30)


@contextmanager
def worker(command: Sequence[str], env: Mapping[str, str]) -> Iterator[dict[str, float]]:
    """At the end, `cpu` says how many seconds it took of its core."""
    core, used = max(os.sched_getaffinity(0)), dict[str, float]()
    process = subprocess.Popen(command, env={**os.environ, **env})
    os.sched_setaffinity(process.pid, {core})
    try:
        yield used
    finally:
        process.terminate()
        _, _, usage = os.wait4(process.pid, 0)
        used["cpu"] = usage.ru_utime + usage.ru_stime


def finished(client: Client, queue: str, count: int) -> list[tuple[float, float, float]]:
    """When each of these runs was due, began and ended, once all have."""
    deadline = time.monotonic() + 600
    while sum(1 for _ in client.list_runs(queue=queue, states=["completed"])) < count:
        assert time.monotonic() < deadline, f"the runs of {queue} do not end"
        time.sleep(1)
    runs = client.list_runs(queue=queue, states=["completed"])
    return [(run.due_at.timestamp(), run.started_at.timestamp(), run.finished_at.timestamp()) for run in runs]  # type: ignore[union-attr]


def measure(client: Client, name: str, command: Sequence[str], runs: int, slots: int, single: int) -> str:
    """A row of the table."""
    queue, base = (
        f"{name.lower()}-many",
        {"HORARIUM_URL": client.url, "HORARIUM_KEY": "none", "HORARIUM_SLOTS": str(slots)},
    )
    target = {"type": "queue", "queue": queue}
    for _ in client.add_runs({"target": target, "payload": PAYLOAD} for _ in range(runs)):
        pass
    with worker(command, {**base, "HORARIUM_QUEUE": queue}) as used:
        ended = finished(client, queue, runs)
    rate = len(ended) / (max(end for _, _, end in ended) - min(begun for _, begun, _ in ended))
    cpu = used["cpu"] / len(ended) * 1e6
    chance, queue = random.Random(7), f"{name.lower()}-single"
    with worker(command, {**base, "HORARIUM_QUEUE": queue}):
        time.sleep(2)
        for _ in range(single):
            client.add_run({"type": "queue", "queue": queue}, PAYLOAD)
            time.sleep(chance.uniform(0, 2 * GAP_SECONDS))
        late = sorted((begun - due) * 1e3 for due, begun, _ in finished(client, queue, single))
    half, most = statistics.median(late), late[int(len(late) * 0.99)]
    return f"{name:<12}{rate:>10,.0f}{cpu:>14,.0f}{half:>12.1f}{most:>12.1f}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5_000)
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("--single", type=int, default=300)
    given = parser.parse_args()
    print(f"{'worker':<12}{'runs/s':>10}{'CPU us a run':>14}{'p50 ms':>12}{'p99 ms':>12}")
    with tempfile.TemporaryDirectory() as folder, server(Path(folder)) as client:
        for name, command in commands(Path(folder)).items():
            print(measure(client, name, command, given.runs, given.slots, given.single), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
