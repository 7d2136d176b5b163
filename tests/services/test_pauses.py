"""A pause with an end: the planner resumes the job then, and each fire time is accounted for."""

from __future__ import annotations

from datetime import timedelta

import pytest

from horarium.clock import SECOND, to_datetime
from horarium.errors import InvalidRequest
from horarium.model import Cause, Disposition, Run, State
from horarium.policies import CatchUp, CatchUpPolicy
from horarium.ports import RunFilter
from horarium.rules.planning import job_fires
from horarium.services.planning.planner import Planner
from tests.services.conftest import START, Setting


def a_planner(setting: Setting) -> Planner:
    operations = setting.operations
    return Planner(setting.store, setting.signal, operations.reconciler, operations.following, setting.telemetry)


async def runs(setting: Setting) -> list[Run]:
    return list(reversed((await setting.store.list_runs(RunFilter(), None, 200)).items))


async def step_for(planner: Planner, setting: Setting, seconds: int) -> None:
    for _ in range(seconds):
        setting.clock.advance(1)
        await planner.step(setting.now)


async def test_it_goes_on_by_itself_and_nothing_is_lost(setting: Setting) -> None:
    job = await setting.add_job(every=10)
    planner = a_planner(setting)
    end = to_datetime(START + 60 * SECOND)
    paused = await setting.operations.jobs.pause_job(job.name, "a window", end)
    assert (paused.enabled, paused.paused_until, paused.next_fire_at) == (
        False,
        START + 60 * SECOND,
        START + 60 * SECOND,
    )
    assert job_fires(paused, setting.now, 2) == [START + 60 * SECOND, START + 70 * SECOND]
    await step_for(planner, setting, 59)
    (still,) = await setting.store.get_jobs([job.name])
    assert still is not None
    assert (still.enabled, still.version) == (False, paused.version), "a pause costs no write"
    assert await runs(setting) == []
    await step_for(planner, setting, 12)
    (after,) = await setting.store.get_jobs([job.name])
    assert after is not None
    assert (after.enabled, after.paused_at, after.paused_until, after.pause_reason) == (True, None, None, None)
    skipped, *made = await runs(setting)
    assert (skipped.state, skipped.disposition, skipped.fires) == (State.SKIPPED, Disposition.SKIPPED_PAUSED, 5)
    assert [run.fire_at for run in made] == [START + 60 * SECOND, START + 70 * SECOND], "its end is no part of it"


async def test_an_end_that_came_while_nothing_ran_is_caught_up_on_by_the_policy(setting: Setting) -> None:
    job = await setting.add_job(every=10, catch_up=CatchUp(CatchUpPolicy.ALL))
    await setting.operations.jobs.pause_job(job.name, None, to_datetime(START + 60 * SECOND))
    setting.clock.advance(85)
    planner = a_planner(setting)
    for _ in range(4):
        await planner.step(setting.now)
    skipped, *made = await runs(setting)
    assert (skipped.disposition, skipped.fires) == (Disposition.SKIPPED_PAUSED, 5)
    assert [(run.fire_at - START) // SECOND for run in made] == [60, 70, 80]
    assert {run.cause for run in made} == {Cause.CATCH_UP}


async def test_the_end_may_be_moved_and_the_job_resumed_before(setting: Setting) -> None:
    job = await setting.add_job(every=10)
    jobs = setting.operations.jobs
    await jobs.pause_job(job.name, "a window", to_datetime(START + 60 * SECOND))
    moved = await jobs.pause_job(job.name, None, to_datetime(START + 30 * SECOND))
    assert (moved.paused_until, moved.pause_reason) == (START + 30 * SECOND, "a window")
    assert (await jobs.pause_job(job.name)).version == moved.version, "a paused job stays as it is"
    resumed = await jobs.resume_job(job.name)
    assert (resumed.enabled, resumed.paused_until) == (True, None)
    with pytest.raises(InvalidRequest, match="future"):
        await jobs.pause_job(job.name, None, to_datetime(setting.now) - timedelta(seconds=1))


async def test_an_edit_of_a_paused_job_keeps_the_end(setting: Setting) -> None:
    job = await setting.add_job(every=10)
    jobs = setting.operations.jobs
    await jobs.pause_job(job.name, "a window", to_datetime(START + 60 * SECOND))
    edited = await jobs.patch_job(job.name, {"priority": 3})
    assert (edited.paused_until, edited.next_fire_at) == (START + 60 * SECOND, START + 60 * SECOND)


async def test_it_is_explained(setting: Setting) -> None:
    job = await setting.add_job(every=10)
    await setting.operations.jobs.pause_job(job.name, "a window", to_datetime(START + 60 * SECOND))
    during = await setting.operations.explaining.at(job.name, START + 50 * SECOND)
    assert not during.fires
    assert "until 2026-01-05T00:01:00Z, because: a window" in during.reason
    assert (await setting.operations.explaining.at(job.name, START + 60 * SECOND)).fires
