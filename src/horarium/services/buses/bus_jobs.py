"""The jobs that go to one bus, looked up now and then."""

from __future__ import annotations

from collections.abc import Collection

from horarium.clock import HOUR, Clock, Instant, to_micros
from horarium.delivery.bus import ONE_OFF
from horarium.errors import Outage
from horarium.model import BusTarget, text_of
from horarium.operations.bounds.listing import pages_of
from horarium.ports import PAGE_MAX, JobFilter, Store

LIST_SECONDS = 60.0
"""How often the jobs of a bus are looked up."""
LIST_SECONDS_MIN = 1.0
"""Not more often than this, however often jobs change."""
LIST_SHARE = 20
"""Nor more often than this many times what a look costs."""
FORGET_AFTER = HOUR
"""How long the reports of a job that was deleted are still taken."""


class BusJobs:
    """The names of the jobs of one bus, those deleted not long ago included, and that of runs without a job."""

    def __init__(self, bus: str, store: Store, clock: Clock) -> None:
        self._bus = bus
        self._store = store
        self._seen_at: dict[str, Instant] = {}
        self._listed_at: Instant | None = None
        self._changed = False
        self._clock = clock
        self._cost_seconds = 0.0

    def signalled(self) -> None:
        """A job was defined, changed or deleted."""
        self._changed = True

    async def look(self, now: Instant) -> Collection[str] | None:
        """The names; None: it is too early to look again."""
        if not self._is_due(now):
            return None
        self._changed = False
        began = self._clock.monotonic()
        try:
            async for page in pages_of(lambda after: self._store.list_jobs(JobFilter(), after, PAGE_MAX)):
                for job in page:
                    if isinstance(job.target, BusTarget) and job.target.bus == self._bus:
                        self._seen_at[text_of(job.name)] = now
        except Outage:
            self._changed = True
            raise
        self._seen_at[ONE_OFF] = now
        self._listed_at = now
        self._cost_seconds = self._clock.monotonic() - began
        self._seen_at = {name: at for name, at in self._seen_at.items() if at + FORGET_AFTER > now}
        return self._seen_at.keys()

    def _is_due(self, now: Instant) -> bool:
        if self._listed_at is None:
            return True
        pause = max(LIST_SECONDS_MIN, LIST_SHARE * self._cost_seconds) if self._changed else LIST_SECONDS
        return not self._listed_at <= now < self._listed_at + to_micros(pause)
