"""Waiting until files are written to, by any process of this machine: inotify, where there is one.

The standard library has no call for it, so the C library's is used. Where that fails (another system, no more watches
to be had, a file that is not there), the caller is told, and goes by the clock.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import sys
from collections.abc import Sequence
from contextlib import suppress

WRITTEN = 0x2 | 0x4 | 0x400 | 0x800
"""IN_MODIFY, IN_ATTRIB, IN_DELETE_SELF, IN_MOVE_SELF: bytes were written, or the file is another one now."""
EVENTS_BYTES = 16 * 1024


class Watched:
    """Waits for writes to files. Belongs to one event loop. `close` at the end."""

    def __init__(self, paths: Sequence[str]) -> None:
        self._paths = [os.fsencode(path) for path in paths]
        self._descriptor: int | None = None
        self._watch = None
        self.waits = False
        """Whether something waits for a write at present."""
        if sys.platform == "linux":
            with suppress(OSError, AttributeError):
                library = ctypes.CDLL(None, use_errno=True)
                self._watch = library.inotify_add_watch
                descriptor = library.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
                self._descriptor = descriptor if descriptor >= 0 else None

    def close(self) -> None:
        """Watch no longer."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def arm(self) -> bool:
        """Forget earlier writes, and watch from now on. False: that can't be done."""
        if self._descriptor is None or self._watch is None:
            return False
        with suppress(BlockingIOError):
            while os.read(self._descriptor, EVENTS_BYTES):
                pass
        # A path that is watched already costs nothing; one that is another file by now is watched from now on.
        return all(self._watch(self._descriptor, path, WRITTEN) >= 0 for path in self._paths)

    async def wait(self) -> None:
        """Return once something was written since `arm`."""
        assert self._descriptor is not None, "armed"
        loop = asyncio.get_running_loop()
        written: asyncio.Future[None] = loop.create_future()
        descriptor = self._descriptor
        loop.add_reader(descriptor, _done, written)
        self.waits = True
        try:
            await written
        finally:
            self.waits = False
            loop.remove_reader(descriptor)


def _done(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
