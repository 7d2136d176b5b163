"""Wait for a condition: the one way in which a test lets time pass that it does not set itself.

A limit here promises nothing about speed. It ends a test that would hang, so it is generous: a busy machine may need it
all. What a test proves is order and outcome.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections.abc import Callable
from typing import Any

PATIENCE = 120.0
"""Seconds."""
POLL_SECONDS = 0.02
SOON, POLL_LATER_SECONDS = 100, 0.1
"""So many questions close together, for two seconds: what takes longer waits for a lease or a server, and to ask costs
it time of the processor."""
TURNS = 50
"""So often the event loop is given a turn before real time passes: enough for all that needs no time."""

_never = threading.Event()


def let_pass(seconds: float) -> None:
    """Let a fault last, or real time go by where a test is about just that."""
    _never.wait(seconds)


Errors = type[BaseException] | tuple[type[BaseException], ...]


class _Asking:
    """What one wait has been told so far."""

    def __init__(self, patience: float, what: str) -> None:
        self._what = what
        self._patience = patience
        self._deadline = time.monotonic() + patience
        self._asked = 0
        self.told: object = None

    def pause(self) -> float:
        """Seconds until the next question. Fails once the time is over."""
        assert time.monotonic() < self._deadline, f"{self._what}: still {self.told!r} after {self._patience:g} s"
        self._asked += 1
        return POLL_SECONDS if self._asked < SOON else POLL_LATER_SECONDS


def eventually(
    question: Callable[[], Any], patience: float = PATIENCE, *, what: str = "the condition", ignoring: Errors = OSError
) -> Any:
    """The first true answer. An error in `ignoring` counts as "not yet": what is asked may be down."""
    asking = _Asking(patience, what)
    while True:
        try:
            asking.told = question()
        except ignoring as error:
            asking.told = error
        else:
            if asking.told:
                return asking.told
        _never.wait(asking.pause())


async def until(
    question: Callable[[], Any], patience: float = PATIENCE, *, what: str = "the condition", ignoring: Errors = OSError
) -> Any:
    """The same on an event loop. The question may be a coroutine function."""
    asking = _Asking(patience, what)
    turns = 0
    while True:
        try:
            answer = question()
            asking.told = await answer if inspect.isawaitable(answer) else answer
        except ignoring as error:
            asking.told = error
        else:
            if asking.told:
                return asking.told
        pause = asking.pause()
        await asyncio.sleep(0 if turns < TURNS else pause)
        turns += 1
