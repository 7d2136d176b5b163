"""A collection that is always sorted: adding, removing and finding cost about the logarithm of its size.

It is a list of short sorted lists, so that no single insertion moves more than a chunk. Items are unique and compare
with each other. It must not change while one of its iterators is in use.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from itertools import islice
from typing import Any, Generic, TypeVar

T = TypeVar("T", bound=Any)

CHUNK_MAX = 1_024


class Ordered(Generic[T]):
    """Unique items, ascending."""

    __slots__ = ("_chunks", "_lasts", "_size")

    def __init__(self) -> None:
        self._chunks: list[list[T]] = []
        self._lasts: list[T] = []
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[T]:
        for chunk in self._chunks:
            yield from chunk

    def add(self, item: T) -> None:
        """Put a new item in its place."""
        self._size += 1
        if not self._chunks:
            self._chunks, self._lasts = [[item]], [item]
            return
        index = len(self._chunks) - 1
        if item < self._lasts[index]:
            index = bisect_left(self._lasts, item)
            chunk = self._chunks[index]
            insort(chunk, item)
        else:
            chunk = self._chunks[index]
            chunk.append(item)
        if len(chunk) > CHUNK_MAX:
            half = len(chunk) // 2
            self._chunks[index : index + 1] = [chunk[:half], chunk[half:]]
            self._lasts[index : index + 1] = [chunk[half - 1], chunk[-1]]
        else:
            self._lasts[index] = chunk[-1]

    def remove(self, item: T) -> None:
        """Take out an item that is present."""
        index = place = 0
        if (chunk := self._chunks[0])[0] != item:  # the first one is taken most often
            index = bisect_left(self._lasts, item)
            chunk = self._chunks[index]
            place = bisect_left(chunk, item)
        assert chunk[place] == item, f"{item!r} is not in the collection"
        del chunk[place]
        self._size -= 1
        if chunk:
            self._lasts[index] = chunk[-1]
        else:
            del self._chunks[index], self._lasts[index]

    def first(self) -> T | None:
        """The least item."""
        return self._chunks[0][0] if self._chunks else None

    def count_below(self, bound: T) -> int:
        """How many items are less than `bound`."""
        index = bisect_left(self._lasts, bound)
        count = sum(map(len, self._chunks[:index]))
        return count + bisect_left(self._chunks[index], bound) if index < len(self._chunks) else count

    def above(self, bound: T) -> Iterator[T]:
        """Items greater than `bound`, ascending."""
        index = bisect_right(self._lasts, bound)
        if index == len(self._chunks):
            return
        chunk = self._chunks[index]
        yield from chunk[bisect_right(chunk, bound) :]
        for later in self._chunks[index + 1 :]:
            yield from later

    def since(self, bound: T) -> Iterator[T]:
        """Items greater than or equal to `bound`, ascending."""
        index = bisect_left(self._lasts, bound)
        if index == len(self._chunks):
            return
        chunk = self._chunks[index]
        yield from chunk[bisect_left(chunk, bound) :]
        for later in self._chunks[index + 1 :]:
            yield from later

    def upto(self, bound: T) -> Iterator[T]:
        """Items less than or equal to `bound`, ascending."""
        for chunk, last in zip(self._chunks, self._lasts, strict=True):
            if last > bound:
                yield from islice(chunk, bisect_right(chunk, bound))
                return
            yield from chunk

    def descending(self, below: T | None = None) -> Iterator[T]:
        """Items less than `below` (None: all), descending."""
        if below is None:
            for chunk in reversed(self._chunks):
                yield from reversed(chunk)
            return
        index = bisect_left(self._lasts, below)
        if index < len(self._chunks):
            chunk = self._chunks[index]
            yield from reversed(chunk[: bisect_left(chunk, below)])
        for earlier in reversed(self._chunks[:index]):
            yield from reversed(earlier)
