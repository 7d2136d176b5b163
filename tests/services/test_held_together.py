"""Holds beside the other rules that move a run in time: limits for its start, fire times that were moved, joins."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from horarium.clock import DAY, HOUR, MINUTE, SECOND, to_datetime
from horarium.errors import CalendarInUse
from horarium.model import Disposition, Job, QueueTarget, Run, State
from horarium.model.calendars import Calendar
from horarium.model.holds import HeldMissed, Hold, HoldRepeat, HoldScope
from horarium.model.records import RecordFilter
from horarium.operations.holds import CHANGED
from horarium.policies import Timeouts
from horarium.rules.holds import stretch_at
from horarium.services.upkeep.calendars import CalendarApplier
from horarium.triggers import business_day, cron
from horarium.wire.definitions import read_definition
from horarium.wire.holds import HoldDefinition, hold_view
from horarium.wire.one_offs import RunDefinition
from tests.services.conftest import START, Setting, a_rescuer
from tests.services.test_holds import a_planner, carried, claim, hold, of_cancels, rows
from tests.services.test_joins import START as MONDAY
from tests.services.test_joins import World, a_world

QUEUE = HoldScope(queue="q")
NIGHTLY = {"type": "cron", "expression": "0 0 * * *"}


async def one_off(setting: Setting, **limits: Any) -> Run:
    definition = RunDefinition(target=QueueTarget(queue="q"), timeouts=Timeouts(**limits))
    return (await setting.operations.one_offs.add_run(definition)).run


# ---- a limit for the start


@pytest.mark.parametrize("scope", [QUEUE, HoldScope(all=True)])
async def test_the_limit_for_starting_counts_from_the_instant_at_which_a_hold_is_lifted(
    setting: Setting, scope: HoldScope
) -> None:
    made = await hold(setting, scope)
    run = await one_off(setting, start_seconds=30)
    setting.clock.advance(3_600)
    await setting.operations.holds.lift(made.id)
    await carried(setting)
    await a_rescuer(setting).step(setting.now)
    waiting = await setting.run(run.id)
    assert (waiting.state, waiting.due_at) == (State.PENDING, START), "at its place in line"
    assert waiting.start_by == setting.now + 30 * SECOND
    setting.clock.advance(29)
    assert [each.id for each in (await claim(setting)).runs] == [run.id]


async def test_it_is_given_up_where_nobody_takes_it_after_that_either(setting: Setting) -> None:
    made = await hold(setting, QUEUE)
    run = await one_off(setting, start_seconds=30)
    setting.clock.advance(3_600)
    await setting.operations.holds.lift(made.id)
    await carried(setting)
    for _ in range(3):
        setting.clock.advance(31)
        await a_rescuer(setting).step(setting.now)
    assert (await setting.run(run.id)).disposition is Disposition.NOT_STARTED


@pytest.mark.parametrize("lifted_after", [20, 29, 45])
async def test_a_run_that_was_due_before_a_hold_has_its_whole_limit_after_it(
    setting: Setting, lifted_after: float
) -> None:
    """Nothing looked at it meanwhile: a claim does not ask for a queue that is held."""
    run = await one_off(setting, start_seconds=30)
    setting.clock.advance(10)
    made = await hold(setting, QUEUE)
    setting.clock.advance(lifted_after - 10)
    await setting.operations.holds.lift(made.id)
    ended = setting.now
    setting.clock.advance(max(0, 31 - lifted_after))
    rescuer = a_rescuer(setting)
    await rescuer.step(setting.now)
    assert (await setting.run(run.id)).start_by == ended + 30 * SECOND
    setting.clock.advance((ended + 30 * SECOND - setting.now) / SECOND)
    await rescuer.step(setting.now)
    assert (await setting.run(run.id)).disposition is Disposition.NOT_STARTED, "no more than that"


# ---- fire times that were moved


async def move(setting: Setting, job: Job, fire: int, to: int) -> None:
    at, later = (to_datetime(START + seconds * SECOND) for seconds in (fire, to))
    await setting.operations.overriding.move(job.name, at, later)


async def test_a_fire_time_that_is_moved_out_of_a_hold_that_skips_runs(setting: Setting) -> None:
    job = await setting.add_job()
    await hold(setting, HoldScope(job="job"), 15, missed=HeldMissed.SKIP)
    await setting.operations.overriding.move(
        job.name, to_datetime(START + 10 * SECOND), to_datetime(START + 17 * SECOND)
    )
    planner = a_planner(setting)
    for _ in range(18):
        await planner.step(setting.now)
        setting.clock.advance(1)
    (run,) = [each for each in await rows(setting) if each.fire_at == START + 10 * SECOND]
    assert (run.state, run.due_at) == (State.PENDING, START + 17 * SECOND)
    assert [each.id for each in (await claim(setting)).runs] == [run.id]


async def test_a_fire_time_that_is_moved_into_a_hold_that_skips_is_held(setting: Setting) -> None:
    job = await setting.add_job()
    made = await hold(
        setting, HoldScope(job="job"), 18, begins_at=to_datetime(START + 12 * SECOND), missed=HeldMissed.SKIP
    )
    await setting.operations.overriding.move(
        job.name, to_datetime(START + 10 * SECOND), to_datetime(START + 14 * SECOND)
    )
    told = await setting.operations.explaining.at("job", START + 10 * SECOND)
    assert (told.fires, told.disposition) == (False, Disposition.HELD)
    planner = a_planner(setting)
    for _ in range(20):
        await planner.step(setting.now)
        setting.clock.advance(1)
    (run,) = [each for each in await rows(setting) if each.fire_at == START + 10 * SECOND]
    assert (run.state, run.disposition) == (State.SKIPPED, Disposition.HELD)
    assert f"held by {made.id}: moving" in (run.error or "")
    assert (await claim(setting)).runs[0].fire_at == START + 20 * SECOND


async def test_a_moved_fire_time_that_was_due_under_a_hold_is_held_where_its_job_is_paused(
    setting: Setting,
) -> None:
    job = await setting.add_job(every=20)
    await move(setting, job, 20, 10)
    await hold(setting, HoldScope(job="job"))
    planner = a_planner(setting)
    for _ in range(12):
        await planner.step(setting.now)
        setting.clock.advance(1)
    await setting.operations.jobs.pause_job("job")
    (row,) = await rows(setting)
    assert (row.fire_at, row.disposition) == (START + 20 * SECOND, Disposition.HELD)
    setting.clock.advance(20)
    await setting.operations.jobs.resume_job("job")
    assert [each.disposition for each in await rows(setting)] == [Disposition.HELD], "and once"


# ---- joins


async def held_world() -> World:
    world = await a_world()
    nightly = {"repeat": {"trigger": NIGHTLY, "seconds": 7200}, "missed": "skip"}
    await hold_load(world, **nightly)
    return world


async def hold_load(world: World, **how: Any) -> None:
    definition = {"scope": {"job": "load"}, "reason": "dumps", **how}
    await world.operations.holds.add(msgspec.convert(definition, HoldDefinition))


async def test_a_hold_at_the_begin_of_its_window_does_not_skip_a_join() -> None:
    """The window of a day begins at midnight, in the hold; it is whole at ten."""
    world = await held_world()
    world.clock.advance(DAY / SECOND)
    for name in ("a", "b"):
        await world.run(name)
    await world.join()
    (run,) = await world.rows()
    now = world.clock.now()
    claimed = await world.operations.claiming.claim([run.queue], 9, "w", now, now)
    assert [(each.fire_at - MONDAY, each.state) for each in claimed.runs] == [(DAY, State.RUNNING)]


async def test_a_join_whose_window_is_whole_in_a_hold_that_skips_is_held() -> None:
    world = await held_world()
    world.clock.advance((15 * HOUR) / SECOND)
    for name in ("a", "b"):
        await world.run(name)
    await world.join()
    told = await world.operations.explaining.at("load", None)
    assert "dumps" in told.reason
    world.clock.advance((2 * HOUR + MINUTE) / SECOND)
    await world.join()
    (run,) = await world.rows()
    assert (run.state, run.disposition) == (State.SKIPPED, Disposition.HELD)


async def test_explain_says_that_a_join_waits_for_the_end_of_a_hold() -> None:
    world = await a_world()
    await hold_load(world)
    for name in ("a", "b"):
        await world.run(name)
    await world.join()
    assert await world.rows() == []
    told = await world.operations.explaining.at("load", None)
    assert told.fires
    assert "a completed" in told.reason
    assert "dumps; then it is caught up" in told.reason


# ---- calendars


async def a_hold_by_calendar(setting: Setting) -> Hold:
    """Each business day from eight to ten; the sixth is one."""
    await setting.operations.calendars.put("ours", Calendar())
    rule = business_day(cron("0 8 * * *"), "ours").spec()
    return await hold(setting, QUEUE, repeat=HoldRepeat(rule, 7200))


async def test_a_hold_that_repeats_by_a_calendar_follows_its_changes(setting: Setting) -> None:
    made = await a_hold_by_calendar(setting)
    tuesday_at_nine = START + DAY + 9 * HOUR
    assert stretch_at(made, tuesday_at_nine) is not None
    await setting.operations.calendars.put("ours", Calendar(holidays=("2026-01-06",)))
    of = setting.operations
    applier = CalendarApplier(setting.store, setting.clock, of.reconciler, "n", of.importing, of.holds)
    for _ in range(5):
        await applier.step(setting.now)
    changed = await of.holds.get(made.id)
    assert stretch_at(changed, tuesday_at_nine) is None
    assert stretch_at(changed, tuesday_at_nine + DAY) is not None
    assert (await setting.store.list_records(RecordFilter(CHANGED), None, 10)).items, "carried to what waits"


async def test_a_calendar_that_a_hold_uses_stays(setting: Setting) -> None:
    made = await a_hold_by_calendar(setting)
    with pytest.raises(CalendarInUse, match=f"is used by hold {made.id}"):
        await setting.operations.calendars.delete("ours")
    await setting.operations.holds.lift(made.id)
    await setting.operations.calendars.delete("ours")


async def test_a_hold_shows_its_trigger_as_it_was_given(setting: Setting) -> None:
    shown = hold_view(await a_hold_by_calendar(setting), setting.now)
    assert shown.repeat == HoldRepeat(business_day(cron("0 8 * * *"), "ours").spec(), 7200)


# ---- runs that wait


async def test_explain_names_the_hold_for_which_a_run_waits(setting: Setting) -> None:
    await setting.add_job()
    made = await hold(setting, HoldScope(job="job"))
    run = await setting.operations.jobs.trigger_job("job")
    told = await setting.operations.explaining.at("job", run.fire_at)
    assert told.reason == f"it was asked for by hand; it waits until it is lifted: held by {made.id}: moving"


async def test_explain_names_the_hold_for_which_a_run_waits_that_no_claim_has_met(setting: Setting) -> None:
    await setting.add_job()
    run = await setting.operations.jobs.trigger_job("job")
    made = await hold(setting, QUEUE, 60)
    told = await setting.operations.explaining.at("job", run.fire_at)
    assert told.reason.endswith(f"; it waits until 2026-01-05T00:01:00Z: held by {made.id}: moving")


async def test_a_one_off_run_that_is_done_again_under_a_hold_says_that_it_waits(setting: Setting) -> None:
    run = await one_off(setting)
    await setting.operations.runs.cancel_run(run.id)
    made = await hold(setting, QUEUE, 60)
    again = await setting.operations.runs.retry_run(run.id)
    assert again.history[-1].message == f"waits until 2026-01-05T00:01:00Z: held by {made.id}: moving"
    assert (await setting.run(again.id)).due_at == made.ends_at


async def test_explain_says_of_a_job_that_counts_from_ends_that_it_is_held(setting: Setting) -> None:
    trigger = {"type": "interval", "every_seconds": 10, "from": "end"}
    definition = {"name": "job", "trigger": trigger, "target": {"type": "queue", "queue": "q"}}
    await setting.operations.jobs.put_job(read_definition(definition))
    made = await hold(setting, QUEUE, 60)
    told = await setting.operations.explaining.at("job", START + 10 * SECOND)
    assert told.fires
    assert f"held by {made.id}: moving; then it is caught up" in told.reason


async def test_a_run_that_two_holds_keep_waits_for_the_other_once_one_is_lifted(setting: Setting) -> None:
    await setting.add_job()
    await hold(setting, HoldScope(job="job"), seconds=60)
    longer = await hold(setting, HoldScope(job="job"))
    made = await setting.operations.jobs.trigger_job("job")
    setting.clock.advance(25)
    assert (await claim(setting)).runs == ()
    assert (await setting.run(made.id)).due_at >= START + DAY
    await setting.operations.holds.lift(longer.id)
    await carried(setting)
    assert (await setting.run(made.id)).due_at == START + 60 * SECOND


async def test_a_hold_over_a_job_ends_with_it(setting: Setting) -> None:
    holds, jobs, cancels = setting.operations.holds, setting.operations.jobs, of_cancels(setting)
    await setting.add_job("kept")
    await setting.add_job("gone")
    kept, gone = [await hold(setting, HoldScope(job=name)) for name in ("kept", "gone")]

    async def listed() -> set[str]:
        setting.clock.advance(60)
        await cancels.step(setting.now)
        return {each.id for each in (await holds.page(None, None, 10)).items}

    assert await listed() == {kept.id, gone.id}
    await jobs.delete_job("gone")
    assert await listed() == {kept.id, gone.id}, "it may be made again at once"
    await setting.add_job("gone", id="again")
    assert await listed() == {kept.id, gone.id}
    await jobs.delete_job("gone")
    await listed()
    assert await listed() == {kept.id}
    assert (await holds.get(gone.id)).lifted_at == setting.now
    assert await listed() == {kept.id}
