"""Runs that were asked about, not decided in time, and are claimed by no worker: they end or go on, as their jobs say.

A claim finds such a run at once (`operations.settling.claiming`); this finds those of queues without workers. The
record that leads to a run which waits no longer is removed.
"""

from __future__ import annotations

from collections.abc import Sequence

from horarium.clock import SECOND, Clock, Instant
from horarium.model import RunChange, State
from horarium.model.records import Record, RecordChange, RecordFilter
from horarium.operations.settling.settling import Settling
from horarium.operations.writing.named import jobs_of
from horarium.ports import PAGE_MAX, Store
from horarium.rules.approving import expired, is_waiting
from horarium.rules.asking import OPEN, question_of
from horarium.services.loop.service import Service, Wake

CLAIMED_WITHIN = 2 * SECOND
"""So long after the time for a decision is over a worker of its queue, if there is one, has claimed the run."""


class Unanswered(Service):
    """Looks after questions whose time is over."""

    name = "unanswered"
    by_writes = True

    def __init__(self, store: Store, clock: Clock, settling: Settling) -> None:
        self.wake = Wake()
        self._store, self._clock = store, clock
        self._settling = settling
        self._after: str | None = None

    async def step(self, now: Instant) -> Instant | None:
        page = await self._store.list_records(RecordFilter(OPEN), self._after, PAGE_MAX)
        ends = {record.name: question_of(record).expires_at + CLAIMED_WITHIN for record in page.items}
        over = [record for record in page.items if ends[record.name] <= now]
        if over:
            await self._look(over, now)
        self._after = page.next_after if len(over) == len(page.items) else None
        later = [end for end in ends.values() if end > now]
        return min(later, default=None) if self._after is None else now

    async def _look(self, records: Sequence[Record], now: Instant) -> None:
        runs = await self._store.get_runs([question_of(record).run_id for record in records])
        jobs = await jobs_of(self._store, (run for run in runs if run is not None))
        changes: list[RunChange] = []
        useless: list[RecordChange] = []
        for record, run in zip(records, runs, strict=True):
            if run is None or not is_waiting(run):
                useless.append(record.removal())
            elif run.state is State.PENDING and run.due_at + CLAIMED_WITHIN <= now and run.job_id in jobs:
                changes.append(RunChange(expired(run, jobs[run.job_id], now), run.token, run.state))
        if changes:
            await self._settling.write(changes, jobs, now)
        if useless:
            await self._store.put_records(useless)
