"""The tutorials of docs/start/ work, word for word: one after the other in one folder, on one server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.blackbox.outside import Server, serving
from tests.servers.postgres import Postgres
from tests.servers.process import free_port
from tests.site.tutorial import MARKED, Reader, shown

pytestmark = pytest.mark.slow

START = Path(__file__).parents[2] / "docs" / "start"
ON_ONE_SERVER = ("python-app", "fastapi", "replace-cron", "http-endpoints", "workers-any-language")
ALONE = {"team-postgresql"}
ENDPOINT_SECRET = "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3"


@contextmanager
def reading(folder: Path, places: dict[str, str], env: dict[str, str]) -> Iterator[Reader]:
    reader = Reader(folder, places, env)
    try:
        yield reader
    finally:
        reader.leave()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("tutorials")
    flags = ("--allow-private-targets", "--signing-secret", ENDPOINT_SECRET)
    with serving(f"sqlite:///{folder}/horarium.db", *flags) as server:
        yield server


def test_a_reader_of_all_tutorials_meets_no_contradiction(server: Server) -> None:
    """In one test, since each of them begins with what those before left behind."""
    folder = Path(server.store.removeprefix("sqlite:///")).parent
    places = {
        "127.0.0.1:8080": server.url.removeprefix("http://"),
        "8000": str(free_port()),
        "9000": str(free_port()),
    }
    for name in ON_ONE_SERVER:
        with reading(folder, places, {"HORARIUM_URL": server.url}) as reader:
            reader.read((START / f"{name}.md").read_text())


def test_a_team_shares_a_postgresql(tmp_path: Path) -> None:
    postgres = Postgres()
    with ExitStack() as stack:
        stack.callback(postgres.stop)
        postgres.start()
        places = {
            "postgresql://horarium:secret@localhost/horarium": postgres.url,
            "8081": str(free_port()),
            "8082": str(free_port()),
        }
        with reading(tmp_path, places, {}) as reader:
            reader.read((START / "team-postgresql.md").read_text())


def test_every_tutorial_with_commands_is_read() -> None:
    marked = {page.stem for page in START.glob("*.md") if MARKED.search(page.read_text())}
    assert marked == {*ON_ONE_SERVER, *ALONE}


def test_an_output_is_compared_word_by_word() -> None:
    said = "ID  JOB\n1   a\n2   b\n"
    assert shown("ID JOB\n...\n2 ...\n", said)
    assert not shown("ID JOB\n1 a\n", said)
