"""A worker's word to the server: the leases of its runs are renewed, and their outcomes reported until it has them."""

from __future__ import annotations

import logging
import threading

from horarium.client.api import Client
from horarium.client.claimed import ClaimedRun, report_of
from horarium.client.held import Done, Held
from horarium.clock import Clock
from horarium.errors import HorariumError, LeaseLost, NotFound, Outage
from horarium.model import ERROR_CHARS_MAX

BACKOFF_SECONDS, BACKOFF_SECONDS_MAX = 0.2, 5.0

log = logging.getLogger("horarium.worker")


class Beats:
    """Renews the lease of every run that a worker holds, at a third of its length. One thread runs `loop`."""

    def __init__(self, client: Client, held: Held, clock: Clock) -> None:
        self._client = client
        self._held = held
        self._clock = clock

    def loop(self) -> None:
        while not self._held.over:
            for run in self._held.due_beats(self._clock):
                self._beat(run)

    def _beat(self, run: ClaimedRun) -> None:
        now = self._clock.monotonic()
        pace = run.lease_seconds / 3
        run.beat_at = now + pace
        try:
            pulse = self._client.heartbeat(run.id, run.token, within_seconds=pace)
        except (LeaseLost, NotFound) as error:
            if self._held.is_performed(run):
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


class Settler:
    """Reports the outcomes of a worker's runs, in groups. One thread runs `loop`."""

    def __init__(self, client: Client, held: Held) -> None:
        self._client = client
        self._held = held

    def loop(self) -> None:
        while batch := self._held.next_batch():
            self._settle(batch)

    def _settle(self, batch: Done) -> None:
        failures = 0
        while standing := [(run, report) for run, report in batch if not run.lease_lost]:
            try:
                answers = self._client.settle([report for _, report in standing])
            except Outage as error:
                failures += 1
                wait_out("settle", error, failures, threading.Event())
                if self._held.over:
                    return
            except HorariumError as error:
                self._refused(standing, error)
                break
            else:
                for (run, _), answer in zip(standing, answers, strict=True):
                    if isinstance(answer, HorariumError):
                        log.warning("%r could not be settled: %s", run, answer)
                break
        self._held.forget([run for run, _ in batch])

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


def wait_out(what: str, error: HorariumError, failures: int, stopping: threading.Event) -> None:
    """Say once that the server is out, and wait before the next try."""
    if failures == 1:
        log.warning("%s: %s; trying again", what, error)
    asked = error.retry_after_seconds if isinstance(error, Outage) else 0.0
    stopping.wait(max(asked, min(BACKOFF_SECONDS * 2 ** min(failures - 1, 10), BACKOFF_SECONDS_MAX)))
