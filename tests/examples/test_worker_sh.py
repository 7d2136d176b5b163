"""The worker in curl and shell, as a process against a real server."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from horarium.client import Client
from horarium.wire.views import RunView
from tests.blackbox.outside import environment
from tests.servers.live import LiveServer, live_server
from tests.waiting import PATIENCE, eventually

WORKER = Path(__file__).parents[2] / "examples" / "worker.sh"
CODE_LINES_MAX = 30
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with live_server(["the-key"]) as server:
        yield server.url


@pytest.fixture
def client(url: str) -> Iterator[Client]:
    with Client(url, "the-key") as made:
        yield made


@contextmanager
def working(url: str, queue: str, *program: str, shell: str = "sh", **env: str) -> Iterator[subprocess.Popen[str]]:
    """The worker; it must end by itself after SIGTERM, and at once where nothing is under way."""
    command = [shell, str(WORKER), queue, *program]
    variables = environment({"HORARIUM_URL": url, "HORARIUM_API_KEY": "the-key", **env})
    with subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as worker:
        try:
            yield worker
            worker.send_signal(signal.SIGTERM)
            assert worker.wait(PATIENCE) == 0
        finally:
            if worker.poll() is None:
                worker.kill()
            worker.communicate()


def triggered(client: Client, name: str, payload: Any = 1, **fields: Any) -> RunView:
    target = {"type": "queue", "queue": name, "payload": payload}
    trigger = {"type": "interval", "every_seconds": 3600}
    client.put_job({"name": name, "trigger": trigger, "target": target, **fields})
    return client.trigger_job(name)


def finished(client: Client, run: RunView) -> RunView:
    final = {"completed", "failed", "cancelled"}
    found: RunView = eventually(lambda: (now := client.get_run(run.id)).state in final and now)
    return found


def test_it_is_as_short_as_promised() -> None:
    lines = [line.strip() for line in WORKER.read_text().splitlines()]
    assert len([line for line in lines if line and not line.startswith("#")]) <= CODE_LINES_MAX


def test_it_says_why_it_gets_no_run(url: str) -> None:
    for where, key, said in ((url, "another-key", "status 401"), ("http://127.0.0.1:1", "the-key", "curl: (7)")):
        with working(where, "q", "cat", HORARIUM_API_KEY=key) as worker:
            assert worker.stderr is not None
            assert said in worker.stderr.readline()


@pytest.mark.parametrize("shell", ["dash", "bash"])
def test_it_performs_runs_and_reports_how_they_ended(client: Client, url: str, tmp_path: Path, shell: str) -> None:
    """What a run carries can't pass for its id or its lease."""
    tricky = {"runs": [{"id": "x"}], "lease": {"token": 99, "x": '"lease":{"token":98,'}, "text": "$(id) 'ä' \\ \n"}
    name = f"both-{shell}"
    script = 'cat > "$0/$HORARIUM_RUN"; grep -q tricky "$0/$HORARIUM_RUN"'
    done = triggered(client, name, {"tricky": tricky})
    client.patch_job(name, {"retry": {"attempts_max": 1}})
    with working(url, name, "sh", "-c", script, str(tmp_path), shell=shell):
        assert finished(client, done).result == {"exit_code": 0}
        failed = finished(client, client.trigger_job(name, "plain"))
    assert (failed.state, failed.error) == ("failed", "exit code 1")
    assert '"payload":{"tricky"' in (tmp_path / done.id).read_text()


def test_its_heartbeats_outlast_the_lease(client: Client, url: str) -> None:
    run = triggered(client, "beats", timeouts={"heartbeat_seconds": 9})
    with working(url, "beats", "sleep", "10", HEARTBEAT_SECONDS="0.5"):
        done = finished(client, run)
    assert (done.state, done.attempt) == ("completed", 1)


def test_a_cancel_ends_the_work(client: Client, url: str) -> None:
    run = triggered(client, "cancel")
    with working(url, "cancel", "sleep", "60", HEARTBEAT_SECONDS="0.2"):
        eventually(lambda: client.get_run(run.id).state == "running")
        client.cancel_run(run.id)
        assert finished(client, run).state == "cancelled"


def test_at_sigterm_it_finishes_what_is_under_way(client: Client, url: str, tmp_path: Path) -> None:
    run = triggered(client, "term")
    script = "touch $0/begun; while ! test -e $0/go; do sleep 0.05; done"
    with working(url, "term", "sh", "-c", script, str(tmp_path)) as worker:
        eventually((tmp_path / "begun").exists)
        worker.send_signal(signal.SIGTERM)
        (tmp_path / "go").touch()
        assert worker.wait(PATIENCE) == 0
    assert client.get_run(run.id).state == "completed"


@pytest.mark.parametrize("shell", ["dash", "bash"])
def test_a_sigterm_as_the_work_ends_takes_nothing_of_its_exit_status(
    client: Client, url: str, tmp_path: Path, shell: str
) -> None:
    """The work sends it itself with its last breath: one time in three bash forgot the status then."""
    name = f"last-{shell}"
    for number in range(6):
        run = triggered(client, name, retry={"attempts_max": 1}) if number == 0 else client.trigger_job(name)
        pid = tmp_path / f"{number}"
        script = "until test -s $0; do sleep 0.01; done; kill -TERM $(cat $0); exit 3"
        with working(url, name, "sh", "-c", script, str(pid), shell=shell) as worker:
            pid.write_text(str(worker.pid))
            assert worker.wait(PATIENCE) == 0
        assert client.get_run(run.id).error == "exit code 3"


def test_at_sigterm_its_long_poll_takes_no_run_with_it(client: Client, url: str) -> None:
    client.put_job(
        {
            "name": "idle",
            "trigger": {"type": "interval", "every_seconds": 3600},
            "target": {"type": "queue", "queue": "idle"},
        }
    )
    with working(url, "idle", "true"):
        eventually(lambda: client.stats()["workers_waiting"])
    eventually(lambda: not client.stats()["workers_waiting"])
    run = client.trigger_job("idle")
    assert [found.id for found in client.claim(["idle"], 1, "other")] == [run.id]


def test_it_waits_for_a_server_that_is_not_there_yet() -> None:
    server = LiveServer()
    server.start()
    server.stop()
    with working(server.url, "late", "true") as worker:
        eventually(
            lambda: any(child.name() == "sleep" for child in psutil.Process(worker.pid).children()),
            what="the worker's pause before it asks again",
            ignoring=psutil.NoSuchProcess,  # a curl that ended between the two questions
        )
        server.start_again()
        with Client(server.url) as client:
            assert finished(client, triggered(client, "late")).state == "completed"
    server.stop()
