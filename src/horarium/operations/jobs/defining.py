"""New jobs that are defined one by one, and come together, are written together (`gathering`).

A definition that comes while none is being written is written at once, by its own caller. A group is one call of the
store: one transaction, and one wait for the disk, for up to a hundred of them. Each was checked before, and brings its
own records, made in the context of its own caller; each learns whether its name was free, as if they had been written
one after the other, in the order they came.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct

from horarium.model import Job, Whole
from horarium.model.records import Record, RecordChange
from horarium.operations.writing.context import Context
from horarium.operations.writing.gathering import Gathered
from horarium.operations.writing.signalling import announce_jobs
from horarium.ports import Along

JOINS = "join-defined"
"""The record that is written with each new job that follows from others."""
GROUP_MAX = 100
"""Definitions that are written together."""
BYTES_MAX = 2_000_000
"""What the records of one group may hold, but for the last definition of it."""


class NewJobs(Struct, frozen=True):
    """Jobs that one caller defines."""

    jobs: Sequence[Job]
    along: Along

    @property
    def weight(self) -> int:
        return sum(len(record.body) for records in self.along.values() for record in records)


class Defining:
    """Adds new jobs of one namespace."""

    def __init__(self, context: Context) -> None:
        self._store, self._signal, self._clock = context.store, context.signal, context.clock
        self._gathered: Gathered[NewJobs, list[bool]] = Gathered(
            self._write, at_once=True, together=_together, apart=True
        )

    async def add(self, jobs: Sequence[Job], along: Along) -> list[bool]:
        """Add these, at most `BATCH_MAX`, each with its records. False: its name is taken. Where one of those written
        together can't be written, the others are."""
        return await self._gathered(NewJobs(jobs, along))

    async def joins(self) -> int:
        """A number that is higher after each job that was defined to follow from others."""
        (record,) = await self._store.get_records([JOINS])
        return 0 if record is None else record.version

    async def add_join(self, job: Job, along: Along, seen: int) -> bool | None:
        """Add one that follows from others. False: its name is taken; None: `joins` is another number by now."""
        record = RecordChange(Record(name=JOINS, body=b"{}", version=seen + 1), seen)
        if await self._store.write_whole(Whole(jobs=(job,), along=along, records=(record,)), self._clock.steady()):
            announce_jobs(self._signal, [job])
            return True
        return None if await self.joins() != seen else False

    async def _write(self, group: Sequence[NewJobs]) -> list[list[bool] | Exception]:
        jobs = [job for asked in group for job in asked.jobs]
        along = {job_id: records for asked in group for job_id, records in asked.along.items()}
        each = iter(await self._add(jobs, along))
        return [[next(each) for _ in asked.jobs] for asked in group]

    async def _add(self, jobs: Sequence[Job], along: Along) -> list[bool]:
        added = await self._store.add_jobs(jobs, along)
        if any(added):
            announce_jobs(self._signal, jobs)
        return added


def _together(waiting: Iterable[NewJobs]) -> int:
    """How many of these are written together."""
    count = size = weight = 0
    for asked in waiting:
        size += len(asked.jobs)
        if count and (size > GROUP_MAX or weight >= BYTES_MAX):
            break
        weight += asked.weight
        count += 1
    return count
