"""Joins: jobs that follow from runs of others (`rules.joins` decides, this reads and writes).

`Members` says whose ends bring a line along: all nodes read that once a second, as they read holds. `Joining` takes
lines into account, and looks at joins at their deadlines. Each write is made if job and window are as they were read,
and made again to no effect, so any number of nodes may do it, and a line is removed after all that it brings about.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Sequence

from horarium.clock import Instant
from horarium.model import Job, Plan, Whole
from horarium.model.records import Record, RecordChange, RecordFilter, instant_key
from horarium.operations.bounds.listing import pages_of
from horarium.operations.settling.following import Following
from horarium.operations.settling.members import Members
from horarium.operations.writing.context import RACES_MAX, Context, pause_after
from horarium.operations.writing.named import jobs_by_id
from horarium.operations.writing.signalling import announce
from horarium.ports import JOBS, PAGE_MAX
from horarium.rules.joins import (
    JOIN_ENDS,
    JOIN_LOOKS,
    JOINED,
    JOINS,
    JoinEnd,
    JoinLook,
    deadlines_passed,
    decode_end,
    decode_look,
    end_of_run,
    filled,
    is_join,
    join_of,
    looks_of,
    missed,
    named_join,
    useless,
    window_counted,
    window_name,
)

RUNS_SEEN = 50
"""Of each member, the newest runs of a window that a look sees."""


class Joining:
    """Joins of one namespace. Raises StoreUnavailable, nothing else."""

    def __init__(self, context: Context, following: Following) -> None:
        self._store, self._clock, self._signal, self._entropy = context
        self._following = following

    @property
    def members(self) -> Members:
        """The jobs from whose runs others follow."""
        assert self._following.members is not None
        return self._following.members

    async def count(self) -> bool:
        """Take a page of ends into account. Whether there may be more."""
        page = await self._store.list_records(RecordFilter(JOIN_ENDS), None, PAGE_MAX)
        if page.items:
            await self._count(page.items)
        return page.next_after is not None

    async def _count(self, lines: Sequence[Record]) -> None:
        ends = {line.name: decode_end(line.body) for line in lines}
        joins = {name: await self._joins_of(name) for name in sorted({end.job for end in ends.values()})}
        left: set[str] = set()
        for job in {job.id: job for found in joins.values() for job in found}.values():
            mine = [end for end in ends.values() if any(each.id == job.id for each in joins[end.job])]
            if not await self._add(job, mine):
                left |= {end.run_id for end in mine}
        done = [line for line in lines if ends[line.name].run_id not in left]
        if done:
            await self._store.put_records([line.removal() for line in done])

    async def _joins_of(self, member: str) -> list[Job]:
        """The jobs that follow from runs of this one. Forgets what says so of jobs that do no longer."""
        return await self._joins([record async for record in self._records(f"{JOINS}{member}/")])

    async def _records(self, prefix: str) -> AsyncIterator[Record]:
        async for page in pages_of(lambda after: self._store.list_records(RecordFilter(prefix), after, PAGE_MAX)):
            for record in page:
                yield record

    async def _joins(self, records: Sequence[Record]) -> list[Job]:
        jobs = await jobs_by_id(self._store, sorted(named_join(record)[0] for record in records))
        newest = {named_join(record)[0]: named_join(record)[1] for record in sorted(records, key=named_join)}
        old = [
            record
            for record in records
            if named_join(record)[1] < newest[named_join(record)[0]] or useless(record, jobs.get(named_join(record)[0]))
        ]
        if old:
            await self._store.put_records([record.removal() for record in old])
        return [job for job in jobs.values() if is_join(job) and job.deleted_at is None]

    async def _add(self, job: Job, ends: Iterable[JoinEnd]) -> bool:
        """Take these ends into account for one join. False: others were quicker, again and again."""
        windows: dict[Instant, list[JoinEnd]] = defaultdict(list)
        for end in ends:
            if (start := window_counted(job, end)) is not None:
                windows[start].append(end)
        for start, counted in windows.items():
            if not await self._fill(job, start, counted):
                return False
        return True

    async def _fill(self, job: Job, start: Instant, ends: Sequence[JoinEnd]) -> bool:
        for race in range(RACES_MAX):
            if race:
                await pause_after(race, self._entropy)
                (stored,) = await self._store.get_jobs_by_id([job.id])
                if stored is None or stored.deleted_at is not None or not is_join(stored):
                    return True
                job, ends = stored, [end for end in ends if window_counted(stored, end) == start]
            (record,) = await self._store.get_records([window_name(job, start)])
            change, planned = filled(job, start, record, ends, self._clock.now())
            if change is None or await self._write([change], planned):
                return True
        return False

    async def _write(self, changes: Sequence[RecordChange], planned: Plan | None) -> bool:
        if planned is None:
            return all(await self._store.put_records(changes)) if len(changes) == 1 else await self._whole(changes, ())
        return await self._whole(changes, await self._following.plans([planned], self._clock.now()))

    async def _whole(self, changes: Sequence[RecordChange], plans: Sequence[Plan]) -> bool:
        written = await self._store.write_whole(Whole(records=tuple(changes), plans=tuple(plans)), self._clock.steady())
        if written and plans:
            self._signal.publish(JOBS)
            announce(self._signal, plans)
        return written

    # ---- looks

    async def look(self, now: Instant) -> Instant | None:
        """Look at joins whose time has come. When the next one is due."""
        page = await self._store.list_records(RecordFilter(JOIN_LOOKS, until=instant_key(now + 1)), None, PAGE_MAX)
        looks = [decode_look(record.body) for record in page.items]
        jobs = await self._store.get_jobs_by_id([look.job_id for look in looks]) if looks else []
        for record, look, job in zip(page.items, looks, jobs, strict=True):
            await self._look(record, look, job, now)
        if page.next_after is not None:
            return now
        page = await self._store.list_records(RecordFilter(JOIN_LOOKS), None, 1)
        return decode_look(page.items[0].body).at if page.items else None

    async def _look(self, record: Record, look: JoinLook, job: Job | None, now: Instant) -> None:
        if job is None or job.deleted_at is not None or not is_join(job):
            for member in () if job is None else job.trigger.get("jobs", ()):
                await self._joins_of(member)
            await self._dropped(record, ())
            return
        if look.window is not None:
            await self._judge(record, look, job, now)
            return
        start = join_of(job).window_of(now)
        if await self._seen(job, start):
            await self._dropped(record, looks_of(job, look, now))

    async def _dropped(self, record: Record, following: Sequence[JoinLook]) -> None:
        await self._store.put_records([record.removal(tuple(each.record for each in following))])

    async def _seen(self, job: Job, start: Instant) -> bool:
        """Take runs of a window into account that ended before every node knew of the join."""
        until = join_of(job).next_window(start)
        if until is None:
            return True
        runs = await self._store.last_runs(join_of(job).jobs, start, until, RUNS_SEEN)
        ends = [end for found in runs.values() for run in found if (end := end_of_run(run)) is not None]
        return await self._add(job, ends)

    async def _judge(self, record: Record, look: JoinLook, job: Job, now: Instant) -> None:
        """The deadlines that have passed. Ends that wait to be taken into account come first."""
        for member in join_of(job).jobs:
            lines = [line async for line in self._records(f"{JOIN_ENDS}{member}/")]
            if lines:
                await self._count(lines)
        starts, gap, following = deadlines_passed(job, look, now)
        if starts and not await self._seen(job, starts[-1]):
            return
        (stored,) = await self._store.get_jobs_by_id([job.id])
        if stored is None or stored.version != job.version:
            return  # it is looked at again
        names = {start: window_name(job, start) for start in starts}
        found = await self._store.get_records(list(names.values())) if names else []
        windows = {start: each for start, each in zip(names, found, strict=True) if each is not None}
        changes, planned = missed(job, starts, gap, windows, now)
        gone = record.removal(tuple(each.record for each in following))
        await self._write([gone, *changes], planned)

    async def prune(self, now: Instant, limit: int) -> int:
        """Delete windows that were over long ago. How many."""
        return await self._store.prune_records(JOINED, instant_key(now), limit)
