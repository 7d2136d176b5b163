"""What people ask for, on a manual clock and the memory store: races, repeats and edges."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from horarium.clock import SECOND, Instant, to_datetime, to_text
from horarium.errors import (
    AlreadyExists,
    InvalidJob,
    InvalidRequest,
    LeaseLost,
    NotFound,
    StateConflict,
    StoreUnavailable,
)
from horarium.model import (
    Cause,
    Disposition,
    Failed,
    HttpTarget,
    Plan,
    QueueTarget,
    Run,
    RunPolicy,
    State,
    Succeeded,
)
from horarium.operations.facade import Operations
from horarium.operations.settling.settling import Settlement
from horarium.policies import Overlap, Timeouts
from horarium.ports import Claimed, RunFilter, queue_topic
from horarium.rules.planning import plan
from horarium.stores.memory import MemoryStore
from horarium.stores.wakeups import LocalSignal
from horarium.testing import Fault, FaultyStore, ManualClock, by_script
from horarium.wire.definitions import JobDefinition, definition_of, read_definition

START = 1_767_571_200 * SECOND
EACH = 10 * SECOND


class World:
    """Operations over a store, and whatever else may write to it."""

    def __init__(self, store: Any = None) -> None:
        self.clock = ManualClock(START)
        self.store = store or MemoryStore()
        self.count = 0
        self.operations = Operations(self.store, self.clock, LocalSignal(), self._entropy, lambda target: None)

    def _entropy(self, size: int) -> bytes:
        self.count += 1
        return self.count.to_bytes(size, "big")

    async def put(self, **changes: Any) -> Any:
        return (await self.operations.jobs.put_job(a_definition(**changes)))[0]

    async def claim(self) -> Claimed:
        now = self.clock.now()
        return await self.store.claim_runs(["pull/q", "pull/other"], 100, "w", now, now, now)

    async def plan(self, ahead: int = 0) -> None:
        (job,) = await self.store.get_jobs(["job"])
        assert job is not None
        unfinished = (await self.store.unfinished_runs([job.id]))[job.id]
        await self.store.commit_plans([plan(job, unfinished, self.clock.now(), ahead)], self.clock.now())

    async def fires(self) -> list[Instant]:
        job = await self.operations.jobs.get_job("job")
        runs = (await self.store.unfinished_runs([job.id]))[job.id]
        return [run.fire_at - START for run in runs]


def a_definition(**changes: Any) -> JobDefinition:
    fields = {
        "name": "job",
        "trigger": {"type": "interval", "every_seconds": 10, "anchor": to_text(START)},
        "target": {"type": "queue", "queue": "q"},
        **changes,
    }
    return read_definition(fields)


@pytest.fixture
def world() -> World:
    return World()


# ---- defining ---------------------------------------------------------------------------------------------------


async def test_a_name_is_taken_once(world: World) -> None:
    await world.operations.jobs.create_job(a_definition())
    with pytest.raises(AlreadyExists):
        await world.operations.jobs.create_job(a_definition())


async def test_putting_the_same_content_changes_nothing_at_any_hour(world: World) -> None:
    first = await world.put()
    world.clock.advance(5)
    assert await world.put() == first


async def test_an_interval_without_an_anchor_keeps_the_one_it_got_first(world: World) -> None:
    trigger = {"type": "interval", "every_seconds": 60}
    first = await world.put(trigger=trigger)
    world.clock.advance(7)
    assert await world.put(trigger=trigger, labels={"a": "b"}) == replace(
        first, labels={"a": "b"}, updated_at=world.clock.now(), version=2, planned_until=world.clock.now()
    )


async def test_a_put_that_meets_a_deletion_makes_the_job_anew(world: World) -> None:
    first = await world.put()
    await world.operations.jobs.delete_job("job")
    second, created = await world.operations.jobs.put_job(a_definition())
    assert created
    assert second.id != first.id


@pytest.mark.parametrize("change", [{"labels": {"a": "b"}}, {"target": {"type": "queue", "queue": "other"}}])
async def test_a_change_that_is_not_about_time_moves_no_fire_time(world: World, change: dict[str, Any]) -> None:
    await world.put()
    await world.plan(ahead=EACH)
    world.clock.advance(4)
    await world.operations.jobs.patch_job("job", change)
    await world.plan(ahead=EACH)
    world.clock.advance(10)
    await world.plan(ahead=EACH)
    assert await world.fires() == [EACH, 2 * EACH]


async def test_a_patch_may_change_the_type_of_target_and_trigger(world: World) -> None:
    await world.put(target={"type": "http", "url": "http://example.org", "body": 1})
    trigger = {"type": "cron", "expression": "0 3 * * *"}
    job = await world.operations.jobs.patch_job("job", {"target": {"type": "queue", "queue": "q"}, "trigger": trigger})
    assert job.target == QueueTarget(queue="q")
    assert job.trigger["expression"] == "0 3 * * *"


async def test_a_patch_of_one_field_keeps_the_secret(world: World) -> None:
    secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    await world.put(target={"type": "http", "url": "http://example.org", "signing_secret": secret})
    job = await world.operations.jobs.patch_job("job", {"target": {"method": "PUT"}})
    assert job.target == HttpTarget(url="http://example.org", method="PUT", signing_secret=secret)


async def test_what_is_shown_can_be_put_back(world: World) -> None:
    job = await world.put(target={"type": "http", "url": "http://example.org", "signing_secret": "whsec_c2VjcmV0"})
    shown = read_definition(msgspec.to_builtins(definition_of(job)))
    assert (await world.operations.jobs.put_job(shown))[0] == job


@pytest.mark.parametrize("changes", [{"name": "other"}, {"trigger": None}, {"priority": "high"}, {"nonsense": 1}])
async def test_a_wrong_patch_is_refused_and_changes_nothing(world: World, changes: dict[str, Any]) -> None:
    job = await world.put()
    with pytest.raises(InvalidJob):
        await world.operations.jobs.patch_job("job", changes)
    assert await world.operations.jobs.get_job("job") == job


# ---- pause, resume, delete --------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", [9, 10, 11])
@pytest.mark.parametrize("ahead", [0, 5])
async def test_pause_and_resume_around_a_slot_keep_each_fire_time_once(world: World, at: int, ahead: int) -> None:
    await world.put()
    world.clock.advance(at)
    await world.plan(ahead * SECOND)
    await world.operations.jobs.pause_job("job")
    await world.operations.jobs.resume_job("job")
    job = await world.operations.jobs.get_job("job")
    assert job.next_fire_at == START + (EACH if at < 10 else 2 * EACH)
    world.clock.advance(10)
    await world.plan()
    assert await world.fires() == [EACH, 2 * EACH] if at >= 10 else [EACH]


async def test_a_pause_by_patch_and_a_new_rule_record_what_passed(world: World) -> None:
    await world.put()
    await world.operations.jobs.patch_job("job", {"enabled": False})
    world.clock.advance(25)
    trigger = {"type": "interval", "every_seconds": 60}
    job = await world.operations.jobs.patch_job("job", {"enabled": True, "trigger": trigger})
    (row,) = (await world.store.list_runs(RunFilter(job="job"), None, 10)).items
    assert (row.disposition, row.fires) == (Disposition.SKIPPED_PAUSED, 2)
    assert job.next_fire_at == START + 60 * SECOND


class Snatcher(MemoryStore):
    """Everything that is pending is claimed ahead of its time in the moment in which a pause is written."""

    async def commit_plans(self, plans: Sequence[Plan], now: Instant) -> list[bool]:
        if any(each.withdrawals for each in plans):
            await self.claim_runs(["pull/q"], 100, "w", now, now + 60 * SECOND, now)
        return await super().commit_plans(plans, now)


@pytest.mark.parametrize("how", ["pause", "patch"])
async def test_a_claim_ahead_of_its_time_does_not_slip_through_a_pause(how: str) -> None:
    world = World(Snatcher())
    await world.put()
    await world.plan(2 * EACH)
    assert await world.fires() == [EACH, 2 * EACH]
    if how == "pause":
        await world.operations.jobs.pause_job("job")
    else:
        await world.operations.jobs.patch_job("job", {"enabled": False})
    assert await world.fires() == []
    world.clock.advance(40)
    await world.operations.jobs.resume_job("job")
    rows = (await world.store.list_runs(RunFilter(job="job"), None, 10)).items
    found = sorted((row.fire_at - START, row.disposition, row.fires) for row in rows)
    withdrawn = [(EACH, Disposition.WITHDRAWN, 1), (2 * EACH, Disposition.WITHDRAWN, 1)]
    assert found == [*withdrawn, (3 * EACH, Disposition.SKIPPED_PAUSED, 2)]


async def test_pausing_twice_keeps_the_first_reason(world: World) -> None:
    await world.put()
    await world.operations.jobs.pause_job("job", "one")
    assert (await world.operations.jobs.pause_job("job", "two")).pause_reason == "one"


class ClaimsInBetween(MemoryStore):
    """Somebody claims every pending run just before a plan is written."""

    async def commit_plans(self, plans: Sequence[Plan], now: Instant) -> list[bool]:
        await self.claim_runs(["pull/q"], 100, "w", now, now, now)
        return await super().commit_plans(plans, now)


async def test_a_run_claimed_while_its_job_is_deleted_is_asked_to_stop() -> None:
    world = World(ClaimsInBetween())
    await world.put()
    run = await world.operations.jobs.trigger_job("job")
    assert run.state is State.PENDING
    await world.operations.jobs.delete_job("job")
    assert (await world.operations.runs.get_run(run.id)).state is State.CANCELLING


# ---- runs by hand -----------------------------------------------------------------------------------------------


async def test_two_triggers_in_one_instant_are_two_runs_even_if_the_first_is_over(world: World) -> None:
    await world.put()
    first = await world.operations.jobs.trigger_job("job")
    (claimed,) = (await world.claim()).runs
    await world.operations.settling.settle_one(Settlement(claimed.id, claimed.token, Succeeded()))
    second = await world.operations.jobs.trigger_job("job")
    assert (second.id != first.id, second.state) == (True, State.PENDING)


async def test_a_run_that_is_there_already_wakes_no_worker(world: World) -> None:
    woken: list[int] = []
    world.operations.context.signal.subscribe(queue_topic("pull/q"), lambda: woken.append(1))
    run = Run(id="run", queue="pull/q", fire_at=START, due_at=START, created_at=START, unique_key="key")
    again = replace(run, id="again")
    assert await world.operations.runs.add_runs([run]) == [True]
    assert await world.operations.runs.add_runs([again]) == [False]
    assert await world.operations.runs.add_runs([again, run]) == [False, False]
    assert len(woken) == 1


async def test_a_unique_key_makes_one_run(world: World) -> None:
    await world.put()
    first = await world.operations.jobs.trigger_job("job", key="key")
    world.clock.advance(1)
    assert await world.operations.jobs.trigger_job("job", key="key") == first


async def test_a_trigger_beyond_buffer_max_says_that_it_was_skipped(world: World) -> None:
    await world.put(buffer_max=1)
    await world.operations.jobs.trigger_job("job")
    run = await world.operations.jobs.trigger_job("job")
    assert (run.state, run.error) == (State.SKIPPED, "overlap: allow; 1 pending, buffer_max is 1")


async def test_a_trigger_under_skip_says_that_it_was_skipped(world: World) -> None:
    await world.put(overlap="skip")
    await world.operations.jobs.trigger_job("job")
    world.clock.advance(1)
    assert (await world.operations.jobs.trigger_job("job")).state is State.SKIPPED


async def test_a_failed_run_is_retried_as_a_new_one_with_its_payload(world: World) -> None:
    await world.put(retry={"attempts_max": 1})
    run = await world.operations.jobs.trigger_job("job", b'{"a":1}')
    (claimed,) = (await world.claim()).runs
    await world.operations.settling.settle_one(Settlement(claimed.id, claimed.token, Failed("no")))
    again = await world.operations.runs.retry_run(run.id)
    assert (again.id != run.id, again.payload, again.state) == (True, b'{"a":1}', State.PENDING)
    assert (await world.operations.runs.get_run(run.id)).state is State.FAILED


async def test_a_retried_one_off_has_as_long_to_be_started_as_the_first(world: World) -> None:
    policy = RunPolicy(timeouts=Timeouts(start_seconds=5))
    run = Run(id="run", queue="pull/q", fire_at=START, due_at=START, created_at=START, policy=policy)
    await world.operations.runs.add_runs([run])
    await world.operations.runs.cancel_run("run")
    world.clock.advance(60)
    assert (await world.operations.runs.retry_run("run")).start_by == START + 65 * SECOND


async def test_what_is_not_over_cannot_be_retried(world: World) -> None:
    await world.put()
    run = await world.operations.jobs.trigger_job("job")
    with pytest.raises(StateConflict):
        await world.operations.runs.retry_run(run.id)


# ---- cancel -----------------------------------------------------------------------------------------------------


async def test_a_cancelled_run_is_never_handed_out(world: World) -> None:
    await world.put()
    run = await world.operations.jobs.trigger_job("job")
    assert (await world.operations.runs.cancel_run(run.id)).state is State.CANCELLED
    assert (await world.claim()).runs == ()


async def test_after_a_cancel_a_failure_brings_no_further_attempt(world: World) -> None:
    await world.put()
    await world.operations.jobs.trigger_job("job")
    (run,) = (await world.claim()).runs
    await world.operations.runs.cancel_run(run.id)
    pulse = await world.operations.runs.heartbeat(run.id, run.token)
    assert pulse.cancel_requested
    assert (
        await world.operations.settling.settle_one(Settlement(run.id, run.token, Failed("no")))
    ).state is State.CANCELLED


# ---- settling ---------------------------------------------------------------------------------------------------


async def a_claimed_run(world: World) -> Run:
    await world.put()
    await world.operations.jobs.trigger_job("job")
    (run,) = (await world.claim()).runs
    return run


async def test_a_stale_token_cannot_settle(world: World) -> None:
    run = await a_claimed_run(world)
    with pytest.raises(LeaseLost, match="under token 0 is lost"):
        await world.operations.settling.settle_one(Settlement(run.id, run.token - 1, Succeeded()))
    assert (await world.operations.runs.get_run(run.id)).state is State.RUNNING


@pytest.mark.parametrize("seconds", [29.999999, 30, 86_400])
async def test_an_outcome_counts_however_long_ago_its_lease_ended(world: World, seconds: float) -> None:
    run = await a_claimed_run(world)
    world.clock.advance(seconds)
    (answer,) = await world.operations.settling.settle([Settlement(run.id, run.token, Succeeded())])
    assert isinstance(answer, Run)
    assert answer.state is State.COMPLETED


async def test_of_two_reports_in_one_batch_the_first_counts(world: World) -> None:
    run = await a_claimed_run(world)
    reports = [Settlement(run.id, run.token, Succeeded()), Settlement(run.id, run.token, Failed("no"))]
    first, second = await world.operations.settling.settle(reports)
    assert isinstance(first, Run)
    assert first.state is State.COMPLETED
    assert isinstance(second, LeaseLost)


async def test_each_of_a_batch_gets_its_own_answer(world: World) -> None:
    run = await a_claimed_run(world)
    answers = await world.operations.settling.settle(
        [Settlement("nobody", 1, Succeeded()), Settlement(run.id, run.token, Succeeded())]
    )
    assert [type(answer) for answer in answers] == [NotFound, Run]


async def test_a_report_whose_answer_was_lost_is_answered_the_second_time() -> None:
    memory = MemoryStore()
    world = World(FaultyStore(memory, by_script(("settle_runs", Fault.AFTER))))
    run = await a_claimed_run(world)
    report = Settlement(run.id, run.token, Succeeded())
    with pytest.raises(StoreUnavailable):
        await world.operations.settling.settle_one(report)
    assert (await world.operations.settling.settle_one(report)).state is State.COMPLETED
    with pytest.raises(LeaseLost, match="completed already"):
        await world.operations.settling.settle_one(Settlement(run.id, run.token, Succeeded(b"1")))


async def test_a_deleted_job_still_lends_its_policies_to_what_runs(world: World) -> None:
    run = await a_claimed_run(world)
    await world.operations.jobs.delete_job("job")
    settled = await world.operations.settling.settle_one(Settlement(run.id, run.token, Succeeded()))
    assert (settled.state, settled.prune_at) == (State.COMPLETED, START + 7 * 86_400 * SECOND)


# ---- looking ahead ----------------------------------------------------------------------------------------------


async def test_the_next_fires_are_those_of_the_rule_within_its_limits(world: World) -> None:
    await world.put(fires_max=3)
    fires, words = await world.operations.jobs.fires("job", 10)
    assert fires == [to_datetime(START) + timedelta(seconds=10 * index) for index in (1, 2, 3)]
    assert words.startswith("every 10 seconds")


@pytest.mark.parametrize("count", [-1, 1_001])
async def test_a_count_beyond_the_limit_is_refused(world: World, count: int) -> None:
    await world.put()
    with pytest.raises(InvalidRequest):
        await world.operations.jobs.fires("job", count)


async def test_the_cause_of_each_run_is_kept(world: World) -> None:
    await world.put(overlap=Overlap.ALLOW.value)
    world.clock.advance(10)
    await world.plan()
    manual = await world.operations.jobs.trigger_job("job")
    causes = [run.cause for run in (await world.claim()).runs]
    assert (manual.cause, causes) == (Cause.MANUAL, [Cause.SCHEDULE, Cause.MANUAL])
