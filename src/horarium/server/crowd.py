"""How many connections each process of a server has open, as all of them see it.

A table in shared memory, a number for each process, of which each writes its own. With it a process that has more than
another one leaves a new connection to that one, for a moment. Nothing is decided by these numbers but that, so none of
it is locked.
"""

from __future__ import annotations

import mmap
import os
import tempfile

NUMBER_BYTES = 4
GONE = 2 ** (8 * NUMBER_BYTES) - 1
"""The number of a process that takes no connections any more."""


def make_table(places: int) -> int:
    """An open file that holds a table of this many places; nothing of it is left once it is closed by all."""
    with tempfile.TemporaryFile() as file:
        file.truncate(places * NUMBER_BYTES)
        return os.dup(file.fileno())


class Crowd:
    """The table, as the process at one place uses it. `file`: an open file of `make_table`, which is closed here."""

    def __init__(self, file: int, place: int) -> None:
        memory = mmap.mmap(file, os.fstat(file).st_size)
        os.close(file)
        self._open = memoryview(memory).cast("I")
        self._place = place
        self.note(0)

    def note(self, count: int) -> None:
        """This process has this number open."""
        self._open[self._place] = count

    def is_ahead(self) -> bool:
        """Whether another process has fewer."""
        return self._open[self._place] > min(self._open)
