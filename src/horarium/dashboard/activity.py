"""The work of all nodes, minute by minute, added up from their tallies."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

from msgspec import Struct

from horarium.clock import DAY, HOUR, MINUTE, Instant
from horarium.model.records import RecordFilter, instant_key, key_instant
from horarium.operations.bounds.listing import pages_of
from horarium.ports import PAGE_MAX, Store
from horarium.services.metrics.tallies import LATENESS_EDGES, PREFIX, Minute, Tally, decode_minute, lateness_at

STANDS_AFTER = 3 * MINUTE
"""A minute this old gets no more records: it is read once."""
READ_AGAIN_AFTER = 1.0
"""Seconds for which one reading serves all pages."""


class Bar(Struct, frozen=True):
    """One step of the chart. `late_half`, `late_most`: what 50 and 99 of 100 attempts began within, in microseconds."""

    start: Instant
    ok: int
    failed: int
    missed: int
    late_half: int | None
    late_most: int | None

    @property
    def total(self) -> int:
        return self.ok + self.failed + self.missed


class Activity:
    """The last day. `tally`: what this process counted and has not written yet."""

    def __init__(self, store: Store, tally: Tally) -> None:
        self._store = store
        self._tally = tally
        self._stood: dict[Instant, Minute] = {}
        self._stood_until: Instant = 0
        self._recent: dict[Instant, Minute] = {}
        self._read_at = -READ_AGAIN_AFTER

    async def bars(self, now: Instant, span: Instant, step: Instant, elapsed: float) -> list[Bar]:
        """The events of the `span` up to now, in steps of whole minutes; the last step is the present one."""
        if not 0 <= elapsed - self._read_at < READ_AGAIN_AFTER:
            await self._read(now)
            self._read_at = elapsed
        end = now - now % step + step
        starts = range(end - span, end, step)
        summed = {start: Minute() for start in starts}
        for minute, counted in self._minutes():
            start = minute - minute % step
            if start in summed:
                summed[start].add(counted)
        return [_bar(start, summed[start]) for start in starts]

    def lateness(self, now: Instant, span: Instant) -> tuple[int | None, int | None]:
        """The delay within which 50 and 99 of 100 attempts of the last `span` began, as read last."""
        whole = Minute()
        for minute, counted in self._minutes():
            if minute >= now - span:
                whole.add(counted)
        bar = _bar(now, whole)
        return bar.late_half, bar.late_most

    def _minutes(self) -> Iterable[tuple[Instant, Minute]]:
        return chain(self._stood.items(), self._recent.items(), self._tally.minutes.items())

    async def _read(self, now: Instant) -> None:
        since = max(self._stood_until, now - DAY - HOUR, 0)
        found: dict[Instant, Minute] = {}
        where = RecordFilter(PREFIX, since=instant_key(since))
        async for page in pages_of(lambda after: self._store.list_records(where, after, PAGE_MAX)):
            for record in page:
                minute = key_instant(record.name.removeprefix(PREFIX))
                found.setdefault(minute, Minute()).add(decode_minute(record.body))
        stands = max(now - STANDS_AFTER, since)
        stands -= stands % MINUTE
        self._stood |= {minute: counted for minute, counted in found.items() if minute < stands}
        for minute in [minute for minute in self._stood if minute < now - DAY - HOUR]:
            del self._stood[minute]
        self._recent = {minute: counted for minute, counted in found.items() if minute >= stands}
        self._stood_until = stands


def _bar(start: Instant, counted: Minute) -> Bar:
    lateness = [counted.lateness.get(place, 0) for place in range(len(LATENESS_EDGES) + 1)]
    return Bar(
        start,
        counted.completed,
        counted.failed,
        counted.missed,
        lateness_at(0.5, lateness),
        lateness_at(0.99, lateness),
    )


def over_all(bars: list[Bar]) -> tuple[int, int, int]:
    """Completed, failed, missed."""
    return sum(bar.ok for bar in bars), sum(bar.failed for bar in bars), sum(bar.missed for bar in bars)
