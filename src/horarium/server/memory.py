"""Memory that a start, or a flood of connections, took for a while goes back to the system, where the C library can do
that: glibc keeps it otherwise."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

MANY = 250
"""Connections whose memory is worth giving back."""


def _trim() -> Callable[[int], int] | None:
    try:
        trim: Callable[[int], int] = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        return None
    return trim


def give_back() -> None:
    """What was freed since the start of the process goes back to the system."""
    trim = _trim()
    if trim is not None:
        trim(0)


class Memory:
    """What the connections of a server took."""

    def __init__(self, trim: Callable[[int], int] | None = None) -> None:
        self._trim = trim or _trim()
        self._most = 0

    def tick(self, open_now: int) -> None:
        """To be called every now and then, with the number of open connections."""
        self._most = max(self._most, open_now)
        if self._most >= MANY and open_now <= self._most // 4:
            self._most = open_now
            if self._trim is not None:
                self._trim(0)
