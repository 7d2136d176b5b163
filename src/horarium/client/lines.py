"""What runs say, on its way to the server: gathered for a moment, sent in groups, bounded.

Nothing that is said holds up the work, and no outage of the server fails it: lines wait here, and what is too much is
left out. The last lines of a run are sent before its outcome is.
"""

from __future__ import annotations

import logging
import threading
from codecs import getincrementaldecoder
from collections.abc import Callable
from typing import TYPE_CHECKING

from horarium.client.api import Client
from horarium.client.watching import Line
from horarium.clock import Clock, to_datetime
from horarium.errors import HorariumError, Outage

if TYPE_CHECKING:
    from horarium.client.claimed import ClaimedRun

GATHER_SECONDS = 0.25
"""How long lines wait for more of them."""
WAIT_SECONDS = 2.0
"""How long after an outage the next try is made; and how long the end of a run waits for its last lines."""
CHARS_MAX = 256 * 1024
"""What waits of one run, at most."""
SENT_CHARS_MAX, SENT_LINES_MAX = 128 * 1024, 1_000
LINE_CHARS_MAX = 8 * 1024

log = logging.getLogger("horarium.worker")


class Unsent:
    """Lines of one run that wait."""

    def __init__(self, run: ClaimedRun) -> None:
        self.run = run
        self.lines: list[Line] = []
        self.chars = 0
        self.left_out = 0

    def take(self, line: Line) -> None:
        """Add a line, if there is room."""
        if self.chars + len(line.text) > CHARS_MAX:
            self.left_out += 1
        else:
            self.lines.append(line)
            self.chars += len(line.text) + 1

    def next(self) -> list[Line]:
        """As many as fit into one request."""
        chars = 0
        for count, line in enumerate(self.lines[:SENT_LINES_MAX]):
            chars += len(line.text)
            if chars > SENT_CHARS_MAX and count:
                return self.lines[:count]
        return self.lines[:SENT_LINES_MAX]


class Lines:
    """One thread runs `loop`; `add` may be called in any."""

    def __init__(self, client: Client, clock: Clock) -> None:
        self._client = client
        self._clock = clock
        self._changed = threading.Condition()
        self._unsent: dict[tuple[str, int], Unsent] = {}
        self._sending: set[tuple[str, int]] = set()
        self._over = threading.Event()

    def add(self, run: ClaimedRun, stream: str, text: str) -> None:
        """Send these lines soon."""
        at = to_datetime(self._clock.now())
        with self._changed:
            unsent = self._unsent.setdefault((run.id, run.token), Unsent(run))
            for line in text.splitlines() or [""]:
                unsent.take(Line(line[:LINE_CHARS_MAX], stream, at))
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

    def sent(self, run: ClaimedRun) -> None:
        """Send the rest of what this run said, now. What can't be sent at once is left out: the run has ended."""
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
        if unsent.left_out:
            told = Line(f"[{unsent.left_out:,} lines left out]", "horarium", to_datetime(self._clock.now()))
            unsent.lines.append(told)
        while batch := unsent.next():
            try:
                self._client.log(*key, batch, within_seconds=WAIT_SECONDS)
            except Outage:
                self._put_back(key, unsent)
                return False
            except HorariumError as error:
                log.debug("%r: its lines were refused: %s", unsent.run, error)
                return True
            del unsent.lines[: len(batch)]
        return True

    def _put_back(self, key: tuple[str, int], unsent: Unsent) -> None:
        with self._changed:
            since = self._unsent.get(key)
            self._unsent[key] = again = Unsent(unsent.run)
            for line in (*unsent.lines, *(since.lines if since else ())):
                again.take(line)


class Feed:
    """Bytes in, lines out: what a program prints. A line that is not ended is told at the end, or when it is long."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._decoder = getincrementaldecoder("utf-8")("replace")
        self._rest = ""

    def add(self, chunk: bytes) -> None:
        """More of the stream."""
        *lines, self._rest = (self._rest + self._decoder.decode(chunk)).split("\n")
        if lines:
            self._tell("\n".join(line.rstrip("\r") for line in lines))
        if len(self._rest) >= LINE_CHARS_MAX:
            self._tell(self._rest)
            self._rest = ""

    def close(self) -> None:
        """The stream has ended."""
        rest = self._rest + self._decoder.decode(b"", final=True)
        if rest:
            self._tell(rest)
        self._rest = ""
