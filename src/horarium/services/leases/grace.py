"""Ended leases that are left to their holders for a while, since these could not renew them: the store or this process
stood still, no node was there, or this node has just moved on the steady scale. Who holds a lease renews it within its
time, so it is left for that long, and outcomes and heartbeats go first."""

from __future__ import annotations

from collections.abc import Sequence

from horarium.clock import SECOND, Clock, Instant
from horarium.model import CLAIMED, Run

LEFT_SECONDS_MAX = 10.0
STILL_SECONDS = 2.0
"""A store that does not answer for longer than this stood still; so did a process that is called as much too late."""

Key = tuple[str, int, Instant | None]


class Grace:
    """What one rescuer leaves alone for now."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._due_at: Instant | None = None
        self._asked_at: float | None = None
        self._left_until: dict[Key, float] = {}

    def ask(self) -> None:
        """The store is asked now, or again."""
        if self._asked_at is None:
            self._asked_at = self._clock.monotonic()

    def stood_still(self) -> bool:
        """Whether it took the store too long to answer now, or this process too long to ask."""
        asked_at, due_at = self._asked_at, self._due_at
        self._asked_at = self._due_at = None
        if due_at is not None and self._clock.steady() - due_at > STILL_SECONDS * SECOND:
            return True
        return asked_at is not None and self._clock.monotonic() - asked_at > STILL_SECONDS

    def asks_again(self, seconds: float) -> None:
        """So it will, at the latest."""
        self._due_at = self._clock.steady() + round(seconds * SECOND)

    def among(self, overdue: Sequence[Run], in_doubt: bool) -> set[str]:
        """The ids of those that are left for now. What was seen to be overdue before there was any doubt waits no
        longer for it."""
        elapsed = self._clock.monotonic()
        left_until: dict[Key, float] = {}
        for run in overdue:
            key = (run.id, run.token, run.lease_expires_at)
            seconds = min(run.lease_seconds, LEFT_SECONDS_MAX) if in_doubt and run.state in CLAIMED else 0.0
            left_until[key] = self._left_until.get(key, elapsed + seconds)
        self._left_until = left_until
        return {run_id for (run_id, _, _), until in left_until.items() if until > elapsed}
