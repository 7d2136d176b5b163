"""The clients in TypeScript and in Go: compiled, judged by the conformance kit, tried against a real server."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from horarium.client import Client
from horarium.testing.conformance import SCENES, Verdict, play
from tests.blackbox.outside import environment
from tests.clients.toolchains import GO, TYPESCRIPT, build_go, build_typescript, go, node, run
from tests.servers.live import LiveServer, live_server
from tests.waiting import eventually

KEY = "a-key-of-the-tests"
LINES_MAX = 1_500
pytestmark = pytest.mark.slow
PASSED = [Verdict(scene.name) for scene in SCENES]


@pytest.fixture
def server() -> Iterator[LiveServer]:
    with live_server([KEY]) as made:
        yield made


async def test_typescript(tmp_path: Path, server: LiveServer) -> None:
    built = build_typescript(tmp_path / "built")
    worker = [node(), str(built / "conformance" / "worker.js")]
    assert await play(worker) == PASSED
    run(node(), str(built / "test" / "client.js"), folder=tmp_path, env=settings(server))
    killed_in_the_middle(server, worker)
    frozen_in_the_middle(server, worker)


async def test_go(tmp_path: Path, server: LiveServer) -> None:
    worker = [str(build_go(tmp_path / "worker"))]
    assert await play(worker) == PASSED
    assert run(str(Path(go()).with_name("gofmt")), "-l", ".", folder=GO) == ""
    run(go(), "vet", "./...", folder=GO)
    run(go(), "test", "-count=1", "./...", folder=GO, env=settings(server))
    killed_in_the_middle(server, worker)
    frozen_in_the_middle(server, worker)


@pytest.mark.parametrize("folder", [TYPESCRIPT / "src", GO], ids=["typescript", "go"])
def test_a_client_stays_small(folder: Path) -> None:
    sources = [path for path in folder.iterdir() if path.suffix in (".ts", ".go") and not path.stem.endswith("_test")]
    assert sum(len(path.read_text().splitlines()) for path in sources) < LINES_MAX


def settings(server: LiveServer) -> dict[str, str]:
    return {"HORARIUM_URL": server.url, "HORARIUM_API_KEY": KEY}


def frozen_in_the_middle(server: LiveServer, worker: list[str]) -> None:
    """A worker that was frozen for longer than its lease writes nothing under its stale token, and goes on."""
    env = environment({"HORARIUM_URL": server.url, "HORARIUM_KEY": KEY, "HORARIUM_QUEUE": "frozen"})
    with Client(server.url, KEY) as client:
        target, payload = {"type": "queue", "queue": "frozen"}, {"do": "complete", "seconds": 0.5, "result": "done"}
        how: dict[str, Any] = {
            "timeouts": {"heartbeat_seconds": 2},
            "retry": {"backoff_seconds": 0.01, "attempts_max": 20},
        }
        given, _ = client.add_run(target, payload=payload, **how)
        with subprocess.Popen(worker, env=env) as frozen:
            eventually(lambda: client.get_run(given.id).state == "running")
            os.kill(frozen.pid, signal.SIGSTOP)
            try:
                with subprocess.Popen(worker, env=env) as other:
                    eventually(lambda: client.get_run(given.id).state == "completed")
                    other.terminate()
                done = client.get_run(given.id)
            finally:
                os.kill(frozen.pid, signal.SIGCONT)
            later, _ = client.add_run(target, payload=payload, **how)
            eventually(lambda: client.get_run(later.id).state == "completed")
            frozen.terminate()
        assert (frozen.returncode, other.returncode, done.attempt > 1) == (0, 0, True)
        assert (done.result, client.get_run(given.id)) == ("done", done)


def killed_in_the_middle(server: LiveServer, worker: list[str]) -> None:
    """What a killed worker leaves is performed by the next one, under another token."""
    env = environment({"HORARIUM_URL": server.url, "HORARIUM_KEY": KEY, "HORARIUM_QUEUE": "killed"})
    with Client(server.url, KEY) as client:
        target, payload = {"type": "queue", "queue": "killed"}, {"do": "complete", "seconds": 0.5, "result": "done"}
        given, _ = client.add_run(
            target, payload=payload, timeouts={"heartbeat_seconds": 1}, retry={"backoff_seconds": 0.01}
        )
        for number in (signal.SIGKILL, signal.SIGTERM):
            with subprocess.Popen(worker, env=env) as process:
                wanted = ("running",) if number is signal.SIGKILL else ("completed",)
                eventually(lambda wanted=wanted: client.get_run(given.id).state in wanted)  # type: ignore[misc]
                os.kill(process.pid, number)
        assert process.returncode == 0
        done = client.get_run(given.id)
        assert (done.state, done.attempt, done.result) == ("completed", 2, "done")
