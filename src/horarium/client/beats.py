"""Renews the lease of every run that a worker holds, at a third of its length."""

from __future__ import annotations

import logging

from horarium.client.api import Client
from horarium.client.claimed import ClaimedRun
from horarium.client.held import Held
from horarium.clock import Clock
from horarium.errors import HorariumError, LeaseLost, NotFound

log = logging.getLogger("horarium.worker")


class Beats:
    """One thread runs `loop`."""

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
