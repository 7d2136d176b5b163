"""The types of the clients in other languages, and the table of routes, are those of the OpenAPI document."""

from __future__ import annotations

import runpy
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_types_of_the_clients_are_those_of_the_document() -> None:
    made = runpy.run_path(str(ROOT / "tools" / "client_types.py"))
    schemas = made["spoken_of"](made["openapi"]()["components"]["schemas"])
    old = [str(path.relative_to(ROOT)) for path, make in made["WRITTEN"] if path.read_text() != make(schemas)]
    assert old == [], "the API has changed: run `python tools/client_types.py`, and commit the files"


def test_the_table_of_routes_is_that_of_the_document() -> None:
    made = runpy.run_path(str(ROOT / "tools" / "routes.py"))
    assert made["PAGE"].read_text() == made["page"](), "run `python tools/routes.py`, and commit docs/routes.md"
