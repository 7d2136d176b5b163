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
from horarium.wire.views import RunView
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


DONE = {"do": "complete", "seconds": 0.5, "result": "done"}
SHORT: dict[str, Any] = {
    "timeouts": {"heartbeat_seconds": 2},
    "retry": {"backoff_seconds": 0.01, "attempts_max": 20},
}


def frozen_in_the_middle(server: LiveServer, worker: list[str]) -> None:
    """A worker that was frozen for longer than its lease writes nothing under its stale token, and goes on."""
    env = environment({"HORARIUM_URL": server.url, "HORARIUM_KEY": KEY, "HORARIUM_QUEUE": "frozen"})
    target, how = {"type": "queue", "queue": "frozen"}, SHORT

    def done() -> RunView | None:
        given, _ = client.add_run(target, payload=DONE, **how)
        with subprocess.Popen(worker, env=env) as frozen:
            eventually(lambda: client.get_run(given.id).state != "pending")
            os.kill(frozen.pid, signal.SIGSTOP)
            try:
                with subprocess.Popen(worker, env=env) as other:
                    eventually(lambda: client.get_run(given.id).state == "completed")
                    other.terminate()
                found = client.get_run(given.id)
            finally:
                os.kill(frozen.pid, signal.SIGCONT)
            later, _ = client.add_run(target, payload=DONE, **how)
            eventually(lambda: client.get_run(later.id).state == "completed")
            frozen.terminate()
        assert (frozen.returncode, other.returncode) == (0, 0)
        assert (found.result, client.get_run(given.id)) == ("done", found)
        return found if found.attempt > 1 else None  # on a busy machine its end may have been said before

    with Client(server.url, KEY) as client:
        eventually(done)


def killed_in_the_middle(server: LiveServer, worker: list[str]) -> None:
    """What a killed worker leaves is performed by the next one, under another token."""
    env = environment({"HORARIUM_URL": server.url, "HORARIUM_KEY": KEY, "HORARIUM_QUEUE": "killed"})
    target, how = {"type": "queue", "queue": "killed"}, SHORT

    def done() -> RunView | None:
        given, _ = client.add_run(target, payload=DONE, **how)
        for number in (signal.SIGKILL, signal.SIGTERM):
            with subprocess.Popen(worker, env=env) as process:
                wanted = ("running", "completed") if number is signal.SIGKILL else ("completed",)
                eventually(lambda wanted=wanted: client.get_run(given.id).state in wanted)  # type: ignore[misc]
                os.kill(process.pid, number)
        found = client.get_run(given.id)
        assert (process.returncode, found.state, found.result) == (0, "completed", "done")
        return found if found.attempt > 1 else None  # on a busy machine its end may have been said before

    with Client(server.url, KEY) as client:
        eventually(done)
