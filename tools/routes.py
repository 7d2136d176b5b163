"""Writes the table of docs/routes.md from the OpenAPI document: `python tools/routes.py`."""

from __future__ import annotations

import runpy
from pathlib import Path

from horarium.access.roles import SCOPES, Role, Scope

PAGE = Path(__file__).resolve().parent.parent / "docs" / "routes.md"
BEGINS = "<!-- routes -->\n"
PREFIX = "/api/v1"


def table() -> str:
    """A row for each route below /api/v1, by its scope."""
    lines = ["| route | scope | roles | bound callers |", "|---|---|---|---|"]
    document = runpy.run_path(str(Path(__file__).with_name("client_types.py")))["openapi"]()
    found = [
        (list(Scope).index(Scope(operation["x-scope"])), path.removeprefix(PREFIX), method.upper(), operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
        if isinstance(operation, dict) and "x-scope" in operation
    ]
    for _, path, method, operation in sorted(found, key=lambda row: row[:3]):
        scope = Scope(operation["x-scope"])
        roles = ", ".join(role for role in Role if scope in SCOPES[role])
        lines.append(f"| `{method} {path}` | `{scope}` | {roles} | {operation['x-bounds']} |")
    return BEGINS + "\n".join(lines) + "\n"


def page() -> str:
    """The page, with the table as it is now."""
    return PAGE.read_text(encoding="utf-8").partition(BEGINS)[0] + table()


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
