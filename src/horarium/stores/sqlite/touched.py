"""Whether a SQLite file may have changed, without asking SQLite: that takes another thread, ten times a second."""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable

RECENT_SECONDS = 2.0
"""A file that was written to within this is asked about in any case: two writes may bear the same time."""


class Touched:
    """Asks `changed` only where the file or its log was written to since it was last asked."""

    def __init__(self, path: str, changed: Callable[[], Awaitable[bool]]) -> None:
        self._paths = (path, f"{path}-wal")
        self._changed = changed
        self._stamps: tuple[tuple[int, int], ...] | None = None

    async def changed(self) -> bool:
        """Whether another process wrote."""
        stamps = tuple(_stamp(path) for path in self._paths)
        newest = max(written for written, _ in stamps)
        if stamps == self._stamps and time.time_ns() - newest > RECENT_SECONDS * 1e9:
            return False
        self._stamps = stamps
        return await self._changed()


def _stamp(path: str) -> tuple[int, int]:
    """When it was last written to, and its size."""
    try:
        found = os.stat(path)
    except OSError:
        return 0, 0
    return found.st_mtime_ns, found.st_size
