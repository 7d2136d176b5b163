"""The layers that the documentation shows are those that are checked, and those that are there."""

from __future__ import annotations

import re
import tomllib

from tests.tidy.source import PACKAGE, ROOT

LAYERS_MAX = 12


def declared() -> list[set[str]]:
    """The layers of the import contract, from the top."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    return [set(layer.split(" | ")) for layer in layers]


def shown() -> list[set[str]]:
    """The layers as the page on the architecture draws them."""
    text = (ROOT / "docs" / "architecture" / "overview.md").read_text()
    _, _, section = text.partition("## Folders and layers")
    lines = re.findall(r"^    ((?:\w+(?:/|\.py) ?)+)", section, re.MULTILINE)
    return [{name.removesuffix("/").removesuffix(".py") for name in line.split()} for line in lines]


def test_the_page_shows_the_layers_that_are_checked() -> None:
    assert shown() == declared()


def test_there_are_few_layers() -> None:
    assert len(declared()) <= LAYERS_MAX


def test_every_part_of_the_package_has_a_layer() -> None:
    parts = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert parts - {"__init__", "__main__"} == set().union(*declared())
