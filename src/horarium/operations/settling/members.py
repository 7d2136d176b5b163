"""The jobs from whose runs others follow, by name, as this process last read them; and the lines of their ends."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from horarium.model import UNFINISHED, RunChange
from horarium.model.records import RecordFilter
from horarium.operations.bounds.listing import pages_of
from horarium.operations.writing.context import Context
from horarium.operations.writing.signalling import JOINS as DEFINED
from horarium.ports import PAGE_MAX
from horarium.rules.joins import JOINS, member_of, with_join_end

FRESH_SECONDS = 5.0
"""How old the list may be where a run ends; the last look at a join that is new comes later. A service reads it every
second: nothing waits for that."""
ONE_OFF = frozenset({None})
PAGES_A_SECOND = 5
"""Pages of a long list that are read in a second: it may be older."""


class Members:
    """Whose ends bring a line along. Ends before a join is known are found by the look at it."""

    def __init__(self, context: Context) -> None:
        self._store, self._clock = context.store, context.clock
        self._reading = asyncio.Lock()
        self._read_at: float | None = None
        self._changes = self._pages = 0
        self.known: frozenset[str] = frozenset()
        """As they were read last."""
        context.signal.subscribe(DEFINED, self.stale)

    def stale(self) -> None:
        """A join was defined: the list is to be read before anything ends."""
        self._read_at, self._changes = None, self._changes + 1

    async def look(self, seconds: float = FRESH_SECONDS) -> frozenset[str]:
        """The names as they were that long ago at most. Raises StoreUnavailable."""
        if not self._is_fresh(seconds):
            async with self._reading:
                if not self._is_fresh(seconds):
                    asked_at, changes = self._clock.monotonic(), self._changes
                    self.known = await self._read()
                    self._read_at = asked_at if changes == self._changes else None
        return self.known

    async def with_ends(self, changes: Sequence[RunChange]) -> Sequence[RunChange]:
        """The changes, those that end runs of members with their lines."""
        jobs = {change.run.job for change in changes if change.run.state not in UNFINISHED}
        known = frozenset[str]() if jobs <= ONE_OFF else await self.look()
        return [with_join_end(each) if each.run.job in known else each for each in changes] if known else changes

    def _is_fresh(self, seconds: float) -> bool:
        if self._read_at is None:
            return False
        return 0 <= self._clock.monotonic() - self._read_at < max(seconds, self._pages / PAGES_A_SECOND)

    async def _read(self) -> frozenset[str]:
        found, pages = set[str](), 0
        async for page in pages_of(lambda after: self._store.list_records(RecordFilter(JOINS), after, PAGE_MAX)):
            found.update(map(member_of, page))
            pages += 1
        self._pages = pages
        return frozenset(found)
