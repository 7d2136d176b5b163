"""Steps of the wall clock, noticed: it went on by more or less than the monotonic clock did.

A step forward may be wrong, and is taken back then. So irreversible steps (deleting runs, taking a lease from a healthy
worker) wait until the step has lasted for a while.
"""

from __future__ import annotations

from typing import NamedTuple

from horarium.clock import SECOND, Clock, Instant
from horarium.model import Run
from horarium.rules.settling import longest_lease, put_forward

STEP = SECOND
"""How far the two clocks must part between two looks to count as a step."""
STEPS_MAX = 100
"""Steps forward that are remembered at one time: beyond that, the earliest are believed."""

LEASE_SECONDS_MAX = 24 * 3600.0
"""No lease lasts longer."""


class StepForward(NamedTuple):
    """What the wall clock showed when a step was noticed, and what it would have shown without it."""

    before: Instant
    after: Instant


class Offset:
    """How far a wall clock was from the monotonic one when it was looked at last."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._offset: float | None = None

    def look(self, now: Instant) -> int:
        """By how many microseconds the wall clock has stepped since the last look, or 0."""
        step = self.peek(now)
        self._offset = self._offset_at(now)
        return step

    def peek(self, now: Instant) -> int:
        """What `look` would answer; nothing is noted."""
        step = 0.0 if self._offset is None else self._offset_at(now) - self._offset
        return round(step) if abs(step) >= STEP else 0

    def _offset_at(self, now: Instant) -> float:
        return now - self._clock.monotonic() * SECOND


class Steps:
    """The steps of one clock. Several may look, and each look makes it more exact: two steps between which no one
    looked are one, and a lease that was given between them is from before neither or both."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._offset = Offset(clock)
        self.forward_at = 0.0
        self.forward: list[StepForward] = []
        self.stood: list[StepForward] = []
        """Those that have stood for long enough, while leases may go on that were given between two of them."""

    def look(self, now: Instant) -> None:
        """Notice a step."""
        step = self._offset.look(now)
        if step > 0:
            self.forward_at = self._clock.monotonic()
            self.forward = [*self.forward[-STEPS_MAX + 1 :], StepForward(now - step, now)]
        elif step < 0:
            self._take_back(-step)

    def _take_back(self, step: int) -> None:
        """The clock went back: the last steps forward were too long, or wrong."""
        while self.forward and step > 0:
            before, after = self.forward.pop()
            if after - before > step:
                self.forward.append(StepForward(before, after - step))
            step -= after - before

    def stood_for(self, seconds: float) -> bool:
        """Whether the last step forward has lasted for that long, or was taken back, or there was none."""
        stood = self._clock.monotonic() - self.forward_at
        if self.forward and stood >= seconds:
            self.forward, self.stood = [], self.forward
        if self.stood and stood >= LEASE_SECONDS_MAX:
            self.stood = []
        return sum(after - before for before, after in self.forward) < STEP

    def ended_within(self, lease: Instant, seconds: float) -> bool:
        """Whether a lease ended within a step that was noticed within the last `seconds`."""
        is_recent = self._clock.monotonic() - self.forward_at < seconds
        return is_recent and any(before < lease <= after for before, after in (*self.stood, *self.forward))


class ClockWatch:
    """Compares two clocks from look to look. `steps`: the steps noticed here and by others who ask for the same time
    how long a step has stood."""

    def __init__(self, clock: Clock, steps: Steps | None = None) -> None:
        self._offset = Offset(clock)
        self.steps = steps or Steps(clock)

    def look(self, now: Instant) -> int:
        """Notice a step. By how many microseconds the wall clock has stepped since the last look, or 0."""
        self.steps.look(now)
        return self._offset.look(now)

    def peek(self, now: Instant) -> int:
        """What `look` would answer; nothing is noted."""
        return self._offset.peek(now)

    def stood_for(self, seconds: float) -> bool:
        """Whether the last step forward has lasted for that long, or was taken back, or there was none."""
        return self.steps.stood_for(seconds)

    def is_unsure(self, run: Run) -> bool:
        """Whether its lease ended within a step that was noticed less than a lease ago. One step as seen here, by a
        node that was held up, may be several, and the lease may be given between them: who holds it renews it in that
        time."""
        return self.steps.ended_within(run.lease_expires_at or 0, run.lease_seconds)

    def unstepped(self, run: Run) -> Run:
        """The claimed run with its lease as it would be had the wall clock not stepped since it was given: each step
        that came while it lasted puts it forward. Another node may have done so already, and this one may have noticed
        the step later than that one did: a lease that ends near the end of the step is left alone, unless a clock from
        before the step could have given it. (One step as seen here may be two, and the lease given between them.)"""
        for before, after in self.steps.forward:
            lease = run.lease_expires_at or 0
            latest = max(longest_lease(run, before), (before + after) // 2)
            if before < lease <= min(after, latest):
                run = put_forward(run, after - before)
        return run
