"""The command as people run it: real processes, real signals, real pipes."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TextIO

import pytest
from click.testing import CliRunner

from horarium.cli import cli
from horarium.client import Client
from horarium.wire.views import RunView
from tests.blackbox.outside import environment
from tests.servers.live import live_server
from tests.waiting import PATIENCE, eventually

pytestmark = pytest.mark.slow

HORARIUM = [sys.executable, "-m", "horarium.cli"]
START_TIMES_MAX = 25
"""As much processor time as the interpreter alone takes to start and end, times this."""


def horarium(*args: str, status: int = 0, **more: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [*HORARIUM, *args], capture_output=True, text=True, timeout=PATIENCE, env=environment(more), check=False
    )
    assert done.returncode == status, done.stderr
    return done


@contextmanager
def process(args: Sequence[str], folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A command that goes on; killed at the end if it has not ended by then."""
    with subprocess.Popen(
        [*HORARIUM, *args],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=folder,
        env=environment({"PYTHONUNBUFFERED": "1"}),
    ) as started:
        try:
            yield started
        finally:
            if started.poll() is None:
                started.kill()


def line_with(started: subprocess.Popen[str], words: str) -> str:
    """The first line of its log that holds these words."""
    assert started.stderr is not None
    seen = []
    for line in started.stderr:
        seen.append(line)
        if re.search(words, line):
            return line
    raise AssertionError(f"no {words!r} in {seen}")


@contextmanager
def server(folder: Path, *args: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    with process(["serve", "--port", "0", "--log-format", "json", *args], folder) as started:
        found = re.search(r"http://[0-9.]+:\d+", line_with(started, "listening on"))
        assert found is not None
        yield started, found[0]


def test_help_starts_fast_and_imports_nothing_heavy() -> None:
    def seconds(*command: str) -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, capture_output=True, timeout=PATIENCE, env=environment(), check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    alone = min(seconds(sys.executable, "-c", "pass") for _ in range(5))
    assert min(seconds(*HORARIUM, "--help") for _ in range(5)) < START_TIMES_MAX * alone
    script = (
        "import sys, horarium.cli\n"
        "heavy = {'msgspec', 'rich', 'ruamel', 'asyncio', 'starlette', 'apsw', 'horarium.client'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=PATIENCE, env=environment(), check=True
    )
    assert done.stdout == "[]\n"


def test_the_version_is_shown() -> None:
    assert re.fullmatch(r"horarium .+\n", horarium("--version").stdout)


def test_a_reader_that_leaves_is_no_error_to_cry_about() -> None:
    command = f"{sys.executable} -m horarium.cli preview 1s --count 1000 | head -n 1"
    done = subprocess.run(
        ["sh", "-c", command], capture_output=True, text=True, timeout=PATIENCE, env=environment(), check=True
    )
    assert (done.stdout.count("\n"), done.stderr) == (1, "")


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["serve", "--port", "high"], "port: 'high' given in --port; expected a whole number from 0 to 65535"),
        (["planner", "--config", "/none.yaml"], "config: /none.yaml can't be read"),
        (["serve", "--host", "0.0.0.0"], "no API key is set; add --api-key KEY"),
        (["serve", "--roles", "api,cook"], "roles: 'api,cook' given in --roles"),
        (["planner", "--roles", "api"], "No such option"),
        (["store", "check", "--store", "horarium.db"], "store: 'horarium.db' given in --store"),
        (["worker", "--app", "json"], "is not MODULE:NAME"),
        (["worker", "--app", "./tasks.py:perform"], "is not MODULE:NAME"),
        (["worker", "--app", "no_such_module:x"], "there is no module 'no_such_module'"),
        (["worker", "--app", "json:nothing"], "module 'json' has no 'nothing'"),
        (["worker", "--app", "json:dumps"], "--queue is missing"),
        (["worker", "--queue", "q"], "--app is missing; or give --allow-commands"),
        (["worker", "--allow-commands"], "--queue is missing"),
        (["worker", "--queue", "q", "--app", "json:dumps", "--allow-commands"], "not both"),
        (["worker", "--queue", "q", "--allow-command", "x", "--allow-commands"], "not both"),
        (["worker", "--queue", "q", "--allow-command", "bin/x"], "neither a name such as pg_dump nor a path"),
        (["worker", "--app", "json:__name__", "--queue", "q"], "is no function"),
    ],
)
def test_wrong_settings_end_before_anything_starts(args: list[str], words: str) -> None:
    done = CliRunner().invoke(cli, args)
    assert words in done.stderr
    assert (done.exit_code, "Traceback" in done.stderr) == (2, False)


def test_a_server_that_was_down_for_hours_is_ready_before_it_has_caught_up(tmp_path: Path) -> None:
    asked = ("--store", "sqlite:///jobs.db", "--catch-up-per-second", "1")
    job = {"trigger": {"type": "cron", "expression": "* * * * *"}, "catch_up": {"policy": "all"}}
    with server(tmp_path, *asked) as (started, url), Client(url) as client:
        for number in range(5):
            client.put_job({**job, "name": f"job-{number}", "target": {"type": "queue", "queue": "away"}})
        started.kill()
        started.wait()
    with closing(sqlite3.connect(tmp_path / "jobs.db")) as database:
        since = (datetime.now(UTC) - timedelta(hours=3) - datetime.fromtimestamp(0, UTC)) // timedelta(microseconds=1)
        database.execute(
            "UPDATE jobs SET planned_until = :since, next_fire_at = :since, definition = "
            "json_set(definition, '$.planned_until', :since, '$.next_fire_at', :since)",
            {"since": since},
        )
        database.commit()
    with server(tmp_path, *asked) as (started, url), Client(url) as client:
        eventually(lambda: not client.problems(), what="the server, ready")
        late = datetime.now(UTC) - timedelta(hours=1)
        eventually(lambda: list(client.list_runs(until=late)), what="the first run that was missed")
        assert {run.cause for run in client.list_runs(until=late)} == {"catch_up"}
        cursors = [view.next_fire_at for view in client.list_jobs()]
        later = sum(queue["scheduled"] for queue in client.stats()["queues"])
        behind = sum(cursor is not None and cursor < late for cursor in cursors)
        assert behind + later > 0, "five jobs owed 180 runs each, at one a second"
        assert not client.problems()


def test_an_unknown_variable_is_told_with_the_nearest() -> None:
    done = horarium("serve", "--json", status=2, HORARIUM_STOER="memory://")
    assert "did you mean HORARIUM_STORE?" in json.loads(done.stderr)["detail"]


def test_a_store_is_migrated_and_checked(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/h.db"
    assert horarium("store", "migrate", "--store", url).stdout == f"{url} is up to date.\n"
    assert json.loads(horarium("store", "check", "--json", HORARIUM_STORE=url).stdout)["ok"] is True
    done = horarium("store", "check", "--store", f"sqlite:///{tmp_path}/none/h.db", status=1)
    assert done.stderr.startswith("Error: ")
    assert "Traceback" not in done.stderr


WORK = """
import pathlib, time
def perform(run):
    pathlib.Path("begun").write_text(run.id)
    return {"got": run.payload}
async def later(run):
    return run.attempt
"""


def test_a_server_and_a_worker_do_a_job_and_stop_in_order(tmp_path: Path) -> None:
    (tmp_path / "mywork.py").write_text(WORK)
    with server(tmp_path, "--api-key", "k1", "--api-key", "k2") as (serving, url), Client(url, "k2") as client:
        horarium("job", "add", "j", "--every", "1h", "--queue", "q", status=1, HORARIUM_URL=url)
        horarium("job", "add", "j", "--every", "1s", "--queue", "q", HORARIUM_URL=url, HORARIUM_API_KEY="k1")
        args = ["worker", "--url", url, "--api-key", "k1", "--queue", "q", "--app", "mywork:perform", "--name", "w1"]
        with process(args, tmp_path) as working:
            run = _completed(client)
            assert (run.worker, run.result, run.attempt) == ("w1", {"got": None}, 1)
            working.send_signal(signal.SIGTERM)
            assert working.wait(PATIENCE) == 0
        serving.send_signal(signal.SIGTERM)
        assert serving.wait(PATIENCE) == 0


def _completed(client: Client) -> RunView:
    """The first completed run."""
    (run,) = eventually(lambda: list(client.list_runs(states=["completed"], limit=1))[:1])
    found: RunView = run
    return found


def test_on_a_terminal_a_row_is_one_line_and_its_id_names_the_run() -> None:
    with live_server() as serving, Client(serving.url) as client:
        rule = {"type": "interval", "every_seconds": 60}
        client.create_job({"name": "j", "trigger": rule, "target": {"type": "queue", "queue": "q"}})
        run = client.trigger_job("j")
        ours, theirs = os.openpty()
        arguments = [*HORARIUM, "run", "list", "--url", serving.url]
        with open(ours, closefd=True) as screen:
            subprocess.run(arguments, stdout=theirs, timeout=PATIENCE, check=True, env=environment({"COLUMNS": "100"}))
            os.close(theirs)
            shown = "".join(_lines_of(screen))
    head, row = shown.splitlines()[:2]
    assert "ID" in head
    assert "pending" in row
    assert run.id[:13] in row


def _lines_of(screen: TextIO) -> Iterator[str]:
    """What was written to a terminal; its end is an error."""
    with suppress(OSError):
        yield from screen


def test_each_role_runs_alone_on_one_store(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/h.db"
    for role in ("planner", "dispatcher", "rescuer", "pruner"):
        with process([role, "--store", store, "--log-format", "json"], tmp_path) as started:
            line_with(started, f"running \\({role}\\)")
            started.send_signal(signal.SIGTERM)
            assert started.wait(PATIENCE) == 0


def test_an_interrupt_ends_quietly(tmp_path: Path) -> None:
    """The command waits for its standard input; Ctrl-C ends it with 130 and not a word."""
    with subprocess.Popen(
        [*HORARIUM, "job", "import", "-"],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    ) as waiting:
        _until_reading(waiting.pid)
        waiting.send_signal(signal.SIGINT)
        assert waiting.wait(PATIENCE) == 130
        assert waiting.stderr is not None
        assert waiting.stderr.read().strip() == ""


def _until_reading(pid: int) -> None:
    """Return when the process has gone to sleep in a read of its standard input."""
    eventually(lambda: Path(f"/proc/{pid}/syscall").read_text().startswith("0 0x0 "))


def test_a_scheduler_of_ones_own_runs_as_a_worker(tmp_path: Path) -> None:
    text = """
import pathlib
from horarium import Scheduler, every
scheduler = Scheduler("sqlite:///own.db")
@scheduler.handler("hello")
async def hello(run):
    print("performed", flush=True)
"""
    (tmp_path / "own.py").write_text(text)
    add = (
        "import asyncio, own\n"
        "async def main():\n"
        "    async with own.scheduler as scheduler:\n"
        "        await scheduler.enqueue('hello')\n"
        "asyncio.run(main())\n"
    )
    subprocess.run([sys.executable, "-c", add], cwd=tmp_path, env=environment(), check=True, timeout=PATIENCE)
    with process(["worker", "--app", "own:scheduler"], tmp_path) as working:
        assert working.stdout is not None
        assert working.stdout.readline() == "performed\n"
        working.send_signal(signal.SIGTERM)
        assert working.wait(PATIENCE) == 0


def test_no_file_is_made_by_what_only_looks(tmp_path: Path) -> None:
    here, there = f"sqlite:///{tmp_path}/here.db", f"sqlite:///{tmp_path}/there.db"
    done = horarium("store", "check", "--store", here, status=1)
    assert done.stderr == f"Error: store: no such file: {tmp_path}/here.db\n"
    assert horarium("store", "copy", here, there, status=2).stderr == f"Error: FROM: no such file: {tmp_path}/here.db\n"
    assert list(tmp_path.iterdir()) == []
    for args in (("check", "--store", "sqlite://["), ("copy", here, "sqlite://[")):
        assert "store: it is no URL" in horarium("store", *args, status=2).stderr
    horarium("store", "migrate", "--store", here)
    done = horarium("store", "copy", here, there, "--check-only", status=2)
    assert done.stderr == f"Error: TO: no such file: {tmp_path}/there.db\n"
    assert not (tmp_path / "there.db").exists()
