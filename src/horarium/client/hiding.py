"""Secrets of a process that starts programs of others: kept out of what those can read of it under /proc.

On Linux the variables that a process was started with can be read by each process of the same user, and so can its
memory. A program of another user than the worker's can read neither; one of the worker's own user can't once the
process is marked as not dumpable; root can read the memory of all, but not a variable that was overwritten.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Sequence
from itertools import count

PR_SET_DUMPABLE = 4


def hide(variables: Sequence[str] = ()) -> None:
    """Close this process to others of its user, and overwrite these variables. Does nothing where it isn't Linux."""
    if sys.platform != "linux":
        return
    library = ctypes.CDLL(None)
    library.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    names = tuple(os.fsencode(name) + b"=" for name in variables)
    environ = ctypes.POINTER(ctypes.c_void_p).in_dll(library, "environ")
    for address in iter((environ[place] for place in count()).__next__, None):
        text = ctypes.string_at(address)
        if text.startswith(names):
            ctypes.memset(address, 0, len(text))
    for name in variables:
        os.environ.pop(name, None)
