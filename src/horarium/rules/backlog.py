"""Lines of one run that wait to be written, bounded as its log is: the first of them and the last, and how many were
left out between.

Left-out lines are an entry of its own, a number, so that they are neither forgotten nor counted twice when lines that
could not be written wait on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from horarium.model.logs import LOG_BYTES_MAX

Line = TypeVar("Line")

FIRST_BYTES = 64 * 1024


class Backlog(Generic[Line]):
    """`size_of`: what a line takes. `size`: what all of them take."""

    __slots__ = ("_first", "_first_size", "_last", "_left_out", "_size_of", "size")

    def __init__(self, size_of: Callable[[Line], int]) -> None:
        self._size_of = size_of
        self._first: list[Line | int] = []
        self._first_size = 0
        self._last: deque[Line | int] = deque()
        self._left_out = 0
        self.size = 0

    def __len__(self) -> int:
        return len(self._first) + len(self._last) + (self._left_out > 0)

    def add(self, entry: Line | int, room: int = LOG_BYTES_MAX) -> int:
        """One more, or the number of some that were left out before it. The oldest beyond the first give way to it, and
        it does itself where all of them may only grow by `room`. By how much they have grown."""
        before = self.size
        needed = 0 if isinstance(entry, int) else self._size_of(entry)
        if not self._last and not self._left_out and needed <= room and self._first_size + needed <= FIRST_BYTES:
            self._first.append(entry)
            self._first_size += needed
            self.size += needed
            return needed
        self._last.append(entry)
        self.size += needed
        while self._last and (self.size > LOG_BYTES_MAX or self.size - before > room):
            gone = self._last.popleft()
            self.size -= 0 if isinstance(gone, int) else self._size_of(gone)
            self._left_out += gone if isinstance(gone, int) else 1
        return self.size - before

    def entries(self) -> list[Line | int]:
        """All that waits, in order."""
        return [*self._first, *((self._left_out,) if self._left_out else ()), *self._last]

    def add_all(self, entries: Iterable[Line | int]) -> None:
        """More of them, within what a log may take."""
        for entry in entries:
            self.add(entry)
