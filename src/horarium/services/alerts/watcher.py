"""The watcher: reports late and overdue runs before they end, or though they may never begin.

It works from the store alone, so any number may run, and one that starts after a downtime finds what happened in it.
Its messages have the unique keys that the end of the run would use: each is made once, by the first of both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from horarium.clock import SECOND, Instant
from horarium.model import TIMED, Cause, Job, Run, State
from horarium.model.holds import HeldMissed
from horarium.model.records import Record, RecordFilter
from horarium.operations.bounds.listing import pages_of
from horarium.operations.settling.following import Following
from horarium.operations.settling.holding import Holding
from horarium.operations.writing.context import Context
from horarium.operations.writing.named import jobs_by_id
from horarium.operations.writing.signalling import announce_runs
from horarium.ports import PAGE_MAX
from horarium.rules.following import follow_behind
from horarium.rules.holds import hold_at, hold_on, kept_back
from horarium.rules.overridden import Owed, next_due
from horarium.rules.planning import planned_run
from horarium.rules.watching import PREFIX, is_watched, job_and_version
from horarium.rules.windows import next_in_window
from horarium.services.loop.service import Service, Wake

LOOK_EVERY = 2 * SECOND
SHARE = 20
"""A look may take one part in twenty of the time."""
UNPLANNED_GRACE = 30 * SECOND
"""A fire time that no planner has dealt with is late after this, beside what its job says."""


class Watcher(Service):
    """Watches the runs of jobs that ask for it."""

    name = "watcher"
    by_writes = True

    def __init__(self, context: Context, following: Following, holding: Holding) -> None:
        self.wake = Wake()
        self._store, self._clock, self._signal, _ = context
        self._following = following
        self._holding = holding
        self._look_at: Instant | None = None
        self._since: Instant | None = None
        self._told: frozenset[str] = frozenset()

    async def step(self, now: Instant) -> Instant | None:
        if self._look_at is not None and self._look_at - LOOK_EVERY * SHARE < now < self._look_at:
            return self._look_at
        if self._since is None or now < self._since:
            self._since = now
        began = self._clock.monotonic()
        seen: set[str] = set()
        watched = False
        async for page in pages_of(lambda after: self._store.list_records(RecordFilter(PREFIX), after, PAGE_MAX)):
            seen |= await self._look(page, now)
            watched = watched or bool(page)
        self._told = frozenset(seen)
        self._look_at = now + max(LOOK_EVERY, round((self._clock.monotonic() - began) * SHARE * SECOND))
        return self._look_at if watched else None

    async def _look(self, records: Sequence[Record], now: Instant) -> set[str]:
        """Report late runs of the jobs of these records. The unique keys of all late runs, reported before or now."""
        if not records:
            return set()
        jobs = await jobs_by_id(self._store, (job_and_version(record.name)[0] for record in records))
        await self._remove(_useless(records, jobs))
        watched = [job for job in jobs.values() if is_watched(job)]
        unfinished = await self._store.unfinished_runs([job.id for job in watched]) if watched else {}
        found: dict[str, Run] = {}
        for job in watched:
            for run in (*unfinished[job.id], *self._unplanned(job, now)):
                earlier = await self._following.earlier_runs(job, run, _looks_back(job))
                behind = follow_behind(job, self._as_held(job, run, now), now, earlier)
                found |= {each.unique_key or "": each for each in behind}
        new = [run for key, run in found.items() if key not in self._told]
        if new:
            added = await self._store.add_runs(new)
            announce_runs(self._signal, (run for run, is_new in zip(new, added, strict=True) if is_new))
        return set(found)

    def _as_held(self, job: Job, run: Run, now: Instant) -> Run:
        """The run, which says so where it waits in a queue that is not asked for while a hold lies over it."""
        held = hold_on(self._holding.known, run, job, now) if run.state is State.PENDING else None
        return run if held is None else kept_back(run, held, now)

    def _unplanned(self, job: Job, now: Instant) -> Iterable[Run]:
        """The run of a fire time that has passed though no planner has dealt with it: since a hold lies over it, or
        this watcher saw it pass."""
        fire_at = job.next_fire_at if job.held_until is None else next_in_window(job, job.planned_until)
        if job.overrides and fire_at == next_due(job):
            return ()
        if fire_at is None or fire_at > now or not job.enabled:
            return ()
        run = planned_run(job, Owed(fire_at, Cause.SCHEDULE), now)
        if (held := hold_at(self._holding.known, job, fire_at)) is not None:
            return () if held.hold.missed is HeldMissed.SKIP else (kept_back(run, held, now),)
        return () if max(fire_at, self._since or now) + UNPLANNED_GRACE > now else (run,)

    async def _remove(self, records: Sequence[Record]) -> None:
        if records:
            await self._store.put_records([record.removal() for record in records])


def _looks_back(job: Job) -> int:
    return max((follow.after - 1 for occasion in TIMED for follow in job.on.get(occasion, ())), default=0)


def _useless(records: Sequence[Record], jobs: Mapping[str, Job]) -> list[Record]:
    """Those of jobs that ask for nothing (any more), as they were read, and all but the newest of a job."""
    newest: dict[str, int] = {}
    for record in records:
        job_id, version = job_and_version(record.name)
        newest[job_id] = max(newest.get(job_id, 0), version)
    useless = []
    for record in records:
        job_id, version = job_and_version(record.name)
        job = jobs.get(job_id)
        idle = job is None or (not is_watched(job) and version <= job.version)
        if idle or version < newest[job_id]:
            useless.append(record)
    return useless
