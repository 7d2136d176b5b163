"""The English of the project is that of engineers, and its files speak of the project alone."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.tidy.source import ROOT

pytestmark = pytest.mark.slow

ODD = re.compile(
    r"\b(whoever|whatever|whomever|somebody|nobody|shall|anew|at the most|at the least|stands? in|stood in|told of"
    r"|of its own accord|so many|thereof|wherein|lest)\b",
    re.IGNORECASE,
)
"""Words that the documentation of other projects does not use, or hardly."""
UNFINISHED = re.compile(
    r"\b(TODO|FIXME|XXX|HACK)\b|pytest\.(mark\.)?(skip|xfail|importorskip)|mark\.flaky|unittest\.mock"
)
MACHINE = re.compile(r"/(?:work|home|Users|tmp/bash)[/_]\w+|/root/(?!\.)")
SUFFIXES = {".py", ".md", ".sql", ".lua", ".toml", ".yml", ".yaml", ".html", ".sh"}
HERE = Path(__file__)

NOT_YET_PLAIN = ROOT / "tests" / "tidy" / "not_yet_plain.txt"
"""The files whose words still have to be mended, one a line. May only shrink."""


def files(*places: str) -> list[Path]:
    found = []
    for place in places:
        path = ROOT / place
        found += [path] if path.is_file() else [each for each in sorted(path.rglob("*")) if each.suffix in SUFFIXES]
    return [path for path in found if "assets" not in path.parts and "__pycache__" not in path.parts]


def test_the_words_are_those_of_engineers() -> None:
    later = set(NOT_YET_PLAIN.read_text().split())
    odd = {}
    for path in files("src", "docs", "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"):
        name = path.relative_to(ROOT).as_posix()
        if name not in later and (found := ODD.findall(path.read_text())):
            odd[name] = sorted(set(found))
    assert odd == {}


def test_nothing_is_left_for_later() -> None:
    """Nothing is skipped or expected to fail either, and no mock is where something real can run."""
    found = {
        str(path.relative_to(ROOT)): match[0]
        for path in files("src", "tests", "bench", "examples", "tools", "docs", "README.md", "Makefile")
        if path != HERE and (match := UNFINISHED.search(path.read_text()))
    }
    assert found == {}


def test_no_file_names_a_machine() -> None:
    found = {
        str(path.relative_to(ROOT)): match[0]
        for path in files("src", "tests", "bench", "examples", "tools", "docs", "README.md", "Makefile", "Dockerfile")
        if path != HERE and (match := MACHINE.search(path.read_text()))
    }
    assert found == {}
