"""State that the connections of one server share: their bound, and the log of refused ones.

The number stays below the limit of open files, so that many clients never keep the store, a delivery or a
health check from opening one. Where it is reached, a connection that waits for its client's next request makes room; a
new one is refused only if there is none.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

LINGERING_MAX = 64
"""Refused connections above the limit that are closed with patience; more are closed at once."""
HALVES_MAX = 1_000
"""Requests under way whose body has arrived in part."""
LOG_AGAIN_SECONDS = 60.0
FILES_KEPT = 1_000
"""Open files that connections leave to all else, where there are that many."""

log = logging.getLogger("horarium.api")


class Closable(Protocol):
    """A connection, as far as room is concerned."""

    def give_way(self) -> None:
        """Close now: another one needs the room."""

    def give_up(self) -> None:
        """Refuse the request whose body is not whole yet."""


class Intake:
    """`connections_max`: how many may be open. `count`: takes the reason of each refusal. `time`: monotonic seconds."""

    def __init__(self, connections_max: int, count: Callable[[str], None], time: Callable[[], float]) -> None:
        self.connections_max = connections_max
        self.idle: dict[Closable, None] = {}
        self.halves: dict[Closable, None] = {}
        self.connected = asyncio.Event()
        """Set by each connection that is opened."""
        self._open: set[Closable] = set()
        self._over: set[Closable] = set()
        self._count = count
        self._time = time
        self._logged_at: float | None = None
        self._unlogged = 0

    @property
    def open(self) -> int:
        """How many are open."""
        return len(self._open) + len(self._over)

    def admit(self, connection: Closable) -> bool:
        """Whether there is room for one more, or can be made."""
        self.connected.set()
        if len(self._open) >= self.connections_max and not self._make_room():
            self._over.add(connection)
            return False
        self._open.add(connection)
        return True

    def _make_room(self) -> bool:
        if not self.idle:
            return False
        longest = next(iter(self.idle))
        self.forget(longest)
        longest.give_way()
        self._note("closed the connections that were idle for longest")
        return True

    def half(self, connection: Closable) -> None:
        """A part of its body has arrived. A request at work costs more than a connection, so the one that has kept us
        waiting for longest gives way where there are too many."""
        self.halves[connection] = None
        if len(self.halves) > HALVES_MAX:
            longest = next(iter(self.halves))
            del self.halves[longest]
            longest.give_up()

    def linger(self) -> bool:
        """Whether a connection that was not admitted may be closed with patience."""
        return len(self._over) <= LINGERING_MAX

    def forget(self, connection: Closable) -> None:
        """It is closed."""
        self.idle.pop(connection, None)
        self.halves.pop(connection, None)
        self._open.discard(connection)
        self._over.discard(connection)

    def refused(self, reason: str) -> None:
        """A request or a connection was refused."""
        self._count(reason)
        if reason == "connections":
            self._note("refuse further ones")

    def _note(self, what: str) -> None:
        """One line at first, and one a minute while it goes on."""
        now = self._time()
        if self._logged_at is not None and now - self._logged_at < LOG_AGAIN_SECONDS:
            self._unlogged += 1
            return
        more = f"; {self._unlogged} more times since the last line" if self._unlogged else ""
        log.warning("%d connections are open, the most that this process serves: %s%s", len(self._open), what, more)
        self._logged_at, self._unlogged = now, 0


def connections_max(files: int) -> int:
    """How many connections a process serves that may open this number of files: all but 1,000, and at least half."""
    return max(files // 2, files - FILES_KEPT)
