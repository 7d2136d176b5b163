"""The holds of one namespace, as this process last read them: at most a second ago, or they are read again.

Holds are few, and every claim asks for them. So a process keeps the list, and one read serves all who ask within the
next second; a signal of a change only makes that sooner.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import msgspec

from horarium.clock import SECOND, Instant, to_micros
from horarium.model import Job, Run
from horarium.model.holds import Hold
from horarium.model.records import Record, RecordChange, RecordFilter
from horarium.operations.bounds.listing import pages_of
from horarium.operations.writing.context import Context
from horarium.ports import HOLDS, PAGE_MAX
from horarium.rules.breaking import probed
from horarium.rules.holds import hold_on, kept_back

PREFIX = "hold/"
FRESH_SECONDS = 1.5
"""How old the list may be where a run is about to begin. A service reads it every second: nothing waits for that."""
READ_SECONDS = 0.5
"""How old it is at most where that service looks."""
OBEYED = 2 * SECOND
"""Within this of its commit a hold is in force on every node: by an older list nothing begins. Where the store takes
long for each answer, so much later."""
PLANNED_SECONDS = 10.0
"""How old it may be where fire times are planned: what is planned in spite of a hold is found by the claim."""

decode_hold = msgspec.json.Decoder(Hold).decode


class Holding:
    """What holds there are, for those who let runs begin or plan them."""

    def __init__(self, context: Context) -> None:
        self._store, self._clock = context.store, context.clock
        self._reading = asyncio.Lock()
        self._read_at: Instant | None = None
        self._took = (0, 0)
        self.obeyed_until: Instant = 0
        """Of the steady scale: until then every hold that has to be obeyed is known. Later, this process or its store
        has stood still. A store that is slow takes long twice in a row, and work goes on beside it."""
        self._changes = self._seen = 0
        self.known: tuple[Hold, ...] = ()
        """As they were read last."""
        context.signal.subscribe(HOLDS, self.stale)

    def stale(self) -> None:
        """A hold was changed: it is to be read before anything begins."""
        self._changes += 1

    async def look(self, seconds: float = FRESH_SECONDS) -> tuple[Hold, ...]:
        """The holds as they were that long ago at most, and after every change of this process. Raises
        StoreUnavailable."""
        if not self._is_fresh(seconds):
            async with self._reading:
                if not self._is_fresh(seconds):
                    asked_at, changes = self._clock.steady(), self._changes
                    self.known = await self._read()
                    self._read_at, self._seen = asked_at, changes
                    self._took = (self._took[1], self._clock.steady() - asked_at)
                    self.obeyed_until = asked_at + OBEYED + min(self._took)
        return self.known

    def holds(self, run: Run, job: Job | None, at: Instant) -> bool:
        """Whether a known hold keeps this run from its begin."""
        return hold_on(self.known, run, job, at) is not None

    async def lets_through(self, hold: Hold, run: Run, job: Job | None, at: Instant) -> bool:
        """Whether this claimed run, which begins then, is the next probe of a circuit breaker: one claim of all nodes
        is."""
        wanted = probed(hold, run, job, at)
        if wanted is None:
            return False
        (stored,) = await self._store.get_records([PREFIX + hold.id])
        if stored is None:
            return False
        if (as_it_is := decode_hold(stored.body)) != hold:
            self._know(as_it_is)
            return False
        record = Record(name=stored.name, body=msgspec.json.encode(wanted), version=stored.version + 1)
        (is_probe,) = await self._store.put_records([RecordChange(record, stored.version)])
        if is_probe:
            self._know(wanted)
        self.stale()
        return is_probe

    def _know(self, hold: Hold) -> None:
        self.known = tuple(hold if known.id == hold.id else known for known in self.known)

    async def said(self, run: Run, job: Job | None) -> Run:
        """The new run; under a hold, it waits and says so. One of a later time first waits for that."""
        now = self._clock.now()
        if run.due_at > now or not await self.look():
            return run
        held = hold_on(self.known, run, job, now)
        return run if held is None else kept_back(run, held, now)

    async def all_said(self, runs: Iterable[Run], job: Job | None) -> list[Run]:
        """The same for each of these."""
        return [await self.said(run, job) for run in runs]

    def _is_fresh(self, seconds: float) -> bool:
        if self._read_at is None or self._seen != self._changes:
            return False
        return self._clock.steady() - self._read_at < to_micros(seconds)

    async def _read(self) -> tuple[Hold, ...]:
        pages = pages_of(lambda after: self._store.list_records(RecordFilter(PREFIX), after, PAGE_MAX))
        return tuple([decode_hold(record.body) async for page in pages for record in page])
