"""A clock that moves only when it is moved."""

from __future__ import annotations

from itertools import count

from horarium.clock import Instant, to_micros

_numbers = count()


class ManualClock:
    """`clock.Clock` for tests and the simulator. `advance` is time that passes; `step` sets the wall clock,
    which the monotonic and the steady one never see."""

    def __init__(self, start: Instant) -> None:
        self._wall = start
        self._elapsed = 0
        self.steady_offset = start
        self.machine = f"by hand {next(_numbers)}"

    def now(self) -> Instant:
        return self._wall

    def monotonic(self) -> float:
        return self._elapsed / 1_000_000

    def steady(self) -> Instant:
        return self._elapsed + self.steady_offset

    def advance(self, seconds: float) -> None:
        """Let time pass. Raises ValueError for a negative duration: use `step` to set the wall clock back."""
        if seconds < 0:
            raise ValueError(f"time can't pass backwards ({seconds} s); use step() to set the wall clock back")
        self._wall += to_micros(seconds)
        self._elapsed += to_micros(seconds)

    def step(self, seconds: float) -> None:
        """Set the wall clock forward or back; no time passes."""
        self._wall += to_micros(seconds)
