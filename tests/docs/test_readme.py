"""What README promises happens, and the pages list all that there is."""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from horarium.api.problems import PROBLEMS
from tests.blackbox.outside import Server, environment, horarium, serving
from tests.waiting import PATIENCE

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])


def commands() -> list[list[str]]:
    """Every indented `horarium ...` or `curl ...` of README, in order."""
    joined = README.replace("\\\n", " ")
    lines = [line.strip() for line in joined.splitlines() if line.startswith("    ")]
    return [shlex.split(line, comments=True) for line in lines if line.startswith(("horarium ", "curl "))]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(f"sqlite:///{tmp_path_factory.mktemp('readme')}/horarium.db") as server:
        yield server


FIRST, SYNCHRONOUS, WORKER = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


@contextmanager
def running(program: str, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """One of README's programs; ended with Ctrl-C, in order."""
    process = subprocess.Popen(
        [sys.executable, "-c", program], cwd=folder, env=environment(), stdout=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=PATIENCE)
    assert process.returncode == 0


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


@pytest.mark.slow
def test_the_first_job_ticks(tmp_path: Path) -> None:
    with running(FIRST, tmp_path) as process:
        lines = [said(process) for _ in range(2)]
    assert all(re.fullmatch(r"\d\d:\d\d:\d\d hello world, attempt 1\n", line) for line in lines), lines


@pytest.mark.slow
def test_the_program_without_asyncio_performs_what_it_enqueued(tmp_path: Path) -> None:
    with running(SYNCHRONOUS, tmp_path) as process:
        assert said(process) == "report for month 2\n"


@pytest.mark.slow
def test_the_worker_performs_runs(server: Server, tmp_path: Path) -> None:
    job = {"name": "one", "trigger": {"type": "cron", "expression": "0 3 * * *"}}
    server("POST", "/jobs", {**job, "target": {"type": "queue", "queue": "images", "payload": {"size": 64}}})
    run = server("POST", "/jobs/one/trigger", {})
    with running(WORKER.replace("http://127.0.0.1:8080", server.url), tmp_path):
        assert server.becomes(run["id"], "completed")["result"] == {"resized_to": 64}


@pytest.mark.slow
def test_every_command_in_readme_works(server: Server) -> None:
    given = commands()
    assert len(given) > 8
    for program, *args in given:
        if program == "curl":
            body = json.loads(args[args.index("-d") + 1])
            url = next(arg for arg in args if arg.startswith("localhost:8080"))
            assert server.ask("POST", url.removeprefix("localhost:8080"), {**body, "wait_seconds": 0}).status in (
                200,
                204,
            )
        elif not (args[0] == "serve" and args[-1] == "&"):
            done = horarium(*args, env={"HORARIUM_URL": server.url})
            assert (done.returncode, done.stderr) == (0, ""), (args, done.stderr)


@pytest.mark.slow
def test_every_trigger_in_readme_can_be_previewed(server: Server) -> None:
    shown = [text for text in re.findall(r"\| `(\{.*?\})` \|", README) if '"..."' not in text]
    assert len(shown) >= 3
    for text in shown:
        assert server("POST", "/preview", {"trigger": json.loads(text)})["fires"]


def test_every_command_of_make_in_readme_exists() -> None:
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"^    make (\w+)", README, re.MULTILINE)) <= targets


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
        assert (page.parent / link).exists(), link


def test_every_page_is_reached_from_readme() -> None:
    top = set((ROOT / "docs").glob("*.md"))
    assert {page.name for page in top if f"docs/{page.name}" not in README} == set()


def test_every_error_code_stands_in_the_docs() -> None:
    text = (ROOT / "docs" / "api.md").read_text()
    assert [code for code in PROBLEMS if f"`{code}`" not in text] == []


@pytest.mark.slow
def test_every_metric_stands_in_the_docs(server: Server) -> None:
    text = (ROOT / "docs" / "operating.md").read_text()
    shown = server.ask("GET", "/metrics").body.decode()
    names = {name for name in re.findall(r"^# HELP (\w+)", shown, re.MULTILINE) if not name.endswith("_created")}
    assert len(names) > 8
    assert [name for name in names if name not in text] == []
