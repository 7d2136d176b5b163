"""Memory that was freed goes back to the system, where the C library can do that: what a start or a flood of
connections took for a while, and once a minute what lies about. glibc keeps it otherwise, in parts for each thread that
allocates: with those of a store's threads they grow for a quarter of an hour, though no more is in use."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable

MANY = 250
"""Connections whose memory is worth giving back at once."""
TICKS = 120
"""After how many ticks it is given back in any case: a minute; it takes 0.3 ms."""
ARENAS = 2
"""Parts of memory that threads share. Most allocate while they hold the interpreter's lock, one at a time."""
_M_ARENA_MAX = -8


def _trim() -> Callable[[int], int] | None:
    try:
        trim: Callable[[int], int] = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        return None
    return trim


def share_arenas() -> None:
    """Have threads share their parts of memory, unless the operator said otherwise. Before there are threads."""
    if "MALLOC_ARENA_MAX" in os.environ or "glibc.malloc.arena_max" in os.environ.get("GLIBC_TUNABLES", ""):
        return
    try:
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, ARENAS)
    except (AttributeError, OSError, TypeError):
        return  # another C library


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
        self._ticks = 0

    def tick(self, open_now: int) -> None:
        """To be called twice a second, with the number of open connections."""
        self._most = max(self._most, open_now)
        self._ticks += 1
        flood_is_over = self._most >= MANY and open_now <= self._most // 4
        if flood_is_over:
            self._most = open_now
        if flood_is_over or self._ticks >= TICKS:
            self._ticks = 0
            if self._trim is not None:
                self._trim(0)
