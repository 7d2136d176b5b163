"""The examples of guides and of the pages for people who come from elsewhere: commands are taken, programs load."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from horarium.cli import cli
from tests.blackbox.outside import Server, environment, serving
from tests.site.test_tutorials import reading
from tests.waiting import PATIENCE

pytestmark = pytest.mark.slow

DOCS = Path(__file__).parents[2] / "docs"
PAGES = sorted(page for folder in ("guides", "coming-from", "fix", "about") for page in (DOCS / folder).glob("*.md"))


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.M | re.S)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(f"sqlite:///{tmp_path_factory.mktemp('guides')}/horarium.db") as server:
        yield server


def test_every_job_of_the_guides_can_be_added(server: Server) -> None:
    added = 0
    for page in PAGES:
        text = "\n".join(blocks(page, "sh")).replace("\\\n", " ")
        for line in re.findall(r"^horarium (job add .*|preview .*)$", text, re.M):
            args = shlex.split(line, comments=True)
            done = CliRunner().invoke(cli, args, env={"HORARIUM_URL": server.url})
            assert (done.exit_code, done.stderr) == (0, ""), (page.name, line, done.stderr)
            if args[:2] == ["job", "add"]:
                server("DELETE", f"/jobs/{args[2]}")
                added += 1
    assert added > 6


def test_every_program_of_ours_can_be_loaded(tmp_path: Path) -> None:
    """One process for all of them: each page's is a module without a main part."""
    programs = [
        (page.name, text) for page in PAGES for text in blocks(page, "python") if "from horarium import" in text
    ]
    assert len(programs) > 4
    code = f"for name, text in {programs!r}:\n    exec(compile(text, name, 'exec'), {{'__name__': name}})\n"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], cwd=tmp_path, env=environment(), capture_output=True, text=True,
        timeout=PATIENCE, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_the_nights_of_clock_changes_are_as_printed(tmp_path: Path) -> None:
    with reading(tmp_path, {}, {}) as reader:
        reader.read((DOCS / "guides" / "dst.md").read_text())
