"""Which event loop a scheduler belongs to. What it waits on is bound to the loop on which it was opened, so a call from
another one would wait for ever, or fail deep inside: it is refused at once, in a sentence. So is a call from a forked
child that goes on in the event loop of its parent."""

from __future__ import annotations

import asyncio
import contextlib
import os
import selectors
import signal
import sys
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from horarium.delivery.pool import UNGUARDED
from horarium.errors import Conflict

_loops: WeakSet[asyncio.AbstractEventLoop] = WeakSet()
_left: list[object] = []
"""Objects of the parent, never to be closed here."""


def keep_apart(loop: asyncio.AbstractEventLoop) -> None:
    """Let forked children share nothing that this event loop waits on, if it is one of asyncio's own: the tidying up of
    a child that goes on in it would take that from the parent, which then waits for ever."""
    if isinstance(loop, asyncio.SelectorEventLoop):
        _loops.add(loop)


def _in_child() -> None:
    for loop in list(_loops):
        with contextlib.suppress(Exception):
            _part(loop)


def _part(loop: Any) -> None:
    _left.extend((loop._selector, loop._ssock, loop._csock))
    loop._selector = selectors.DefaultSelector()
    loop._internal_fds -= 1
    loop._make_self_pipe()
    if signal.set_wakeup_fd(-1) != -1:
        signal.set_wakeup_fd(loop._csock.fileno())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)


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
        """Raises Conflict on another event loop than that on which it is open, in a fork of its process, and in a
        process of `multiprocessing` that only imports the program."""
        if self.loop is None and _only_imports():
            raise Conflict(f"this Scheduler is not for a process of a pool or of multiprocessing: {UNGUARDED}")
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
        _refuse_other(self._started_on, "was started", "; in tests, horarium_memory gives each one of its own")

    def started(self) -> None:
        """It was started here."""
        self._started_on = asyncio.get_running_loop()


def _only_imports() -> bool:
    process = sys.modules.get("multiprocessing.process")
    return process is not None and getattr(process.current_process(), "_inheriting", False)


def _refuse_other(loop: asyncio.AbstractEventLoop | None, what: str, hint: str = "") -> None:
    if loop is not None and loop is not asyncio.get_running_loop():
        raise Conflict(
            f"this Scheduler {what} on another event loop; call it there, make one Scheduler for each event loop, or "
            f"use a SyncScheduler, which any thread may call{hint}"
        )
