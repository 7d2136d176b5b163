"""Whether a SQLite file may have changed, without asking SQLite: that takes another thread, ten times a second."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable

from horarium.stores.sqlite.watched import Watched

RECENT_SECONDS = 2.0
"""A file that was written to within this is asked about in any case: two writes may bear the same time, and a commit is
seen only some time after it was written, when the disk has it."""


class Touched:
    """Asks `changed` only where the file or its log was written to since it was last asked. `pause` waits as long as
    that is not so, where the system can say."""

    def __init__(self, path: str, changed: Callable[[], Awaitable[bool]]) -> None:
        self._paths = (path, f"{path}-wal")
        self._changed = changed
        self._stamps: tuple[tuple[int, int], ...] | None = None
        self._watched: Watched | None = None

    async def changed(self) -> bool:
        """Whether another process wrote."""
        stamps = self._look()
        if stamps == self._stamps and not _recent(stamps):
            return False
        self._stamps = stamps
        return await self._changed()

    async def pause(self, seconds: float) -> None:
        """Wait for that long, and then until it may have changed. A clock that was set, or an event that is lost, costs
        no more than it does where there are no events: the caller asks again later in any case."""
        await asyncio.sleep(seconds)
        if self._watched is None:
            self._watched = Watched(self._paths)
        if self._stamps is None or _recent(self._stamps) or not self._watched.arm():
            return
        if self._look() == self._stamps:
            await self._watched.wait()

    def close(self) -> None:
        """Watch no longer."""
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
