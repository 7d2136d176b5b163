"""The machine's clocks, and more time than they show: what takes long on purpose is over when a test says so.

A limit or a lease can be long then, so that a busy machine never ends it before the test does.
"""

from __future__ import annotations

import time

from horarium.clock import SECOND, Instant, SystemClock


class PassingClock(SystemClock):
    """`let_pass` is time that goes by, on all clocks."""

    def __init__(self) -> None:
        self._more = 0
        super().__init__()

    def now(self) -> Instant:
        return super().now() + self._more * SECOND

    def monotonic(self) -> float:
        return time.monotonic() + self._more

    def steady(self) -> Instant:
        return super().steady() + self._more * SECOND

    def let_pass(self, seconds: int) -> None:
        """So much time has passed for all that look from now on."""
        self._more += seconds
