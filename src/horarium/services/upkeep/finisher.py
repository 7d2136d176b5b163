"""The finisher: marks jobs that can never fire again as finished, and deletes them after their retention.

It reads nothing but the notes of `rules.finishing`, which lie in the order in which they are due: jobs that go on cost
nothing here.
"""

from __future__ import annotations

from msgspec.structs import replace

from horarium.clock import SECOND, Instant
from horarium.model import UNFINISHED, Job, Plan, Run, State
from horarium.model.records import Record, RecordFilter, instant_key
from horarium.operations.jobs.versions import Versions
from horarium.ports import PAGE_MAX, RunFilter, Store
from horarium.rules.compiled import forget_trigger
from horarium.rules.editing import delete
from horarium.rules.finishing import LOOK, Look, again, forgotten_at, is_finished, while_kept
from horarium.services.loop.believed import BelievedClock
from horarium.services.loop.service import Service, Wake

IDLE = 2 * SECOND
"""How often the marker records are read."""
PAUSE = SECOND // 20
LOOKS_MAX = 100


class Finisher(Service):
    """Looks at jobs when their notes say so."""

    name = "finisher"
    by_writes = True

    def __init__(self, store: Store, believed: BelievedClock) -> None:
        self.wake = Wake()
        self._store = store
        self._versions = Versions(store)
        self._believed = believed
        self._idle_until: Instant = 0

    async def step(self, now: Instant) -> Instant | None:
        if self._idle_until - IDLE <= now < self._idle_until:
            return self._idle_until
        next_at = await self._next_at()
        if next_at is None or next_at > now:
            self._idle_until = now + IDLE
            return next_at
        where = RecordFilter(LOOK, until=instant_key(now + 1))
        page = await self._store.list_records(where, None, LOOKS_MAX)
        notes = [Look.of(record) for record in page.items]
        jobs = await self._store.get_jobs_by_id([note.job_id for note in notes]) if notes else []
        for record, note, job in zip(page.items, notes, jobs, strict=True):
            await self._look(record, note, job, now)
        if page.next_after is not None:
            return now + PAUSE
        self._idle_until = now + IDLE
        return self._idle_until

    async def _next_at(self) -> Instant | None:
        """When the first of all jobs is to be looked at."""
        page = await self._store.list_records(RecordFilter(LOOK), None, 1)
        return Look.of(page.items[0]).at if page.items else None

    async def _look(self, record: Record, note: Look, job: Job | None, now: Instant) -> None:
        if job is None or job.deleted_at is not None or job.next_fire_at is not None:
            await self._drop(record)
        elif job.finished_at is not None:
            await self._delete(record, note, job, now)
        elif not is_finished(job):
            await self._drop(record)
        elif await self._newest(job, UNFINISHED) is not None:
            await self._put_off(record, again(note, now))
        else:
            await self._finish(record, note, replace(job, finished_at=now), now)

    async def _finish(self, record: Record, note: Look, finished: Job, now: Instant) -> None:
        """A job that was changed meanwhile keeps its note, and is looked at again."""
        at = forgotten_at(finished)
        records = () if at is None else (Look(note.job_id, max(at, now + 1), note.since).record,)
        if (await self._store.commit_plans([Plan(finished, records=records)], now))[0]:
            await self._drop(record)

    async def _delete(self, record: Record, note: Look, job: Job, now: Instant) -> None:
        at = forgotten_at(job)
        if at is None:
            await self._drop(record)
        elif at > now or not self._believed.stands():
            wait = 60 * SECOND if self._believed.is_known else IDLE
            await self._put_off(record, Look(job.id, max(at, now + wait), note.since))
        elif (newest := await self._newest(job, frozenset())) is not None:
            await self._put_off(record, while_kept(note, newest, now))
        else:
            planned = await self._versions.kept_with(delete(job, now), job, "job.delete", now)
            if (await self._store.commit_plans([planned], now))[0]:
                forget_trigger(job)
                await self._drop(record)

    async def _newest(self, job: Job, states: frozenset[State]) -> Run | None:
        """The newest run of this job, and of no other that had its name."""
        where, after = RunFilter(job=job.name, states=states), None
        while True:
            page = await self._store.list_runs(where, after, PAGE_MAX if after else 1)
            found = next((run for run in page.items if run.job_id == job.id), None)
            if found is not None or page.next_after is None:
                return found
            after = page.next_after

    async def _put_off(self, record: Record, later: Look) -> None:
        await self._store.put_records([record.removal((later.record,))])

    async def _drop(self, record: Record) -> None:
        await self._store.put_records([record.removal()])
