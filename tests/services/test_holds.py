"""Holds in a running system: what is held does not begin, and what was held goes on."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from horarium.clock import DAY, SECOND, to_datetime
from horarium.dashboard.attention import Watching
from horarium.errors import Conflict, InvalidRequest, NotFound
from horarium.model import Disposition, QueueTarget, Run, State
from horarium.model.holds import HeldMissed, HeldRunning, Hold, HoldRepeat, HoldScope
from horarium.model.records import RecordFilter
from horarium.model.targets import NOTIFY_QUEUE
from horarium.policies import CatchUp, CatchUpPolicy, Timeouts
from horarium.ports import APPLY, Claimed, RunFilter
from horarium.rules.holds import in_force
from horarium.services.planning.planner import Planner
from horarium.services.upkeep.applier import LOOK_EVERY
from horarium.services.upkeep.holds import HEARD, KEPT, HoldApplier, HoldCancels
from horarium.wire.holds import HoldDefinition, HoldPatch
from horarium.wire.one_offs import RunDefinition
from tests.services.conftest import START, Setting, a_rescuer

EVERYTHING, QUEUE = HoldScope(all=True), HoldScope(queue="q")
WAITING_FOR = "waits until"
EACH = 10 * SECOND


async def hold(setting: Setting, scope: HoldScope = EVERYTHING, seconds: float | None = None, **how: Any) -> Hold:
    until = None if seconds is None else to_datetime(setting.now) + timedelta(seconds=seconds)
    return await setting.operations.holds.add(HoldDefinition(scope=scope, reason="moving", until=until, **how))


async def claim(setting: Setting, *queues: str) -> Claimed:
    return await setting.operations.claiming.claim(queues or ("pull/q",), 100, "w", setting.now, setting.now)


def a_planner(setting: Setting) -> Planner:
    operations = setting.operations
    return Planner(setting.store, setting.signal, operations.reconciler, operations.following, setting.telemetry)


def an_applier(setting: Setting) -> HoldApplier:
    operations = setting.operations
    return HoldApplier(setting.store, setting.clock, operations.reconciler, "n", operations.settling, setting.signal)


def of_cancels(setting: Setting) -> HoldCancels:
    of = setting.operations
    return HoldCancels(setting.store, of.reconciler.holding, of.runs, of.holds)


async def carried(setting: Setting) -> None:
    """The changes of holds, carried to what waits, by a node that goes on until there are none left."""
    applier = an_applier(setting)
    for _ in range(100):
        applier.signalled()
        await applier.step(setting.now)


async def rows(setting: Setting, job: str = "job") -> list[Run]:
    return list(reversed((await setting.store.list_runs(RunFilter(job=job), None, 200)).items))


async def test_a_held_queue_is_not_even_asked_for(setting: Setting) -> None:
    await setting.add_run()
    made = await hold(setting, QUEUE, 60)
    claimed = await claim(setting, "pull/q", "pull/other")
    assert (claimed.runs, claimed.next_due_at) == ((), made.ends_at)
    assert (await setting.run()).token == 0
    setting.clock.advance(60)
    assert [run.id for run in (await claim(setting)).runs] == ["run"]


async def test_a_run_of_a_held_job_waits_without_losing_an_attempt(setting: Setting) -> None:
    job = await setting.add_job(timeouts=Timeouts(start_seconds=30))
    run, _ = await setting.operations.jobs.trigger_job("job"), await setting.add_run("beside")
    await hold(setting, HoldScope(job="job"), 600)
    assert [run.id for run in (await claim(setting)).runs] == ["beside"]
    waiting = await setting.run(run.id)
    assert (waiting.state, waiting.attempt, waiting.due_at) == (State.PENDING, 0, START + 600 * SECOND)
    setting.clock.advance(600)
    (begun,) = (await claim(setting)).runs
    assert (begun.id, begun.attempt, begun.start_by) == (run.id, 1, START + 630 * SECOND)
    assert job.name == begun.job


async def test_a_run_by_hand_is_made_and_says_that_it_waits(setting: Setting) -> None:
    await setting.add_job()
    await hold(setting, EVERYTHING, 600)
    run = await setting.operations.jobs.trigger_job("job")
    assert run.due_at == START + 600 * SECOND
    assert WAITING_FOR in run.history[-1].message


async def test_a_lifted_hold_brings_back_what_waited(setting: Setting) -> None:
    await setting.add_job()
    made = await hold(setting, HoldScope(job="job"))
    await setting.operations.jobs.trigger_job("job")
    setting.clock.advance(25)
    await a_planner(setting).step(setting.now)
    (run,), job = await rows(setting), (await setting.store.get_jobs(["job"]))[0]
    assert job is not None
    assert (run.due_at, job.held_until) == (START + DAY, START + DAY + 25 * SECOND)
    assert (await claim(setting)).runs == ()
    await setting.operations.holds.lift(made.id)
    await carried(setting)
    await a_planner(setting).step(setting.now)
    setting.clock.advance(1)
    claimed = (await claim(setting)).runs
    assert sorted(run.fire_at - START for run in claimed) == [0, 20 * SECOND], "by hand, and the latest that was missed"


async def test_a_lift_in_the_middle_of_a_change_is_carried_at_once(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    await setting.add_job()
    made = await hold(setting, HoldScope(job="job"))
    run = await setting.operations.jobs.trigger_job("job")
    assert (await claim(setting)).runs == ()
    applier = an_applier(setting)
    setting.signal.subscribe(APPLY, applier.signalled)
    withdraw = applier._withdraw

    async def lift_meanwhile(held: Hold, after: str | None) -> str | None:
        await setting.operations.holds.lift(made.id)
        return await withdraw(held, after)

    monkeypatch.setattr(applier, "_withdraw", lift_meanwhile)
    for _ in range(10):
        await applier.step(setting.now)
        monkeypatch.setattr(applier, "_withdraw", withdraw)
    assert (await setting.run(run.id)).due_at == START, "without a signal more, and while no time passes"


async def test_what_a_slow_node_put_back_after_the_lift_is_found_too(setting: Setting) -> None:
    await setting.add_run()
    elsewhere = setting.operations_on(setting.store)
    made = await hold(setting, HoldScope(labels={"a": "b"}))
    await setting.operations.holds.lift(made.id)
    await setting.add_job(labels={"a": "b"})
    run = await setting.operations.jobs.trigger_job("job")
    stale = elsewhere.reconciler.holding
    await stale.look()
    stale.known = (made,)
    assert [
        each.id for each in (await elsewhere.claiming.claim(["pull/q"], 9, "w", setting.now, setting.now)).runs
    ] == ["run"]
    assert (await setting.run(run.id)).due_at == START + DAY
    await carried(setting)
    assert (await setting.run(run.id)).due_at == START


async def test_the_markers_of_a_change_go_once_all_nodes_have_heard_of_it(setting: Setting) -> None:
    made = await hold(setting)
    await setting.operations.holds.lift(made.id)
    await carried(setting)
    setting.clock.advance((HEARD + LOOK_EVERY) / SECOND)
    await carried(setting)
    assert (await setting.store.list_records(RecordFilter("hold-change/"), None, 10)).items == ()


@pytest.mark.parametrize("scope", [EVERYTHING, QUEUE, HoldScope(job="job")])
async def test_what_was_held_is_caught_up_when_it_ends(setting: Setting, scope: HoldScope) -> None:
    await setting.add_job(catch_up=CatchUp(CatchUpPolicy.ALL))
    await hold(setting, scope, 60)
    planner = a_planner(setting)
    for _ in range(60):
        setting.clock.advance(1)
        assert await rows(setting) == [] or setting.now >= START + 60 * SECOND
        await planner.step(setting.now)
    fires = [run.fire_at - START for run in await rows(setting)]
    assert fires == [seconds * SECOND for seconds in (10, 20, 30, 40, 50, 60)]


@pytest.mark.parametrize("scope", [EVERYTHING, QUEUE])
async def test_skipped_fire_times_are_one_row_that_says_why(setting: Setting, scope: HoldScope) -> None:
    await setting.add_job(catch_up=CatchUp(CatchUpPolicy.ALL))
    made = await hold(setting, scope, 55, missed=HeldMissed.SKIP)
    planner = a_planner(setting)
    for _ in range(60):
        setting.clock.advance(1)
        await planner.step(setting.now)
    held, ran = await rows(setting)
    assert (held.disposition, held.fires, held.error) == (Disposition.HELD, 5, f"held by {made.id}: moving")
    assert ran.fire_at == START + 60 * SECOND


async def test_a_hold_on_everything_costs_the_planner_nothing(setting: Setting) -> None:
    await setting.add_job()
    made = await hold(setting, EVERYTHING, 60)
    setting.clock.advance(30)
    assert await a_planner(setting).step(setting.now) == made.ends_at
    (job,) = await setting.store.get_jobs(["job"])
    assert job is not None
    assert job.version == 1


@pytest.mark.parametrize("seconds", [0.9, 60.0])
async def test_a_planner_rests_before_a_hold_and_before_its_end(setting: Setting, seconds: float) -> None:
    """What it looks at ahead of time and may not plan yet must not keep it busy."""
    await setting.add_job()
    begins_at = to_datetime(START + 9_800_000)
    await hold(setting, QUEUE, 60, begins_at=begins_at)
    operations = setting.operations
    planner = Planner(
        setting.store, setting.signal, operations.reconciler, operations.following, setting.telemetry,
        ahead_seconds=seconds,
    )  # fmt: skip
    wakes = []
    for second in (9.7, 30.0, 59.8):
        setting.clock.advance(second - (setting.now - START) / SECOND)
        wakes.append((await planner.step(setting.now) or 0) - START)
    assert wakes == [9_800_000, 60 * SECOND, 60 * SECOND]


async def test_a_change_of_a_hold_without_end_writes_none_of_the_jobs_that_wait_for_it(setting: Setting) -> None:
    await setting.add_job()
    made = await hold(setting, HoldScope(job="job"))
    setting.clock.advance(15)
    await a_planner(setting).step(setting.now)
    before = await setting.store.get_jobs(["job"])
    setting.clock.advance(1)
    await setting.operations.holds.update(made.id, HoldPatch(reason="moving on"))
    await carried(setting)
    assert await setting.store.get_jobs(["job"]) == before


async def test_before_a_hold_begins_and_ends_jobs_are_not_written_again_and_again(setting: Setting) -> None:
    """However often the planner is woken by others."""
    await setting.add_job(every=20)
    await hold(setting, HoldScope(job="job"), 30, begins_at=to_datetime(START + 19_500_000))
    planner = a_planner(setting)
    for _ in range(320):
        setting.clock.advance(0.1)
        await planner.step(setting.now)
    (job,) = await setting.store.get_jobs(["job"])
    assert job is not None
    assert job.version <= 5


async def test_a_run_whose_job_leaves_a_held_queue_is_due_there(setting: Setting) -> None:
    await setting.add_job()
    await hold(setting, QUEUE)
    run = await setting.operations.jobs.trigger_job("job")
    assert run.due_at == START + DAY
    await setting.operations.jobs.patch_job("job", {"target": {"type": "queue", "queue": "free"}})
    assert [each.id for each in (await claim(setting, "pull/free")).runs] == [run.id]


async def test_a_run_that_waits_for_a_hold_is_not_given_up_as_not_started(setting: Setting) -> None:
    await setting.add_run(start_by=START + 10 * SECOND)
    made = await hold(setting, QUEUE, 60)
    setting.clock.advance(20)
    await a_rescuer(setting).step(setting.now)
    run = await setting.run()
    assert (run.state, run.due_at, run.start_by) == (State.PENDING, made.ends_at, START + 70 * SECOND)


async def test_what_was_planned_ahead_is_withdrawn(setting: Setting) -> None:
    await setting.add_job()
    operations = setting.operations
    planner = Planner(
        setting.store, setting.signal, operations.reconciler, operations.following, setting.telemetry, ahead_seconds=60
    )
    await planner.step(setting.now)
    assert len(await rows(setting)) == 6
    begins_at = to_datetime(START + 25 * SECOND)
    await hold(setting, HoldScope(job="job"), begins_at=begins_at, missed=HeldMissed.SKIP)
    await carried(setting)
    await planner.step(setting.now)
    assert [run.fire_at - START for run in await rows(setting)] == [10 * SECOND, 20 * SECOND]


async def test_what_was_cancelled_ahead_of_a_hold_is_in_no_row_beside_its_own(setting: Setting) -> None:
    await setting.add_job(catch_up=CatchUp(CatchUpPolicy.NONE))
    operations = setting.operations
    planner = Planner(
        setting.store, setting.signal, operations.reconciler, operations.following, setting.telemetry, ahead_seconds=60
    )
    await planner.step(setting.now)
    await operations.runs.cancel_run((await rows(setting))[2].id)
    made = await hold(setting, HoldScope(job="job"))
    await carried(setting)
    setting.clock.advance(90)
    await operations.holds.lift(made.id)
    await carried(setting)
    await planner.step(setting.now)
    fires = [
        fire for run in await rows(setting) for fire in range(run.fire_at, (run.last_fire_at or run.fire_at) + 1, EACH)
    ]
    assert len(fires) == len(set(fires))
    assert set(fires) >= {START + number * EACH for number in range(1, 10)}


async def test_what_runs_is_cancelled_where_the_hold_says_so(setting: Setting) -> None:
    await setting.add_run()
    await setting.add_run("other", queue="pull/p")
    await claim(setting, "pull/q", "pull/p")
    await hold(setting, QUEUE, running=HeldRunning.CANCEL)
    cancels = of_cancels(setting)
    assert await cancels.step(setting.now) == START + SECOND, "another node may not have heard of it"
    assert (await setting.state(), await setting.state("other")) == (State.CANCELLING, State.RUNNING)
    setting.clock.advance(4)
    assert await cancels.step(setting.now) is None


async def test_a_hold_that_ended_long_ago_is_forgotten(setting: Setting) -> None:
    made = await hold(setting, QUEUE, 60)
    cancels = of_cancels(setting)
    setting.clock.advance(KEPT / SECOND)
    await cancels.step(setting.now)
    assert (await setting.operations.holds.get(made.id)).id == made.id
    setting.clock.advance(61)
    await cancels.step(setting.now)
    with pytest.raises(NotFound):
        await setting.operations.holds.get(made.id)


async def test_another_node_sees_a_hold_within_two_seconds(setting: Setting) -> None:
    await setting.add_run()
    elsewhere = setting.operations_on(setting.store)
    assert await elsewhere.reconciler.holding.look() == ()
    await hold(setting, QUEUE)
    setting.clock.advance(2)
    assert (await elsewhere.claiming.claim(["pull/q"], 1, "w", setting.now, setting.now)).runs == ()


async def test_each_list_has_its_holds(setting: Setting) -> None:
    holds = setting.operations.holds
    now, ended = await hold(setting), await hold(setting, QUEUE, 5)
    later = await hold(setting, begins_at=to_datetime(START + DAY))
    setting.clock.advance(5)

    async def ids(active: bool | None) -> set[str]:
        return {each.id for each in (await holds.page(active, None, 10)).items}

    assert await ids(None) == {now.id, later.id}
    assert await ids(True) == {now.id}
    assert await ids(False) == {ended.id, later.id}
    page = await holds.page(None, None, 1)
    beyond = await holds.page(None, page.next_after, 1)
    assert {each.id for each in (*page.items, *beyond.items)} == {now.id, later.id}


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"scope": HoldScope()}, "scope"),
        ({"scope": HoldScope(all=True, queue="q")}, "scope"),
        ({"scope": HoldScope(job="none")}, "scope.job"),
        ({"until": to_datetime(START)}, "until"),
        ({"begins_at": to_datetime(START + DAY), "until": to_datetime(START + DAY)}, "until"),
        ({"repeat": HoldRepeat({"type": "cron", "expression": "0 2 * * *"}, 0)}, "repeat.seconds"),
    ],
)
async def test_a_hold_that_can_not_be_says_where(setting: Setting, wrong: dict[str, Any], field: str) -> None:
    given: dict[str, Any] = {"scope": EVERYTHING, "reason": "moving", **wrong}
    with pytest.raises(InvalidRequest) as refused:
        await setting.operations.holds.add(HoldDefinition(**given))
    assert refused.value.field == field


async def test_the_end_of_a_hold_can_be_changed_until_it_is_over(setting: Setting) -> None:
    holds, made = setting.operations.holds, await hold(setting, QUEUE, 60)
    assert (await holds.update(made.id, HoldPatch(until=None, reason="longer"))).ends_at is None
    lifted = await holds.lift(made.id)
    assert (await holds.lift(made.id)).lifted_at == lifted.lifted_at == START
    with pytest.raises(Conflict, match="ended"):
        await holds.update(made.id, HoldPatch(reason="again"))


async def test_explain_says_that_a_fire_time_is_held_and_what_becomes_of_it(setting: Setting) -> None:
    await setting.add_job()
    at = START + 20 * SECOND
    made = await hold(setting, HoldScope(job="job"), 60)
    told = await setting.operations.explaining.at("job", at)
    assert told.fires
    assert f"held by {made.id}: moving; then it is caught up" in told.reason
    now = await setting.operations.explaining.at("job", at + 1)
    assert not now.fires
    assert f"the job waits until 2026-01-05T00:01:00Z: held by {made.id}: moving" in now.reason
    await hold(setting, EVERYTHING, 60, missed=HeldMissed.SKIP)
    told = await setting.operations.explaining.at("job", at)
    assert (told.fires, told.disposition) == (False, Disposition.HELD)


async def test_a_drained_worker_takes_nothing_and_finishes_what_it_holds(setting: Setting) -> None:
    for name in ("first", "second"):
        await setting.add_run(name)
    claiming, now = setting.operations.claiming, setting.now
    (mine,) = (await claiming.claim(["pull/q"], 1, "old", now, now)).runs
    made = await hold(setting, HoldScope(worker="old"), 60)
    answer = await claiming.claim(["pull/q"], 9, "old", now, now)
    assert (answer.runs, answer.next_due_at) == ((), now + 60 * SECOND)
    assert (await setting.run("second")).due_at == START, "nothing is kept back: others may take it at once"
    assert [run.id for run in (await claiming.claim(["pull/q"], 9, "new", now, now)).runs] == ["second"]
    assert (await setting.run(mine.id)).state is State.RUNNING
    await setting.add_run("told", queue=NOTIFY_QUEUE)
    assert [run.id for run in (await claiming.claim(["pull/q", NOTIFY_QUEUE], 9, "old", now, now)).runs] == ["told"]
    await setting.add_run("later")
    await setting.operations.holds.lift(made.id)
    assert [run.id for run in (await claiming.claim(["pull/q"], 9, "old", now, now)).runs] == ["later"]


async def test_what_a_drained_worker_holds_is_cancelled_where_that_is_asked_for(setting: Setting) -> None:
    claiming = setting.operations.claiming
    for worker in ("old", "new"):
        await setting.add_run(worker)
        await claiming.claim(["pull/q"], 1, worker, setting.now, setting.now)
    await hold(setting, HoldScope(worker="old"), running=HeldRunning.CANCEL)
    cancels = of_cancels(setting)
    await cancels.step(setting.now)
    assert (await setting.run("old")).state in (State.CANCELLING, State.CANCELLED)
    assert (await setting.run("new")).state is State.RUNNING


async def test_pages_and_the_list_of_what_needs_attention_show_holds(setting: Setting) -> None:
    await hold(setting, HoldScope(labels={"a": "b"}), 60)
    found = await Watching(setting.operations).look()
    assert [each.hold.reason for each in found.held] == ["moving"]
    assert found.troubles == (), "it is said above each page, and not again as a cause"
    (fault,), _ = await setting.operations.attending.list_all()
    assert fault.text.startswith("jobs with a=b is on hold until")
    assert in_force(setting.operations.reconciler.holding.known, setting.now)[0].hold.reason == "moving"


async def test_a_job_whose_labels_a_hold_covers_no_more_waits_no_more(setting: Setting) -> None:
    await setting.add_job(labels={"team": "a", "region": "eu"})
    await hold(setting, HoldScope(labels={"team": "a"}))
    run = await setting.operations.jobs.trigger_job("job")
    assert run.due_at == START + DAY
    await setting.operations.jobs.patch_job("job", {"labels": {"team": "a", "region": "us"}})
    assert (await claim(setting)).runs == ()
    await setting.operations.jobs.patch_job("job", {"labels": {"team": "b", "region": "us"}})
    assert [run.id for run in (await claim(setting)).runs] == [run.id]


async def test_a_run_of_a_later_time_is_not_sooner_for_a_hold(setting: Setting) -> None:
    made = await hold(setting, QUEUE)
    definition = RunDefinition(target=QueueTarget(queue="q"), at=to_datetime(START + 3 * DAY))
    run = (await setting.operations.one_offs.add_run(definition)).run
    setting.clock.advance(DAY / SECOND + 1)
    assert (await claim(setting)).runs == ()
    await setting.operations.holds.lift(made.id)
    await carried(setting)
    assert (await setting.run(run.id)).due_at == START + 3 * DAY
