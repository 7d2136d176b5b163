"""The page on adding a field is true: each field of a run is in every place that the page names."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from horarium.model import Run
from tests.tidy.source import ROOT, modules

PAGE = (ROOT / "docs" / "architecture" / "adding-a-field.md").read_text()
ROWS = re.findall(r"^\| `(src/[^`]+)` \| all(.*) \|$", PAGE, re.MULTILINE)


def words_of(place: Path) -> set[str]:
    """The words of a file; of a folder, the fields of the view in it."""
    if place.is_file():
        return set(re.findall(r"\w+", place.read_text()))
    views = [node for module in modules(str(place.relative_to(ROOT))) for node in module.classes]
    (view,) = [node for node in views if node.name == "RunView"]
    return {
        each.target.id for each in view.body if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
    }


@pytest.mark.parametrize(("place", "but"), ROWS, ids=[place for place, _ in ROWS])
def test_every_field_is_where_the_page_says(place: str, but: str) -> None:
    assert set(Run.__struct_fields__) - words_of(ROOT / place) == set(re.findall(r"`(\w+)`", but)) - {"lease"}


def test_the_page_walks_through_every_store() -> None:
    stores = {path.parent.name for path in (ROOT / "src" / "horarium" / "stores").glob("*/rows.py")}
    assert stores <= {Path(place).parent.name for place, _ in ROWS}


def test_what_the_page_names_exists() -> None:
    named = re.findall(r"`((?:testing|rules|tests)/[\w/]+\.py)`", PAGE)
    assert named
    assert all((ROOT / name).exists() or (ROOT / "src" / "horarium" / name).exists() for name in named)
