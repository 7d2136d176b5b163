"""A worker's claimed runs that are not settled: to begin, under way, or done and still to be reported.

Every thread of the worker waits here for its turn; one condition guards it all.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence

import msgspec

from horarium.client.answers import Report
from horarium.client.api import SETTLE_MAX
from horarium.client.claimed import ClaimedRun, report_of
from horarium.clock import Clock
from horarium.interrupts import HEEDED_SECONDS

SETTLE_BYTES_MAX = 512 * 1024

Done = list[tuple[ClaimedRun, Report]]


class Held:
    """The runs of one worker, at most `places` of them. `stopping`: no more are claimed or begun. `over`: every loop
    ends."""

    def __init__(self, places: int) -> None:
        self.stopping = threading.Event()
        self.over = False
        self._places = places
        self._changed = threading.Condition()
        self._runs: dict[tuple[str, int], ClaimedRun] = {}
        self._todo: deque[ClaimedRun] = deque()
        self._done: deque[tuple[ClaimedRun, Report]] = deque()
        self._running: dict[ClaimedRun, Report | None] = {}

    # ---- claimed

    def wait_free(self) -> int:
        """How many more runs there is room for; 0 once it is time to stop."""
        with self._changed:
            while not self.stopping.is_set() and len(self._runs) >= self._places:
                self._changed.wait(HEEDED_SECONDS)  # this is the main thread, as a rule
            return 0 if self.stopping.is_set() else self._places - len(self._runs)

    def take(self, runs: Sequence[ClaimedRun]) -> None:
        with self._changed:
            for run in runs:
                self._runs[run.id, run.token] = run
                self._todo.append(run)
            self._changed.notify_all()

    def is_performed(self, run: ClaimedRun) -> bool:
        """Whether it is under way, or still to begin."""
        return run in self._running or run in self._todo

    def due_beats(self, clock: Clock) -> list[ClaimedRun]:
        """Wait for the next lease to renew, or for news; then those that are due."""
        with self._changed:
            now = clock.monotonic()
            next_at = min((run.beat_at for run in self._runs.values() if not run.lease_lost), default=None)
            if not self.over and (next_at is None or next_at > now):
                self._changed.wait(None if next_at is None else next_at - now)
            now = clock.monotonic()
            return [run for run in self._runs.values() if run.beat_at <= now and not run.lease_lost]

    # ---- performed

    def next(self) -> ClaimedRun | None:
        """The next run to perform, which is under way from now on; None once all is over."""
        with self._changed:
            self._changed.wait_for(lambda: (self._todo and not self.stopping.is_set()) or self.over)
            if self.over:
                return None
            run = self._todo.popleft()
            self._running[run] = None
            return run

    def ended(self, run: ClaimedRun, report: Report) -> None:
        """Its work is done: this is to be reported, once its last lines are sent."""
        with self._changed:
            if run in self._running:
                self._running[run] = report

    def performed(self, run: ClaimedRun) -> None:
        with self._changed:
            if (report := self._running.pop(run, None)) is not None:
                self._done.append((run, report))
            self._changed.notify_all()

    # ---- settled

    def next_batch(self) -> Done:
        """Finished runs, as many as fit into one request; empty once all is over."""
        with self._changed:
            self._changed.wait_for(lambda: self._done or self.over)
            batch: Done = []
            size = 0
            while self._done and len(batch) < SETTLE_MAX and size < SETTLE_BYTES_MAX:
                batch.append(self._done.popleft())
                size += len(msgspec.json.encode(batch[-1][1]))
            return batch

    def forget(self, runs: Sequence[ClaimedRun]) -> None:
        with self._changed:
            for run in runs:
                self._runs.pop((run.id, run.token), None)
            self._changed.notify_all()

    # ---- the end

    def stop(self) -> None:
        self.stopping.set()
        with self._changed:
            self._changed.notify_all()

    def release_todo(self) -> None:
        """Runs that have not begun are given back."""
        with self._changed:
            while self._todo:
                run = self._todo.popleft()
                self._done.append((run, report_of(run, "released", reason="its worker stopped before it began")))
            self._changed.notify_all()

    def wait_idle(self, seconds: float) -> int:
        """Wait until nothing is under way. How many runs still are."""
        with self._changed:
            self._changed.wait_for(lambda: not self._running, seconds)
            return len(self._running)

    def cancel_running(self) -> None:
        with self._changed:
            for run in self._running:
                run.give_up()

    def abandon_running(self) -> None:
        """Runs that did not end are reported as failed."""
        with self._changed:
            for run, report in self._running.items():
                error = "its worker stopped, and it did not end within the grace"
                self._done.append((run, report or report_of(run, "failed", error=error)))
            self._running.clear()
            self._changed.notify_all()

    def finish(self, seconds: float) -> int:
        """Wait until everything is settled, then let every loop end. How many outcomes were left."""
        with self._changed:
            self._changed.wait_for(lambda: not self._runs, seconds)
            self.over = True
            self._changed.notify_all()
            return len(self._runs)
