"""Each page for users begins with something to do, and it works."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.blackbox.outside import Receiver, Server, horarium, serving
from tests.tidy.test_words import NOT_YET_PLAIN

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs").glob("*.md"))
REFERENCE = {"cli.md", "glossary.md", "coming-from.md"}
"""Pages in which one looks something up."""
BEGUN = ("lifecycle.md", "http-delivery.md", "operating.md", "notifications.md", "explain.md")
"""Pages whose first commands need nothing but a server and perhaps an endpoint."""


def beginning(page: Path) -> str:
    """What is above the first heading below the title."""
    return page.read_text().split("\n## ")[0]


def commands(page: Path) -> list[list[str]]:
    """The `horarium ...` of the first example, but for the server itself."""
    lines = [line.strip() for line in beginning(page).splitlines() if line.startswith("    horarium ")]
    return [shlex.split(line)[1:] for line in lines if not line.startswith("horarium serve")]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("pages")
    with serving(f"sqlite:///{folder}/horarium.db", "--allow-private-targets") as server:
        yield server


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    yield receiver
    receiver.close()


@pytest.mark.slow
@pytest.mark.parametrize("name", BEGUN)
def test_the_first_commands_of_a_page_work(name: str, server: Server, receiver: Receiver) -> None:
    given = commands(ROOT / "docs" / name)
    assert given
    for args in given:
        local = [arg.replace("http://127.0.0.1:9000", receiver.url) for arg in args]
        done = horarium(*local, env={"HORARIUM_URL": server.url})
        assert (done.returncode, done.stderr) == (0, ""), (args, done.stderr)
    if any("--http" in args or "--webhook" in args for args in given):
        assert receiver.wait("/ping")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_begins_with_an_example(page: Path) -> None:
    later = NOT_YET_PLAIN.read_text().split()
    if page.name not in REFERENCE and f"docs/{page.name}" not in later:
        shown = page.read_text().split("\n## ")[:2]
        assert re.search(r"^(```|    \S)", "\n".join(shown), re.MULTILINE), f"{page.name} begins with rules"


def test_a_page_says_its_purpose_before_all_else() -> None:
    """The first paragraph is prose, of one sentence or more, and no code, table or list."""
    pages = [page for page in (ROOT / "docs").rglob("*.md") if "adr" not in page.parts]
    without = [page.name for page in pages if not re.match(r"# .+\n\n[A-Z0-9`].{30,}", page.read_text())]
    assert len(pages) > 90
    assert not [name for name in without if name != "index.md"], without


def test_every_service_is_in_the_overview() -> None:
    sources = [path.read_text() for path in (ROOT / "src/horarium/services").rglob("*.py")]
    written = {
        name for text in sources for name in re.findall(r'^    (?:    self\.)?name = f?"(.+)"$', text, re.MULTILINE)
    }
    overview = (ROOT / "docs/architecture/overview.md").read_text()
    listed = set(re.findall(r"^\| ([a-zA-Z-]+) \|", overview, re.MULTILINE))
    assert len(written) > 20
    assert {name.replace("{name}", "NAME") for name in written} <= listed


def test_every_decision_is_in_the_list() -> None:
    folder = ROOT / "docs" / "adr"
    titles = {page.name: page.read_text().split("\n", 1)[0].removeprefix("# ") for page in sorted(folder.glob("0*.md"))}
    rows = re.findall(r"^\| (\d+) \| \[(.+)\]\((.+)\) \|$", (folder / "README.md").read_text(), re.MULTILINE)
    assert [f"{number}. {title}" for number, title, _ in rows] == [titles[name] for name in titles]
    assert [name for *_, name in rows] == list(titles)


INSTALLING = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), ROOT / "docs" / "site" / "landing.html"]
INSTALLS = re.compile(
    r"""pip install ['"]?(?:horarium|\.|\S*horarium-\S+?\.whl)(?:\[([\w,]+)\]|(?=[\s'"`<]|$))""", re.M
)
CALLS = re.compile(r"^(?:[ \t]*(?:\$|-|- run:) |(?:    )?)horarium (?:--version|[a-z]+)", re.M)


@pytest.mark.parametrize("page", INSTALLING, ids=lambda page: page.name)
def test_a_page_that_installs_and_calls_the_command_installs_the_command(page: Path) -> None:
    """It is in the extra `server`; a program alone does without."""
    text = page.read_text(encoding="utf-8")
    installed = [set((found[1] or "").split(",")) for found in INSTALLS.finditer(text)]
    if installed and CALLS.search(text):
        assert any(extras & {"server", "mcp", "all"} for extras in installed), f"{page.name} installs no command"
