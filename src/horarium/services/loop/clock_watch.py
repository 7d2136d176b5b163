"""Jumps of the wall clock, noticed: it went on by more or less than the steady scale did.

A jump forward may be wrong, and is taken back then. So what is deleted because it is old waits until the jump has
lasted for a while. (Leases do not depend on it: they are on the steady scale.)
"""

from __future__ import annotations

from horarium.clock import SECOND, Clock, Instant

STEP = SECOND
"""How far the two must part between two looks to count as a jump."""


class ClockWatch:
    """Compares a wall clock with the monotonic one from look to look."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._offset: float | None = None
        self._forward = 0
        self._forward_at = 0.0

    def look(self, now: Instant) -> int:
        """By how many microseconds the wall clock has jumped since the last look, or 0."""
        before, self._offset = self._offset, now - self._clock.monotonic() * SECOND
        jump = 0 if before is None else round(self._offset - before)
        if abs(jump) < STEP:
            return 0
        if jump > 0:
            self._forward_at = self._clock.monotonic()
        self._forward = max(0, self._forward + jump)
        return jump

    def stood_for(self, seconds: float) -> bool:
        """Whether the last jump forward has lasted for that long, or was taken back, or there was none."""
        if self._clock.monotonic() - self._forward_at >= seconds:
            self._forward = 0
        return self._forward < STEP
