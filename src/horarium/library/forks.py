"""A forked child that goes on in the event loop of its parent shares what that loop waits on: the child's tidying up
would take it from the parent, which then waits for ever. So a child gets its own, and nothing that it does there
reaches the parent."""

from __future__ import annotations

import asyncio
import contextlib
import os
import selectors
import signal
from typing import Any
from weakref import WeakSet

_loops: WeakSet[asyncio.AbstractEventLoop] = WeakSet()
_left: list[object] = []
"""Objects of the parent, never to be closed here."""


def keep_apart(loop: asyncio.AbstractEventLoop) -> None:
    """Let forked children share nothing that this event loop waits on, if it is one of asyncio's own."""
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

__all__ = ["keep_apart"]
