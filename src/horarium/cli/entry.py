"""One job of a file, and its place in it, which every error names."""

from __future__ import annotations

from typing import Any, NamedTuple


class Entry(NamedTuple):
    """`place`: `jobs.yaml:12`. Where `error` says why it is no job, there is no definition."""

    place: str
    definition: dict[str, Any] | None = None
    error: str | None = None

    @property
    def name(self) -> str | None:
        """Its job's name, if it has one."""
        name = None if self.definition is None else self.definition.get("name")
        return name if isinstance(name, str) else None
