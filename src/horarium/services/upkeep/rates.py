"""Rate limits: runs that wait get new places when the limit of their key is changed, and idle keys are deleted;
those of fairness keys too.

The work of a change is in a marker record, as that of the applier is; a node that goes on with it begins again.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from horarium.clock import MINUTE, SECOND, Clock, Instant
from horarium.model import RunChange, State
from horarium.model.records import Record, RecordFilter
from horarium.operations.settling.rating import CHANGED, PREFIX, Rating, bucket_of
from horarium.operations.settling.reconciling import Reconciler
from horarium.operations.settling.settling import Settling
from horarium.operations.settling.turns import ENDS, end_of, line_of
from horarium.operations.writing.context import Context
from horarium.ports import PAGE_MAX, RunFilter, Store
from horarium.rules.applying import owed_of
from horarium.rules.fairness import is_over
from horarium.rules.rates import brought_forward, is_idle, rates_of, waits_for
from horarium.services.loop.service import Service, Wake
from horarium.services.upkeep.applier import Applier, Work

PAUSE = SECOND // 4
"""After a page of records all of which are needed: a million of them cost a hundredth of a core or two."""
PLACED = 500
"""Runs that get new places in one go."""


class RateApplier(Applier):
    """Gives the runs that wait for a key new places, in their order, once its limit was changed."""

    name = "rates"
    prefix = CHANGED

    def __init__(self, context: Context, reconciler: Reconciler, settling: Settling, node: str) -> None:
        super().__init__(context.store, context.clock, reconciler, node)
        self._settling, self._rating = settling, Rating(context)
        self._found: list[tuple[Instant, str]] = []

    async def _page(self, work: Work) -> None:
        """First all that wait are found, then they are placed, the first of them first."""
        key = owed_of(work.record).job_id
        if work.states:
            if work.after is None:
                self._found = []
            page = await self._store.list_runs(RunFilter(states=frozenset({State.PENDING})), work.after, PAGE_MAX)
            self._found += ((run.due_at, run.id) for run in page.items if key in rates_of([run]) and waits_for(run))
            if (after := page.next_after) is not None:
                work.after = after
                return
            work.states = frozenset()
            self._found.sort(reverse=True)
        if self._found:
            await self._place([run_id for _, run_id in self._found[: -PLACED - 1 : -1]])
            del self._found[-PLACED:]
        if not self._found:
            await self._finish(work)

    async def _place(self, ids: list[str]) -> None:
        now = self._clock.now()
        runs = [run for run in await self._store.get_runs(ids) if run is not None and waits_for(run)]
        placed = await self._rating.lined_up([brought_forward(run, now) for run in runs])
        changes = [RunChange(after, run.token, run.state) for run, after in zip(runs, placed, strict=True)]
        await self._settling.write(changes, {}, now)


class RecordPruner(Service):
    """Deletes records that say no more than none at all."""

    sleeps = True
    prefix: str

    def __init__(self, store: Store, clock: Clock) -> None:
        self.wake = Wake()
        self._store, self._clock = store, clock
        self._after: str | None = None

    async def step(self, now: Instant) -> Instant | None:
        page = await self._store.list_records(RecordFilter(self.prefix), self._after, PAGE_MAX)
        if idle := await self._idle(page.items, now):
            await self._store.put_records([record.removal() for record in idle])
        self._after = page.next_after
        return now + (MINUTE if self._after is None else 0 if idle else PAUSE)

    @abstractmethod
    async def _idle(self, records: Sequence[Record], now: Instant) -> list[Record]:
        """Those of them that can go."""


class RatePruner(RecordPruner):
    """Deletes the state of keys of rate limits under which nothing has waited or begun for a while."""

    name = "rate-pruner"
    prefix = PREFIX

    async def _idle(self, records: Sequence[Record], now: Instant) -> list[Record]:
        steady = self._clock.steady()
        return [record for record in records if is_idle(bucket_of(record), now, steady)]


class TurnPruner(RecordPruner):
    """Deletes the last turns of fairness keys that lie before all that waits."""

    name = "turn-pruner"
    prefix = ENDS

    async def _idle(self, records: Sequence[Record], now: Instant) -> list[Record]:
        lines = {record.name: line_of(record.name) for record in records}
        levels = [(*line, gated) for line in dict.fromkeys(lines.values()) for gated in (False, True)]
        firsts = dict(zip(levels, await self._store.first_due(levels), strict=True))

        def is_idle(record: Record) -> bool:
            waiting = [firsts[*lines[record.name], gated] for gated in (False, True)]
            return is_over(end_of(record), waiting, now)

        return [record for record in records if is_idle(record)]
