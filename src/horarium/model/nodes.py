"""The node: one process of ours."""

from __future__ import annotations

from msgspec import Struct

from horarium.clock import Instant


class Node(Struct, frozen=True, kw_only=True):
    """One process of ours. `beat_at` is its last sign of life."""

    name: str
    roles: tuple[str, ...]
    started_at: Instant
    beat_at: Instant
    host: str = ""
    pid: int = 0
    version: str = ""
    stopped_at: Instant | None = None
