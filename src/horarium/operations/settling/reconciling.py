"""The one loop that makes the unfinished runs of jobs be as `rules.reconciling` says they must be.

It is run after every change of a job, by everyone who puts runs back to pending, and over what a node that died may
have left. Runs are read and written in bounded batches, and others have their turn in between. A change waits for the
first of them; where there are more, a marker record names the rest (`rules.applying`), and a service does it. Work that
an outage prevented is remembered, and done by the next call; work lost with this process is found when a run is
claimed, or by the sweep for a dead node.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import compress
from typing import NamedTuple

from msgspec.structs import replace

from horarium.clock import INSTANT_MIN, Instant
from horarium.errors import StoreUnavailable
from horarium.model import UNFINISHED, Disposition, Job, Plan, Run, State
from horarium.model.records import RecordChange
from horarium.operations.settling.following import Following
from horarium.operations.settling.holding import Holding
from horarium.operations.settling.joining import Joining
from horarium.operations.writing.context import Context
from horarium.operations.writing.signalling import announce
from horarium.ports import APPLY, BATCH_MAX, RunFilter
from horarium.rules.applying import PREFIX, Newest, owed_by
from horarium.rules.planning import ENDS_OTHERS
from horarium.rules.reconciling import look_from, reconcile

BATCH = 100
"""Unfinished runs that are looked at, and written, in one go: a few milliseconds of this process."""
PAGES_WAITED_FOR = 4
"""Pages of that many runs that a change waits for."""
ROUNDS_MAX = 50
"""How often one batch is read and written, where claims and changes meet it all the time."""
SWEEP_PAGE = 500
"""Runs that one step of a sweep looks at."""

log = logging.getLogger("horarium")


class Changed(NamedTuple):
    """A job before a change and after it, and the plan of it (None: there was nothing to change)."""

    before: Job
    after: Job
    planned: Plan | None


class Reconciler:
    """Applies `reconcile` to jobs of one namespace. `ended` is called with runs that came to their end by a plan; one
    that a claim took just before, and that ends later, may come twice."""

    def __init__(
        self, context: Context, following: Following, ended: Callable[[Sequence[Run]], None] = lambda runs: None
    ) -> None:
        self._store, self.clock, self._signal = context.store, context.clock, context.signal
        self.following = following
        self.holding = Holding(context)
        self.joining = Joining(context, following)
        self._ended = ended
        self._left: dict[str, None] = {}

    @property
    def behind(self) -> bool:
        """Whether an outage kept it from something that it has yet to do."""
        return bool(self._left)

    async def after_change(self, before: Job, after: Job, planned: Plan | None) -> None:
        """A job was changed (`planned` None: found as it was to be). Raises StoreUnavailable if it can't be done now;
        then it is done later."""
        await self.after_changes([Changed(before, after, planned)])

    async def after_each(self, changes: Sequence[Changed]) -> None:
        """The same for one change each of several jobs."""
        todo = [changed for changed in changes if look_from(*changed) is not None]
        with self._kept_if_prevented([changed.after.id for changed in todo]):
            for changed in todo:
                await self.after_changes([changed])

    async def after_changes(self, changes: Sequence[Changed]) -> None:
        """The same for changes of one job that were written together, in their order. One look serves them all: it
        makes runs be as the job asks that is stored, so all that differs is from where it looks."""
        since: Instant | None = None
        self._tell([changed.planned for changed in changes if changed.planned is not None])
        for changed in changes:
            if (begin := look_from(*changed)) is None:
                continue
            if changed.planned is not None and any(each.name.startswith(PREFIX) for each in changed.planned.records):
                self._signal.publish(APPLY)
            else:
                since = begin if since is None else min(since, begin)
        if since is None:
            return
        after = changes[-1].after
        with self._kept_if_prevented([after.id]):
            await self._hold(after, since)

    async def after_put_back(self, runs: Sequence[Run]) -> None:
        """These runs were just written; those of them that are pending were claimed before, or are new. Never raises an
        outage: the write has been made."""
        waiting = [run for run in runs if run.state is State.PENDING and run.job_id is not None]
        if not waiting:
            return
        try:
            with self._kept_if_prevented([run.job_id or "" for run in waiting]):
                await self._look(waiting)
        except StoreUnavailable as error:
            log.warning("runs that were put back are looked at later: %s", error)

    def look_later(self, runs: Iterable[Run]) -> None:
        """It is not known whether these runs were written; their jobs are looked at once the store answers again."""
        self._left.update((run.job_id, None) for run in runs if run.state is State.PENDING and run.job_id is not None)

    async def catch_up(self) -> None:
        """Do what an outage kept us from."""
        while self._left:
            job_id = next(iter(self._left))
            del self._left[job_id]
            with self._kept_if_prevented([job_id]):
                (job,) = await self._store.get_jobs_by_id([job_id])
                if job is not None:
                    await self._hold(job, INSTANT_MIN)

    @contextmanager
    def _kept_if_prevented(self, job_ids: Sequence[str]) -> Iterator[None]:
        """Remember these jobs if what follows fails or is given up. What others remember of them stays: they may look
        at other runs of the same job."""
        try:
            yield
        except BaseException:
            self._left.update(dict.fromkeys(job_ids))
            raise

    async def sweep(self, after: str | None) -> str | None:
        """Look at one page of all that is pending. Where the next page begins; None: that was the last."""
        page = await self._store.list_runs(RunFilter(states=frozenset({State.PENDING})), after, SWEEP_PAGE)
        await self._look([run for run in page.items if run.job_id is not None])
        return page.next_after

    async def _hold(self, job: Job, since: Instant) -> None:
        """Look at the unfinished runs of a job from that fire time on. The rest, which is not waited for, is written
        down."""
        after: str | None = None
        for _ in range(PAGES_WAITED_FOR):
            after = await self.look_at_page(job, since, after)
            if after is None:
                return
            await asyncio.sleep(0)
        await self._store.put_records([RecordChange(owed_by(job, job.version, since))])
        self._signal.publish(APPLY)

    async def look_at_page(
        self,
        job: Job,
        since: Instant,
        after: str | None,
        states: frozenset[State] = UNFINISHED,
        newest: Newest | None = None,
    ) -> str | None:
        """Look at one page of them, and with the last one at all that is left where the policy ends others. Where the
        next page begins; None: that was the last. `newest`: older runs end."""
        where = RunFilter(job=job.name, states=states, since=None if since == INSTANT_MIN else since)
        page = await self._store.list_runs(where, after, BATCH)
        apart = newest is not None or page.next_after is not None
        await self._look([run for run in page.items if run.job_id == job.id], newest, apart=apart)
        return page.next_after

    async def _look(self, runs: Sequence[Run], newest: Newest | None = None, *, apart: bool = False) -> None:
        """Write what these runs need, until they need no more. `apart`: at no other run, also where the policy ends
        others."""
        for _ in range(ROUNDS_MAX):
            plans = await self._plans(runs, newest, apart=apart)
            if not plans:
                return
            now = self.clock.now()
            ids = [run_id for planned in plans if planned.job.deleted_at for run_id in await self._end(planned, now)]
            plans = [planned for planned in plans if not planned.job.deleted_at]
            if plans:
                plans = await self.following.plans(await self._without_gone(plans), now)
                done = await self._store.commit_plans(plans, self.clock.steady())
                self._tell(list(compress(plans, done)))
                announce(self._signal, plans)
            for planned in plans:
                ids += (run.id for run in (*planned.runs, *(change.run for change in planned.changes)))
            runs = (
                [run for run in await self._store.get_runs(ids) if run is not None and not run.finished] if ids else []
            )

    async def _end(self, planned: Plan, now: Instant) -> list[str]:
        """End runs of a deleted job. It stays deleted, so there is no version to compare: this is not a plan, and does
        not write the job again for each page. The ids of runs that have moved on, or wait for others of these."""
        changes = dict(enumerate(planned.changes))
        ready = await self.following.ready(changes, {planned.job.id: planned.job}, now)
        written = await self._store.settle_runs(list(ready.values()), self.clock.steady())
        self._tell([replace(planned, changes=tuple(compress(ready.values(), written)))])
        announce(self._signal, [planned])
        ended = set(compress(ready, written))
        return [change.run.id for index, change in changes.items() if index not in ended]

    def _tell(self, plans: Sequence[Plan]) -> None:
        """Of runs that were taken back it is as though they had never been."""
        ends = [change.run for planned in plans for change in planned.changes if change.run.finished]
        if told := [run for run in ends if run.disposition is not Disposition.WITHDRAWN]:
            self._ended(told)

    async def _without_gone(self, plans: list[Plan]) -> list[Plan]:
        """Without moving runs that are there no longer. They were read before their jobs; one that was ended and pruned
        since then would come back by being moved."""
        moved = [run.id for planned in plans if planned.withdrawals for run in planned.runs]
        if not moved:
            return plans
        stored = await self._store.get_runs(moved)
        gone = {run_id for run_id, run in zip(moved, stored, strict=True) if run is None}
        return [replace(each, runs=tuple(run for run in each.runs if run.id not in gone)) for each in plans]

    async def _plans(self, runs: Sequence[Run], newest: Newest | None, *, apart: bool) -> list[Plan]:
        if not runs:
            return []
        groups: dict[str, list[Run]] = {}
        for run in runs:
            groups.setdefault(run.job_id or "", []).append(run)
        jobs = [job for job in await self._store.get_jobs_by_id(list(groups)) if job is not None]
        whole = [job.id for job in jobs if job.overlap in ENDS_OTHERS and job.deleted_at is None and not apart]
        if whole:
            for job_id, unfinished in (await self._store.unfinished_runs(whole)).items():
                groups[job_id] = (
                    unfinished if len(unfinished) <= BATCH_MAX else _with_newest(groups[job_id], unfinished)
                )
        holds = await self.holding.look()
        now = self.clock.now()
        plans = [reconcile(job, groups[job.id], now, newest, holds) for job in jobs]
        return [planned for planned in plans if planned is not None]


def _with_newest(runs: Sequence[Run], unfinished: Sequence[Run]) -> list[Run]:
    """These runs, and of very many others the one with the latest fire time."""
    there = {run.id for run in runs}
    return [*runs, *(run for run in unfinished[-1:] if run.id not in there)]
