"""How a run's log grows: `write` adds lines to a book, seals what is full and cuts the middle where it is too long.

The beginning says what the work set out to do, the end how it came out; what lies between goes first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from msgspec.structs import replace

from horarium.model.logs import LOG_BYTES_MAX, LOG_LINE_BYTES_MAX, Chunk, LogBook, LogLine

CHUNK_BYTES = 16 * 1024
LINE_BYTES = 32
"""What a line takes beside its text."""
CHUNKS_MAX = LOG_BYTES_MAX // CHUNK_BYTES - 1
"""Full ones; the tail is one more."""
FIRST_CHUNKS = 4
"""Those that are never cut."""
TRUNCATED = " [truncated]"
CUT = "horarium"
"""The stream of the line that says what was left out."""


class Written(NamedTuple):
    """The book as it then is, the chunks to keep, with their lines, and those to drop."""

    book: LogBook
    sealed: list[tuple[Chunk, tuple[LogLine, ...]]]
    dropped: list[Chunk]


def write(book: LogBook, lines: Sequence[LogLine]) -> Written:
    """Add lines."""
    sealed: dict[int, tuple[Chunk, tuple[LogLine, ...]]] = {}
    chunks, tail, size, count = list(book.chunks), list(book.tail), book.size, book.lines
    number = book.chunk_number
    before = {chunk.number for chunk in chunks}
    dropped: list[Chunk] = []
    for line in lines:
        line = clipped_line(line)
        needed = size_of(line)
        if tail and size + needed > CHUNK_BYTES:
            chunk = Chunk(number, count - len(tail), len(tail), size)
            sealed[number] = chunk, tuple(tail)
            chunks.append(chunk)
            number, tail, size = number + 1, [], 0
            if len(chunks) > CHUNKS_MAX:
                gone = chunks.pop(FIRST_CHUNKS)
                sealed.pop(gone.number, None)
                dropped += [gone] if gone.number in before else []
        tail.append(line)
        size += needed
        count += 1
    after = replace(book, lines=count, chunk_number=number, chunks=tuple(chunks), tail=tuple(tail), size=size)
    return Written(after, list(sealed.values()), dropped)


def size_of(line: LogLine) -> int:
    """What it takes."""
    return len(line.text.encode()) + len(line.stream) + LINE_BYTES


def clipped_line(line: LogLine) -> LogLine:
    """Short enough to be kept, in characters that can be kept."""
    text = line.text.replace("\0", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace")
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
    """What is read in the place of lines that were left out."""
    return LogLine(next_line.at, CUT, f"[{count:,} lines left out]")


def size_of_book(book: LogBook) -> int:
    """All that is kept."""
    return book.size + sum(chunk.size for chunk in book.chunks)
