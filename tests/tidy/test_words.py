"""The English of the project is that of engineers, and its files speak of the project alone."""

from __future__ import annotations

import ast
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
NAMELESS = re.compile(
    r"\bwhat (is|was|are|were|has|had|can|may|must|will|would|comes?|came|goes|went|stands?|stays?|falls?|fell"
    r"|ends?|ended|begins?|waits?|runs?|ran)\b",
    re.IGNORECASE,
)
NAMELESS_MAX = 8 / 10_000
"""Where "what" is the subject of a sentence, a noun is missing: so often in all words, at most."""
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


def prose(path: Path) -> str:
    """The words of a page, or the docstrings of a module, those of attributes too."""
    if path.suffix != ".py":
        return path.read_text()
    nodes = [node.value for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Expr)]
    return "\n".join(node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str))


def test_things_have_names() -> None:
    pages = [path for path in files("docs", "README.md", "CHANGELOG.md") if path.name != "glossary.md"]
    counted = {path: prose(path) for path in (*pages, *files("src")) if path.suffix in {".md", ".py"}}
    words = sum(len(text.split()) for text in counted.values())
    found = {path.relative_to(ROOT).as_posix(): len(NAMELESS.findall(text)) for path, text in counted.items()}
    most = sorted(found.items(), key=lambda each: -each[1])[:10]
    assert sum(found.values()) / words < NAMELESS_MAX, most


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
