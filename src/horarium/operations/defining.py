"""New jobs that are defined one by one, and come together, are written together.

A definition that comes while none is being written is written at once, by its own caller. Those that come meanwhile
gather, and are one call of the store: one transaction, and one wait for the disk, for up to a hundred of them. Each was
checked before, and brings its own records, made in the context of its own caller; each learns whether its name was
free, as if they had been written one after the other, in the order they came.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence

from msgspec import Struct

from horarium.errors import Outage
from horarium.model import Job
from horarium.ports import JOBS, Along, Signal, Store

GROUP_MAX = 100
"""Definitions that are written together."""
BYTES_MAX = 2_000_000
"""What the records of one group may hold, but for the last definition of it."""


class Asked(Struct, eq=False):
    """Jobs that one caller defines, and whether each was added."""

    jobs: Sequence[Job]
    along: Along
    answer: asyncio.Future[list[bool]]

    @property
    def weight(self) -> int:
        return sum(len(record.body) for records in self.along.values() for record in records)


class Defining:
    """Adds new jobs of one namespace."""

    def __init__(self, store: Store, signal: Signal) -> None:
        self._store = store
        self._signal = signal
        self._asked: deque[Asked] = deque()
        self._busy = False
        self._writing: asyncio.Task[None] | None = None

    async def add(self, jobs: Sequence[Job], along: Along) -> list[bool]:
        """Add these, at most `BATCH_MAX`, each with its records. False: its name is taken."""
        if self._busy:
            asked = Asked(jobs, along, asyncio.get_running_loop().create_future())
            self._asked.append(asked)
            return await asked.answer
        self._busy = True
        try:
            return await self._write(jobs, along)
        finally:
            self._busy = not all(asked.answer.done() for asked in self._asked)
            if self._busy:
                self._writing = asyncio.create_task(self._write_all())

    async def _write(self, jobs: Sequence[Job], along: Along) -> list[bool]:
        added = await self._store.add_jobs(jobs, along)
        if any(added):
            self._signal.publish(JOBS)
        return added

    async def _write_all(self) -> None:
        """Write those that have gathered, until there are none."""
        try:
            while group := self._next_group():
                await self._write_group(group)
        finally:
            self._busy = False
            while self._asked:
                self._asked.popleft().answer.cancel()

    def _next_group(self) -> list[Asked]:
        """Those that come next. Those whose callers are gone are left out."""
        group: list[Asked] = []
        size = weight = 0
        while self._asked and weight < BYTES_MAX:
            size += len(self._asked[0].jobs)
            if group and size > GROUP_MAX:
                break
            asked = self._asked.popleft()
            if not asked.answer.done():
                group.append(asked)
                weight += asked.weight
        return group

    async def _write_group(self, group: Sequence[Asked]) -> None:
        """Answer each of the group. Where one of them can't be written, the others are."""
        jobs = [job for asked in group for job in asked.jobs]
        along = {job_id: records for asked in group for job_id, records in asked.along.items()}
        try:
            added = iter(await self._write(jobs, along))
        except Exception as error:
            if len(group) > 1 and not isinstance(error, Outage):
                for asked in group:
                    await self._write_group([asked])
                return
            for asked in group:
                if not asked.answer.done():
                    asked.answer.set_exception(error)
        except BaseException:
            for asked in group:
                asked.answer.cancel()
            raise
        else:
            for asked in group:
                answer = [next(added) for _ in asked.jobs]
                if not asked.answer.done():
                    asked.answer.set_result(answer)
