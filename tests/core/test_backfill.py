"""Backfills, on a manual clock and the memory store."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

import pytest

from horarium.clock import SECOND, to_datetime, to_text
from horarium.errors import InvalidRequest, NotFound
from horarium.model import Run
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
