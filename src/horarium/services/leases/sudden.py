"""Ended leases that are left to their holders for a while, since these could not renew them: the store stood still,
or they were given by a clock that was behind for a moment, as a node sees them that did not look in between.

At one look of the rescuer a lease is not overdue, or not there; at the next it is, and had ended before the first. By
no clock that only goes on is that so: it was given in between, by a wall clock that was set back and forth. Who holds
it renews it within its time, so it is left for that long.
"""

from __future__ import annotations

from collections.abc import Sequence

from horarium.clock import Clock, Instant
from horarium.model import CLAIMED, Run

AFTER_STILL_SECONDS = 10.0
"""How long a lease is left to its holder, at most, after the store stood still: outcomes and heartbeats go first."""
Key = tuple[str, int, Instant | None]


class Sudden:
    """What one rescuer found overdue at its last look."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._looked_at: Instant | None = None
        self._left_until: dict[Key, float] = {}

    def forget(self) -> None:
        """The clock was set back: earlier overdue leases say nothing. (A step forward makes no lease end before the
        last look, and may be the rest of one back and one forward.)"""
        self._looked_at = None

    def among(self, overdue: Sequence[Run], now: Instant, limit: int, stood_still: bool = False) -> set[str]:
        """The ids of those that are left for now. `limit`: as many as this are not all that there are. `stood_still`:
        so did the store, right before. What was seen to be overdue before that waits no longer for it."""
        elapsed = self._clock.monotonic()
        left_until: dict[Key, float] = {}
        for run in overdue:
            key = (run.id, run.token, run.lease_expires_at)
            sudden = self._looked_at is not None and (run.lease_expires_at or now) <= self._looked_at
            left_until[key] = self._left_until.get(key, elapsed + self._seconds(run, sudden, stood_still))
        self._left_until = left_until
        self._looked_at = now if len(overdue) < limit else None
        return {run_id for (run_id, _, _), until in left_until.items() if until > elapsed}

    @staticmethod
    def _seconds(run: Run, sudden: bool, stood_still: bool) -> float:
        if run.state not in CLAIMED or not (sudden or stood_still):
            return 0.0
        return run.lease_seconds if sudden else min(run.lease_seconds, AFTER_STILL_SECONDS)
