"""Runs that wait for a person's decision: no worker claims them before, one decision counts, and silence has an end."""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager
from typing import Any

import pytest

from horarium.access.acting import acting
from horarium.access.audit import Origin
from horarium.access.roles import Role, principal
from horarium.clock import SECOND
from horarium.errors import AlreadyDecided, Forbidden, NotFound
from horarium.model import Disposition, EventKind, Failed, Follow, Job, Occasion, Run, RunChange, State
from horarium.model.holds import HoldScope
from horarium.model.records import RecordFilter
from horarium.operations.settling.settling import Settlement
from horarium.policies import Approval, CatchUp, CatchUpPolicy
from horarium.ports import RunFilter
from horarium.rules.approving import approved, rejected
from horarium.rules.asking import OPEN
from horarium.rules.following import is_behind, message_of
from horarium.services.alerts.unanswered import CLAIMED_WITHIN, Unanswered
from horarium.services.planning.planner import Planner
from horarium.wire.approvals import approval_view
from horarium.wire.holds import HoldDefinition
from tests.services.conftest import START, Setting

TEN_MINUTES = Approval(within_seconds=600)


def a_planner(setting: Setting) -> Planner:
    of = setting.operations
    return Planner(setting.store, setting.signal, of.reconciler, of.following, setting.telemetry)


def as_(name: str, role: Role = Role.OPERATOR) -> AbstractContextManager[None]:
    return acting(Origin(principal=principal(f"key:{name}", name, "key", [role]), request_id="r"))


async def asked_run(setting: Setting, **changes: Any) -> tuple[Job, Run]:
    """One run that waits, ten seconds after the start."""
    job = await setting.add_job(every=3_600, **{"approval": TEN_MINUTES, **changes})
    setting.clock.advance(3_600)
    await a_planner(setting).step(setting.now)
    return job, await the_run(setting)


async def the_run(setting: Setting, queue: str = "pull/q") -> Run:
    (run,) = (await setting.store.list_runs(RunFilter(queue=queue), None, 10)).items
    return run


async def claim(setting: Setting) -> list[Run]:
    claimed = await setting.operations.claiming.claim(["pull/q"], 10, "w", setting.now, setting.now)
    return list(claimed.runs)


async def test_no_worker_claims_a_run_before_it_is_approved(setting: Setting) -> None:
    _, run = await asked_run(setting)
    fire_at = START + 3_600 * SECOND
    assert (run.fire_at, run.due_at, run.state) == (fire_at, fire_at + 600 * SECOND, State.PENDING)
    setting.clock.advance(100)
    assert await claim(setting) == []
    (waiting,) = (await setting.operations.approving.page(None, None, 10)).items
    assert (waiting.run.id, waiting.why_not) == (run.id, None)
    with as_("ann"):
        begun = await setting.operations.approving.decide(run.id, "approve", "checked")
    said = f"version {waiting.version} approved by ann, because: checked"
    assert (begun.due_at, begun.history[-1].message) == (setting.now, said)
    assert (await setting.operations.approving.page(None, None, 10)).items == ()
    assert [each.id for each in await claim(setting)] == [run.id]


async def test_a_question_says_which_version_is_decided_about_and_whether_it_is_another_one(setting: Setting) -> None:
    await asked_run(setting)

    async def seen() -> tuple[int, bool]:
        (waiting,) = (await setting.operations.approving.page(None, None, 10)).items
        view = approval_view(waiting)
        return view.version, view.changed_at is not None

    before, was_changed = await seen()
    assert not was_changed
    setting.clock.advance(1)
    with as_("ann"):
        after = await setting.operations.jobs.patch_job("job", {"title": "Other"})
    assert await seen() == (after.version, True)
    assert after.version > before


async def test_a_rejected_run_is_skipped_and_says_by_whom(setting: Setting) -> None:
    job, run = await asked_run(setting)
    with as_("ann"):
        await setting.operations.approving.decide(run.id, "reject", "wrong month")
    after = await the_run(setting)
    assert (after.state, after.disposition) == (State.SKIPPED, Disposition.REJECTED)
    assert after.error == "rejected by ann, because: wrong month"
    told = await setting.operations.explaining.at(job.name, run.fire_at)
    assert (told.fires, told.disposition) == (False, Disposition.REJECTED)
    assert "wrong month" in told.reason


async def test_of_two_decisions_about_one_reading_one_is_written(setting: Setting) -> None:
    _, run = await asked_run(setting)
    job = (await setting.store.get_jobs(["job"]))[0]
    assert job is not None
    both = [
        RunChange(approved(run, job, 1, setting.now, "ann", None), run.token, run.state),
        RunChange(rejected(run, job, setting.now, "ben", None), run.token, run.state),
        RunChange(approved(run, job, 1, setting.now, "cleo", None), run.token, run.state),
    ]
    assert await setting.store.settle_runs(both, setting.steady) == [True, False, False]


async def test_the_second_decision_is_told_whose_the_first_was(setting: Setting) -> None:
    _, run = await asked_run(setting)

    async def decide(name: str, decision: Any) -> object:
        with as_(name):
            try:
                return await setting.operations.approving.decide(run.id, decision)
            except AlreadyDecided as error:
                return error.message

    answers = await asyncio.gather(decide("ann", "approve"), decide("ben", "reject"), decide("cleo", "reject"))
    won = [each for each in answers if isinstance(each, Run)]
    lost = [each for each in answers if isinstance(each, str)]
    assert (len(won), len(lost)) == (1, 2), answers
    assert all(won[0].history[-1].message in each for each in lost)
    with pytest.raises(NotFound):
        await setting.operations.approving.decide("01939a00-0000-7000-8000-000000000000", "approve")


@pytest.mark.parametrize("then", ["skip", "run"])
async def test_without_a_decision_it_is_as_the_job_says(setting: Setting, then: Any) -> None:
    follows = {Occasion.APPROVAL_WANTED: (Follow(trigger="a"),), Occasion.APPROVAL_EXPIRED: (Follow(trigger="b"),)}
    _, run = await asked_run(setting, approval=Approval(within_seconds=600, then=then), on=follows)
    assert (await the_run(setting, "follow")).payload == b'{"job":"a","depth":8}'
    setting.clock.advance(600)
    assert await claim(setting) == []
    after = await the_run(setting)
    if then == "skip":
        assert (after.state, after.disposition) == (State.SKIPPED, Disposition.APPROVAL_EXPIRED)
        assert "no decision until" in (after.error or "")
        assert await claim(setting) == []
    else:
        assert (after.state, after.attempt) == (State.PENDING, 0)
        (claimed,) = await claim(setting)
        assert (claimed.id, claimed.attempt) == (run.id, 1)
    followed = (await setting.store.list_runs(RunFilter(queue="follow"), None, 10)).items
    assert sorted(each.payload or b"" for each in followed) == [b'{"job":"a","depth":8}', b'{"job":"b","depth":8}']
    with pytest.raises(AlreadyDecided, match="no decision"):
        await setting.operations.approving.decide(run.id, "approve")


@pytest.mark.parametrize("then", ["skip", "run"])
async def test_where_no_worker_serves_the_queue_the_time_is_over_too(setting: Setting, then: Any) -> None:
    _, run = await asked_run(setting, approval=Approval(within_seconds=600, then=then))
    services = [Unanswered(setting.store, setting.clock, setting.operations.settling) for _ in range(2)]
    setting.clock.advance(600)
    await services[0].step(setting.now)
    assert (await the_run(setting)).history == run.history, "a worker would claim it now"
    assert await services[0].step(setting.now) == setting.now + CLAIMED_WITHIN
    setting.clock.advance(CLAIMED_WITHIN / SECOND)
    await asyncio.gather(*(service.step(setting.now) for service in services))
    after = await the_run(setting)
    assert (after.state, after.history[-1].kind) == (
        State.SKIPPED if then == "skip" else State.PENDING, EventKind.EXPIRED,
    )  # fmt: skip
    assert [run.id for run in await claim(setting)] == ([] if then == "skip" else [run.id])
    await services[0].step(setting.now)
    assert (await setting.store.list_records(RecordFilter(OPEN), None, 10)).items == ()


async def test_who_may_decide_is_judged_by_role_and_by_four_eyes(setting: Setting) -> None:
    await setting.add_job(every=3_600, approval=Approval(roles=("admin",), within_seconds=600, four_eyes=True))
    with as_("ann", Role.ADMIN):
        run = await setting.operations.jobs.trigger_job("job")
        with pytest.raises(Forbidden, match="four_eyes"):
            await setting.operations.approving.decide(run.id, "approve")
    with as_("ben"), pytest.raises(Forbidden, match="role admin"):
        await setting.operations.approving.decide(run.id, "approve")
    with as_("cleo", Role.ADMIN):
        await setting.operations.jobs.patch_job("job", {"priority": 3})
        with pytest.raises(Forbidden, match="defined this job"):
            await setting.operations.approving.decide(run.id, "approve")
    with as_("dora", Role.ADMIN):
        assert (await setting.operations.approving.decide(run.id, "approve")).due_at <= setting.now


async def test_who_gave_the_job_its_work_may_not_decide_after_changes_by_others_either(setting: Setting) -> None:
    jobs, decide = setting.operations.jobs, setting.operations.approving.decide
    await setting.add_job(every=3_600, approval=Approval(within_seconds=600, four_eyes=True))
    with as_("ann", Role.EDITOR):
        await jobs.patch_job("job", {"target": {"payload": "other work"}})
    with as_("ben"):
        await jobs.pause_job("job")
        await jobs.resume_job("job")
    run = await jobs.trigger_job("job")
    with as_("ann", Role.EDITOR), pytest.raises(Forbidden, match="ann defined this job"):
        await decide(run.id, "approve")
    with as_("cleo", Role.EDITOR):
        await jobs.patch_job("job", {"priority": 3})
        with pytest.raises(Forbidden, match="cleo defined this job"):
            await decide(run.id, "approve")
    with as_("ann", Role.EDITOR), pytest.raises(Forbidden, match="ann defined this job"):
        await decide(run.id, "approve")
    with as_("ben"):
        assert (await decide(run.id, "approve")).due_at <= setting.now


async def test_runs_by_hand_and_backfills_wait_too_and_missed_ones_keep_no_pace(setting: Setting) -> None:
    await setting.add_job(every=3_600, approval=TEN_MINUTES, catch_up=CatchUp(CatchUpPolicy.ALL))
    setting.clock.advance(3 * 3_600 + 60)
    await a_planner(setting).step(setting.now)
    await setting.operations.jobs.trigger_job("job")
    runs = (await setting.store.list_runs(RunFilter(), None, 10)).items
    assert len(runs) == 4
    assert all(run.due_at >= setting.now + 600 * SECOND for run in runs)
    assert await claim(setting) == []
    assert len((await setting.operations.approving.page(None, None, 10)).items) == 4


async def test_a_run_that_waits_for_a_decision_is_told_as_late_with_that_cause(setting: Setting) -> None:
    job, run = await asked_run(setting)
    setting.clock.advance(500)
    assert is_behind(job, run, Occasion.LATE, 60, setting.now)
    assert "it waits for a decision until" in message_of(job, run, Occasion.LATE, 1, 60)
    begun = await setting.operations.approving.decide(run.id, "approve")
    assert "it waits for a decision until" in message_of(job, begun, Occasion.LATE, 1, 60)


async def test_a_run_that_is_approved_before_its_time_counts_from_its_time(setting: Setting) -> None:
    job = await setting.add_job(every=600, approval=TEN_MINUTES)
    operations = setting.operations
    planner = Planner(
        setting.store, setting.signal, operations.reconciler, operations.following, setting.telemetry, ahead_seconds=900
    )
    await planner.step(setting.now)
    (waiting,) = (await operations.approving.page(None, None, 10)).items
    run = await operations.approving.decide(waiting.run.id, "approve")
    assert not is_behind(job, run, Occasion.LATE, 60, run.fire_at + 60 * SECOND)
    assert is_behind(job, run, Occasion.LATE, 60, run.fire_at + 61 * SECOND)


async def test_what_was_approved_is_what_runs(setting: Setting) -> None:
    follows = {Occasion.APPROVAL_WANTED: (Follow(trigger="a"),)}
    _, run = await asked_run(setting, approval=Approval(within_seconds=600, four_eyes=True), on=follows)
    with as_("ben"):
        await setting.operations.approving.decide(run.id, "approve")
    with as_("ann", Role.EDITOR):
        await setting.operations.jobs.patch_job("job", {"title": "same work"})
        assert (await the_run(setting)).due_at <= setting.now
        await setting.operations.jobs.patch_job("job", {"target": {"payload": {"other": "work"}}})
    after = await the_run(setting)
    assert (after.state, after.due_at) == (State.PENDING, setting.now + 600 * SECOND)
    assert "target was changed" in after.history[-2].message
    assert await claim(setting) == []
    assert len((await setting.store.list_runs(RunFilter(queue="follow"), None, 10)).items) == 2
    (waiting,) = (await setting.operations.approving.page(None, None, 10)).items
    assert waiting.run.id == run.id
    with as_("ann", Role.EDITOR), pytest.raises(Forbidden, match="defined this job"):
        await setting.operations.approving.decide(run.id, "approve")
    with as_("ben"):
        await setting.operations.approving.decide(run.id, "approve")
    assert [each.id for each in await claim(setting)] == [run.id]


async def test_who_asked_for_a_run_may_not_decide_about_it_after_a_change_either(setting: Setting) -> None:
    await setting.add_job(every=3_600, approval=Approval(within_seconds=600, four_eyes=True))
    with as_("cleo"):
        run = await setting.operations.jobs.trigger_job("job")
    with as_("ben"):
        await setting.operations.approving.decide(run.id, "approve")
    with as_("ann", Role.EDITOR):
        await setting.operations.jobs.patch_job("job", {"target": {"queue": "r", "payload": 1}})
    assert (await the_run(setting, "pull/r")).due_at == setting.now + 600 * SECOND
    with as_("cleo"), pytest.raises(Forbidden, match="asked for this run"):
        await setting.operations.approving.decide(run.id, "approve")


async def test_a_held_run_is_asked_about_again_at_once(setting: Setting) -> None:
    _, run = await asked_run(setting)
    hold = await setting.operations.holds.add(HoldDefinition(scope=HoldScope(job="job"), reason="new disks"))
    await setting.operations.approving.decide(run.id, "approve")
    assert await claim(setting) == []
    await setting.operations.jobs.patch_job("job", {"target": {"payload": "other work"}})
    assert (await the_run(setting)).due_at == setting.now + 600 * SECOND
    await setting.operations.approving.decide(run.id, "approve")
    await setting.operations.holds.lift(hold.id)
    setting.clock.advance(2)
    assert [each.id for each in await claim(setting)] == [run.id]


async def test_a_decision_about_a_run_that_was_cancelled_is_told_that(setting: Setting) -> None:
    _, run = await asked_run(setting)
    await setting.operations.runs.cancel_run(run.id, "no pay today")
    with pytest.raises(AlreadyDecided) as caught:
        await setting.operations.approving.decide(run.id, "approve")
    assert caught.value.message == f"run {run.id} waits no longer: it is cancelled (no pay today)"


async def test_the_next_attempt_of_what_was_approved_is_the_same_work(setting: Setting) -> None:
    _, run = await asked_run(setting)
    await setting.operations.approving.decide(run.id, "approve")
    (claimed,) = await claim(setting)
    await setting.operations.jobs.patch_job("job", {"target": {"payload": "other work"}})
    await setting.operations.settling.settle_one(
        Settlement(claimed.id, claimed.token, Failed("no luck", retry_after_seconds=0))
    )
    assert (await the_run(setting)).due_at == setting.now + 600 * SECOND
    assert await claim(setting) == []
    await setting.operations.approving.decide(run.id, "approve")
    (again,) = await claim(setting)
    assert (again.id, again.attempt) == (run.id, 2)
