"""`horarium worker --app module:scheduler`, in real processes: what it says, how it stops, how it follows the code."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from click.testing import CliRunner

from horarium import SyncScheduler
from horarium.cli import cli
from horarium.cli.reload import changed, stamps
from tests.blackbox.outside import environment
from tests.waiting import PATIENCE, eventually

pytestmark = pytest.mark.slow

APP = """
import asyncio, os, threading, time
from horarium import Scheduler
scheduler = Scheduler("sqlite:///own.db", handler_concurrency=3)

def note(word):
    with open("notes", "a") as notes:
        notes.write(word + "\\n")

@scheduler.handler()
def version(run):
    note("version 1")

@scheduler.handler()
def hold(run, seconds: float):
    note("begun")
    threading.Event().wait(seconds)
    note("held")

@scheduler.handler()
def hang_once(run):
    note("begun")
    if run.attempt == 1:
        threading.Event().wait()

@scheduler.handler()
async def wait(run, seconds: float):
    note("begun")
    await asyncio.sleep(seconds)
    note("waited")
"""


class Worker:
    """`horarium worker` in a folder; `log` is what it wrote to stderr so far."""

    def __init__(self, folder: Path, *flags: str) -> None:
        command = [sys.executable, "-m", "horarium", "worker", *flags]
        self.folder = folder
        self.log: list[str] = []
        self.process = subprocess.Popen(
            command, cwd=folder, env=environment(), text=True, stderr=subprocess.PIPE, start_new_session=True
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log.append(line)

    def says(self, words: str, times: int = 1) -> None:
        """Return once it has said so."""
        try:
            eventually(lambda: sum(words in line for line in list(self.log)) >= times)
        except AssertionError:
            raise AssertionError(f"no {words!r} in {''.join(self.log)}") from None

    def notes(self) -> list[str]:
        """What the handlers noted."""
        file = self.folder / "notes"
        return file.read_text().splitlines() if file.exists() else []

    def notices(self, word: str, times: int = 1) -> None:
        eventually(lambda: self.notes().count(word) >= times)

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def ended(self) -> int:
        status = self.process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        return status


@contextmanager
def worker(folder: Path, *flags: str) -> Iterator[Worker]:
    started = Worker(folder, "--app", "app:scheduler", *flags)
    try:
        yield started
    finally:
        with suppress(ProcessLookupError):
            os.killpg(started.process.pid, signal.SIGTERM)
        if started.process.poll() is None:
            started.process.kill()
        started.ended()
        assert started.process.stderr is not None
        started.process.stderr.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "app.py").write_text(APP)
    return tmp_path


@pytest.fixture
def ours(folder: Path) -> Iterator[SyncScheduler]:
    """Another program on the same store."""
    with SyncScheduler(f"sqlite:///{folder}/own.db") as scheduler:
        yield scheduler


def test_it_says_what_it_serves_and_stops_at_a_signal(folder: Path, ours: SyncScheduler) -> None:
    with worker(folder, "--name", "w7", "--slots", "2") as running:
        running.says("w7 is running; handlers (2 at one time): hang_once, hold, version, wait")
        run = ours.enqueue("version")
        running.notices("version 1")
        eventually(lambda: ours.get_run(run.id).finished)
        assert ours.get_run(run.id).worker == "w7"
        running.signal(signal.SIGINT)
        assert running.ended() == 0
        assert "stopped" in running.log[-1]


def test_a_sync_scheduler_runs_as_well(folder: Path, ours: SyncScheduler) -> None:
    text = APP.replace("import Scheduler", "import SyncScheduler").replace("= Scheduler(", "= SyncScheduler(")
    (folder / "app.py").write_text(text)
    with worker(folder) as running:
        running.says("handlers (3 at one time): hang_once, hold, version, wait")
        ours.enqueue("version")
        running.notices("version 1")
        running.signal(signal.SIGTERM)
        assert running.ended() == 0


def test_a_deploy_in_a_burst_loses_nothing_and_begins_nothing_twice(folder: Path, ours: SyncScheduler) -> None:
    ids = ours.enqueue_many("hold", [{"seconds": 0.5}] * 120)
    begun = 0
    for _ in range(3):
        with worker(folder) as running:
            running.notices("begun", begun + 4)
            running.signal(signal.SIGTERM)
            assert running.ended() == 0
            begun = running.notes().count("begun")
            assert running.notes().count("held") == begun, "what was begun was finished"
        states: list[str] = [run.state for run in ours.list_runs(limit=200).items]
        assert (states.count("completed"), len(states)) == (begun, 120)
        assert states.count("pending") == 120 - begun, "nothing is left claimed"
    assert 12 <= begun < 120
    assert {ours.get_run(run_id).attempt for run_id in ids} == {0, 1}


@pytest.mark.parametrize("name", ["hold", "wait"])
def test_the_grace_bounds_a_stop_and_gives_back_what_still_runs(folder: Path, ours: SyncScheduler, name: str) -> None:
    with worker(folder, "--grace", "0.3s") as running:
        run = ours.enqueue(name, {"seconds": 300})
        running.notices("begun")
        running.signal(signal.SIGTERM)
        assert running.ended() == 0
    run = ours.get_run(run.id)
    assert (run.state, run.attempt) == ("pending", 0)


def test_a_second_signal_waits_no_longer(folder: Path, ours: SyncScheduler) -> None:
    with worker(folder, "--grace", "200s") as running:
        run = ours.enqueue("hold", {"seconds": 300})
        running.notices("begun")
        running.signal(signal.SIGTERM)
        running.says("stopping: what runs is given 200 s to finish")
        assert running.process.poll() is None
        running.signal(signal.SIGTERM)
        assert running.ended() == 0
    assert ours.get_run(run.id).state == "pending"


def test_it_follows_the_code_and_finishes_what_runs_first(folder: Path, ours: SyncScheduler) -> None:
    with worker(folder, "--reload") as running:
        ours.enqueue("version")
        running.notices("version 1")
        ours.enqueue("hold", {"seconds": 1.0})
        running.notices("begun")
        (folder / "app.py").write_text(APP.replace("version 1", "version 2"))
        running.says("app.py changed: starting again once what runs has finished")
        ours.enqueue("version")
        running.notices("version 2")
        assert running.notes() == ["version 1", "begun", "held", "version 2"]

        (folder / "app.py").write_text(APP + "\nthis is no Python")
        running.says("Error: --app: module 'app' can't be imported: SyntaxError")
        running.says("ended with status 2; waiting for a change of the code")
        (folder / "more.py").write_text("WORD = 'version 3'")
        (folder / "app.py").write_text(APP.replace('note("version 1")', "import more; note(more.WORD)"))
        ours.enqueue("version")
        running.notices("version 3")

        (folder / "more.py").write_text("WORD = 'version 4'")
        running.says("more.py changed")
        ours.enqueue("version")
        running.notices("version 4")
        running.signal(signal.SIGINT)
        assert running.ended() == 0
    assert [run.state for run in ours.list_runs().items] == ["completed"] * 5


def test_the_child_of_a_reloader_that_is_killed_ends_too(folder: Path) -> None:
    with worker(folder, "--reload") as running:
        running.says("is running")
        children = Path(f"/proc/{running.process.pid}/task/{running.process.pid}/children").read_text().split()
        assert len(children) == 1
        running.process.kill()
        eventually(lambda: not _alive(int(children[0])))


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_a_killed_worker_leaves_runs_that_another_takes(folder: Path, ours: SyncScheduler) -> None:
    run = ours.enqueue("hang_once", timeouts={"heartbeat_seconds": 3}, retry={"attempts_max": 3})
    with worker(folder) as running:
        running.notices("begun")
        running.process.kill()
    with worker(folder):
        eventually(lambda: ours.get_run(run.id).finished)
    run = ours.get_run(run.id)
    assert (run.state, run.attempt) == ("completed", 2)
    assert any("no heartbeat" in event.message for event in run.history)
    with sqlite3.connect(folder / "own.db") as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()


# ---- what is refused --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "app", "words"),
    [
        ("x = (", "broken", "module 'broken' can't be imported: SyntaxError"),
        ("import no_such_thing", "broken", "module 'broken' can't be imported: No module named 'no_such_thing'"),
        ("1 / 0", "broken", "module 'broken' can't be imported: ZeroDivisionError: division by zero"),
        ("", "broken", "module 'broken' has no 'scheduler'"),
    ],
)
def test_an_app_that_can_not_be_used_is_told_with_where_it_fails(
    tmp_path: Path, text: str, app: str, words: str
) -> None:
    (tmp_path / "broken.py").write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "horarium", "worker", "--app", f"{app}:scheduler"],
        cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=PATIENCE, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith(f"Error: --app: {words}")
    assert ('broken.py", line 1' in done.stderr) == bool(text)
    assert "importlib" not in done.stderr


def test_wrong_options_for_a_scheduler_are_told() -> None:
    done = CliRunner().invoke(cli, ["worker", "--app", "json:dumps", "--slots", "0"])
    assert (done.exit_code, "--slots" in done.stderr) == (2, True)


def test_only_the_projects_own_files_are_looked_at(tmp_path: Path) -> None:
    for place in ("a.py", "pkg/b.py", "pkg/c.txt", ".git/d.py", "venv/lib/e.py", "node_modules/f.py"):
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).write_text("")
    (tmp_path / "venv" / "pyvenv.cfg").write_text("")
    before = stamps(tmp_path)
    assert {os.path.relpath(path, tmp_path) for path in before} == {"a.py", "pkg/b.py"}
    assert changed(before, stamps(tmp_path)) is None
    (tmp_path / "pkg" / "g.py").write_text("")
    assert changed(before, stamps(tmp_path)) == str(tmp_path / "pkg" / "g.py")
    (tmp_path / "pkg" / "g.py").unlink()
    (tmp_path / "a.py").unlink()
    assert changed(before, stamps(tmp_path)) == str(tmp_path / "a.py")
