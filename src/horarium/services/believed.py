"""Whether the wall clock can be believed where something is deleted because it is old.

A step forward that is seen has to stand for an hour. A process that starts saw nothing of what the clock did before: so
processes that believe their clocks note its time in the store, and one that starts far beyond the last note waits as if
it had seen the step. (That is the same after a long downtime; there the hour is of no consequence.)
"""

from __future__ import annotations

from horarium.clock import SECOND, Clock, Instant, to_micros
from horarium.model.records import Record, RecordChange, instant_key, key_instant
from horarium.ports import Store
from horarium.services.clock_watch import ClockWatch

STANDS_SECONDS = 3600.0
"""After a step forward nothing is deleted for this long: the new time may be wrong."""
NOTED = "clock/believed"
NOTED_EVERY = 600 * SECOND


class BelievedClock:
    """Watches one clock. To be looked at in each step of a service that deletes."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._watch = ClockWatch(clock)
        self._is_known = False
        self._doubted_until = 0.0
        self._noted_at: Instant = 0

    async def look(self, now: Instant) -> int:
        """Notice a step. By how many microseconds the wall clock has stepped since the last look, or 0. Raises
        StoreUnavailable."""
        step = self._watch.look(now)
        if step < 0:
            self._is_known = False
        if not self._is_known:
            noted = await self._noted()
            far = noted is not None and now - key_instant(noted.body.decode()) > to_micros(STANDS_SECONDS)
            self._doubted_until = self._clock.monotonic() + STANDS_SECONDS if far else 0.0
            self._is_known = True
        return step

    def stands(self) -> bool:
        """Whether what is old by this clock may be deleted."""
        return self._clock.monotonic() >= self._doubted_until and self._watch.stood_for(STANDS_SECONDS)

    async def note(self, now: Instant) -> None:
        """Note the time for those that start later, once in ten minutes. Only while it stands. Raises
        StoreUnavailable."""
        if self._noted_at <= now < self._noted_at + NOTED_EVERY:
            return
        noted = await self._noted()
        version = 0 if noted is None else noted.version
        record = Record(name=NOTED, body=instant_key(now).encode(), version=version + 1)
        await self._store.put_records([RecordChange(record, version)])
        self._noted_at = now

    async def _noted(self) -> Record | None:
        return (await self._store.get_records([NOTED]))[0]
