"""Lines of runs on their way to the server: gathered for a moment, sent in groups, bounded.

Nothing that is said holds up the work, and no outage of the server fails it: lines wait here, and those beyond the
bound are left out. The last lines of a run are sent before its outcome is.
"""

from __future__ import annotations

import logging
import re
import threading
from codecs import getincrementaldecoder
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Protocol

from msgspec import Struct

from horarium.client.answers import as_text
from horarium.client.api import Client
from horarium.client.watching import Line
from horarium.clock import Clock, to_datetime
from horarium.errors import HorariumError, Outage
from horarium.model.logs import LOG_BYTES_MAX
from horarium.rules.backlog import FIRST_BYTES, Backlog
from horarium.rules.logbook import LINE_BYTES
from horarium.triggers.words import counted

GATHER_SECONDS = 0.25
"""How long lines wait for more of them."""
WAIT_SECONDS = 2.0
"""How long after an outage the next try is made; and how long the end of a run waits for its last lines."""
SENT_CHARS_MAX, SENT_LINES_MAX = 128 * 1024, 1_000
LINE_CHARS_MAX = 8 * 1024
_RETURNS = re.compile("\r+\n")

log = logging.getLogger("horarium.worker")


class Claim(Protocol):
    """The run that says something, under the token of its attempt."""

    @property
    def id(self) -> str: ...

    token: int


class Said(Struct, frozen=True):
    """Output of one moment, not yet taken apart: a program may print more in a second than a log ever keeps."""

    at: datetime
    stream: str
    text: str
    size: int

    def lines(self) -> Iterator[Line]:
        """Each line of it."""
        for line in self.text.splitlines() or [""]:
            yield Line(as_text(line[:LINE_CHARS_MAX]), self.stream, self.at)


class Unsent:
    """Lines of one run that wait. They are taken apart as they are sent: the beginning, and as much of the end as a log
    keeps. `earlier`: those that could not be sent before."""

    def __init__(self, run: Claim, earlier: Sequence[Line | int] = ()) -> None:
        self.run = run
        self._earlier = earlier
        self._first: list[Said] = []
        self._last: deque[Said] = deque()
        self._first_size = self._last_size = self._left_out = 0

    def add(self, at: datetime, stream: str, text: str) -> None:
        """Some more lines."""
        said = Said(at, stream, text, len(text) + (text.count("\n") + 1) * (LINE_BYTES + len(stream)))
        if self._first_size < FIRST_BYTES:
            self._first.append(said)
            self._first_size += said.size
            return
        self._last.append(said)
        self._last_size += said.size
        while self._last_size - self._last[0].size >= LOG_BYTES_MAX:
            gone = self._last.popleft()
            self._last_size -= gone.size
            self._left_out += len(gone.text.splitlines())

    def entries(self) -> list[Line | int]:
        """All that waits, in order, with the number of lines that were left out between."""
        backlog: Backlog[Line] = Backlog(_size_of)
        backlog.add_all(self._earlier)
        for said in self._first:
            backlog.add_all(said.lines())
        if self._left_out:
            backlog.add(self._left_out)
        for said in self._last:
            backlog.add_all(said.lines())
        return backlog.entries()

    def batches(self) -> Iterator[list[Line | int]]:
        """Waiting lines, as many at a time as fit into one request."""
        batch: list[Line | int] = []
        chars = 0
        for entry in self.entries():
            more = len(entry.text) if isinstance(entry, Line) else 0
            if batch and (chars + more > SENT_CHARS_MAX or len(batch) == SENT_LINES_MAX):
                yield batch
                batch, chars = [], 0
            batch.append(entry)
            chars += more
        if batch:
            yield batch


def _size_of(line: Line) -> int:
    """As the server's log counts it."""
    return len(line.text) + len(line.stream) + LINE_BYTES


class Lines:
    """One thread runs `loop`; `add` may be called in any."""

    def __init__(self, client: Client, clock: Clock) -> None:
        self._client = client
        self._clock = clock
        self._changed = threading.Condition()
        self._unsent: dict[tuple[str, int], Unsent] = {}
        self._sending: set[tuple[str, int]] = set()
        self._over = threading.Event()

    def add(self, run: Claim, stream: str, text: str) -> None:
        """Send these lines soon."""
        at = to_datetime(self._clock.now())
        with self._changed:
            self._unsent.setdefault((run.id, run.token), Unsent(run)).add(at, stream, text)
            self._changed.notify_all()

    def loop(self) -> None:
        """Send until `end`."""
        while not self._over.is_set():
            with self._changed:
                self._changed.wait_for(lambda: self._unsent or self._over.is_set())
            self._over.wait(GATHER_SECONDS)
            with self._changed:
                waiting = list(self._unsent)
            failed = [key for key in waiting if not self._send(key)]
            if failed:
                self._over.wait(WAIT_SECONDS)

    def end(self) -> None:
        """Let `loop` end."""
        self._over.set()
        with self._changed:
            self._changed.notify_all()

    def sent(self, run: Claim) -> None:
        """Send the rest of what this run said, now. Lines that can't be sent at once are left out: the run has
        ended."""
        key = run.id, run.token
        with self._changed:
            self._changed.wait_for(lambda: key not in self._sending, WAIT_SECONDS)
        self._send(key)
        with self._changed:
            self._unsent.pop(key, None)

    def _send(self, key: tuple[str, int]) -> bool:
        """Whether nothing of this run waits any more."""
        with self._changed:
            unsent = self._unsent.pop(key, None)
            if unsent is None:
                return True
            self._sending.add(key)
        try:
            return self._send_all(key, unsent)
        finally:
            with self._changed:
                self._sending.discard(key)
                self._changed.notify_all()

    def _send_all(self, key: tuple[str, int], unsent: Unsent) -> bool:
        batches = list(unsent.batches())
        for index, batch in enumerate(batches):
            try:
                self._client.log(*key, [self._line(entry) for entry in batch], within_seconds=WAIT_SECONDS)
            except Outage:
                self._put_back(key, unsent.run, [entry for left in batches[index:] for entry in left])
                return False
            except HorariumError as error:
                log.debug("%r: its lines were refused: %s", unsent.run, error)
                return True
        return True

    def _line(self, entry: Line | int) -> Line:
        """A line, or one that says how many were left out."""
        if isinstance(entry, Line):
            return entry
        return Line(f"[{counted(entry, 'line')} left out]", "horarium", to_datetime(self._clock.now()))

    def _put_back(self, key: tuple[str, int], run: Claim, entries: Sequence[Line | int]) -> None:
        with self._changed:
            since = self._unsent.get(key)
            self._unsent[key] = Unsent(run, [*entries, *(since.entries() if since else ())])


class Feed:
    """Bytes in, lines out: what a program prints. A line that is not ended is told at the end, or when it is long."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._decoder = getincrementaldecoder("utf-8")("replace")
        self._rest = ""

    def add(self, chunk: bytes) -> None:
        """More of the stream."""
        lines, end, self._rest = (self._rest + self._decoder.decode(chunk)).rpartition("\n")
        if end:
            self._tell(_RETURNS.sub("\n", lines + end))
        if len(self._rest) >= LINE_CHARS_MAX:
            self._tell(self._rest)
            self._rest = ""

    def close(self) -> None:
        """The stream has ended."""
        rest = self._rest + self._decoder.decode(b"", final=True)
        if rest:
            self._tell(rest)
        self._rest = ""
