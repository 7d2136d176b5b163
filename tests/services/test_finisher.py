"""Jobs that can never fire again: found when their last run has ended, forgotten by their retention, never early."""

from __future__ import annotations

from horarium.clock import DAY, HOUR, SECOND, to_text
from horarium.model import UNFINISHED, Job, JobState, Run, State, Succeeded
from horarium.model.records import RecordFilter
from horarium.operations.settling.settling import Settlement
from horarium.policies import Retention
from horarium.ports import JobFilter, RunFilter
from horarium.services.loop.believed import NOTED, BelievedClock
from horarium.services.planning.planner import Planner
from horarium.services.upkeep.finisher import Finisher
from tests.services.conftest import START, Setting


class World:
    """A planner, a finisher and a pruner on one store, and a worker that takes a run when it is told to."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.store = setting.store
        operations = setting.operations
        self.planner = Planner(
            setting.store, setting.signal, operations.reconciler, operations.following, setting.telemetry
        )
        self.believed = BelievedClock(setting.store, setting.clock)
        self.finisher = Finisher(setting.store, self.believed)

    async def advance(self, seconds: float) -> None:
        """Pass the time, and let each have its turn."""
        self.setting.clock.advance(seconds)
        await self.work()

    async def work(self) -> None:
        await self.planner.step(self.setting.now)
        self.believed.look()
        await self.believed.compare(self.setting.now)
        for _ in range(3):
            await self.finisher.step(self.setting.now)
        await self.store.prune_runs(self.setting.now, 100)

    async def job(self, name: str = "once") -> Job | None:
        return (await self.store.get_jobs([name]))[0]

    async def state(self, name: str = "once") -> JobState | None:
        job = await self.job(name)
        return None if job is None else job.state

    async def end_runs(self) -> None:
        now = self.setting.now
        claimed = await self.store.claim_runs(["pull/q"], 10, "w", now, now, now)
        for run in claimed.runs:
            await self.setting.operations.settling.settle_one(Settlement(run.id, run.token, Succeeded()))

    async def unfinished(self) -> list[Run]:
        return list((await self.store.list_runs(RunFilter(states=UNFINISHED), None, 10)).items)


ONCE = {"type": "once", "at": to_text(START + 10 * SECOND)}


async def test_a_job_is_finished_once_its_last_run_has_ended(setting: Setting) -> None:
    await setting.add_job("once", trigger=ONCE)
    await setting.add_job("goes-on")
    world = World(setting)
    await world.work()
    assert await world.state() is JobState.ENABLED
    await world.advance(10)
    await world.advance(60)
    assert await world.state() is JobState.ENABLED
    await world.end_runs()
    await world.advance(60)
    assert await world.state() is JobState.FINISHED
    assert await world.state("goes-on") is JobState.ENABLED
    listed = await world.store.list_jobs(JobFilter(finished=False), None, 10)
    assert [job.name for job in listed.items] == ["goes-on"]


async def test_a_finished_job_is_forgotten_with_its_last_run(setting: Setting) -> None:
    await setting.add_job("once", trigger=ONCE, retention=Retention(finished_seconds=3600))
    world = World(setting)
    await world.advance(10)
    await world.end_runs()
    await world.advance(30)
    assert await world.state() is JobState.FINISHED
    await world.advance(3000)
    by_hand = await setting.operations.jobs.trigger_job("once")
    await world.end_runs()
    await world.advance(3000)
    assert await world.state() is JobState.FINISHED
    await world.advance(601)
    await world.advance(10)
    assert await world.store.get_runs([by_hand.id]) == [None]
    assert await world.state() is None
    left = await world.store.list_records(RecordFilter(), None, 10)
    assert [record.name for record in left.items] == [NOTED]


async def test_a_job_that_is_kept_for_good_is_never_forgotten(setting: Setting) -> None:
    await setting.add_job("once", trigger=ONCE, retention=Retention(finished_seconds=None))
    world = World(setting)
    await world.advance(10)
    await world.end_runs()
    for _ in range(3):
        await world.advance(400 * DAY / SECOND)
    assert await world.state() is JobState.FINISHED


async def test_a_finished_job_that_gets_another_rule_goes_on(setting: Setting) -> None:
    await setting.add_job("once", trigger=ONCE, retention=Retention(finished_seconds=60))
    world = World(setting)
    await world.advance(10)
    await world.end_runs()
    await world.advance(30)
    assert await world.state() is JobState.FINISHED
    later = {"trigger": {"type": "once", "at": to_text(setting.now + HOUR)}}
    changed = await setting.operations.jobs.patch_job("once", later)
    assert (changed.state, changed.finished_at) == (JobState.ENABLED, None)
    await world.advance(1800)
    assert await world.state() is JobState.ENABLED
    await world.advance(1801)
    assert [run.state for run in await world.unfinished()] == [State.PENDING]


async def test_a_paused_job_is_not_finished_while_its_rule_owes_something(setting: Setting) -> None:
    await setting.add_job("once", trigger=ONCE)
    world = World(setting)
    await setting.operations.jobs.pause_job("once")
    await world.advance(60)
    assert await world.state() is JobState.PAUSED
    await setting.operations.jobs.resume_job("once")
    await world.advance(60)
    assert await world.state() is JobState.FINISHED


async def test_a_job_that_reached_its_count_is_finished_paused_or_not(setting: Setting) -> None:
    await setting.add_job("once", fires_max=1)
    world = World(setting)
    await world.advance(10)
    await world.end_runs()
    await setting.operations.jobs.pause_job("once")
    await world.advance(60)
    assert await world.state() is JobState.FINISHED


async def test_a_clock_that_stepped_forward_forgets_no_job(setting: Setting) -> None:
    await setting.add_job("once", trigger=ONCE, retention=Retention(finished_seconds=3600))
    world = World(setting)
    await world.advance(10)
    await world.end_runs()
    await world.advance(30)
    setting.clock.step(8 * DAY / SECOND)
    await world.work()
    await world.advance(600)
    assert await world.state() is JobState.FINISHED
