"""Performs runs of a server's queues in the threads of this process.

    claim --> todo --> perform (slots threads) --> done --> settle, in groups
      held: everything claimed and not settled; one thread renews each lease at a third of its length

The one hard thing is never to lose a run that the server has handed over. What is claimed is either settled, or
released, or its lease was lost; leases are renewed until the outcome has arrived, while draining too. An outage of the
server is waited out. When a lease is lost, somebody else may have the run: its work is asked to stop, and its outcome
is dropped.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from horarium.client.api import CLAIM_MAX, SETTLE_MAX, WAIT_SECONDS_MAX, Client, Report
from horarium.client.claimed import ClaimedRun, completed, failed, report_of
from horarium.client.transport import Cut
from horarium.clock import Clock, SystemClock
from horarium.definitions import RunView
from horarium.errors import HorariumError, InvalidRequest, LeaseLost, NotFound, Outage
from horarium.model import ERROR_CHARS_MAX
from horarium.stopping import on_signals

SLOTS_MAX = 256
PREFETCH_MAX = 1_000
WAIT_SECONDS = 20.0
GRACE_SECONDS = 30.0
CANCEL_GRACE_SECONDS = 5.0
"""How long work that outlived the grace of a stop gets to react to being cancelled."""
SETTLE_GRACE_SECONDS = 15.0
"""How long a stop waits for the last outcomes to arrive."""
SETTLE_BYTES_MAX = 512 * 1024
BACKOFF_SECONDS, BACKOFF_SECONDS_MAX = 0.2, 5.0

log = logging.getLogger("horarium.worker")


Perform = Callable[[ClaimedRun], Any]
Done = list[tuple[ClaimedRun, Report]]


class Stopped(Exception):
    """The function returned after it had seen that it should stop."""


class Worker:
    """Claims runs of these queues and performs each with `perform`: what it returns is the result, raising is a
    failure (`Retry`, `Discard` and `Defer` of `horarium` say more); raising after `cancel_requested` was set, or
    returning after the function has seen it, reports the run as cancelled. `slots` runs are performed at one time; up
    to `prefetch` more are claimed ahead, which pays where runs are short."""

    def __init__(
        self,
        client: Client,
        queues: Sequence[str],
        perform: Perform,
        *,
        name: str | None = None,
        slots: int = 8,
        prefetch: int = 0,
        wait_seconds: float = WAIT_SECONDS,
        grace_seconds: float = GRACE_SECONDS,
        cancel_grace_seconds: float = CANCEL_GRACE_SECONDS,
        clock: Clock | None = None,
    ) -> None:
        _check("slots", slots, 1, SLOTS_MAX)
        _check("prefetch", prefetch, 0, PREFETCH_MAX)
        _check("wait_seconds", wait_seconds, 0, WAIT_SECONDS_MAX)
        if not queues:
            raise InvalidRequest("queues: name at least one", field="queues")
        self.name = name or f"{socket.gethostname()}-{os.getpid()}"
        self._client = client
        self._queues = [queue_name(queue) for queue in queues]
        self._perform = perform
        self._slots = slots
        self._places = slots + prefetch
        self._wait_seconds = wait_seconds
        self._grace_seconds = grace_seconds
        self._cancel_grace_seconds = cancel_grace_seconds
        self._clock = clock or SystemClock()
        self._changed = threading.Condition()
        self._stopping = threading.Event()
        self._cut = Cut()
        self._held: dict[tuple[str, int], ClaimedRun] = {}
        self._todo: deque[ClaimedRun] = deque()
        self._done: deque[tuple[ClaimedRun, Report]] = deque()
        self._running: set[ClaimedRun] = set()
        self._over = False

    # ---- life

    def run(self) -> None:
        """Claim and perform until `stop`; then finish what runs, release what has not begun, and return. Raises what
        the server refuses for good (a wrong key, a queue that can't be)."""
        threads = [self._thread("settle", self._settle_loop), self._thread("beat", self._beat_loop)]
        for number in range(self._slots):
            self._thread(f"slot-{number}", self._perform_loop)
        try:
            self._claim_loop()
        finally:
            self._drain()
            for thread in threads:
                thread.join()

    def stop(self) -> None:
        """Claim no more. `run` returns when what runs is finished, or the grace is over. May be called from anywhere
        but a signal handler (see `run_until_signal`)."""
        self._stopping.set()
        self._cut.cut()
        self._notify()

    def run_until_signal(self) -> None:
        """`run` in the main thread until SIGTERM or SIGINT. A second signal ends the process as it would have."""
        # A handler of signals runs between two instructions of the main thread, whose locks it must not ask for.
        with on_signals(lambda: threading.Thread(target=self.stop, daemon=True).start(), heeded=1):
            self.run()

    def _thread(self, name: str, loop: Callable[[], None]) -> threading.Thread:
        thread = threading.Thread(target=loop, name=f"horarium-worker-{name}", daemon=True)
        thread.start()
        return thread

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _drain(self) -> None:
        self._stopping.set()
        self._release_todo()
        if not self._wait_idle(self._grace_seconds):
            log.warning(
                "%d runs outlived the grace of %g s; they are asked to stop", len(self._running), self._grace_seconds
            )
            self._cancel_running()
            self._wait_idle(self._cancel_grace_seconds)
        self._abandon_running()
        with self._changed:
            self._changed.wait_for(lambda: not self._held, SETTLE_GRACE_SECONDS)
            if self._held:
                log.error("%d outcomes could not be reported; the runs will be tried again", len(self._held))
            self._over = True
            self._changed.notify_all()

    def _release_todo(self) -> None:
        with self._changed:
            while self._todo:
                run = self._todo.popleft()
                self._done.append((run, report_of(run, "released", reason="its worker stopped before it began")))
            self._changed.notify_all()

    def _wait_idle(self, seconds: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: not self._running, seconds)

    def _cancel_running(self) -> None:
        with self._changed:
            for run in self._running:
                run.give_up()

    def _abandon_running(self) -> None:
        with self._changed:
            for run in self._running:
                error = "its worker stopped, and it did not end within the grace"
                self._done.append((run, report_of(run, "failed", error=error)))
            self._running.clear()
            self._changed.notify_all()

    # ---- claim

    def _claim_loop(self) -> None:
        failures = 0
        while (free := self._wait_free()) > 0:
            try:
                views = self._client.claim(
                    self._queues, min(free, CLAIM_MAX), self.name, self._wait_seconds, cut=self._cut
                )
            except Outage as error:
                failures += 1
                self._outage("claim", error, failures)
            else:
                failures = 0
                self._take(views)

    def _wait_free(self) -> int:
        """How many more runs there is room for; 0 once it is time to stop."""
        with self._changed:
            self._changed.wait_for(lambda: self._stopping.is_set() or len(self._held) < self._places)
            return 0 if self._stopping.is_set() else self._places - len(self._held)

    def _take(self, views: Sequence[RunView]) -> None:
        now = self._clock.monotonic()
        with self._changed:
            for view in views:
                run = ClaimedRun(view, self._client, now)
                self._held[run.id, run.token] = run
                self._todo.append(run)
            self._changed.notify_all()

    def _outage(self, what: str, error: HorariumError, failures: int) -> None:
        """Say it once, and wait before the next try."""
        if self._cut.is_cut and what == "claim":
            return
        if failures == 1:
            log.warning("%s: %s; trying again", what, error)
        waiter = self._stopping if what == "claim" else threading.Event()
        waiter.wait(min(BACKOFF_SECONDS * 2 ** min(failures - 1, 10), BACKOFF_SECONDS_MAX))

    # ---- perform

    def _perform_loop(self) -> None:
        while (run := self._next()) is not None:
            report = self._attempt(run)
            with self._changed:
                if run in self._running:
                    self._running.remove(run)
                    self._done.append((run, report))
                self._changed.notify_all()

    def _next(self) -> ClaimedRun | None:
        with self._changed:
            self._changed.wait_for(lambda: (self._todo and not self._stopping.is_set()) or self._over)
            if self._over:
                return None
            run = self._todo.popleft()
            self._running.add(run)
            return run

    def _attempt(self, run: ClaimedRun) -> Report:
        if run.stops:
            return report_of(run, "cancelled", reason="cancelled before its worker began")
        try:
            result = self._perform(run)
            return failed(run, Stopped("it returned")) if run.cancel_requested.seen else completed(run, result)
        except Exception as error:
            return failed(run, error)
        except SystemExit as error:
            return report_of(run, "failed", error=f"it called exit({error.code})")

    # ---- settle

    def _settle_loop(self) -> None:
        while batch := self._next_batch():
            self._settle(batch)

    def _next_batch(self) -> Done:
        """What is done by now, as far as it fits into one request; empty once all is over."""
        with self._changed:
            self._changed.wait_for(lambda: self._done or self._over)
            batch: Done = []
            size = 0
            while self._done and len(batch) < SETTLE_MAX and size < SETTLE_BYTES_MAX:
                batch.append(self._done.popleft())
                size += len(msgspec.json.encode(batch[-1][1]))
            return batch

    def _settle(self, batch: Done) -> None:
        failures = 0
        while standing := [(run, report) for run, report in batch if not run.lease_lost]:
            try:
                answers = self._client.settle([report for _, report in standing])
            except Outage as error:
                failures += 1
                self._outage("settle", error, failures)
                if self._over:
                    return
            except HorariumError as error:
                self._refused(standing, error)
                break
            else:
                for (run, _), answer in zip(standing, answers, strict=True):
                    if isinstance(answer, HorariumError):
                        log.warning("%r could not be settled: %s", run, answer)
                break
        self._forget([run for run, _ in batch])

    def _refused(self, batch: Done, error: HorariumError) -> None:
        """A batch that the server did not take: each on its own, and one that is refused alone as a failure."""
        if len(batch) > 1:
            for pair in batch:
                self._settle([pair])
            return
        ((run, report),) = batch
        log.error("%r: its outcome was refused: %s", run, error)
        if report.outcome == "completed":
            text = f"its outcome was refused: {error}"[:ERROR_CHARS_MAX]
            self._settle([(run, report_of(run, "failed", error=text, retryable=False))])

    def _forget(self, runs: Sequence[ClaimedRun]) -> None:
        with self._changed:
            for run in runs:
                self._held.pop((run.id, run.token), None)
            self._changed.notify_all()

    # ---- heartbeat

    def _beat_loop(self) -> None:
        while not self._over:
            for run in self._due_beats():
                self._beat(run)

    def _due_beats(self) -> list[ClaimedRun]:
        """Wait for the next lease to renew, or for news; then those that are due."""
        with self._changed:
            now = self._clock.monotonic()
            next_at = min((run.beat_at for run in self._held.values() if not run.lease_lost), default=None)
            if not self._over and (next_at is None or next_at > now):
                self._changed.wait(None if next_at is None else next_at - now)
            now = self._clock.monotonic()
            return [run for run in self._held.values() if run.beat_at <= now and not run.lease_lost]

    def _beat(self, run: ClaimedRun) -> None:
        now = self._clock.monotonic()
        pace = run.lease_seconds / 3
        run.beat_at = now + pace
        try:
            pulse = self._client.heartbeat(run.id, run.token, within_seconds=pace)
        except (LeaseLost, NotFound) as error:
            if run in self._running or run in self._todo:
                log.warning("%r: %s", run, error)
                run.lose()
        except HorariumError as error:
            log.debug("%r: no heartbeat: %s", run, error)
            run.beat_at = now + min(pace, 1.0)
            if now >= run.lease_ends:
                log.warning("%r: its lease ran out, as the server did not answer", run)
                run.lose()
        else:
            run.renewed(pulse.expires_at, now)
            if pulse.cancel_requested:
                run.cancel()


def queue_name(queue: str) -> str:
    """The queue as the server calls it: `NAME` is that of a queue target, `pull/NAME`."""
    return queue if "/" in queue else f"pull/{queue}"


def _check(field: str, value: float, least: float, most: float) -> None:
    if not least <= value <= most:
        raise InvalidRequest(f"{field}: must be from {least:g} to {most:g}, not {value:g}", field=field)
