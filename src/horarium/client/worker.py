"""Performs runs of a server's queues in the threads of this process.

    claim --> todo --> perform (slots threads) --> done --> settle, in groups
      held: everything claimed and not settled; one thread renews each lease at a third of its length

No run that the server has handed over may get lost. A claimed run is either settled, or released, or its lease was
lost; leases are renewed until the outcome has arrived, while draining too. An outage of the server is waited out. When
a lease is lost, another worker may have the run: its work is asked to stop, and its outcome is dropped.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Callable, Sequence
from typing import Any

from horarium.client.answers import Report
from horarium.client.api import CLAIM_MAX, WAIT_SECONDS_MAX, Client
from horarium.client.claimed import ClaimedRun, Failure, completed, failed, report_of, words_of
from horarium.client.held import Held
from horarium.client.lines import Lines
from horarium.client.reporting import Beats, Settler, wait_out
from horarium.client.transport import Cut
from horarium.clock import Clock, SystemClock
from horarium.errors import InvalidRequest, Outage
from horarium.interrupts import on_signals
from horarium.triggers.words import counted

SLOTS_MAX = 256
PREFETCH_MAX = 1_000
WAIT_SECONDS = 20.0
GRACE_SECONDS = 30.0
CANCEL_GRACE_SECONDS = 5.0
"""How long work that outlived the grace of a stop gets to react to being cancelled."""
HAND_OVER_SECONDS = 0.5
"""How long after its claim an answer may be on its way that must not be cut off: behind a proxy its runs would be lost
for a lease."""
SETTLE_GRACE_SECONDS = 15.0
"""How long a stop waits for the last outcomes to arrive."""

log = logging.getLogger("horarium.worker")


Perform = Callable[[ClaimedRun], Any]


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
        self._wait_seconds = wait_seconds
        self._grace_seconds = grace_seconds
        self._cancel_grace_seconds = cancel_grace_seconds
        self._clock = clock or SystemClock()
        self._cut = Cut()
        self._asked = (0.0, threading.Event())
        """When the present claim was sent, and whether it is answered."""
        self._held = Held(slots + prefetch)
        self._settler = Settler(client, self._held)
        self._beats = Beats(client, self._held, self._clock)
        self._lines = Lines(client, self._clock)

    # ---- life

    def run(self) -> None:
        """Claim and perform until `stop`; then finish runs under way, release the others, and return. Raises what the
        server refuses for good (a wrong key, a queue that can't be)."""
        threads = [
            self._thread("settle", self._settler.loop),
            self._thread("beat", self._beats.loop),
            self._thread("lines", self._lines.loop),
        ]
        for number in range(self._slots):
            self._thread(f"slot-{number}", self._perform_loop)
        served = ", ".join(queue.removeprefix("pull/") for queue in self._queues)
        log.info("%s takes runs of %s from %s, %d at a time", self.name, served, self._client.url, self._slots)
        try:
            self._claim_loop()
        finally:
            self._drain()
            self._lines.end()
            for thread in threads:
                thread.join()

    def stop(self) -> None:
        """Claim no more. `run` returns when its runs are finished, or the grace is over. May be called from anywhere
        but a signal handler (see `run_until_signal`)."""
        self._held.stop()
        asked_at, answered = self._asked
        answered.wait(max(0.0, asked_at + HAND_OVER_SECONDS - self._clock.monotonic()))
        self._cut.cut()

    def run_until_signal(self) -> None:
        """`run` in the main thread until SIGTERM or SIGINT. A second signal ends the process as it would have."""
        # A handler of signals runs between two instructions of the main thread, whose locks it must not ask for.
        with on_signals(lambda: threading.Thread(target=self.stop, daemon=True).start(), heeded=1):
            self.run()

    def _thread(self, name: str, loop: Callable[[], None]) -> threading.Thread:
        thread = threading.Thread(target=loop, name=f"horarium-worker-{name}", daemon=True)
        thread.start()
        return thread

    def _drain(self) -> None:
        held = self._held
        held.stop()
        held.release_todo()
        if left := held.wait_idle(self._grace_seconds):
            runs = counted(left, "run")
            log.warning("%s outlived the grace of %g s; now asked to stop", runs, self._grace_seconds)
            held.cancel_running()
            held.wait_idle(self._cancel_grace_seconds)
        held.abandon_running()
        if left := held.finish(SETTLE_GRACE_SECONDS):
            log.error("%s could not be reported; the work will be tried again", counted(left, "outcome"))

    # ---- claim

    def _claim_loop(self) -> None:
        failures = 0
        while (free := self._held.wait_free()) > 0:
            _, answered = self._asked = (self._clock.monotonic(), threading.Event())
            try:
                views = self._client.claim(
                    self._queues, min(free, CLAIM_MAX), self.name, self._wait_seconds, cut=self._cut
                )
            except Outage as error:
                failures += 1
                answered.set()
                if not self._cut.is_cut:
                    wait_out("claim", error, failures, self._held.stopping)
            else:
                failures = 0
                now = self._clock.monotonic()
                self._held.take([ClaimedRun(view, self._client, now, self._lines) for view in views])
            finally:
                answered.set()

    # ---- perform

    def _perform_loop(self) -> None:
        while (run := self._held.next()) is not None:
            self._held.ended(run, self._attempt(run))
            self._lines.sent(run)
            self._held.performed(run)

    def _attempt(self, run: ClaimedRun) -> Report:
        if run.stops:
            return report_of(run, "cancelled", reason="cancelled before its worker began")
        try:
            result = self._perform(run)
            return failed(run, Stopped("it returned")) if run.cancel_requested.seen else completed(run, result)
        except BaseException as error:  # KeyboardInterrupt and its like end the attempt, never the worker
            trace = None if isinstance(error, Failure | SystemExit) else error  # one of purpose says it all
            log.warning(
                "run %s of %s, attempt %d failed: %s",
                run.id,
                run.job or run.queue,
                run.attempt,
                words_of(error),
                exc_info=trace,
            )
            return failed(run, error)


def queue_name(queue: str) -> str:
    """The queue as the server calls it: `NAME` is that of a queue target, `pull/NAME`."""
    return queue if "/" in queue else f"pull/{queue}"


def _check(field: str, value: float, least: float, most: float) -> None:
    if not least <= value <= most:
        raise InvalidRequest(f"{field}: must be from {least:g} to {most:g}, not {value:g}", field=field)
