"""The log of a run: lines, and the book in which they are kept.

A book is small: it lists the chunks that are full, and holds the lines of the one that is not. Each full chunk is a
record of its own. So a line costs one small write, however long the log already is.
"""

from __future__ import annotations

from msgspec import Struct

from horarium.clock import Instant

LOG_SECONDS_DEFAULT = 7 * 24 * 3600.0
LOG_BYTES_TOTAL_DEFAULT = 1024**3
"""For how long, and how much of them, logs of runs are kept."""

LOG_BYTES_MAX = 256 * 1024
"""How much of one run's log is kept, over all of its attempts."""
LOG_LINE_BYTES_MAX = 8 * 1024


class LogLine(Struct, frozen=True, array_like=True):
    """One line. `stream`: `stdout`, `stderr`, `log`, `ping`, or what the worker calls it."""

    at: Instant
    stream: str
    text: str


class Chunk(Struct, frozen=True, array_like=True):
    """Lines that are kept elsewhere. `first`: the number of its first line, counted from 0 over the whole log."""

    number: int
    first: int
    count: int
    size: int


class LogBook(Struct, frozen=True, array_like=True):
    """The log of one run. `lines`: how many there were, those left out too. `chunk_number`: that of the next chunk.
    `tail`: the newest lines. `size` is that of the tail."""

    run_id: str
    begun_at: Instant
    lines: int = 0
    chunk_number: int = 0
    chunks: tuple[Chunk, ...] = ()
    tail: tuple[LogLine, ...] = ()
    size: int = 0
