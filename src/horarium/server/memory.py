"""Memory that was freed goes back to the system, where the C library is glibc: it keeps it otherwise, in parts for each
thread that allocates."""

from __future__ import annotations

import ctypes
import os

ARENAS = 2
"""Parts of memory that threads share. Most allocate while they hold the interpreter's lock, one at a time."""
_M_ARENA_MAX = -8


def share_arenas() -> None:
    """Have threads share their parts of memory, unless the operator said otherwise. Before there are threads."""
    if "MALLOC_ARENA_MAX" not in os.environ and "glibc.malloc.arena_max" not in os.environ.get("GLIBC_TUNABLES", ""):
        _call("mallopt", _M_ARENA_MAX, ARENAS)


def give_back() -> None:
    """What was freed goes back to the system; it takes 0.3 ms."""
    _call("malloc_trim", 0)


def _call(name: str, *numbers: int) -> None:
    try:
        getattr(ctypes.CDLL(None), name)(*numbers)
    except (AttributeError, OSError, TypeError):
        return  # another C library
