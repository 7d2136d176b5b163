"""A clock that stands still until it is told to move."""

from __future__ import annotations

from horarium.clock import Instant, to_micros


class ManualClock:
    """`clock.Clock` for tests and the simulator. `advance` is time that passes; `step` is somebody setting the wall
    clock, which the monotonic one never sees."""

    def __init__(self, start: Instant) -> None:
        self._wall = start
        self._elapsed = 0

    def now(self) -> Instant:
        return self._wall

    def monotonic(self) -> float:
        return self._elapsed / 1_000_000

    def advance(self, seconds: float) -> None:
        """Let time pass. Raises ValueError for a negative duration: use `step` to set the wall clock back."""
        if seconds < 0:
            raise ValueError(f"time can't pass backwards ({seconds} s); use step() to set the wall clock back")
        self._wall += to_micros(seconds)
        self._elapsed += to_micros(seconds)

    def advance_to(self, instant: Instant) -> None:
        """Let time pass until the wall clock shows `instant`; no time passes if it shows a later one."""
        passed = max(0, instant - self._wall)
        self._wall += passed
        self._elapsed += passed

    def step(self, seconds: float) -> None:
        """Set the wall clock forward or back; no time passes."""
        self._wall += to_micros(seconds)
