"""Draws the states of a run from `model.TRANSITIONS`, for docs/lifecycle.md. `--write` puts it in place."""

from __future__ import annotations

import sys
from pathlib import Path

from horarium.model import TRANSITIONS

PAGE = Path(__file__).parent.parent / "docs" / "lifecycle.md"
BEGIN, END = "<!-- states: begin -->", "<!-- states: end -->"


def diagram() -> str:
    """A Mermaid state diagram."""
    lines = ["```mermaid", "stateDiagram-v2"]
    for state, following in TRANSITIONS.items():
        source = "[*]" if state is None else str(state)
        lines += [f"    {source} --> {target}: {why}" for target, why in following.items()]
        if state is not None and not following:
            lines.append(f"    {source} --> [*]")
    return "\n".join([*lines, "```"])


def page(text: str) -> str:
    """The page with the diagram in its place."""
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}\n{diagram()}\n{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    if "--write" in sys.argv:
        PAGE.write_text(page(PAGE.read_text()))
    else:
        print(diagram())
