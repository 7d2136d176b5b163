"""Fire times that were missed wait as one question for a person; each of them gets one row when it is over."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from horarium.access.roles import Role
from horarium.clock import SECOND, Instant, to_datetime, to_text
from horarium.errors import AlreadyDecided, Forbidden, InvalidRequest
from horarium.model import Cause, Disposition, Follow, Job, Occasion, Run, State, run_id
from horarium.model.holds import HoldScope
from horarium.policies import CatchUp, CatchUpPolicy, Overlap
from horarium.ports import RunFilter
from horarium.wire.holds import HoldDefinition
from tests.services.conftest import START, Setting
from tests.services.test_approvals import a_planner, as_

HOUR = 3_600
Rows = dict[int, tuple[str, str]]


def asking(then: Any = "latest", within: float = 600, **more: Any) -> CatchUp:
    return CatchUp(CatchUpPolicy.ASK, then=then, within_seconds=within, **more)


async def missing(setting: Setting, hours: float = 5.5, **changes: Any) -> Job:
    """A job of every hour, planned after so long an absence."""
    await setting.add_job(every=HOUR, **{"catch_up": asking(), **changes})
    setting.clock.advance(hours * HOUR)
    return await planned(setting)


async def planned(setting: Setting) -> Job:
    await a_planner(setting).step(setting.now)
    (job,) = await setting.store.get_jobs(["job"])
    assert job is not None
    return job


async def the_id(setting: Setting) -> str:
    (waiting,) = (await setting.operations.approving.page(None, None, 10)).items
    return waiting.run.id


async def rows(setting: Setting) -> Rows:
    """What has become of each fire time, by its hour; a row that covers several stands at each of them."""
    found: Rows = {}
    for run in (await setting.store.list_runs(RunFilter(job="job"), None, 100)).items:
        last = run.last_fire_at or run.fire_at
        for fire in range(run.fire_at, last + 1, HOUR * SECOND):
            assert hour(fire) not in found, f"two rows for {to_text(fire)}"
            found[hour(fire)] = (run.state.value, run.cause.value if run.disposition is None else run.disposition.value)
    return found


def hour(fire: Instant) -> int:
    return (fire - START) // (HOUR * SECOND)


RUNS, GONE = ("pending", "catch_up"), ("skipped", "missed")
AS_DECIDED: dict[Any, Rows] = {
    "none": dict.fromkeys(range(1, 6), GONE),
    "latest": {**dict.fromkeys(range(1, 5), GONE), 5: RUNS},
    "all": dict.fromkeys(range(1, 6), RUNS),
}


async def test_nothing_runs_before_the_decision_and_new_fire_times_go_on(setting: Setting) -> None:
    job = await missing(setting)
    assert await rows(setting) == {}
    (waiting,) = (await setting.operations.approving.page(None, None, 10)).items
    assert (waiting.missed, waiting.run.fires, waiting.run.fire_at) == (True, 5, START + HOUR * SECOND)
    assert job.missed is not None
    assert job.missed.expires_at == setting.now + 600 * SECOND
    told = await setting.operations.explaining.at("job", START + 2 * HOUR * SECOND)
    assert "5 missed; what becomes of them waits for a decision until" in told.reason
    await setting.operations.jobs.patch_job("job", {"catch_up": {"within_seconds": 9_999}})
    setting.clock.advance(0.5 * HOUR)
    await planned(setting)
    await planned(setting)
    assert (await rows(setting))[6] == ("pending", "schedule")


@pytest.mark.parametrize("decision", AS_DECIDED)
async def test_each_fire_time_gets_one_row_as_was_decided(setting: Setting, decision: Any) -> None:
    await missing(setting)
    id = await the_id(setting)
    with as_("ann"):
        first = await setting.operations.approving.decide(id, decision, "quiet day")
    assert await rows(setting) == AS_DECIDED[decision]
    assert first.history[0].message == f"{decision}, decided by ann, because: quiet day"
    told = await setting.operations.explaining.at("job", START + 2 * HOUR * SECOND)
    assert "decided by ann" in str(told.run and told.run.history)
    with as_("ben"), pytest.raises(AlreadyDecided, match=f"{decision}, decided by ann, because: quiet day"):
        await setting.operations.approving.decide(id, "all")
    assert (await setting.operations.approving.page(None, None, 10)).items == ()
    assert await rows(setting) == AS_DECIDED[decision]


@pytest.mark.parametrize("decision", AS_DECIDED)
async def test_without_a_decision_it_is_as_the_job_says(setting: Setting, decision: Any) -> None:
    follows = {Occasion.APPROVAL_WANTED: (Follow(trigger="a"),), Occasion.APPROVAL_EXPIRED: (Follow(trigger="b"),)}
    await missing(setting, catch_up=asking(decision), on=follows)
    await missing_more(setting, 599)
    assert await rows(setting) == {}
    await missing_more(setting, 1)
    assert await rows(setting) == AS_DECIDED[decision]
    followed = (await setting.store.list_runs(RunFilter(queue="follow"), None, 10)).items
    assert sorted(each.payload or b"" for each in followed) == [b'{"job":"a","depth":8}', b'{"job":"b","depth":8}']
    assert (await setting.operations.jobs.get_job("job")).missed is None


async def missing_more(setting: Setting, seconds: float) -> Job:
    setting.clock.advance(seconds)
    return await planned(setting)


async def test_a_second_absence_is_added_to_the_question_and_what_ran_between_stays(setting: Setting) -> None:
    await missing(setting, catch_up=asking(within=1e6))
    id = await the_id(setting)
    await missing_more(setting, 0.5 * HOUR)
    await planned(setting)
    await missing_more(setting, 3.5 * HOUR)
    assert await the_id(setting) == id
    (waiting,) = (await setting.operations.approving.page(None, None, 10)).items
    assert waiting.run.fires == 8
    await setting.operations.approving.decide(id, "all")
    assert await rows(setting) == {**dict.fromkeys(range(1, 10), RUNS), 6: ("pending", "schedule")}


async def test_a_rule_that_is_edited_keeps_what_the_old_one_owed(setting: Setting) -> None:
    await missing(setting)
    id = await the_id(setting)
    await setting.operations.jobs.patch_job("job", {"trigger": {"type": "cron", "expression": "17 0 1 1 *"}})
    await setting.operations.approving.decide(id, "latest")
    assert await rows(setting) == AS_DECIDED["latest"]


async def test_a_job_that_asks_no_more_follows_its_new_policy_at_once(setting: Setting) -> None:
    await missing(setting)
    job = await setting.operations.jobs.patch_job("job", {"catch_up": {"policy": "all"}})
    assert job.catch_up == CatchUp(CatchUpPolicy.ALL)
    assert (await setting.operations.approving.page(None, None, 10)).items == ()
    await planned(setting)
    assert await rows(setting) == AS_DECIDED["all"]


async def test_a_deleted_job_says_that_nothing_was_decided(setting: Setting) -> None:
    await missing(setting)
    await setting.operations.jobs.delete_job("job")
    assert await rows(setting) == AS_DECIDED["none"]


async def test_a_backfill_takes_its_fire_times_out_of_the_question(setting: Setting) -> None:
    job = await missing(setting)
    id = await the_id(setting)
    runs = [
        Run(
            id=run_id, queue=job.queue, job_id=job.id, job=job.name, fire_at=fire, due_at=fire, created_at=setting.now,
            cause=Cause.BACKFILL,
        )
        for fire, run_id in ((START + at * HOUR * SECOND, f"backfill-{at}") for at in (3,))
    ]  # fmt: skip
    await setting.store.add_runs(runs)
    await setting.operations.approving.decide(id, "none")
    assert await rows(setting) == {**AS_DECIDED["none"], 3: ("pending", "backfill")}


@pytest.mark.parametrize("overlap", [Overlap.ALLOW, Overlap.SKIP])
@pytest.mark.parametrize("asks", [True, False])
async def test_nobody_hears_that_a_backfilled_fire_time_was_missed(
    setting: Setting, overlap: Overlap, asks: bool
) -> None:
    """Also where a plan drops single fire times, and no range."""
    on = {Occasion.MISSED: (Follow(trigger="a"),)}
    catch_up = asking() if asks else CatchUp(CatchUpPolicy.LATEST)
    await setting.add_job(every=HOUR, catch_up=catch_up, on=on, overlap=overlap, labels={})
    setting.clock.advance(2.5 * HOUR)
    if asks:
        await planned(setting)
    first = START + HOUR * SECOND
    run = Run(
        id=run_id("job", first), queue="pull/q", job_id="job", job="job", fire_at=first, due_at=first,
        created_at=setting.now, cause=Cause.BACKFILL, state=State.COMPLETED,
    )  # fmt: skip
    await setting.store.add_runs([run])
    setting.clock.advance(600 if asks else 0)
    await planned(setting)
    assert await rows(setting) == {1: ("completed", "backfill"), 2: RUNS}
    assert (await setting.store.list_runs(RunFilter(queue="follow"), None, 10)).items == ()


async def test_a_deleted_job_does_not_call_missed_what_a_backfill_ran(setting: Setting) -> None:
    await missing(setting, on={Occasion.MISSED: (Follow(trigger="a"),)})
    first = to_datetime(START + HOUR * SECOND)
    await setting.operations.jobs.backfill_job("job", first, first + timedelta(hours=1))
    await setting.operations.jobs.delete_job("job")
    assert await rows(setting) == {**AS_DECIDED["none"], 1: ("cancelled", "cancelled")}
    followed = (await setting.store.list_runs(RunFilter(queue="follow"), None, 10)).items
    assert len(followed) == 1


async def test_a_rule_that_takes_too_long_keeps_no_job_from_its_end(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a backfill ran in the middle of a question is found by the rule, within a bound of steps."""
    monkeypatch.setattr("horarium.operations.jobs.jobs.PLAN_STEPS_MAX", 2)
    hourly = [{"type": "interval", "every_seconds": HOUR * each, "anchor": to_text(START)} for each in (1, 2)]
    await missing(setting, trigger={"type": "any_of", "triggers": hourly})
    third = to_datetime(START + 3 * HOUR * SECOND)
    await setting.operations.jobs.backfill_job("job", third, third + timedelta(hours=1))
    await setting.operations.jobs.delete_job("job")
    assert await setting.store.get_jobs(["job"]) == [None]
    found = (await setting.store.list_runs(RunFilter(job="job"), None, 100)).items
    assert [(hour(run.fire_at), run.fires) for run in found] == [(3, 1), (1, 5)]


@pytest.mark.parametrize(("overlap", "state"), [(Overlap.SKIP, 1), (Overlap.BUFFER_ALL, 5), (Overlap.CANCEL_OTHER, 5)])
async def test_the_overlap_policy_is_obeyed(setting: Setting, overlap: Overlap, state: int) -> None:
    await missing(setting, overlap=overlap)
    await setting.operations.approving.decide(await the_id(setting), "all")
    found = await rows(setting)
    assert sorted(found) == [1, 2, 3, 4, 5]
    assert found[state] == RUNS
    assert sum(each == RUNS for each in found.values()) == (5 if overlap is Overlap.BUFFER_ALL else 1)


async def test_what_was_decided_while_paused_or_held_is_done_afterwards(setting: Setting) -> None:
    await missing(setting)
    id = await the_id(setting)
    hold = await setting.operations.holds.add(HoldDefinition(scope=HoldScope(job="job"), reason="release"))
    with as_("ann"):
        waiting = await setting.operations.approving.decide(id, "all")
    assert (waiting.state, waiting.history[-1].message) == (State.PENDING, "all, decided by ann")
    assert await rows(setting) == {}
    with pytest.raises(AlreadyDecided, match="all, decided by ann"):
        await setting.operations.approving.decide(id, "none")
    await setting.operations.holds.lift(hold.id)
    job = await setting.operations.jobs.get_job("job")
    setting.clock.advance(3)
    await setting.operations.jobs.pause_job("job")
    await setting.operations.jobs.resume_job("job")
    assert job.missed is not None
    await planned(setting)
    assert await rows(setting) == AS_DECIDED["all"]


@pytest.mark.parametrize("over", ["decided", "backfilled", "not asked", "deleted"])
async def test_a_decision_that_comes_too_late_is_told_so(setting: Setting, over: str) -> None:
    await missing(setting)
    id, operations = await the_id(setting), setting.operations
    if over == "backfilled":
        await operations.jobs.backfill_job("job", to_datetime(START), to_datetime(START + 3 * HOUR * SECOND))
    if over == "decided":
        await operations.jobs.pause_job("job")
    if over in ("decided", "backfilled"):
        with as_("ann"):
            await operations.approving.decide(id, "latest")
        await operations.jobs.resume_job("job")
        told = "latest, decided by ann" if over == "decided" else "it is over"
    elif over == "not asked":
        await operations.jobs.patch_job("job", {"catch_up": {"policy": "latest"}})
        told = "latest"
    else:
        await operations.jobs.delete_job("job")
        told = "it is over"
    await a_planner(setting).step(setting.now)
    with pytest.raises(AlreadyDecided, match=told):
        await operations.approving.decide(id, "all")


async def test_of_many_decisions_at_once_one_counts(setting: Setting) -> None:
    await missing(setting)
    id = await the_id(setting)

    async def decide(name: str, decision: Any) -> bool:
        with as_(name):
            try:
                await setting.operations.approving.decide(id, decision)
            except AlreadyDecided:
                return False
        return True

    assert sum(await asyncio.gather(decide("ann", "all"), decide("ben", "none"), decide("cleo", "latest"))) == 1


async def test_another_kind_of_decision_and_another_person_are_refused(setting: Setting) -> None:
    await missing(setting)
    id = await the_id(setting)
    with pytest.raises(InvalidRequest, match="none, latest or all"):
        await setting.operations.approving.decide(id, "approve")
    with as_("vera", Role.VIEWER), pytest.raises(Forbidden, match="role operator"):
        await setting.operations.approving.decide(id, "all")
    assert (await setting.operations.approving.decide(id, "reject")).disposition is Disposition.MISSED
    assert await rows(setting) == AS_DECIDED["none"]


async def test_what_is_too_old_is_not_asked_about(setting: Setting) -> None:
    await missing(setting, catch_up=asking(window_seconds=2 * HOUR))
    assert await rows(setting) == dict.fromkeys(range(1, 4), GONE)
    await setting.operations.approving.decide(await the_id(setting), "all")
    assert await rows(setting) == {**dict.fromkeys(range(1, 4), GONE), 4: RUNS, 5: RUNS}


async def test_fires_max_is_no_more_for_being_asked(setting: Setting) -> None:
    await missing(setting, fires_max=2)
    job = await setting.operations.jobs.get_job("job")
    await setting.operations.approving.decide(await the_id(setting), "all")
    assert await rows(setting) == {**dict.fromkeys(range(1, 4), GONE), 4: RUNS, 5: RUNS}
    assert replace(job, fires_count=2).fires_max == (await setting.operations.jobs.get_job("job")).fires_count


async def test_millions_that_were_missed_are_one_question(setting: Setting) -> None:
    await setting.add_job(every=1, catch_up=asking())
    setting.clock.advance(60 * 24 * HOUR)
    job = await planned(setting)
    assert job.missed is not None
    assert len(job.missed.stretches) == 1
    await setting.operations.approving.decide(job.missed.id, "all")
    runs = (await setting.store.list_runs(RunFilter(job="job"), None, 2_000)).items
    assert sum(run.cause is Cause.CATCH_UP for run in runs) >= 200


async def test_a_moved_fire_time_that_came_too_late_is_asked_about_too(setting: Setting) -> None:
    job = await setting.add_job(every=HOUR, catch_up=asking())
    first, hour_two = (to_datetime(START + at * HOUR * SECOND) for at in (1, 2))
    await setting.operations.overriding.move(job.name, first, hour_two + timedelta(minutes=5))
    setting.clock.advance(5.5 * HOUR)
    await planned(setting)
    (waiting,) = (await setting.operations.approving.page(None, None, 10)).items
    assert waiting.run.fires == 5
    await setting.operations.jobs.patch_job("job", {"trigger": {"type": "cron", "expression": "17 0 1 1 *"}})
    await setting.operations.approving.decide(waiting.run.id, "all")
    assert await rows(setting) == AS_DECIDED["all"]


@pytest.mark.parametrize("asked_before", [False, True])
async def test_what_a_clock_that_was_ahead_asked_about_is_not_asked(setting: Setting, asked_before: bool) -> None:
    """Its fire times have yet to come, and run then. What had been missed before that is still asked about."""
    await missing(setting, hours=2.5 if asked_before else 0.5, catch_up=asking(within=1_000 * HOUR))
    planner = a_planner(setting)
    setting.clock.step(100 * HOUR)
    await planner.step(setting.now)
    setting.clock.step(-100 * HOUR)
    for _ in range(10):
        await planner.step(setting.now)
    assert await rows(setting) == {}
    waiting = (await setting.operations.approving.page(None, None, 10)).items
    assert [each.run.fires for each in waiting] == ([2] if asked_before else [])
    first = 3 if asked_before else 1
    for _ in range(2):
        setting.clock.advance(0.5 * HOUR)
        await planner.step(setting.now)
        setting.clock.advance(0.5 * HOUR)
    found = await rows(setting)
    assert [found.get(each) for each in (first, first + 1)] == [("pending", "schedule")] * 2
