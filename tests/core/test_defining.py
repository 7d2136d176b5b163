"""Many callers that define jobs at the same time: they share transactions, and each is answered for itself."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from typing import Any

import pytest

from horarium.access.acting import acting
from horarium.access.audit import AuditFilter, Origin, page
from horarium.access.roles import Role, principal
from horarium.errors import AlreadyExists, InvalidTrigger, StoreUnavailable
from horarium.model import Job
from horarium.operations.facade import Operations
from horarium.operations.jobs.defining import GROUP_MAX
from horarium.ports import JOBS, NOTHING_ALONG, Along
from horarium.stores.memory import MemoryStore
from horarium.stores.wakeups import LocalSignal
from horarium.testing import ManualClock
from horarium.testing.values import NOW
from horarium.wire.definitions import JobDefinition, read_definition

CALLERS = 64


class Slow(MemoryStore):
    """Notes the names that each call adds, and lets other tasks in. `down`: it does not answer; `refuses`: a name that
    it can't keep."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[list[str]] = []
        self.down = False
        self.refuses = ""

    async def add_jobs(self, jobs: Sequence[Job], along: Along = NOTHING_ALONG) -> list[bool]:
        self.calls.append([job.name for job in jobs])
        await asyncio.sleep(0)
        if self.down:
            raise StoreUnavailable("it is down")
        if self.refuses in self.calls[-1]:
            raise ValueError("this can't be kept")
        added = await super().add_jobs(jobs, along)
        await asyncio.sleep(0)
        return added


class World:
    """Operations over such a store, and how often planners were woken."""

    def __init__(self) -> None:
        self.store, signal, self.wakes = Slow(), LocalSignal(), 0
        self.jobs = Operations(self.store, ManualClock(NOW), signal, os.urandom, lambda target: None).jobs
        signal.subscribe(JOBS, self._woken)

    def _woken(self) -> None:
        self.wakes += 1

    async def define(self, *names: str) -> list[Any]:
        calls = (self.jobs.create_job(a_definition(name)) for name in names)
        return await asyncio.gather(*calls, return_exceptions=True)


def a_definition(name: str) -> JobDefinition:
    trigger = {"type": "interval", "every_seconds": 3600}
    return read_definition({"name": name, "trigger": trigger, "target": {"type": "queue", "queue": "q"}})


async def test_definitions_that_come_together_are_written_together() -> None:
    world = World()
    names = [f"job-{n:03}" for n in range(2 * GROUP_MAX)]
    jobs = await world.define(*names)
    assert [job.name for job in jobs] == names
    assert [len(call) for call in world.store.calls] == [1, GROUP_MAX, GROUP_MAX - 1]
    assert world.wakes == len(world.store.calls)
    assert await world.store.get_jobs(names) == jobs
    await world.define("alone")
    assert world.store.calls[-1] == ["alone"]


async def test_each_caller_is_in_the_audit_and_in_the_versions() -> None:
    world = World()

    async def by(name: str) -> Job:
        caller = Origin(principal=principal(f"key:{name}", name, "key", [Role.ADMIN]), request_id=name)
        with acting(caller):
            return await world.jobs.create_job(a_definition(name))

    jobs = await asyncio.gather(*(by(f"c{n:02}") for n in range(CALLERS)))
    entries = (await page(world.store, AuditFilter(), None, 100)).items
    told = sorted((entry.object, entry.actor, entry.after["id"]) for entry in entries)
    assert told == [(f"job/{job.name}", f"key:{job.name}", job.id) for job in jobs]
    for job in jobs:
        (first,) = (await world.jobs.versions.page(job, None, 10)).items
        assert (first.number, first.actor, first.action) == (1, f"key:{job.name}", "job.create")
    assert len(world.store.calls) == 2


async def test_of_callers_with_the_same_name_one_defines_it() -> None:
    world = World()
    answers = await world.define("one", "two", "one", "two", "one", "three")
    assert [getattr(each, "name", type(each)) for each in answers] == [
        "one", "two", AlreadyExists, AlreadyExists, AlreadyExists, "three",
    ]  # fmt: skip


async def test_one_that_can_not_be_written_hinders_no_other() -> None:
    world = World()
    world.store.refuses = "bad"
    answers = await world.define("first", "a", "bad", "b")
    assert [getattr(each, "name", type(each)) for each in answers] == ["first", "a", ValueError, "b"]


async def test_in_an_outage_all_learn_of_it_and_the_next_one_is_written() -> None:
    world = World()
    world.store.down = True
    assert {type(each) for each in await world.define("a", "b", "c")} == {StoreUnavailable}
    assert world.store.calls == [["a"], ["b", "c"]]
    world.store.down = False
    (job,) = await world.define("a")
    assert job.name == "a"


@pytest.mark.parametrize("leaves", [0, 2])
async def test_a_caller_that_leaves_keeps_none_of_the_others(leaves: int) -> None:
    world = World()
    calls = [asyncio.create_task(world.jobs.create_job(a_definition(f"job-{n}"))) for n in range(4)]
    await asyncio.sleep(0)
    calls[leaves].cancel()
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert [getattr(each, "name", None) for each in answers] == [None if n == leaves else f"job-{n}" for n in range(4)]
    assert isinstance(answers[leaves], asyncio.CancelledError)
    (after,) = await world.define("after")
    assert after.name == "after"


class Meeting(MemoryStore):
    """Two callers have both looked, twice, before either goes on."""

    def __init__(self) -> None:
        super().__init__()
        self.looks, self.meeting = 4, asyncio.Barrier(2)

    async def get_jobs(self, names: Sequence[str]) -> list[Job | None]:
        found = await super().get_jobs(names)
        self.looks -= 1
        if self.looks >= 0:
            await self.meeting.wait()
        return found


async def test_two_jobs_that_are_defined_at_one_moment_are_no_circle() -> None:
    jobs = Operations(Meeting(), ManualClock(NOW), LocalSignal(), os.urandom, lambda target: None).jobs

    def follows(name: str, other: str) -> JobDefinition:
        trigger = {"type": "after", "jobs": [other]}
        return read_definition({"name": name, "trigger": trigger, "target": {"type": "external"}})

    each = (jobs.put_job(follows("m", "n")), jobs.put_job(follows("n", "m")))
    told = await asyncio.gather(*each, return_exceptions=True)
    (refused,) = [one for one in told if isinstance(one, BaseException)]
    assert isinstance(refused, InvalidTrigger)
    assert "this is a circle" in str(refused)
    (made,) = [one for one in told if not isinstance(one, BaseException)]
    assert await jobs.create_jobs([follows(made[0].name, "another")]) == [None], "its name is taken"
    with pytest.raises(AlreadyExists):
        await jobs.create_job(follows(made[0].name, "another"))
