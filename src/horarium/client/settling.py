"""Reports what a worker's runs came to, in groups, until the server has it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence

from horarium.client.api import Client
from horarium.client.claimed import ClaimedRun, report_of
from horarium.client.held import Done, Held
from horarium.errors import HorariumError, Outage
from horarium.model import ERROR_CHARS_MAX

BACKOFF_SECONDS, BACKOFF_SECONDS_MAX = 0.2, 5.0

log = logging.getLogger("horarium.worker")


class Settler:
    """One thread runs `loop`."""

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
                _tell_refused([run for run, _ in standing], answers)
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


def _tell_refused(runs: Sequence[ClaimedRun], answers: Sequence[object]) -> None:
    for run, answer in zip(runs, answers, strict=True):
        if isinstance(answer, HorariumError):
            log.warning("%r could not be settled: %s", run, answer)


def wait_out(what: str, error: HorariumError, failures: int, stopping: threading.Event) -> None:
    """Say once that the server is out, and wait before the next try."""
    if failures == 1:
        log.warning("%s: %s; trying again", what, error)
    asked = error.retry_after_seconds if isinstance(error, Outage) else 0.0
    stopping.wait(max(asked, min(BACKOFF_SECONDS * 2 ** min(failures - 1, 10), BACKOFF_SECONDS_MAX)))
