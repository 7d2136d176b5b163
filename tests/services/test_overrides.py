"""Fire times that persons skip and move while planners and workers go on, and what is told of them."""

from __future__ import annotations

from datetime import datetime

import pytest
from msgspec.structs import replace

from horarium.clock import SECOND, Instant, to_datetime
from horarium.errors import AlreadyBegun, InvalidRequest, NoSuchFire, StoreUnavailable
from horarium.model import Disposition, Job, Run, RunChange, State
from horarium.model.overrides import OVERRIDES_MAX
from horarium.operations.looking.upcoming import upcoming
from horarium.policies import CatchUp, CatchUpPolicy, Overlap
from horarium.ports import RunFilter
from horarium.services.planning.planner import Planner
from tests.services.conftest import START, Setting
from tests.services.test_approvals import as_


def a_planner(setting: Setting, ahead: float = 30.0) -> Planner:
    of = setting.operations
    return Planner(setting.store, setting.signal, of.reconciler, of.following, setting.telemetry, ahead_seconds=ahead)


async def runs(setting: Setting) -> list[Run]:
    return list(reversed((await setting.store.list_runs(RunFilter(), None, 200)).items))


async def stored(setting: Setting, job: Job) -> Job:
    (found,) = await setting.store.get_jobs([job.name])
    assert found is not None
    return found


def at(seconds: float) -> datetime:
    return to_datetime(START + round(seconds * SECOND))


async def step_to(planner: Planner, setting: Setting, seconds: int) -> None:
    """The planner is called when it asked to be, up to then."""
    wake: Instant | None = setting.now
    while wake is not None and wake <= START + seconds * SECOND:
        setting.clock.advance(max(wake - setting.now, 0) / SECOND)
        before = wake
        wake = await planner.step(setting.now)
        assert wake is None or wake > before or wake == setting.now
    setting.clock.advance((START + seconds * SECOND - setting.now) / SECOND)


async def test_a_run_that_is_planned_ahead_is_withdrawn_and_may_come_back(setting: Setting) -> None:
    job = await setting.add_job(every=10)
    planner = a_planner(setting)
    await planner.step(setting.now)
    assert [run.fire_at for run in await runs(setting)] == [START + each * SECOND for each in (10, 20, 30)]
    told = await setting.operations.overriding.skip(job.name, at(20), "closed")
    assert (told.fire_at, told.to, told.reason) == (START + 20 * SECOND, None, "closed")
    assert [run.fire_at for run in await runs(setting)] == [START + each * SECOND for each in (10, 30)]
    again = await setting.operations.overriding.skip(job.name, at(20), "closed")
    assert again == told, "asked again, nothing changes"
    await setting.operations.overriding.lift(job.name, at(20))
    assert [run.fire_at for run in await runs(setting)] == [START + each * SECOND for each in (10, 20, 30)]
    assert (await stored(setting, job)).overrides == ()
    assert (await stored(setting, job)).fires_count == 3


async def test_a_planner_wakes_for_what_was_moved_and_never_turns_idly(setting: Setting) -> None:
    job = await setting.add_job(every=10)
    planner = a_planner(setting, ahead=1.0)
    await setting.operations.overriding.skip(job.name, at(20))
    await setting.operations.overriding.move(job.name, at(30), at(44.5), "the feed is late")
    steps = 0
    step = planner.step

    async def counted(now: Instant) -> Instant | None:
        nonlocal steps
        steps += 1
        return await step(now)

    planner.step = counted  # type: ignore[method-assign]
    await step_to(planner, setting, 60)
    found = {(run.fire_at - START) / SECOND: run for run in await runs(setting)}
    assert found.keys() >= {10, 20, 30, 40, 50, 60}
    assert (found[20].state, found[20].disposition) == (State.SKIPPED, Disposition.SKIPPED_OVERRIDE)
    assert (found[30].due_at, found[30].created_at) == (START + round(44.5 * SECOND), START + round(44.5 * SECOND))
    assert all(run.due_at == run.fire_at for fire, run in found.items() if fire != 30)
    assert steps < 60, "it sleeps in between"


async def test_what_has_begun_or_passed_stays(setting: Setting) -> None:
    job = await setting.add_job(every=10)
    planner = a_planner(setting)
    await planner.step(setting.now)
    setting.clock.advance(10)
    await setting.operations.claiming.claim(["pull/q"], 1, "w", setting.now, setting.now)
    for ask in (
        setting.operations.overriding.skip(job.name, at(10)),
        setting.operations.overriding.move(job.name, at(10), at(15)),
        setting.operations.overriding.lift(job.name, at(10)),
    ):
        with pytest.raises(AlreadyBegun, match="is running"):
            await ask
    with pytest.raises(NoSuchFire, match="neither skipped nor moved"):
        await setting.operations.overriding.lift(job.name, at(20))
    setting.clock.advance(1_000)
    await setting.store.prune_runs(setting.now + 10**15, 1_000)
    with pytest.raises(AlreadyBegun, match="has passed"):
        await setting.operations.overriding.skip(job.name, at(0))


async def test_an_instant_that_is_no_fire_time_is_told_with_its_neighbours(setting: Setting) -> None:
    job = await setting.add_job(every=10)
    with pytest.raises(NoSuchFire) as caught:
        await setting.operations.overriding.skip(job.name, at(14))
    assert (caught.value.previous, caught.value.next) == (at(10), at(20))
    with pytest.raises(InvalidRequest, match="in the future"):
        await setting.operations.overriding.move(job.name, at(20), at(-5))


@pytest.mark.parametrize("overlap", [Overlap.ALLOW, Overlap.SKIP, Overlap.TERMINATE_OTHER])
@pytest.mark.parametrize("to", [None, 15])
async def test_a_claim_that_is_quicker_by_a_moment_wins(setting: Setting, overlap: Overlap, to: int | None) -> None:
    """The run goes on, which takes its own place, and counts once."""
    job = await setting.add_job(every=10, overlap=overlap, fires_max=3)
    await step_to(a_planner(setting), setting, 10)
    planned = await stored(setting, job)
    commit = setting.store.commit_plans

    async def claimed_first(plans: object, steady: int) -> list[bool]:
        await setting.store.claim_runs(["pull/q"], 1, "w", setting.now, START + 20 * SECOND, setting.steady)
        return await commit(plans, steady)  # type: ignore[arg-type]

    setting.store.commit_plans = claimed_first  # type: ignore[method-assign]
    overriding = setting.operations.overriding
    with pytest.raises(AlreadyBegun, match="is running"):
        await (overriding.skip(job.name, at(10)) if to is None else overriding.move(job.name, at(10), at(to)))
    setting.store.commit_plans = commit  # type: ignore[method-assign]
    after = await stored(setting, job)
    assert (after.overrides, after.fires_count, after.next_fire_at) == ((), planned.fires_count, planned.next_fire_at)
    assert {run.fire_at: run.state for run in await runs(setting)}[START + 10 * SECOND] is State.RUNNING


async def test_a_run_that_was_moved_is_there_before_the_answer(setting: Setting) -> None:
    job = await setting.add_job(every=10)
    commit = setting.store.commit_plans

    async def planned_next(plans: object, steady: int) -> list[bool]:
        done = await commit(plans, steady)  # type: ignore[arg-type]
        setting.store.commit_plans = commit  # type: ignore[method-assign]
        await step_to(a_planner(setting, 1.0), setting, 5)
        return done

    setting.store.commit_plans = planned_next  # type: ignore[method-assign]
    moved = await setting.operations.overriding.move(job.name, at(10), at(5))
    assert [(run.fire_at, run.due_at) for run in await runs(setting)] == [(moved.fire_at, moved.to)]


async def test_no_run_ends_for_one_that_was_claimed_before_it_was_moved(setting: Setting) -> None:
    """The store was away when that was to be taken back."""
    job = await setting.add_job(every=10, overlap=Overlap.TERMINATE_OTHER)
    planner = a_planner(setting)
    await step_to(planner, setting, 10)
    commit, calls = setting.store.commit_plans, 0

    async def claimed_first(plans: object, steady: int) -> list[bool]:
        nonlocal calls
        calls += 1
        if calls > 1:
            raise StoreUnavailable("away")
        await setting.store.claim_runs(["pull/q"], 1, "w", setting.now, START + 20 * SECOND, setting.steady)
        return await commit(plans, steady)  # type: ignore[arg-type]

    setting.store.commit_plans = claimed_first  # type: ignore[method-assign]
    with pytest.raises(StoreUnavailable):
        await setting.operations.overriding.move(job.name, at(10), at(25))
    setting.store.commit_plans = commit  # type: ignore[method-assign]
    (claimed,) = await runs(setting)
    done = replace(claimed, state=State.COMPLETED, finished_at=setting.now)
    await setting.store.settle_runs([RunChange(done, claimed.token, claimed.state)], setting.steady)
    await step_to(planner, setting, 28)
    assert [run.state for run in await runs(setting)] == [State.COMPLETED, State.PENDING]


async def test_a_run_is_skipped_in_the_instant_at_which_it_was_made(setting: Setting) -> None:
    job = await setting.add_job(every=10, overlap=Overlap.SKIP)
    await step_to(a_planner(setting), setting, 10)
    await setting.operations.overriding.skip(job.name, at(10))
    assert [run.disposition for run in await runs(setting)] == [Disposition.SKIPPED_OVERRIDE]
    assert (await stored(setting, job)).fires_count == 0


async def test_a_run_that_waits_for_a_worker_can_be_skipped_late(setting: Setting) -> None:
    job = await setting.add_job(every=10, overlap=Overlap.BUFFER_ALL)
    planner = a_planner(setting)
    await step_to(planner, setting, 25)
    await setting.operations.overriding.skip(job.name, at(10), "too late by now")
    first, second = await runs(setting)
    assert (first.disposition, second.state) == (Disposition.SKIPPED_OVERRIDE, State.PENDING)
    assert (await stored(setting, job)).overrides == ()


async def test_it_is_explained_and_stands_in_what_comes(setting: Setting) -> None:
    job = await setting.add_job(every=10)
    overriding, explaining = setting.operations.overriding, setting.operations.explaining
    await overriding.skip(job.name, at(20), "closed")
    await overriding.move(job.name, at(30), at(33), "late feed")
    skipped, moved, there = [await explaining.at(job.name, START + each * SECOND) for each in (20, 30, 33)]
    assert (skipped.fires, skipped.disposition) == (False, Disposition.SKIPPED_OVERRIDE)
    assert "skipped, because: closed" in skipped.reason
    assert moved.fires
    assert moved.reason == there.reason
    assert "moved from 2026-01-05T00:00:30Z to 2026-01-05T00:00:33Z, because: late feed" in moved.reason
    fires, _ = await setting.operations.jobs.fires(job.name, 4)
    assert fires == [at(10), at(33), at(40), at(50)]
    coming = await upcoming(setting.store, setting.now, START + 45 * SECOND, 10)
    assert [(one.fire_at, one.moved is not None) for one in coming.items] == [
        (START + 10 * SECOND, False), (START + 33 * SECOND, True), (START + 40 * SECOND, False)
    ]  # fmt: skip
    await step_to(a_planner(setting, 1.0), setting, 34)
    ran = await explaining.at(job.name, START + 30 * SECOND)
    assert ran.run is not None
    assert "the rule fires then, moved from" in ran.reason
    assert (await explaining.at(job.name, START + 20 * SECOND)).disposition is Disposition.SKIPPED_OVERRIDE


async def test_a_job_has_a_limited_number_of_them(setting: Setting) -> None:
    job = await setting.add_job(every=10)
    for number in range(OVERRIDES_MAX):
        await setting.operations.overriding.skip(job.name, at(10 * (number + 1)))
    with pytest.raises(InvalidRequest, match="100 fire times"):
        await setting.operations.overriding.skip(job.name, at(10 * (OVERRIDES_MAX + 1)))
    page, more = await setting.operations.overriding.page(job.name, None, 60)
    rest, end = await setting.operations.overriding.page(job.name, more, 60)
    assert (len(page), len(rest), end) == (60, 40, None)
    planner = a_planner(setting)
    setting.clock.advance(10 * (OVERRIDES_MAX + 2))
    while (await planner.step(setting.now)) == setting.now:
        pass
    made = await runs(setting)
    assert sum(run.disposition is Disposition.SKIPPED_OVERRIDE for run in made) == OVERRIDES_MAX
    assert (await stored(setting, job)).overrides == ()


@pytest.mark.parametrize("policy", [CatchUpPolicy.NONE, CatchUpPolicy.LATEST, CatchUpPolicy.ALL])
async def test_what_a_clock_that_was_ahead_settled_is_skipped_and_moved_again(
    setting: Setting, policy: CatchUpPolicy
) -> None:
    await setting.add_job(every=10, catch_up=CatchUp(policy))
    planner = a_planner(setting, ahead=1.0)
    with as_("ann"):
        await setting.operations.overriding.skip("job", at(20), "closed, because: by law")
        await setting.operations.overriding.move("job", at(30), at(44))
    before = await setting.operations.overriding.page("job", None, 10)
    setting.clock.step(1_000)
    await planner.step(setting.now)
    assert (await setting.operations.overriding.page("job", None, 10))[0] == []
    setting.clock.step(-1_000)
    for _ in range(10):
        await planner.step(setting.now)
    assert await setting.operations.overriding.page("job", None, 10) == before
    await step_to(planner, setting, 45)
    found = {(run.fire_at - START) // SECOND: run for run in await runs(setting)}
    assert [(each, run.due_at - START) for each, run in found.items() if run.state is State.PENDING] == [
        (10, 10 * SECOND),
        (30, 44 * SECOND),
        (40, 40 * SECOND),
    ]
    assert found[20].disposition is Disposition.SKIPPED_OVERRIDE
