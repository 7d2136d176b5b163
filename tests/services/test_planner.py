"""The planner and its anchors: compare-and-set between nodes, pace after an absence, and stepped clocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from horarium.clock import DAY, SECOND, Instant, to_text
from horarium.model import Cause, Node, Plan, Run, State
from horarium.policies import CatchUp, CatchUpPolicy, Overlap
from horarium.ports import RunFilter
from horarium.services.planning.planner import JOBS_MAX, Planner
from horarium.stores.memory import MemoryStore
from tests.services.conftest import START, Setting

TEN_YEARS = 3_650 * 24 * 3600


def a_planner(setting: Setting, **options: Any) -> Planner:
    operations = setting.operations
    return Planner(
        setting.store, setting.signal, operations.reconciler, operations.following, setting.telemetry, **options
    )


async def runs(setting: Setting) -> list[Run]:
    return list(reversed((await setting.store.list_runs(RunFilter(), None, 200)).items))


async def late_runs(setting: Setting, job: str) -> list[Run]:
    found: list[Run] = []
    after: str | None = None
    while True:
        page = await setting.store.list_runs(RunFilter(job=job), after, 1_000)
        found += (run for run in page.items if run.cause is Cause.CATCH_UP)
        if (after := page.next_after) is None:
            return found


async def step_for(planner: Planner, setting: Setting, seconds: int) -> None:
    for _ in range(seconds):
        setting.clock.advance(1)
        await planner.step(setting.now)


async def test_a_fire_time_is_planned_when_it_is_within_the_look_ahead(setting: Setting) -> None:
    await setting.add_job()
    planner = a_planner(setting)
    assert await planner.step(START + 8 * SECOND) == START + 10 * SECOND - SECOND // 2
    assert await runs(setting) == []
    await planner.step(START + 9 * SECOND)
    assert [run.fire_at for run in await runs(setting)] == [START + 10 * SECOND]


async def test_a_job_that_looks_at_its_unfinished_runs_is_planned_at_the_instant(setting: Setting) -> None:
    await setting.add_job(overlap=Overlap.SKIP)
    planner = a_planner(setting)
    assert await planner.step(START + 9_500_000) == START + 10 * SECOND
    assert await runs(setting) == []


async def test_two_planners_make_one_run(setting: Setting) -> None:
    await setting.add_job()
    one, other = a_planner(setting), a_planner(setting)
    await one.step(START + 10 * SECOND)
    await other.step(START + 10 * SECOND)
    assert len(await runs(setting)) == 1


class PlansInBetween(MemoryStore):
    """Another planner is quicker, once, with whatever a plan is to be written for."""

    other: Planner | None = None
    now: Instant = START

    async def commit_plans(self, plans: Sequence[Plan], steady: Instant) -> list[bool]:
        other, self.other = self.other, None
        if other is not None:
            assert await other.step(self.now) == self.now
        return await super().commit_plans(plans, steady)


async def test_a_planner_that_was_beaten_to_every_job_leaves_the_rest_to_the_quicker_one(setting: Setting) -> None:
    setting.store = store = PlansInBetween()
    for number in range(JOBS_MAX + 100):
        await setting.add_job(f"job{number:04}")
    one, other = a_planner(setting), a_planner(setting)
    store.other, store.now = other, START + 9 * SECOND
    now = store.now
    assert now < (await one.step(now) or 0) <= now + 100_000
    await other.step(now)
    assert (await store.due_jobs(now + SECOND, 1))[0] == []


class ClaimsInBetween(MemoryStore):
    """Somebody claims every due run just before a plan is written."""

    async def commit_plans(self, plans: Sequence[Plan], steady: Instant) -> list[bool]:
        await self.claim_runs(["pull/q"], 100, "w", START + 20 * SECOND, START + 20 * SECOND, steady)
        return await super().commit_plans(plans, steady)


@pytest.mark.parametrize(
    ("overlap", "becomes"),
    [(Overlap.CANCEL_OTHER, State.CANCELLING), (Overlap.TERMINATE_OTHER, State.CANCELLED)],
)
async def test_a_run_claimed_while_its_end_was_planned_is_ended(
    setting: Setting, overlap: Overlap, becomes: State
) -> None:
    setting.store = ClaimsInBetween()
    await setting.add_job(overlap=overlap)
    planner = a_planner(setting)
    await planner.step(START + 10 * SECOND)
    await planner.step(START + 20 * SECOND)
    assert [run.state for run in await runs(setting)] == [becomes, State.PENDING]


async def test_what_was_missed_falls_due_at_a_measured_pace(setting: Setting) -> None:
    await setting.add_job(every=1, catch_up=CatchUp(CatchUpPolicy.ALL))
    now = START + 100 * SECOND
    await a_planner(setting, catch_up_per_second=10).step(now)
    late = [run.due_at for run in await runs(setting) if run.cause is Cause.CATCH_UP]
    assert late[:3] == [now, now + SECOND // 10, now + 2 * SECOND // 10]


async def test_a_planner_leaves_what_is_beyond_its_limit_to_others(setting: Setting) -> None:
    for name in ("a", "b", "c"):
        await setting.add_job(name)
    planner = a_planner(setting, jobs_max=2)
    now = START + 10 * SECOND
    assert await planner.step(now) == now, "it looks again at once"
    assert len(await runs(setting)) == 2
    await planner.step(now)
    assert len(await runs(setting)) == 3


async def test_what_is_on_time_goes_first_though_more_is_late_than_a_step_takes(setting: Setting) -> None:
    for number in range(6):
        await setting.add_job(f"late-{number}", every=900)
    now = START + 5_000 * SECOND
    await setting.add_job("punctual", every=5_000)
    planner = a_planner(setting, jobs_max=2)
    await planner.step(now)
    pending = [run for run in await runs(setting) if run.state is State.PENDING]
    assert [run.job for run in pending if run.cause is Cause.SCHEDULE] == ["punctual"]
    while await planner.step(now) == now:
        pass
    assert {run.job for run in await runs(setting)} == {"punctual", *(f"late-{number}" for number in range(6))}


async def test_a_job_that_missed_one_fire_time_waits_for_none_that_missed_a_thousand(setting: Setting) -> None:
    for number in range(4):
        await setting.add_job(f"often-{number}", every=1, catch_up=CatchUp(CatchUpPolicy.ALL))
    await setting.add_job("once", trigger={"type": "once", "at": to_text(START + 3_000 * SECOND)})
    now = START + 4_000 * SECOND
    planner = a_planner(setting, jobs_max=2)
    while await planner.step(now) == now:
        pass
    (once,) = (await setting.store.list_runs(RunFilter(job="once"), None, 10)).items
    assert once.due_at - now < 12 * SECOND
    late = [run.due_at for job in range(4) for run in await late_runs(setting, f"often-{job}")]
    assert len(late) == 4 * 998
    assert max(late) - now > 40 * SECOND


async def test_jobs_that_cannot_be_planned_keep_no_other_from_it_however_many_they_are(setting: Setting) -> None:
    broken = await setting.add_job("broken-0")
    for number in range(5):
        id = f"broken-{number + 1}"
        await setting.store.add_jobs([replace(broken, name=id, id=id, trigger={"type": "nothing"})])
    setting.clock.advance(100)
    await setting.add_job("good")
    planner = a_planner(setting, jobs_max=2)
    now = START + 200 * SECOND
    for _ in range(10):
        await planner.step(now)
    assert "good" in {run.job for run in await runs(setting)}


async def test_a_job_that_cannot_be_planned_keeps_no_other_from_it(setting: Setting) -> None:
    job = await setting.add_job("good")
    await setting.store.add_jobs([replace(job, name="broken", id="broken", trigger={"type": "nothing"})])
    await a_planner(setting).step(START + 10 * SECOND)
    assert [run.job for run in await runs(setting)] == ["good"]


async def test_a_clock_that_ran_ten_years_ahead_and_came_back_silences_no_job(setting: Setting) -> None:
    await setting.add_job()
    await setting.add_job("daily", every=86_400)
    planner = a_planner(setting)
    await step_for(planner, setting, 5)
    setting.clock.step(TEN_YEARS)
    await step_for(planner, setting, 5)
    setting.clock.step(-TEN_YEARS)
    await step_for(planner, setting, 30)
    fires = [run.fire_at - START for run in await runs(setting) if run.fire_at < START + DAY]
    assert fires == [10 * SECOND, 20 * SECOND, 30 * SECOND, 40 * SECOND]
    (daily,) = await setting.store.get_jobs(["daily"])
    assert daily is not None
    assert daily.next_fire_at == START + DAY
    assert await planner.step(START + DAY) is not None
    assert START + DAY in [run.fire_at for run in await runs(setting) if run.state is State.PENDING]


async def test_a_new_node_finds_jobs_that_a_wrong_clock_left_silent(setting: Setting) -> None:
    await setting.add_job(planned_until=START + DAY)
    await a_planner(setting).step(START + SECOND)
    (job,) = await setting.store.get_jobs(["job"])
    assert job is not None
    assert job.next_fire_at == START + 10 * SECOND


async def test_a_node_that_beats_in_our_future_makes_us_look(setting: Setting) -> None:
    planner = a_planner(setting)
    await planner.step(START)
    await setting.add_job(planned_until=START + DAY)
    await setting.store.beat_node(Node(name="wrong", roles=(), started_at=START, beat_at=START + DAY))
    await step_for(planner, setting, 30)
    (job,) = await setting.store.get_jobs(["job"])
    assert job is not None
    assert job.next_fire_at == START + 40 * SECOND


async def test_a_small_step_back_repeats_nothing(setting: Setting) -> None:
    await setting.add_job(every=1)
    planner = a_planner(setting)
    await step_for(planner, setting, 10)
    before = [run.id for run in await runs(setting)]
    setting.clock.step(-5)
    await step_for(planner, setting, 4)
    assert [run.id for run in await runs(setting)] == before


async def test_after_a_step_back_catching_up_is_not_put_off_to_the_future(setting: Setting) -> None:
    await setting.add_job(every=1, catch_up=CatchUp(CatchUpPolicy.ALL))
    planner = a_planner(setting, catch_up_per_second=1)
    await planner.step(START + 100 * SECOND)
    await setting.add_job("later", every=1, catch_up=CatchUp(CatchUpPolicy.ALL))
    await planner.step(START + 50 * SECOND)
    late = [run.due_at for run in await runs(setting) if run.job == "later" and run.cause is Cause.CATCH_UP]
    assert late[0] == START + 50 * SECOND


async def test_planners_come_one_after_another_and_the_later_finds_nothing_to_do(setting: Setting) -> None:
    await setting.add_job()
    early, late = a_planner(setting, lead=0.75), a_planner(setting, lead=0.25)
    wakes = [await planner.step(START + 8 * SECOND) or 0 for planner in (early, late)]
    assert wakes == [START + 9_250_000, START + 9_750_000]
    await early.step(wakes[0])
    commit_plans = setting.store.commit_plans
    written: list[Plan] = []

    async def counted(plans: Sequence[Plan], steady: Instant) -> list[bool]:
        written.extend(plans)
        return await commit_plans(plans, steady)

    setting.store.commit_plans = counted  # type: ignore[method-assign]
    await late.step(wakes[1])
    assert ([run.fire_at for run in await runs(setting)], written) == ([START + 10 * SECOND], [])


async def test_a_job_that_missed_little_does_not_wait_behind_one_that_missed_much(setting: Setting) -> None:
    await setting.add_job("often", every=10, catch_up=CatchUp(CatchUpPolicy.ALL))
    await setting.add_job("seldom", every=900, catch_up=CatchUp(CatchUpPolicy.ALL))
    setting.clock.advance(1_000)
    await a_planner(setting, catch_up_per_second=10.0).step(setting.now)
    caught_up = sorted((run for run in await runs(setting) if run.cause is Cause.CATCH_UP), key=lambda run: run.due_at)
    jobs = [run.job for run in caught_up]
    assert (len(jobs), jobs.count("seldom")) == (100, 1)
    assert "seldom" in jobs[:2]
    often = [run.fire_at for run in caught_up if run.job == "often"]
    assert often == sorted(often)
