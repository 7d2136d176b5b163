"""How a run's log grows: `write` adds lines to a book, seals full chunks and cuts the middle where it is too long.

The beginning says what the work set out to do, the end how it came out; what lies between goes first.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from msgspec.structs import replace

from horarium.model.logs import LOG_BYTES_MAX, LOG_LINE_BYTES_MAX, Chunk, LogBook, LogLine
from horarium.triggers.words import counted

CHUNK_BYTES = 16 * 1024
LINE_BYTES = 32
"""The size of a line beside its text."""
CHUNKS_MAX = LOG_BYTES_MAX // CHUNK_BYTES - 1
"""Full ones; the tail is one more."""
FIRST_CHUNKS = 4
"""Those that are never cut."""
TRUNCATED = " [truncated]"
CUT = "horarium"
"""The stream of the line that tells of a gap."""


_LEFT_OUT = re.compile(r"\[([0-9,]{1,15}) lines left out\]")


class Written(NamedTuple):
    """The book as it then is, the chunks to keep, with their lines, and those to drop."""

    book: LogBook
    sealed: list[tuple[Chunk, tuple[LogLine, ...]]]
    dropped: list[Chunk]


def write(book: LogBook, lines: Sequence[LogLine]) -> Written:
    """Add lines. One that says how many were left out before it counts as that many where others follow it: then it
    can't be cut itself, and the gap is one number."""
    writing = _Writing(book)
    for index, line in enumerate(lines):
        left_out = left_out_by(line) if index + 1 < len(lines) else 0
        if left_out:
            writing.skip(left_out)
        else:
            writing.add(clipped_line(line))
    return writing.written()


class _Writing:
    """A book while lines are added to it."""

    def __init__(self, book: LogBook) -> None:
        self._book = book
        self._chunks, self._tail = list(book.chunks), list(book.tail)
        self._size, self._count, self._number = book.size, book.lines, book.chunk_number
        self._sealed: dict[int, tuple[Chunk, tuple[LogLine, ...]]] = {}
        self._before = {chunk.number for chunk in book.chunks}
        self._dropped: list[Chunk] = []

    def add(self, line: LogLine) -> None:
        needed = size_of(line)
        if self._size + needed > CHUNK_BYTES:
            self._seal()
        self._tail.append(line)
        self._size += needed
        self._count += 1

    def skip(self, count: int) -> None:
        self._seal()
        self._count += count

    def _seal(self) -> None:
        if not self._tail:
            return
        chunk = Chunk(self._number, self._count - len(self._tail), len(self._tail), self._size)
        self._sealed[self._number] = chunk, tuple(self._tail)
        self._chunks.append(chunk)
        self._number, self._tail, self._size = self._number + 1, [], 0
        if len(self._chunks) > CHUNKS_MAX:
            gone = self._chunks.pop(FIRST_CHUNKS)
            self._sealed.pop(gone.number, None)
            self._dropped += [gone] if gone.number in self._before else []

    def written(self) -> Written:
        after = replace(
            self._book, lines=self._count, chunk_number=self._number, chunks=tuple(self._chunks),
            tail=tuple(self._tail), size=self._size,
        )  # fmt: skip
        return Written(after, list(self._sealed.values()), self._dropped)


def left_out_by(line: LogLine) -> int:
    """How many lines it says were left out; 0 for any other line."""
    found = _LEFT_OUT.fullmatch(line.text) if line.stream == CUT else None
    return int(found[1].replace(",", "")) if found else 0


def size_of(line: LogLine) -> int:
    return len(line.text.encode("utf-8", "replace")) + len(line.stream) + LINE_BYTES


def clipped_line(line: LogLine) -> LogLine:
    """Short enough to be kept, in characters that can be kept."""
    text = line.text.replace("\0", "\ufffd").encode("utf-8", "replace")
    if len(text) > LOG_LINE_BYTES_MAX:
        kept = text[: LOG_LINE_BYTES_MAX - len(TRUNCATED)].decode(errors="ignore")
        return replace(line, text=kept + TRUNCATED)
    return replace(line, text=text.decode())


def first_after(book: LogBook, number: int) -> int:
    """The first line from this number on that is kept."""
    for chunk in book.chunks:
        if number < chunk.first + chunk.count:
            return max(number, chunk.first)
    return max(number, book.lines - len(book.tail))


def said_of_cut(count: int, next_line: LogLine) -> LogLine:
    """The text in the place of lines that were left out."""
    return LogLine(next_line.at, CUT, f"[{counted(count, 'line')} left out]")


def size_of_book(book: LogBook) -> int:
    return book.size + sum(chunk.size for chunk in book.chunks)
