"""A clock that was wrong in the future: what ended there is brought back, and nothing right is forgotten for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from horarium.clock import DAY, SECOND
from horarium.model import Disposition, Node, Plan, Run, RunChange, State, Succeeded
from horarium.operations.settling.settling import Settlement
from horarium.ports import Page, RunFilter
from horarium.rules.overridden import Dropped
from horarium.rules.planning import dropped_run
from horarium.services.planning.clock_steps import ClockSteps
from horarium.services.planning.ends_ahead import EndsAhead
from horarium.services.planning.planner import Planner
from horarium.services.upkeep.pruner import Pruner
from tests.services.conftest import Setting

WEEK = 7 * DAY
WRONG_SECONDS = 8 * DAY / SECOND


class World:
    """A planner, a pruner and a worker that is always there."""

    def __init__(self, setting: Setting) -> None:
        self.setting, self.store = setting, setting.store
        operations = setting.operations
        self.planner = Planner(
            setting.store, setting.signal, operations.reconciler, operations.following, setting.telemetry
        )
        self.pruner = Pruner(setting.store, setting.telemetry, setting.clock)

    async def live(self, seconds: int) -> None:
        for _ in range(seconds):
            self.setting.clock.advance(1)
            await self.planner.step(self.setting.now)
            await self.perform()
            await self.pruner.step(self.setting.now)

    async def perform(self) -> None:
        now = self.setting.now
        claimed = await self.store.claim_runs(["pull/q"], 100, "w", now, now, now)
        for run in claimed.runs:
            self.pruner.note(claimed.jobs.get(run.job_id or ""))
            await self.setting.operations.settling.settle_one(Settlement(run.id, run.token, Succeeded()))

    async def runs(self) -> list[Run]:
        page = await self.store.list_runs(RunFilter(states=frozenset({State.COMPLETED})), None, 200)
        return list(page.items)


async def test_runs_that_ended_in_a_wrong_future_ended_when_the_clock_was_set_back(setting: Setting) -> None:
    await setting.add_job(every=10)
    world = World(setting)
    await world.live(30)
    before = {run.id for run in await world.runs()}
    setting.clock.step(WRONG_SECONDS)
    await setting.add_run("one-off")
    await world.live(30)
    setting.clock.step(-WRONG_SECONDS)
    set_back_at = setting.now
    await world.live(200)
    runs = await world.runs()
    assert before < {run.id for run in runs}
    assert all((run.finished_at or 0) <= setting.now for run in runs)
    assert all((run.prune_at or 0) <= setting.now + WEEK for run in runs)
    (one_off,) = await setting.store.get_runs(["one-off"])
    assert one_off is not None
    assert (one_off.finished_at or 0) in range(set_back_at, setting.now)
    assert all(event.at <= setting.now for event in one_off.history)


async def test_runs_of_a_wrong_future_do_not_push_out_the_real_ones(setting: Setting) -> None:
    await setting.add_job(every=10)
    await setting.operations.jobs.patch_job("job", {"retention": {"runs_max": 5}})
    world = World(setting)
    await world.live(50)
    setting.clock.step(WRONG_SECONDS)
    await world.live(30)
    setting.clock.step(-WRONG_SECONDS)
    await world.live(200)
    assert [run.fire_at <= setting.now for run in await world.runs()] == [True] * 5


async def test_a_key_makes_no_second_run_across_steps_of_the_clock(setting: Setting) -> None:
    await setting.add_job(every=3600)
    world = World(setting)
    trigger = setting.operations.jobs.trigger_job
    first = await trigger("job", key="job/once")
    await world.live(5)
    setting.clock.step(WRONG_SECONDS)
    await world.live(60)
    assert (await trigger("job", key="job/once")).id == first.id
    second = await trigger("job", key="job/wrong")
    await world.live(5)
    setting.clock.step(-WRONG_SECONDS)
    await world.live(100)
    assert (await trigger("job", key="job/once")).id == first.id
    assert (await trigger("job", key="job/wrong")).id == second.id


async def test_a_list_begins_with_the_present_though_runs_of_a_wrong_future_are_kept(setting: Setting) -> None:
    await setting.add_job(every=10)
    world = World(setting)
    await world.live(50)
    setting.clock.step(WRONG_SECONDS)
    await world.live(50)
    wrong = {run.id for run in await world.runs()}
    setting.clock.step(-WRONG_SECONDS)
    await world.live(50)
    await setting.add_run("tomorrow", fire_at=setting.now + DAY, due_at=setting.now + DAY)
    listed = setting.operations.runs.list_runs
    seen: list[Run] = []
    after: str | None = None
    while True:
        page = await listed(RunFilter(), after, 3)
        seen += page.items
        after = page.next_after
        if after is None:
            break
    assert [run.id for run in seen[:1]] == ["tomorrow"]
    fires = [run.fire_at for run in seen[1:]]
    assert fires == sorted(set(fires), reverse=True)
    assert fires[0] <= setting.now + SECOND
    assert len(fires) >= 10
    later = await listed(RunFilter(since=setting.now + 2 * DAY), None, 200)
    assert {run.id for run in later.items} < wrong
    assert len(later.items) >= 4


async def test_a_list_leaves_out_what_was_skipped_in_a_wrong_future(setting: Setting) -> None:
    job = await setting.add_job(every=10)
    await setting.add_run("now", fire_at=setting.now, due_at=setting.now)
    ahead = setting.now + 8 * DAY
    missed = dropped_run(job, Dropped(ahead, ahead, 1, Disposition.MISSED, "catch_up: latest"), setting.now)
    await setting.store.add_runs([missed])
    page = await setting.operations.runs.list_runs(RunFilter(), None, 10)
    assert [run.id for run in page.items] == ["now"]
    found = await setting.operations.runs.list_runs(RunFilter(since=setting.now + DAY), None, 10)
    assert [run.id for run in found.items] == [missed.id]


async def test_a_list_begins_with_the_present_as_soon_as_the_clock_is_set_back(setting: Setting) -> None:
    await setting.add_job(every=10)
    world = World(setting)
    await world.live(50)
    setting.clock.step(WRONG_SECONDS)
    await world.live(50)
    setting.clock.step(-WRONG_SECONDS)
    page = await setting.operations.runs.list_runs(RunFilter(), None, 10)
    assert page.items
    assert max(run.fire_at for run in page.items) <= setting.now


@pytest.mark.parametrize("is_of_other_node", [True, False])
async def test_work_that_was_claimed_ahead_goes_on_when_the_clock_is_set_back(
    setting: Setting, is_of_other_node: bool
) -> None:
    await setting.add_job(every=10)
    world, store = World(setting), setting.store
    await world.live(5)
    setting.clock.step(WRONG_SECONDS)
    await world.planner.step(setting.now)
    await world.perform()
    (job,) = await store.get_jobs(["job"])
    assert job is not None
    assert job.next_fire_at is not None
    setting.clock.advance((job.next_fire_at - setting.now) / SECOND - 0.5)
    await world.planner.step(setting.now)
    (run,) = (await store.claim_runs(["pull/q"], 9, "w", setting.now, setting.now + SECOND, setting.steady)).runs
    assert run.due_at > setting.now
    setting.clock.advance(1)
    if is_of_other_node:
        await store.beat_node(Node(name="other", roles=(), started_at=setting.now, beat_at=setting.now))
        world = World(setting)
    setting.clock.step(-WRONG_SECONDS)
    await world.live(15)
    await setting.operations.jobs.pause_job("job")
    (left,) = await store.get_runs([run.id])
    assert left is not None
    assert (left.state, left.token) == (State.RUNNING, run.token)
    assert (left.started_at or 0) <= setting.now
    assert await setting.operations.settling.settle_one(Settlement(run.id, run.token, Succeeded()))


async def test_what_was_skipped_in_a_wrong_future_is_gone_though_more_is_to_be_forgotten(setting: Setting) -> None:
    job = await setting.add_job(every=10)
    ahead = setting.now + 30 * SECOND
    missed = dropped_run(job, Dropped(ahead, ahead, 1, Disposition.MISSED, "catch_up: none"), setting.now)
    past = [setting.now - (n + 1) * SECOND for n in range(300)]
    others = [dropped_run(job, Dropped(at, at, 1, Disposition.MISSED, "catch_up: none"), at) for at in past]
    await setting.store.add_runs([*(replace(run, prune_at=0) for run in others), missed])
    planned = replace(job, planned_until=setting.now + WEEK, next_fire_at=setting.now + WEEK)
    assert await setting.store.commit_plans([Plan(planned)], setting.now) == [True]
    await ClockSteps(setting.store, setting.clock, 0).step(setting.now)
    assert await setting.store.get_runs([missed.id]) == [None]


async def test_a_new_row_is_not_taken_for_one_of_the_wrong_future_that_another_node_forgot(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = await setting.add_job(every=10)
    ahead, store = setting.now + 30 * SECOND, setting.store
    wrong, right = (
        dropped_run(job, Dropped(ahead, ahead, fires, Disposition.MISSED, "catch_up: none"), setting.now)
        for fires in (9, 1)
    )
    planned = replace(job, planned_until=setting.now + WEEK, next_fire_at=setting.now + WEEK)
    assert await store.commit_plans([Plan(planned, (wrong,))], setting.now) == [True]
    one, other, listed = ClockSteps(store, setting.clock, 0), ClockSteps(store, setting.clock, 0), store.list_runs

    async def overtaken(where: RunFilter, after: str | None, limit: int) -> Page[Run]:
        page = await listed(where, after, limit)
        if where.states == {State.SKIPPED}:
            monkeypatch.setattr(store, "list_runs", listed)
            await other.step(setting.now)
            assert await store.add_runs([right]) == [True]
        return page

    monkeypatch.setattr(store, "list_runs", overtaken)
    await one.step(setting.now)
    assert await store.get_runs([right.id]) == [right]
    assert await one.step(setting.now) is None, "the job is looked at once more, and is right"
    (brought_back,) = await store.get_jobs([job.name])
    assert brought_back is not None
    assert brought_back.planned_until == setting.now
    assert await store.get_runs([right.id]) == [right]


async def test_a_list_leaves_out_what_was_taken_back_with_a_wrong_future(setting: Setting) -> None:
    await setting.add_job(every=10)
    world = World(setting)
    await world.live(50)
    setting.clock.step(WRONG_SECONDS)
    ahead = range(setting.now, setting.now + 120 * SECOND, SECOND)
    for at in ahead:
        await setting.add_run(f"wrong-{at}", fire_at=at, due_at=at, created_at=at)
    setting.clock.step(-WRONG_SECONDS)
    await setting.add_run("tomorrow", fire_at=setting.now + DAY, due_at=setting.now + DAY)
    for at in ahead:
        await setting.operations.runs.cancel_run(f"wrong-{at}")
    listed = setting.operations.runs.list_runs
    first = await listed(RunFilter(), None, 3)
    assert [run.id for run in first.items][:1] == ["tomorrow"]
    assert [run.fire_at <= setting.now for run in first.items] == [False, True, True]
    assert (await listed(RunFilter(states=frozenset({State.CANCELLED})), None, 3)).items == ()
    for limit in (1, 2):
        assert len((await listed(RunFilter(), None, limit)).items) == limit


@pytest.mark.parametrize("overtaken_at", ["get_jobs_by_id", "get_runs"])
async def test_a_new_row_is_not_brought_back_for_one_that_another_node_forgot(
    setting: Setting, monkeypatch: pytest.MonkeyPatch, overtaken_at: str
) -> None:
    job = await setting.add_job(every=10)
    store, ahead = setting.store, setting.now + 30 * SECOND
    wrong, right = (
        replace(
            dropped_run(job, Dropped(ahead, ahead, 1, Disposition.MISSED, f"catch_up: {why}"), setting.now),
            finished_at=at,
        )
        for why, at in (("none", setting.now + WEEK), ("latest", setting.now))
    )
    assert await store.commit_plans([Plan(job, (wrong,))], setting.now) == [True]
    ends, read = EndsAhead(store, setting.clock), getattr(store, overtaken_at)

    async def overtaken(ids: Sequence[str]) -> Any:
        answer = await read(ids)
        monkeypatch.setattr(store, overtaken_at, read)
        (stored,) = await store.get_jobs([job.name])
        assert stored is not None
        gone = RunChange(replace(wrong, prune_at=0), wrong.token, wrong.state)
        assert await store.commit_plans([Plan(stored, changes=(gone,))], setting.now) == [True]
        await store.prune_runs(0, 10)
        (stored,) = await store.get_jobs([job.name])
        assert stored is not None
        assert await store.commit_plans([Plan(stored, (right,))], setting.now) == [True]
        return answer

    monkeypatch.setattr(store, overtaken_at, overtaken)
    ends.begin(setting.now)
    assert await ends.step() is (overtaken_at == "get_runs"), "what was refused is looked at once more"
    assert await store.get_runs([right.id]) == [right]
    assert not await ends.step()
    assert await store.get_runs([right.id]) == [right]


@pytest.mark.parametrize("stood_still_in", ["list_nodes", "jobs_ahead"])
async def test_a_node_that_stood_still_takes_no_plan_of_others_for_one_of_a_wrong_clock(
    setting: Setting, monkeypatch: pytest.MonkeyPatch, stood_still_in: str
) -> None:
    """Its clock, as its step began, is an hour behind the plans that others made until its question was answered."""
    job = await setting.add_job(every=10)
    store, read = setting.store, getattr(setting.store, stood_still_in)
    skipped = setting.now + 30 * SECOND
    row = dropped_run(job, Dropped(skipped, skipped, 1, Disposition.SKIPPED_OVERLAP, "overlap: skip"), skipped)
    steps = ClockSteps(store, setting.clock, 0)
    if stood_still_in == "list_nodes":
        await steps.step(setting.now)
        setting.clock.advance(60)

    async def slow(*given: Any) -> Any:
        monkeypatch.setattr(store, stood_still_in, read)
        setting.clock.advance(3_600)
        now = setting.now
        planned = replace(job, planned_until=now, next_fire_at=now + 10 * SECOND)
        assert await store.commit_plans([Plan(planned, (row,))], now) == [True]
        await store.beat_node(Node(name="other", roles=(), started_at=now, beat_at=now))
        return await read(*given)

    monkeypatch.setattr(store, stood_still_in, slow)
    began = setting.now
    await steps.step(began)
    await steps.step(began)
    (left,) = await store.get_jobs([job.name])
    assert left is not None
    assert left.planned_until == setting.now
    assert await store.get_runs([row.id]) == [row]
