"""Steps of the wall clock, noticed: it went on by more or less than the monotonic clock did.

A step forward may be wrong, and is taken back then. So what can't be undone (deleting runs, taking a lease from a
healthy worker) waits until the step has lasted for a while.
"""

from __future__ import annotations

from horarium.clock import SECOND, Clock, Instant

STEP = SECOND
"""How far the two clocks must part between two looks to count as a step."""


class ClockWatch:
    """Compares two clocks from look to look."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._offset: float | None = None
        self._forward_at: float | None = None
        self.forward = 0
        """By how much the wall clock has stepped forward, all in all, in microseconds."""
        self.stepped_to: Instant = 0
        """What it showed when the last step forward was noticed."""

    def look(self, now: Instant) -> int:
        """Notice a step. By how many microseconds the wall clock has stepped since the last look, or 0."""
        offset = now - self._clock.monotonic() * SECOND
        before, self._offset = self._offset, offset
        if before is None or abs(offset - before) < STEP:
            return 0
        step = round(offset - before)
        if step > 0:
            self._forward_at = self._clock.monotonic()
            self.stepped_to = now
        self.forward = max(0, self.forward + step)
        return step

    def stood_for(self, seconds: float) -> bool:
        """Whether the last step forward has lasted for that long, or was taken back, or there was none."""
        if self.forward < STEP or self._forward_at is None:
            return True
        if self._clock.monotonic() - self._forward_at < seconds:
            return False
        self.forward = 0
        return True
