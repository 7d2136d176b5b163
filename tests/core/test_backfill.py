"""Backfills, on a manual clock and the memory store."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime, timedelta

import pytest

from horarium.clock import SECOND, Instant, to_datetime, to_text
from horarium.errors import InvalidRequest, NotFound, StoreUnavailable
from horarium.model import Job, Run
from horarium.ports import NOTHING_ALONG, Along
from horarium.stores.memory import MemoryStore
from tests.core.test_operations import EACH, START, World

LONG_AGO = {"type": "interval", "every_seconds": 10, "anchor": to_text(START - 2_500 * EACH)}


@pytest.fixture
def world() -> World:
    return World()


async def test_a_backfill_never_reaches_beyond_now_and_repeats_nothing(world: World) -> None:
    await world.put()
    await world.plan()
    world.clock.advance(35)
    await world.plan()
    start, end = to_datetime(START - 30 * SECOND), to_datetime(START + 60 * SECOND)
    made = await world.operations.jobs.backfill_job("job", start, end)
    assert [run.fire_at - START for run in made.runs] == [0, 2 * EACH]
    assert (made.left, made.next_start) == (0, None)
    assert await world.operations.jobs.backfill_job("job", start, end) == made


async def test_a_backfill_changes_nothing_of_a_job_whose_runs_may_overlap(world: World) -> None:
    job = await world.put(trigger=LONG_AGO)
    made = await world.operations.jobs.backfill_job("job", to_datetime(START - 9_000 * SECOND), to_datetime(START))
    assert len(made.runs) == 900
    assert await world.operations.jobs.get_job("job") == job


async def test_a_backfill_that_meets_the_end_of_its_job_leaves_no_run() -> None:
    class Ended(MemoryStore):
        """Another process deletes the job right before runs are added."""

        async def add_runs(self, runs: Sequence[Run], along: Along = NOTHING_ALONG) -> list[bool]:
            await World(self).operations.jobs.delete_job("job")
            return await super().add_runs(runs, along)

    store = Ended()
    here = World(store)
    job = await here.put(trigger=LONG_AGO)
    with pytest.raises(NotFound):
        await here.operations.jobs.backfill_job("job", to_datetime(START - 90 * SECOND), to_datetime(START))
    assert (await store.unfinished_runs([job.id]))[job.id] == []


async def test_a_backfill_that_is_cut_says_how_to_go_on(world: World) -> None:
    await world.put(trigger=LONG_AGO)
    end = to_datetime(START)
    start: datetime | None = to_datetime(START - 2_500 * EACH)
    made, lefts = 0, []
    while start is not None:
        backfill = await world.operations.jobs.backfill_job("job", start, end)
        made, start = made + len(backfill.runs), backfill.next_start
        lefts.append(backfill.left)
    assert (made, lefts) == (2_500, [1_500, 500, 0])


async def test_a_backfill_that_ends_before_it_begins_is_refused(world: World) -> None:
    await world.put()
    moment = to_datetime(START)
    assert (await world.operations.jobs.backfill_job("job", moment, moment)).runs == []
    with pytest.raises(InvalidRequest):
        await world.operations.jobs.backfill_job("job", moment, moment - timedelta(seconds=1))


class Counted(MemoryStore):
    """How often runs were added."""

    writes = 0

    async def add_runs(self, runs: Sequence[Run], along: Along = NOTHING_ALONG) -> list[bool]:
        self.writes += 1
        return await super().add_runs(runs, along)


async def test_backfills_that_come_together_are_written_together_each_with_its_own_answer() -> None:
    store = Counted()
    world = World(store)
    await world.put(trigger=LONG_AGO)
    await world.put(name="other", trigger=LONG_AGO)

    async def backfill(name: str, number: int) -> list[Instant]:
        start = START - (100 + number) * EACH
        made = await world.operations.jobs.backfill_job(name, to_datetime(start), to_datetime(start + EACH))
        return [run.fire_at for run in made.runs if run.job == name]

    asked = [("job", number) for number in range(50)] + [("other", 7), ("job", 7), ("none", 7)]
    answers = await asyncio.gather(*(backfill(*one) for one in asked), return_exceptions=True)
    assert answers[:-1] == [[START - (100 + number) * EACH] for _, number in asked[:-1]]
    assert isinstance(answers[-1], NotFound)
    assert store.writes < 10


async def test_a_failure_is_that_of_all_who_asked_together_and_of_none_after() -> None:
    class Broken(MemoryStore):
        works = False

        async def get_jobs(self, names: Sequence[str]) -> list[Job | None]:
            if not self.works:
                raise StoreUnavailable("gone")
            return await super().get_jobs(names)

    store = Broken()
    world = World(store)

    async def backfill() -> object:
        return await world.operations.jobs.backfill_job("job", to_datetime(START - EACH), to_datetime(START))

    answers = await asyncio.gather(*(backfill() for _ in range(3)), return_exceptions=True)
    assert [type(answer) for answer in answers] == [StoreUnavailable] * 3
    store.works = True
    with pytest.raises(NotFound):
        await backfill()
