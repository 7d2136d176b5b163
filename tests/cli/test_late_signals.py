"""A signal that comes when all is done, while the interpreter is being taken down."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from horarium.client import Client
from tests.blackbox.outside import environment
from tests.servers.live import live_server
from tests.waiting import PATIENCE

pytestmark = pytest.mark.slow

PROGRAM = """
import atexit, os, signal, sys
from horarium.cli import main
atexit.register(lambda: [os.kill(os.getpid(), number) for number in (signal.SIGTERM, signal.SIGINT)])
sys.exit(main())
"""
"""Signals itself at its end, after everything that it does in order."""


def status_after_a_late_signal(args: list[str], folder: Path, begun: str) -> int:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *args],
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env=environment({"PYTHONUNBUFFERED": "1", "PYTHONPATH": str(folder)}),
    ) as started:
        try:
            assert started.stderr is not None
            assert any(begun in line for line in started.stderr)
            started.send_signal(signal.SIGTERM)
            return started.wait(PATIENCE)
        finally:
            if started.poll() is None:
                started.kill()


@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_server_that_has_stopped_exits_with_0(tmp_path: Path, processes: str) -> None:
    args = ["serve", "--store", f"sqlite:///{tmp_path}/horarium.db", "--port", "0"]
    if processes != "1":
        args += ["--processes", processes]
    assert status_after_a_late_signal(args, tmp_path, "http://") == 0


def test_a_worker_that_has_stopped_exits_with_0(tmp_path: Path) -> None:
    (tmp_path / "tasks.py").write_text("import sys\n\ndef perform(run):\n    print('begun', file=sys.stderr)\n")
    with live_server() as server, Client(server.url) as client:
        client.add_run({"type": "queue", "queue": "q"})
        args = ["worker", "--queue", "q", "--app", "tasks:perform", "--url", server.url]
        assert status_after_a_late_signal(args, tmp_path, "begun") == 0
