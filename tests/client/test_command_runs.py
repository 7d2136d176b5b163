"""Commands as runs of a whole server: done, cancelled, timed out, given up by a worker that stops."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from horarium.client import Client, Commands, Worker
from horarium.wire.views import RunView
from tests.blackbox.outside import environment
from tests.client.test_shell_commands import lives, sh
from tests.client.test_worker import LEASE
from tests.waiting import PATIENCE, eventually

pytestmark = pytest.mark.slow

FOR_LONG = "echo $$ > {pid}; exec sleep 60"


@pytest.fixture
def pid_file(tmp_path: Path) -> Iterator[Path]:
    """Where a command writes its process id; nothing of it may live after the test."""
    file = tmp_path / "pid"
    yield file
    pid = int(file.read_text())
    alive = lives(pid)
    if alive:
        os.kill(pid, signal.SIGKILL)
    assert not alive


@contextmanager
def working(client: Client, queue: str, **options: Any) -> Iterator[Worker]:
    worker = Worker(client, [queue], Commands(grace_seconds=0.3), **{"slots": 2, **options})
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        yield worker
    finally:
        worker.stop()
        thread.join(PATIENCE)
        assert not thread.is_alive()


def triggered(client: Client, name: str, program: dict[str, Any], **fields: Any) -> RunView:
    target = {"type": "command", "queue": name, **program}
    trigger = {"type": "interval", "every_seconds": 3600}
    client.put_job({"name": name, "trigger": trigger, "target": target, **fields})
    return client.trigger_job(name)


def finished(client: Client, run: RunView) -> RunView:
    """The run once it is final."""
    final = {"completed", "failed", "cancelled"}
    found: RunView = eventually(lambda: (now := client.get_run(run.id)).state in final and now)
    return found


def begun(file: Path) -> bool:
    return file.exists() and file.read_text().endswith("\n")


def test_a_command_is_performed_and_its_output_kept(client: Client) -> None:
    run = triggered(client, "done", sh("echo $HORARIUM_JOB $HORARIUM_ATTEMPT; echo aside >&2"))
    with working(client, "done"):
        done = finished(client, run)
    assert (done.state, done.result["exit_code"]) == ("completed", 0)
    assert (done.result["stdout"], done.result["stderr"]) == ("done 1\n", "aside\n")


def test_a_failed_command_is_in_the_logs_of_the_server_and_of_the_worker(
    client: Client, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server writes few lines of failures in a second: those of other tests must not take the places of these."""
    monkeypatch.setattr("horarium.services.loop.quiet.LINES_PER_SECOND_MAX", 1_000)
    run = triggered(client, "logged", sh("exit 3"), retry={"attempts_max": 2, "backoff_seconds": 0})
    with working(client, "logged"):
        finished(client, run)

    def written() -> list[tuple[int, int]]:
        server = [record for record in list(caplog.records) if getattr(record, "run", None) == run.id]
        return [(record.levelno, record.__dict__["attempt"]) for record in server]

    eventually(lambda: written() == [(logging.WARNING, 1), (logging.ERROR, 2)])
    for attempt in (1, 2):
        assert f"run {run.id} of logged, attempt {attempt} failed: " in caplog.text


def test_a_failed_command_keeps_its_output_and_says_its_end(client: Client) -> None:
    run = triggered(client, "fails", sh("echo half; echo no paper >&2; exit 3"), retry={"attempts_max": 1})
    with working(client, "fails"):
        done = finished(client, run)
    assert (done.state, done.error, done.attempt) == ("failed", "exit code 3: no paper", 1)
    assert (done.result["exit_code"], done.result["stdout"]) == (3, "half\n")


PLANTED = {"command": ["/bin/sh", "-c", "echo planted"], "env": {"A": "1"}}


def test_a_payload_is_never_started(client: Client, tmp_path: Path) -> None:
    """On the queue of a worker that starts any program: by a trigger, alone, and in a batch."""
    target = {"type": "queue", "queue": "plain", "payload": PLANTED}
    trigger = {"type": "interval", "every_seconds": 3600}
    client.put_job({"name": "plain", "trigger": trigger, "target": target})
    by_hand, own = client.trigger_job("plain"), client.trigger_job("plain", PLANTED)
    alone, _ = client.add_run({"type": "queue", "queue": "plain"}, payload=PLANTED)
    with working(client, "plain"):
        for run in (by_hand, own, alone):
            done = finished(client, run)
            assert (done.state, done.attempt, done.result) == ("failed", 1, None)
            assert "this run names no program" in (done.error or "")


def test_a_payload_reaches_the_program_of_its_target_as_input_and_variable(client: Client) -> None:
    program = {"command": ["/bin/sh", "-c", 'cat; echo; echo "$HORARIUM_PAYLOAD"'], "stdin": "the target's own"}
    client.put_job({
        "name": "fed", "trigger": {"type": "interval", "every_seconds": 3600},
        "target": {"type": "command", "queue": "fed", **program},
    })  # fmt: skip
    bare, fed = client.trigger_job("fed"), client.trigger_job("fed", PLANTED)
    alone, _ = client.add_run({"type": "command", "queue": "fed", **program}, payload=[1])
    with working(client, "fed"):
        assert finished(client, bare).result["stdout"] == "the target's own\n\n"
        text = json.dumps(PLANTED, separators=(",", ":"))
        assert finished(client, fed).result["stdout"] == f"{text}\n{text}\n"
        assert finished(client, alone).result["stdout"] == "[1]\n[1]\n"


def test_a_flood_of_bytes_fits_into_the_run(client: Client) -> None:
    run = triggered(client, "flood", sh("head -c 3000000 /dev/urandom; head -c 3000000 /dev/zero >&2"))
    with working(client, "flood"):
        done = finished(client, run)
    assert (done.state, done.result["exit_code"]) == ("completed", 0)
    assert all("bytes left out" in done.result[name] for name in ("stdout", "stderr"))


def test_a_cancel_ends_the_command(client: Client, pid_file: Path) -> None:
    run = triggered(client, "cancel", sh(FOR_LONG.format(pid=pid_file)), timeouts=LEASE)
    with working(client, "cancel"):
        eventually(lambda: begun(pid_file))
        client.cancel_run(run.id)
        done = finished(client, run)
        eventually(lambda: not lives(int(pid_file.read_text())))
    assert (done.state, done.attempt) == ("cancelled", 1)


def test_the_time_limit_of_its_job_ends_the_command(client: Client, pid_file: Path) -> None:
    fields = {"timeouts": {"execution_seconds": 9}, "retry": {"attempts_max": 1}}
    run = triggered(client, "limit", sh(f"echo half; {FOR_LONG.format(pid=pid_file)}"), **fields)
    with working(client, "limit"):
        done = finished(client, run)
        eventually(lambda: not lives(int(pid_file.read_text())))
    assert done.state == "failed"
    assert done.error == "timed out: not done within 9 s; its lease was given up: half"


def test_its_own_time_limit_fails_the_attempt_with_what_was_said(client: Client) -> None:
    fields = sh("echo half; exec sleep 60", timeout_seconds=9)
    run = triggered(client, "own", fields, retry={"attempts_max": 1})
    with working(client, "own"):
        done = finished(client, run)
    assert done.error == "timed out: not done within 9 s (ended by SIGTERM): half"


def test_a_lease_is_renewed_while_the_command_runs(client: Client, tmp_path: Path) -> None:
    goes_on = tmp_path / "go"
    ends: list[datetime] = []

    class Counting(Client):
        def heartbeat(self, *args: Any, **how: Any) -> Any:
            pulse = super().heartbeat(*args, **how)
            ends.append(pulse.expires_at)
            if len(ends) == 2:
                goes_on.touch()
            return pulse

    script = f"until [ -e {goes_on} ]; do sleep 0.05; done; echo done"
    run = triggered(client, "long", sh(script), timeouts=LEASE)
    with Counting(client.url) as counting, working(counting, "long"):
        done = finished(client, run)
    assert ends[0] < ends[1]
    assert (done.state, done.attempt, done.result["stdout"]) == ("completed", 1, "done\n")


def test_commands_run_side_by_side(client: Client, tmp_path: Path) -> None:
    """Each waits for the others: one after the other they would never end."""
    script = f"touch {tmp_path}/$HORARIUM_RUN; while [ $(ls {tmp_path} | wc -l) -lt 3 ]; do sleep 0.02; done"
    runs = [triggered(client, "many", sh(script)) for _ in range(3)]
    with working(client, "many", slots=3):
        assert [finished(client, run).state for run in runs] == ["completed"] * 3


def test_what_a_stopping_worker_ends_is_tried_again_and_not_cancelled(client: Client, pid_file: Path) -> None:
    run = triggered(client, "stop", sh(FOR_LONG.format(pid=pid_file)))
    with working(client, "stop", grace_seconds=0.05):
        eventually(lambda: begun(pid_file))
    left = client.get_run(run.id)
    assert (left.state, left.attempt) == ("pending", 1)
    assert "its worker stopped: it was asked to stop (ended by SIGTERM)" in left.history[-1].message


@contextmanager
def process(url: str, queue: str, *args: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "horarium", "worker", "--url", url, "--queue", queue, *args]
    with subprocess.Popen(command, env=environment(), stderr=subprocess.PIPE, text=True) as started:
        try:
            yield started
        finally:
            if started.poll() is None:
                started.kill()
            started.communicate()


def test_the_worker_process_finishes_its_command_at_sigterm(client: Client, url: str, tmp_path: Path) -> None:
    script = f"touch {tmp_path}/begun; while ! test -e {tmp_path}/go; do sleep 0.02; done; echo done"
    run = triggered(client, "term", sh(script))
    with process(url, "term", "--allow-commands") as worker:
        eventually((tmp_path / "begun").exists)
        worker.send_signal(signal.SIGTERM)
        (tmp_path / "go").touch()
        assert worker.wait(PATIENCE) == 0
    assert client.get_run(run.id).result["stdout"] == "done\n"


def test_a_command_does_not_read_the_key_of_its_worker(
    client: Client, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HORARIUM_API_KEY", "canary")
    run = triggered(client, "reads", sh("env; tr '\\0' '\\n' < /proc/$PPID/environ"))
    with process(url, "reads", "--allow-commands"):
        done = finished(client, run)
    assert (done.state, "PATH=" in done.result["stdout"]) == ("completed", True)
    assert "canary" not in done.result["stdout"]


@pytest.mark.parametrize("args", [[], ["--json"]])
def test_a_record_of_the_workers_log_is_one_line(client: Client, url: str, args: list[str]) -> None:
    name = f"lines{len(args)}"
    run = triggered(client, name, sh("echo one >&2; echo two >&2; exit 3"), retry={"attempts_max": 1})
    with process(url, name, "--allow-commands", *args) as worker:
        finished(client, run)
        worker.send_signal(signal.SIGTERM)
        _, log = worker.communicate(timeout=PATIENCE)
    (line,) = [line for line in log.splitlines() if "two" in line]
    assert f"run {run.id} of {name}, attempt 1 failed: exit code 3: one" in line
    assert ("[warning  ]" in line) is not bool(args)


def test_a_second_signal_ends_the_worker_and_its_command(client: Client, url: str, pid_file: Path) -> None:
    run = triggered(client, "twice", sh(FOR_LONG.format(pid=pid_file)), timeouts=LEASE)
    with process(url, "twice", "--allow-command", "/bin/*") as worker:
        eventually(lambda: begun(pid_file))

        def ended() -> bool:
            worker.send_signal(signal.SIGTERM)
            return worker.poll() is not None

        eventually(ended)
        assert worker.wait(PATIENCE) == -signal.SIGTERM
        eventually(lambda: not lives(int(pid_file.read_text())))
    again = eventually(lambda: (now := client.get_run(run.id)).state == "pending" and now)
    assert again.attempt == 1, "the lease ended, and another worker may take it"


def test_what_a_command_prints_can_be_read_while_it_runs(client: Client, tmp_path: Path) -> None:
    goes_on = tmp_path / "go"
    script = f"echo first; echo aside >&2; until [ -e {goes_on} ]; do sleep 0.05; done; printf last"
    run = triggered(client, "speaks", sh(script))
    with working(client, "speaks"):
        said = eventually(lambda: len(lines := client.run_log(run.id).items) == 2 and lines, what="the first lines")
        assert sorted((line.stream, line.text) for line in said) == [("stderr", "aside"), ("stdout", "first")]
        assert client.get_run(run.id).state == "running"
        goes_on.touch()
        followed = [line.text for line in client.follow_log(run.id)]
    assert followed[-1] == "last"
    assert client.get_run(run.id).state == "completed"
    assert client.run_log(run.id).next_cursor is None
