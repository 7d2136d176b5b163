"""docs/coming-from/first-programs.md: Horarium's programs have no line more than the others', and run as they are."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.blackbox.outside import SRC, environment
from tests.waiting import PATIENCE, eventually

PAGE = Path(__file__).parents[2] / "docs" / "coming-from" / "first-programs.md"
SECTIONS = {
    title: re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)
    for title, text in re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", PAGE.read_text(), re.M | re.S)
}


def lines(program: str) -> int:
    ast.parse(program)
    return len([line for line in program.splitlines() if line.strip() and not line.startswith("#")])


@pytest.mark.parametrize("other", ["Celery", "Dramatiq", "Procrastinate", "Temporal"])
def test_there_is_no_line_more(other: str) -> None:
    theirs, ours = SECTIONS[other]
    assert lines(ours) <= lines(theirs)


@contextmanager
def started(folder: Path, *command: str) -> Iterator[Path]:
    """What it says; it ends in order at SIGTERM."""
    said = folder / "said"
    with (
        said.open("w") as out,
        subprocess.Popen(
            [sys.executable, "-u", *command], cwd=folder, stdout=out, env=environment({"PYTHONPATH": f"{SRC}:{folder}"})
        ) as process,
    ):
        try:
            yield said
        finally:
            process.terminate()
        assert process.wait(PATIENCE) == 0


@contextmanager
def worker(folder: Path, name: str) -> Iterator[Path]:
    with started(folder, "-m", "horarium", "worker", "--app", f"{name}:scheduler") as said:
        yield said


def run(folder: Path, *command: str) -> str:
    return subprocess.run(
        [sys.executable, *command], cwd=folder, env=environment(), capture_output=True, text=True, check=True,
        timeout=PATIENCE,
    ).stdout  # fmt: skip


@pytest.mark.slow
def test_the_sum_of_a_worker(tmp_path: Path) -> None:
    (tmp_path / "tasks.py").write_text(SECTIONS["Celery"][1])
    with worker(tmp_path, "tasks"):
        assert run(tmp_path, "tasks.py") == "8\n"


@pytest.mark.slow
def test_the_words_of_a_page(tmp_path: Path) -> None:
    (tmp_path / "words.py").write_text(SECTIONS["Dramatiq"][1])
    (tmp_path / "page").write_text("three words here")
    url = (tmp_path / "page").as_uri()
    run(tmp_path, "words.py", url)
    with worker(tmp_path, "words") as said:
        eventually(lambda: f"3 words at {url}" in said.read_text())


@pytest.mark.slow
def test_the_sum_of_the_program_itself(tmp_path: Path) -> None:
    (tmp_path / "sums.py").write_text(SECTIONS["Procrastinate"][1])
    with started(tmp_path, "sums.py") as said:
        eventually(lambda: "8" in said.read_text().splitlines())


@pytest.mark.slow
def test_the_greeting(tmp_path: Path) -> None:
    (tmp_path / "hello.py").write_text(SECTIONS["Temporal"][1])
    assert run(tmp_path, "hello.py") == "Hello, World!\n"
