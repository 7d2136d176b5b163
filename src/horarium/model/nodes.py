"""The node: one process of ours."""

from __future__ import annotations

from msgspec import Struct

from horarium.clock import DAY, HOUR, Instant

BEAT_AHEAD_MAX = HOUR
NODES_KEPT = 7 * DAY
"""A node that was silent for this long is deleted when another one beats."""


class Node(Struct, frozen=True, kw_only=True):
    """One process of ours. `beat_at` is its last sign of life. `places`: how many runs it performs at one time, of
    `http` and of `handler` (all handlers together)."""

    name: str
    roles: tuple[str, ...]
    started_at: Instant
    beat_at: Instant
    host: str = ""
    pid: int = 0
    version: str = ""
    stopped_at: Instant | None = None
    places: dict[str, int] = {}

    def is_alive(self, now: Instant, silent_after: int) -> bool:
        """Whether it is taken to be at work: it has not said that it stops, and gave a sign of life within
        `silent_after` microseconds. One from more than an hour ahead was given by a clock that was wrong."""
        return self.stopped_at is None and now - silent_after < self.beat_at <= now + BEAT_AHEAD_MAX
