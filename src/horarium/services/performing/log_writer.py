"""Keeps what handlers of this process say: lines are taken in memory at once, and written in groups.

Nothing that a handler says may hold it up, or fail it. So lines wait here, bounded; those of a run that has just ended
are written before its outcome is, and the rest a few times a second.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Sequence
from contextlib import suppress

from horarium.clock import SECOND, Clock, Instant
from horarium.errors import HorariumError, Outage
from horarium.model import Run
from horarium.model.logs import LogLine
from horarium.operations.runs.logs import LINES_MAX, Logs
from horarium.rules.backlog import Backlog
from horarium.rules.logbook import CUT, size_of
from horarium.services.loop.service import Service, Wake
from horarium.triggers.words import counted

FLUSH = SECOND // 4
"""How often the log of a run under way is written."""
ACCOUNT = 30 * SECOND
WRITTEN_SECONDS = 2.0
"""How long the end of a run waits for its last lines to be written."""
TOTAL_BYTES_MAX = 16 * 1024 * 1024
"""Unwritten lines at most, of all runs together."""
AT_ONCE = 20

log = logging.getLogger("horarium")


class Unwritten:
    """Lines of one run. `tried`: those that the store may have taken, in an outage; they are given to it again as they
    were, before any others."""

    __slots__ = ("backlog", "run", "tried")

    def __init__(self, run: Run) -> None:
        self.run = run
        self.tried: list[LogLine] = []
        self.backlog: Backlog[LogLine] = Backlog(size_of)


class LogWriter(Service):
    """Takes lines from any thread."""

    name = "logs"

    def __init__(self, logs: Logs, clock: Clock) -> None:
        self.wake = Wake()
        self._logs = logs
        self._clock = clock
        self._lock = threading.Lock()
        self._unwritten: dict[str, Unwritten] = {}
        self._writing: dict[str, asyncio.Future[None]] = {}
        self._size = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._next_at: Instant = 0
        self._account_at: Instant = 0

    # ---- ports.RunLogs

    def add(self, run: Run, stream: str, text: str) -> None:
        now = self._clock.now()
        lines = [LogLine(now, stream, line) for line in text.splitlines() or [""]]
        with self._lock:
            first = not self._unwritten
            waiting = self._unwritten.setdefault(run.id, Unwritten(run))
            for line in lines:
                self._size += waiting.backlog.add(line, TOTAL_BYTES_MAX - self._size)
        if first and self._loop is not None:
            with suppress(RuntimeError):  # it is closed
                self._loop.call_soon_threadsafe(self.wake.set)

    async def written(self, run: Run) -> None:
        try:
            async with asyncio.timeout(WRITTEN_SECONDS):
                await self._write(run.id)
        except (TimeoutError, HorariumError) as error:
            log.debug("the log of run %s is written later: %s", run.id, error)

    # ---- the service

    def looks(self) -> bool:
        return bool(self._unwritten)

    async def step(self, now: Instant) -> Instant | None:
        self._loop = asyncio.get_running_loop()
        if self._next_at - FLUSH <= now < self._next_at:
            return self._next_at if self._unwritten else max(self._next_at, self._account_at)
        if not self._account_at - ACCOUNT <= now < self._account_at:
            self._account_at = now + ACCOUNT
            await self._logs.account()
        if not self._unwritten:
            return self._account_at
        self._next_at = now + FLUSH
        await self.flush()
        return self._next_at

    async def flush(self) -> None:
        """Write all that waits."""
        ids = list(self._unwritten)
        for start in range(0, len(ids), AT_ONCE):
            await asyncio.gather(*map(self._write, ids[start : start + AT_ONCE]))

    async def _write(self, run_id: str) -> None:
        """Write the waiting lines of one run, after those that are being written. Lines that can't be written wait
        on."""
        while (before := self._writing.get(run_id)) is not None:
            await asyncio.wait([before])
        with self._lock:
            waiting = self._unwritten.pop(run_id, None)
            if waiting is None:
                return
            self._size -= waiting.backlog.size
        self._writing[run_id] = asyncio.get_running_loop().create_future()
        entries = waiting.backlog.entries()
        try:
            while waiting.tried or entries:
                if not waiting.tried:
                    waiting.tried, entries = _lines(entries[:LINES_MAX]), entries[LINES_MAX:]
                await self._logs.append(waiting.run, waiting.tried)
                waiting.tried = []
        except (Outage, asyncio.CancelledError):
            self._put_back(waiting, entries)
            raise
        except HorariumError as error:
            log.warning("lines of the log of run %s are lost: %s", run_id, error)
        finally:
            self._writing.pop(run_id).set_result(None)

    def _put_back(self, waiting: Unwritten, entries: Sequence[LogLine | int]) -> None:
        with self._lock:
            since = self._unwritten.get(run_id := waiting.run.id)
            waiting.backlog = Backlog(size_of)
            waiting.backlog.add_all(entries)
            if since is not None:
                self._size -= since.backlog.size
                waiting.backlog.add_all(since.backlog.entries())
            self._unwritten[run_id] = waiting
            self._size += waiting.backlog.size


def _lines(entries: Sequence[LogLine | int]) -> list[LogLine]:
    """Lines, with one that says so where some were left out."""
    told: list[LogLine] = []
    for index, entry in enumerate(entries):
        if isinstance(entry, LogLine):
            told.append(entry)
        else:
            near = [each for each in (*entries[index:], *told[::-1]) if isinstance(each, LogLine)]
            told.append(LogLine(near[0].at if near else 0, CUT, f"[{counted(entry, 'line')} left out]"))
    return told
