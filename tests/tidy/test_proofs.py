"""What `make test` leaves out is listed, each test with what shows the same without a clock."""

from __future__ import annotations

import ast
import re

from tests.tidy.source import ROOT, Function, modules

PAGE = (ROOT / "docs" / "architecture" / "proof.md").read_text()
FOLDER = "tests/proof/"


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
