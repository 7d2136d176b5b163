"""Whether a SQLite file may have changed, without asking SQLite: that takes another thread, ten times a second."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol

from horarium.stores.sqlite.watched import Watched

RECENT_SECONDS = 2.0
"""Where writes can't be watched, a file that was written to within this is asked about in any case: two writes may bear
the same time, and a commit is seen only some time after it was written, when the disk has it."""


Over = Callable[[Sequence[str]], Coroutine[Any, Any, list[str]]]
"""Which of these runs are over."""


class Changed(Protocol):
    """Asks SQLite whether another process committed anything since this was last asked."""

    async def __call__(self, *, alone: bool) -> bool:
        """`alone`: at an instant at which no process is in the middle of a write."""


class Touched:
    """Asks `changed` only where the file or its log was written to since it was last asked. `touched` waits as long as
    that is not so, where the system can say.

    Where writes are watched one question is enough after each. The watch begins before it, and it is answered while no
    process writes: earlier writes have been committed or undone by then, and all that comes after it is seen by the
    watch.
    """

    def __init__(self, path: str, changed: Changed, over: Over) -> None:
        self._paths = (path, f"{path}-wal")
        self._changed, self.over = changed, over
        self._stamps: tuple[tuple[int, int], ...] | None = None
        self._watched: Watched | None = None
        self._certain = False

    async def changed(self) -> bool:
        """Whether another process wrote."""
        self._certain = False
        if self._watched is not None and self._watched.arm():
            changed = await self._changed(alone=True)
            self._certain = True
            return changed
        stamps = self._look()
        if stamps == self._stamps and not _recent(stamps):
            return False
        self._stamps = stamps
        return await self._changed(alone=False)

    async def touched(self) -> None:
        """Return once it may have changed. An event that is lost costs no more than the time of a look: those are left
        out a few times in a row at most."""
        if self._watched is None:
            self._watched = Watched(self._paths)
        if self._certain:
            await self._watched.wait()

    def close(self) -> None:
        """Watch no longer."""
        self._certain = False
        if self._watched is not None:
            self._watched.close()
            self._watched = None

    def _look(self) -> tuple[tuple[int, int], ...]:
        return tuple(map(_stamp, self._paths))


def _recent(stamps: tuple[tuple[int, int], ...]) -> bool:
    return time.time_ns() - max(written for written, _ in stamps) <= RECENT_SECONDS * 1e9


def _stamp(path: str) -> tuple[int, int]:
    """When it was last written to, and its size."""
    try:
        found = os.stat(path)
    except OSError:
        return 0, 0
    return found.st_mtime_ns, found.st_size
