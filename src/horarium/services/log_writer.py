"""Keeps what handlers of this process say: lines are taken in memory at once, and written in groups.

Nothing that a handler says may hold it up, or fail it. So lines wait here, bounded; those of a run that has just ended
are written before its outcome is, and the rest a few times a second.
"""

from __future__ import annotations

import asyncio
import logging
import threading

from horarium.clock import SECOND, Clock, Instant
from horarium.errors import HorariumError, Outage
from horarium.model import Run
from horarium.model.logs import LOG_BYTES_MAX, LogLine
from horarium.operations.logs import LINES_MAX, Logs
from horarium.ports import Topic
from horarium.rules.logbook import size_of
from horarium.services.service import Service, Wake

FLUSH = SECOND // 4
"""How often the log of a run under way is written."""
ACCOUNT = 30 * SECOND
WRITTEN_SECONDS = 2.0
"""How long the end of a run waits for its last lines to be written."""
TOTAL_BYTES_MAX = 16 * 1024 * 1024
"""What waits to be written at most, of all runs together."""
AT_ONCE = 20

log = logging.getLogger("horarium")


class Unwritten:
    """Lines of one run. Beyond what a run's log may hold, the oldest give way."""

    __slots__ = ("left_out", "lines", "run", "size")

    def __init__(self, run: Run) -> None:
        self.run = run
        self.lines: list[LogLine] = []
        self.size = 0
        self.left_out = 0


class LogWriter(Service):
    """Takes lines from any thread."""

    name = "logs"
    topics: tuple[Topic, ...] = ()

    def __init__(self, logs: Logs, clock: Clock) -> None:
        self.wake = Wake()
        self._logs = logs
        self._clock = clock
        self._lock = threading.Lock()
        self._unwritten: dict[str, Unwritten] = {}
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
                self._take(waiting, line)
        if first and self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self.wake.set)

    def _take(self, waiting: Unwritten, line: LogLine) -> None:
        needed = size_of(line)
        if self._size + needed > TOTAL_BYTES_MAX or waiting.size + needed > LOG_BYTES_MAX:
            waiting.left_out += 1
            return
        waiting.lines.append(line)
        waiting.size += needed
        self._size += needed

    async def written(self, run: Run) -> None:
        try:
            async with asyncio.timeout(WRITTEN_SECONDS):
                await self._write(run.id)
        except (TimeoutError, HorariumError) as error:
            log.debug("the log of run %s is written later: %s", run.id, error)

    # ---- the service

    async def step(self, now: Instant) -> Instant | None:
        self._loop = asyncio.get_running_loop()
        if self._next_at - FLUSH <= now < self._next_at:
            return self._next_at if self._unwritten else None
        if not self._account_at - ACCOUNT <= now < self._account_at:
            self._account_at = now + ACCOUNT
            await self._logs.account()
        if not self._unwritten:
            return None
        self._next_at = now + FLUSH
        await self.flush()
        return self._next_at

    async def flush(self) -> None:
        """Write all that waits."""
        ids = list(self._unwritten)
        for start in range(0, len(ids), AT_ONCE):
            await asyncio.gather(*map(self._write, ids[start : start + AT_ONCE]))

    async def _write(self, run_id: str) -> None:
        """Write what waits of one run. What can't be written waits on."""
        with self._lock:
            waiting = self._unwritten.pop(run_id, None)
            if waiting is not None:
                self._size -= waiting.size
        if waiting is None:
            return
        lines = waiting.lines
        if waiting.left_out:
            lines = [*lines, LogLine(self._clock.now(), "horarium", f"[{waiting.left_out:,} lines left out]")]
        try:
            for start in range(0, len(lines), LINES_MAX):
                await self._logs.append(waiting.run, lines[start : start + LINES_MAX])
        except (Outage, asyncio.CancelledError):
            self._put_back(waiting)
            raise
        except HorariumError as error:
            log.warning("lines of the log of run %s are lost: %s", run_id, error)

    def _put_back(self, waiting: Unwritten) -> None:
        with self._lock:
            since = self._unwritten.get(run_id := waiting.run.id)
            self._unwritten[run_id] = waiting
            self._size += waiting.size
            for line in since.lines if since is not None else ():
                self._size -= size_of(line)
                self._take(waiting, line)
