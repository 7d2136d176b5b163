"""Which event loop a scheduler belongs to. What it waits on is bound to the loop on which it was opened, so a call from
another one would wait for ever, or fail deep inside: it is refused at once, in a sentence. So is a call from a forked
child that goes on in the event loop of its parent."""

from __future__ import annotations

import asyncio
import os
from weakref import WeakKeyDictionary

from horarium.errors import Conflict
from horarium.library.forks import keep_apart


class Home:
    """The event loop of one scheduler. Between a close and the next open it has none, unless it was started: background
    loops stay on one event loop."""

    def __init__(self, must_open: bool = False) -> None:
        self._must_open = must_open
        self.loop: asyncio.AbstractEventLoop | None = None
        self._started_on: asyncio.AbstractEventLoop | None = None
        self._process = 0
        self._locks: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()

    @property
    def changing(self) -> asyncio.Lock:
        """Held while it is opened, started or closed, on this event loop."""
        return self._locks.setdefault(asyncio.get_running_loop(), asyncio.Lock())

    def check(self) -> None:
        """Raises Conflict on another event loop than that on which it is open, and in a fork of its process."""
        if self.loop is not None and self._process != os.getpid():
            raise Conflict(
                f"this Scheduler was opened by process {self._process}, of which this one is a fork; its event loop "
                "and connections are that one's; start other processes with subprocess or the spawn method of "
                "multiprocessing, or end a forked one with os._exit and open nothing in it"
            )
        _refuse_other(self.loop, "is open")

    def check_open(self) -> None:
        """Raises Conflict where it is not open here; a store in memory need not be."""
        self.check()
        if self.loop is None and self._must_open:
            raise Conflict("this Scheduler is not open: use it within `async with scheduler:`, or await its open()")

    def enter(self) -> None:
        """It was opened here."""
        self.loop = asyncio.get_running_loop()
        keep_apart(self.loop)
        self._process = os.getpid()

    def leave(self) -> None:
        """It was closed."""
        self.loop = None

    def check_start(self) -> None:
        """Raises Conflict if it was started on another event loop before."""
        self.check()
        _refuse_other(self._started_on, "was started")

    def started(self) -> None:
        """It was started here."""
        self._started_on = asyncio.get_running_loop()


def _refuse_other(loop: asyncio.AbstractEventLoop | None, what: str) -> None:
    if loop is not None and loop is not asyncio.get_running_loop():
        raise Conflict(
            f"this Scheduler {what} on another event loop; call it there, make one Scheduler for each event loop, or "
            "use a SyncScheduler, which any thread may call"
        )
