"""Fire times that have a row though the cursor lies before them: no range of missed ones may be lost on them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from horarium.clock import SECOND, Instant, to_datetime
from horarium.model import RunChange, State, run_id
from horarium.model.holds import HoldScope
from horarium.policies import CatchUp, CatchUpPolicy
from horarium.ports import RunFilter
from horarium.services.planning.planner import Planner
from horarium.wire.holds import HoldDefinition
from tests.services.conftest import START, Setting
from tests.services.test_holds import carried

AHEAD = 5
"""Fire times that were planned ahead, one a second."""
LATE = 20


def a_planner(setting: Setting, ahead: float = AHEAD) -> Planner:
    operations = setting.operations
    return Planner(
        setting.store,
        setting.signal,
        operations.reconciler,
        operations.following,
        setting.telemetry,
        ahead_seconds=ahead,
        catch_up_per_second=1_000,
    )


async def by_the_planner(setting: Setting) -> None:
    await a_planner(setting, 0).step(setting.now)


async def beside_the_planner(setting: Setting) -> None:
    planner = a_planner(setting, 0)
    (job,) = await setting.store.get_jobs(["job"])
    assert job is not None
    planner.costly.set_aside(job)
    await planner.costly.step(setting.now)


async def by_a_pause(setting: Setting) -> None:
    await setting.operations.jobs.pause_job("job")


async def by_an_edit(setting: Setting) -> None:
    await setting.operations.jobs.patch_job("job", {"labels": {}})


async def fires(setting: Setting) -> Counter[Instant]:
    """In how many rows each fire time is."""
    found: Counter[Instant] = Counter()
    for run in (await setting.store.list_runs(RunFilter(job="job"), None, 100)).items:
        last = run.last_fire_at or run.fire_at
        between = range(run.fire_at, last + 1, SECOND)
        assert run.fires == len(between)
        found.update(between)
    return found


async def end(setting: Setting, second: int) -> None:
    (run,) = await setting.store.get_runs([run_id("job", START + second * SECOND)])
    assert run is not None
    ended = replace(run, state=State.CANCELLED, finished_at=setting.now)
    assert await setting.store.settle_runs([RunChange(ended, run.token, run.state)], setting.now) == [True]


@pytest.mark.parametrize("plans", [by_the_planner, beside_the_planner, by_a_pause])
@pytest.mark.parametrize("policy", [CatchUpPolicy.NONE, CatchUpPolicy.LATEST])
@pytest.mark.parametrize("ended", [[1], [3], [1, 2, 5], [2, 4]])
@pytest.mark.parametrize("overlap", ["allow", "skip", "cancel_other"])
async def test_each_missed_fire_time_is_in_one_row(
    setting: Setting,
    plans: Callable[[Setting], Awaitable[None]],
    policy: CatchUpPolicy,
    ended: list[int],
    overlap: str,
) -> None:
    """Runs that were planned ahead and have ended keep their rows; an edit brings the cursor back before them."""
    await setting.add_job(every=1, catch_up=CatchUp(policy=policy))
    await a_planner(setting).step(setting.now)
    for second in ended:
        await end(setting, second)
    setting.clock.advance(0.5)
    await setting.operations.jobs.patch_job("job", {"labels": {"a": "b"}, "overlap": overlap})
    setting.clock.advance(LATE)
    await plans(setting)
    assert await fires(setting) == Counter(range(START + SECOND, START + (LATE + 1) * SECOND, SECOND))


@pytest.mark.parametrize("plans", [by_the_planner, beside_the_planner, by_a_pause])
async def test_what_ran_while_the_clock_was_ahead_hides_no_missed_fire_time(
    setting: Setting, plans: Callable[[Setting], Awaitable[None]]
) -> None:
    """The cursor was brought back by no edit."""
    setting.clock.advance(3)
    await setting.add_job(every=1, catch_up=CatchUp(policy=CatchUpPolicy.NONE), planned_until=START)
    await setting.add_run(run_id("job", START + SECOND), job="job", job_id="job", fire_at=START + SECOND)
    setting.clock.advance(LATE - 3)
    await plans(setting)
    assert await fires(setting) == Counter(range(START + SECOND, START + (LATE + 1) * SECOND, SECOND))


async def test_what_another_planner_has_just_planned_is_looked_for_no_further(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read for each such job held a planner up on a slow store, while the plans that it was to write grew old."""
    for number in range(20):
        await setting.add_job(f"job-{number}", every=1, catch_up=CatchUp(policy=CatchUpPolicy.NONE))
    setting.clock.advance(LATE)
    due_jobs, reads = setting.store.due_jobs, Counter[str]()

    async def planned_by_another(*asked: Any) -> Any:
        due = await due_jobs(*asked)
        monkeypatch.setattr(setting.store, "due_jobs", due_jobs)
        await by_the_planner(setting)
        for name in ("get_runs", "get_jobs_by_id"):
            monkeypatch.setattr(setting.store, name, counted(name, getattr(setting.store, name)))
        return due

    def counted(name: str, read: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def call(*asked: Any) -> Any:
            reads[name] += 1
            return await read(*asked)

        return call

    monkeypatch.setattr(setting.store, "due_jobs", planned_by_another)
    await by_the_planner(setting)
    assert reads == Counter(get_runs=1, get_jobs_by_id=1)


@pytest.mark.parametrize("plans", [by_the_planner, beside_the_planner, by_an_edit])
@pytest.mark.parametrize("ended", [[1], [3], [1, 2, 5], [2, 4]])
async def test_a_person_is_asked_about_fire_times_without_a_row(
    setting: Setting, plans: Callable[[Setting], Awaitable[None]], ended: list[int]
) -> None:
    await setting.add_job(every=1, catch_up=CatchUp(CatchUpPolicy.ASK, then="none", within_seconds=600))
    await a_planner(setting).step(setting.now)
    for second in ended:
        await end(setting, second)
    setting.clock.advance(0.5)
    await setting.operations.jobs.patch_job("job", {"labels": {"a": "b"}})
    setting.clock.advance(LATE)
    await plans(setting)
    (job,) = await setting.store.get_jobs(["job"])
    assert job is not None
    assert job.missed is not None
    asked = {
        (fire - START) // SECOND for each in job.missed.stretches for fire in range(each.first, each.last + 1, SECOND)
    }
    found = await fires(setting)
    assert not asked.intersection((fire - START) // SECOND for fire in found)
    assert job.missed.fires == len(asked) == LATE - len(found)


async def test_nobody_is_asked_where_each_missed_fire_time_has_a_row(setting: Setting) -> None:
    """A run that was claimed ahead of its time and put back keeps its row if its job is edited before it is due."""
    await setting.add_job(every=60, catch_up=CatchUp(CatchUpPolicy.ASK, then="none", within_seconds=600))
    await a_planner(setting, 60).step(setting.now)
    await end(setting, 60)
    setting.clock.advance(59.5)
    await setting.operations.jobs.patch_job("job", {"labels": {"a": "b"}})
    setting.clock.advance(10)
    await by_the_planner(setting)
    (job,) = await setting.store.get_jobs(["job"])
    assert job is not None
    assert job.missed is None
    assert (await setting.operations.approving.page(None, None, 10)).items == ()


@pytest.mark.parametrize("lifted_after", [0.5, LATE])
@pytest.mark.parametrize("plans", [by_the_planner, beside_the_planner, by_an_edit])
async def test_a_run_that_was_backfilled_under_a_hold_is_not_owed_again(
    setting: Setting, plans: Callable[[Setting], Awaitable[None]], lifted_after: float
) -> None:
    """It ended a run that waited, for a newer one that was there already, and counted as a second one."""
    await setting.add_job(every=60, overlap="cancel_other", fires_max=9)
    operations = setting.operations
    held = await operations.holds.add(HoldDefinition(scope=HoldScope(job="job"), reason="moving"))
    setting.clock.advance(60.5)
    await a_planner(setting, 0).step(setting.now)
    start = to_datetime(START + 60 * SECOND)
    await operations.jobs.backfill_job("job", start, start + timedelta(seconds=1))
    setting.clock.advance(lifted_after)
    by_hand = await operations.jobs.trigger_job("job")
    (backfilled,) = await setting.store.get_runs([run_id("job", START + 60 * SECOND)])
    assert backfilled is not None
    assert backfilled.state is State.CANCELLED
    await operations.holds.lift(held.id)
    await carried(setting)
    await plans(setting)
    (job,), (run,) = await setting.store.get_jobs(["job"]), await setting.store.get_runs([by_hand.id])
    assert job is not None
    assert run is not None
    assert (run.state, job.fires_count, job.planned_until) == (State.PENDING, 0, setting.now)


async def test_a_run_that_was_cancelled_before_its_time_counts_once(setting: Setting) -> None:
    """An edit took the cursor back before it."""
    await setting.add_job(every=10, fires_max=2)
    await a_planner(setting, 15).step(setting.now)
    await end(setting, 10)
    setting.clock.advance(0.5)
    await setting.operations.jobs.patch_job("job", {"labels": {"a": "b"}})
    for seconds in (9.5, 10):
        setting.clock.advance(seconds)
        await by_the_planner(setting)
    assert await setting.store.get_runs([run_id("job", START + 20 * SECOND)]) != [None]
