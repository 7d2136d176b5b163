"""Tests that `make test` leaves out are listed, each with one that shows the same without a clock; and all of them were
run not long ago."""

from __future__ import annotations

import ast
import re
import subprocess

import pytest

from tests.tidy.source import ROOT, Function, modules

PAGE = (ROOT / "docs" / "architecture" / "proof.md").read_text()
FOLDER = "tests/proof/"
COMMITS_MAX = 200
"""Commits that may change `src/` after a whole run, until there is another one."""
LAST_RUN = re.compile(
    r"## Last whole run\n\n(?:Of commit `([0-9a-f]{7,40})`, \d{4}-\d\d-\d\d: \S|Not of this version: )"
)


def marked() -> set[tuple[str, str]]:
    """File and name of each test that is marked by hand."""
    return {
        (module.name, function.name)
        for module in modules("tests")
        if "mark.proof" in module.text
        for function in module.functions
        if not module.name.startswith(FOLDER) and _is_proof(function)
    }


def _is_proof(function: Function) -> bool:
    return any("mark.proof" in ast.unparse(decorator) for decorator in function.decorator_list)


def test_every_proof_is_listed_and_nothing_else() -> None:
    listed = set(re.findall(r"^\| `(tests/[\w/]+\.py)`: `(test_\w+)`", PAGE, re.MULTILINE))
    assert listed == marked()


def test_the_stand_ins_exist() -> None:
    rows = [line for line in PAGE.splitlines() if re.match(r"\| `tests/\w+/\w+\.py`: ", line)]
    named = {name for row in rows for name in re.findall(r"`(tests/[\w/]+\.py)`", row)}
    assert named
    assert all((ROOT / name).exists() for name in named)


def proved(page: str) -> str:
    """The commit of the last whole run; empty before the first one. Every page says either."""
    found = LAST_RUN.search(page)
    assert found, (
        "the section `Last whole run` begins with neither a commit, date and result, nor with `Not of this version`"
    )
    return found[1] or ""


def commits_since(commit: str) -> int:
    """Commits that changed `src/` after this one; 0 where no history tells (a shallow clone, an unpacked archive)."""
    asked = ["git", "rev-list", "--count", f"{commit}..HEAD", "--", "src"]
    told = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=False)
    return int(told.stdout) if told.returncode == 0 else 0


def test_the_page_says_when_all_proofs_were_run() -> None:
    proved(PAGE)


@pytest.mark.slow
def test_all_proofs_were_run_not_long_ago() -> None:
    commit = proved(PAGE)
    assert not commit or commits_since(commit) < COMMITS_MAX, "run `make proof`, and write its result into the page"


@pytest.mark.parametrize(
    ("first_line", "commit"),
    [
        ("Not of this version: it is to be run before a release.", ""),
        ("Of commit `27cb85f1`, 2026-11-20: eight counts of zero on five stores.", "27cb85f1"),
    ],
)
def test_the_page_says_which_commit_was_proved(first_line: str, commit: str) -> None:
    assert proved(f"## Last whole run\n\n{first_line}\n") == commit


@pytest.mark.parametrize(
    "first_line", ["", "All is well.", "Of commit `27cb85f1`, 2026-11-20:\n", "Of commit `main`, now: x"]
)
def test_a_page_that_says_no_result_is_refused(first_line: str) -> None:
    with pytest.raises(AssertionError, match="Last whole run"):
        proved(f"## Last whole run\n\n{first_line}\n")


@pytest.mark.slow
def test_commits_that_no_history_knows_are_not_counted() -> None:
    assert commits_since("0" * 40) == 0
    assert commits_since("HEAD") == 0
