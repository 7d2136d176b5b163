"""The trace of a world: every line of it, whether something happened that must never happen, and what its clock did."""

from __future__ import annotations

from collections import deque
from hashlib import blake2b

from horarium.clock import Instant
from horarium.testing.simulate.loop import Time

TAIL_LINES = 60


class Trace:
    """The events so far. `writes`: how many there were, which is the order of everything."""

    def __init__(self, time: Time) -> None:
        self.lines = 0
        self.violation: str | None = None
        self.writes = 0
        self.clock_stepped = False
        self.clock_went_back = False
        self.stepped_at = 0
        self.skewed = False
        """Whether the clocks of its nodes disagree."""
        self.held_up_until = 0
        self._time = time
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._before: tuple[str, ...] = ()
        self._hash = blake2b(digest_size=8)

    @property
    def elapsed(self) -> int:
        """How far this world is."""
        return self._time.elapsed

    @property
    def start(self) -> Instant:
        """When it began."""
        return self._time.start

    @property
    def wall(self) -> Instant:
        """What the wall clock shows."""
        return self._time.wall

    @property
    def true(self) -> Instant:
        """The time that it is in this world, even if its wall clock shows another."""
        return self._time.start + self._time.elapsed

    @property
    def was_held_up(self) -> bool:
        """Whether a node is frozen, or was until a moment ago: what it writes now, it may have decided long before."""
        return self.elapsed < self.held_up_until

    def fail(self, what: str) -> None:
        """Something happened that must never happen."""
        self.note(f"VIOLATION {what}")
        if self.violation is None:
            self.violation = what
            self._before = tuple(self._tail)

    def note(self, line: str) -> None:
        """One line of the trace."""
        text = f"{self._time.elapsed} {line}"
        self.lines += 1
        self._hash.update(text.encode())
        self._tail.append(text)

    def tail(self) -> str:
        """Its last lines, up to the violation if there is one: later ones say nothing of it."""
        return "\n".join(self._before or self._tail)

    def digest(self) -> str:
        """The hash of every line."""
        return self._hash.hexdigest()
