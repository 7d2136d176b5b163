"""A wall clock that steps: nothing is forgotten, and no healthy worker loses its lease, by a time that may be wrong."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from horarium.clock import SECOND
from horarium.errors import StoreUnavailable
from horarium.model import Outcome, RunChange, State, Succeeded
from horarium.ports import Assignment, Beat, Claimed, Control, Pulse
from horarium.services.leases.attempt import Attempt
from horarium.services.leases.leases import GRACE_SECONDS, Leases
from horarium.services.loop.believed import STANDS_SECONDS
from horarium.services.loop.clock_watch import ClockWatch, Steps
from horarium.services.performing.waiting import Ready
from horarium.services.upkeep.pruner import Pruner
from horarium.testing.values import NOW, a_run
from tests.services.conftest import Setting, a_rescuer
from tests.services.node import Node, Work, answer
from tests.waiting import until

DAY_SECONDS = 86_400


async def finished(setting: Setting, seconds: int) -> None:
    """A run that is done, and is kept for so long."""
    run = await setting.add_run()
    (claimed,) = (await setting.store.claim_runs(["pull/q"], 1, "w", setting.now, setting.now)).runs
    done = replace(
        claimed, state=State.COMPLETED, lease_expires_at=None, finished_at=setting.now,
        prune_at=setting.now + seconds * SECOND,
    )  # fmt: skip
    assert await setting.store.settle_runs([RunChange(done, claimed.token, claimed.state)], run.due_at) == [True]


async def kept(setting: Setting) -> bool:
    return (await setting.store.get_runs(["run"]))[0] is not None


def test_a_step_is_what_the_monotonic_clock_does_not_know_of() -> None:
    setting = Setting()
    watch = ClockWatch(setting.clock)
    assert watch.look(setting.now) == 0
    setting.clock.advance(100)
    assert watch.look(setting.now) == 0
    setting.clock.step(100)
    assert watch.look(setting.now) == 100 * SECOND
    assert not watch.stood_for(10)
    setting.clock.step(-100)
    assert watch.look(setting.now) == -100 * SECOND
    assert watch.stood_for(10)


async def test_a_clock_that_is_wrong_for_a_minute_makes_nothing_be_forgotten(setting: Setting) -> None:
    await finished(setting, DAY_SECONDS)
    pruner = Pruner(setting.store, setting.telemetry, setting.clock)
    await pruner.step(setting.now)
    setting.clock.step(8 * DAY_SECONDS)
    for _ in range(60):
        setting.clock.advance(1)
        await pruner.step(setting.now)
    setting.clock.step(-8 * DAY_SECONDS)
    for _ in range(60):
        setting.clock.advance(1)
        await pruner.step(setting.now)
    assert await kept(setting)


async def test_a_step_that_stands_for_an_hour_counts(setting: Setting) -> None:
    await finished(setting, DAY_SECONDS)
    pruner = Pruner(setting.store, setting.telemetry, setting.clock)
    await pruner.step(setting.now)
    setting.clock.step(8 * DAY_SECONDS)
    await pruner.step(setting.now)
    setting.clock.advance(STANDS_SECONDS - 1)
    await pruner.step(setting.now)
    assert await kept(setting)
    setting.clock.advance(1)
    await pruner.step(setting.now)
    assert not await kept(setting)


async def test_a_lease_that_stood_before_a_step_forward_goes_on(setting: Setting) -> None:
    await setting.add_run(lease_seconds=30)
    await setting.store.claim_runs(["pull/q"], 1, "w", setting.now, setting.now)
    rescuer = a_rescuer(setting)
    await rescuer.step(setting.now)
    setting.clock.advance(20)
    setting.clock.step(3_600)
    await rescuer.step(setting.now)
    run = await setting.run()
    assert (run.state, run.lease_expires_at) == (State.RUNNING, setting.now + 10 * SECOND)


async def test_a_lease_from_a_clock_that_was_ahead_goes_on_no_longer_than_a_new_one(
    setting: Setting,
) -> None:
    await setting.add_run(lease_seconds=30)
    rescuer = a_rescuer(setting)
    await rescuer.step(setting.now)
    ahead = setting.now + 300 * SECOND
    await setting.store.claim_runs(["pull/q"], 1, "w", ahead, ahead)
    setting.clock.step(3_600)
    await rescuer.step(setting.now)
    run = await setting.run()
    assert (run.state, run.lease_expires_at) == (State.RUNNING, setting.now + 30 * SECOND)


async def test_a_lease_is_put_forward_by_one_node_only(setting: Setting) -> None:
    await setting.add_run(lease_seconds=30)
    await setting.store.claim_runs(["pull/q"], 1, "w", setting.now, setting.now)
    one, late = a_rescuer(setting), a_rescuer(setting)
    await one.step(setting.now)
    await late.step(setting.now)
    setting.clock.step(3_600)
    await one.step(setting.now)
    put_forward = (await setting.run()).lease_expires_at
    setting.clock.advance(31)
    await late.step(setting.now)
    assert (await setting.run()).lease_expires_at in (put_forward, None)


async def test_a_lease_that_had_run_out_before_the_step_is_taken(setting: Setting) -> None:
    await setting.add_run(lease_seconds=5)
    await setting.store.claim_runs(["pull/q"], 1, "w", setting.now, setting.now)
    rescuer = a_rescuer(setting)
    setting.clock.advance(4)
    await rescuer.step(setting.now)
    setting.clock.step(3_600)
    await rescuer.step(setting.now)
    setting.clock.advance(GRACE_SECONDS)
    await rescuer.step(setting.now)
    assert await setting.state() is State.PENDING


async def test_a_lease_is_put_forward_only_once(setting: Setting) -> None:
    await setting.add_run(lease_seconds=5)
    await setting.store.claim_runs(["pull/q"], 1, "w", setting.now, setting.now)
    rescuer = a_rescuer(setting)
    await rescuer.step(setting.now)
    setting.clock.step(3_650 * DAY_SECONDS)
    await rescuer.step(setting.now)
    assert await setting.state() is State.RUNNING
    setting.clock.advance(5)
    await rescuer.step(setting.now)
    assert await setting.state() is State.PENDING


async def test_a_lease_outlasts_two_steps_forward(setting: Setting) -> None:
    await setting.add_run(lease_seconds=2)
    (claimed,) = (await setting.store.claim_runs(["pull/q"], 1, "w", setting.now, setting.now)).runs
    rescuer = a_rescuer(setting)
    await rescuer.step(setting.now)
    setting.clock.step(90)
    await rescuer.step(setting.now)
    setting.clock.advance(1)
    await setting.store.heartbeat_runs([Beat(claimed.id, claimed.token)], setting.now)
    setting.clock.advance(1)
    setting.clock.step(90)
    await rescuer.step(setting.now)
    run = await setting.run()
    assert (run.state, run.lease_expires_at) == (State.RUNNING, setting.now + SECOND)


async def test_a_lease_that_was_given_between_two_steps_outlasts_both(setting: Setting) -> None:
    """The node sees one step, as long as the two, and a lease that ends later than any from before it."""
    await setting.add_run(lease_seconds=10)
    rescuer = a_rescuer(setting)
    await rescuer.step(setting.now)
    setting.clock.step(90)
    (claimed,) = (await setting.store.claim_runs(["pull/q"], 1, "w", setting.now, setting.now)).runs
    setting.clock.step(DAY_SECONDS)
    await rescuer.step(setting.now)
    (run,) = await setting.store.get_runs(["run"])
    assert run is not None
    assert (run.state, run.token) == (State.RUNNING, claimed.token)


async def test_a_lease_that_may_be_from_between_two_steps_is_taken_once_it_would_have_been_renewed(
    setting: Setting,
) -> None:
    """The node sees one step, as long as the two, and a lease that ended shortly before the end of it: it may have been
    put forward by another node, and be over, or be given after the first of them, and last."""
    await setting.add_run(lease_seconds=5)
    rescuer = a_rescuer(setting)
    await rescuer.step(setting.now)
    setting.clock.step(3_650 * DAY_SECONDS)
    await setting.store.claim_runs(["pull/q"], 1, "w", setting.now, setting.now)
    setting.clock.step(90)
    await rescuer.step(setting.now)
    assert await setting.state() is State.RUNNING
    setting.clock.advance(5)
    await rescuer.step(setting.now)
    assert await setting.state() is State.PENDING


async def test_a_step_that_is_partly_taken_back_puts_a_lease_forward_by_the_rest(setting: Setting) -> None:
    await setting.add_run(lease_seconds=30)
    (claimed,) = (await setting.store.claim_runs(["pull/q"], 1, "w", setting.now, setting.now)).runs
    watch = ClockWatch(setting.clock)
    watch.look(setting.now)
    for step in (5, -5, 3_600, -600):
        setting.clock.step(step)
        watch.look(setting.now)
    assert watch.unstepped(claimed).lease_expires_at == setting.now + 30 * SECOND


async def test_an_outcome_counts_though_the_clock_steps_forward_as_the_work_ends(setting: Setting) -> None:
    node = Node(setting, answer(Succeeded(b"1")))
    await setting.add_run()
    await node.collector.step(setting.now)
    await node.claim()
    await until(lambda: node.collector.waiting > 0)
    setting.clock.step(3_600)
    await node.collector.step(setting.now)
    run = await setting.run()
    assert (run.state, run.attempt, run.result) == (State.COMPLETED, 1, b"1")


async def test_work_that_beats_at_a_step_forward_keeps_its_lease(setting: Setting) -> None:
    beats: list[bool] = []

    async def beat(assignment: Assignment, control: Control) -> Outcome | None:
        setting.clock.step(3_600)
        await control.heartbeat()
        beats.append(control.cancelled)
        await work.go_on.wait()
        return Succeeded()

    work = Work(beat)
    node = Node(setting, work)
    await setting.add_run()
    await node.keeper.step(setting.now)
    await node.claim()
    await until(lambda: bool(beats))
    await node.keeper.step(setting.now)
    (attempt,) = node.performing.attempts.values()
    assert (beats, attempt.stop, attempt.lease_expires_at) == ([False], None, setting.now + 30 * SECOND)
    work.go_on.set()
    await node.settle()
    assert await setting.state() is State.COMPLETED


@pytest.mark.parametrize("window_seconds", [0, 5])
async def test_what_the_clock_went_back_before_begins_at_its_instant(setting: Setting, window_seconds: int) -> None:
    """The clock goes back while the store claims."""
    work = answer(Succeeded())
    node = Node(setting, work, window_seconds=window_seconds)
    await setting.add_run(due_at=setting.now)
    claim_runs = setting.store.claim_runs

    async def and_back(*given: Any) -> Claimed:
        claimed = await claim_runs(*given)
        setting.clock.step(-300)
        return claimed

    setting.store.claim_runs = and_back  # type: ignore[assignment]
    await node.claim()
    setting.store.claim_runs = claim_runs  # type: ignore[method-assign]
    await node.claim()
    await node.settle()
    waiting = await setting.run()
    assert (work.begun, waiting.state, waiting.attempt) == ([], State.PENDING, 0)
    setting.clock.advance(300)
    await node.claim()
    await node.settle()
    assert (len(work.begun), await setting.state()) == (1, State.COMPLETED)


async def begun(node: Node, work: Work) -> Attempt:
    """The one attempt of the node."""
    await node.collector.step(node.setting.now)
    await node.keeper.step(node.setting.now)
    return await claimed_by(node, work)


async def claimed_by(node: Node, work: Work) -> Attempt:
    """The same, and no service but the dispatcher looks at the clock."""
    await node.claim()
    await until(lambda: bool(work.begun))
    (attempt,) = node.performing.attempts.values()
    return attempt


async def test_the_outcome_of_work_counts_that_was_beaten_for_between_two_steps(setting: Setting) -> None:
    """Two steps forward within a second, a heartbeat between them, and the work ends before the keeper looks."""
    work = Work()
    node = Node(setting, work)
    await setting.add_run(lease_seconds=2)
    attempt = await begun(node, work)
    setting.clock.step(90)
    await node.keeper.step(setting.now)
    await attempt.heartbeat()
    setting.clock.step(3)
    work.go_on.set()
    await node.settle()
    run = await setting.run()
    assert (run.state, run.attempt) == (State.COMPLETED, 1)


async def test_a_step_that_the_dispatcher_notices_while_a_lease_is_renewed_puts_it_forward(setting: Setting) -> None:
    """What the store answers then is by the time before the step."""
    work = Work()
    node = Node(setting, work)
    await setting.add_run(lease_seconds=5)
    attempt = await begun(node, work)
    attempt.deadline = limit = setting.now + 600 * SECOND
    heartbeat_runs = setting.store.heartbeat_runs

    async def and_step(*given: Any) -> list[Pulse | None]:
        pulses = await heartbeat_runs(*given)
        setting.store.heartbeat_runs = heartbeat_runs  # type: ignore[method-assign]
        setting.clock.step(90)
        await node.claim()
        return pulses

    setting.store.heartbeat_runs = and_step  # type: ignore[assignment,method-assign]
    setting.clock.advance(2)
    await node.keeper.step(setting.now)
    await node.keeper.step(setting.now)
    ends_at = setting.now + 5 * SECOND
    assert (attempt.stop, attempt.lease_expires_at, (await setting.run()).lease_expires_at) == (None, ends_at, ends_at)
    assert attempt.deadline == limit + 90 * SECOND


async def test_a_worker_outside_keeps_the_lease_that_it_was_given_between_two_steps(setting: Setting) -> None:
    """Seen as one step by the node that it speaks to, and the lease is as long as the rescuer takes it to be."""
    leases = Leases(setting.store, setting.clock)
    await setting.add_run(lease_seconds=30)
    leases.watch.look(setting.now)
    setting.clock.step(3_600)
    (claimed,) = (await setting.store.claim_runs(["pull/q"], 1, "w", setting.now, setting.now)).runs
    setting.clock.step(40)
    assert await leases.revive({claimed.id: claimed.token})
    assert (await setting.run()).lease_expires_at == setting.now + 30 * SECOND


async def test_a_long_lease_from_between_two_steps_is_not_taken_before_it_would_have_been_renewed(
    setting: Setting,
) -> None:
    await setting.add_run(lease_seconds=60)
    rescuer = a_rescuer(setting)
    await rescuer.step(setting.now)
    setting.clock.step(3_600)
    await setting.store.claim_runs(["pull/q"], 1, "w", setting.now, setting.now)
    setting.clock.step(90)
    await rescuer.step(setting.now)
    setting.clock.advance(GRACE_SECONDS + 20)
    await rescuer.step(setting.now)
    assert await setting.state() is State.RUNNING
    setting.clock.advance(40)
    await rescuer.step(setting.now)
    assert await setting.state() is State.PENDING


async def test_work_keeps_its_lease_though_the_store_could_not_be_told_of_a_step(setting: Setting) -> None:
    work = Work()
    node = Node(setting, work)
    await setting.add_run(lease_seconds=5)
    attempt = await begun(node, work)
    setting.clock.step(90)
    settle_runs = setting.store.settle_runs

    async def refuse(*given: Any) -> list[bool]:
        raise StoreUnavailable("it is down")

    setting.store.settle_runs = refuse  # type: ignore[assignment,method-assign]
    with pytest.raises(StoreUnavailable):
        await node.keeper.step(setting.now)
    setting.store.settle_runs = settle_runs  # type: ignore[method-assign]
    setting.clock.advance(2)
    await node.keeper.step(setting.now)
    assert (attempt.stop, (await setting.run()).lease_expires_at) == (None, setting.now + 5 * SECOND)
    work.go_on.set()
    await node.settle()
    assert await setting.state() is State.COMPLETED


@pytest.mark.parametrize("given_by", ["claim", "heartbeat"])
@pytest.mark.parametrize("ends", ["keeper", "collector", "rescuer"])
async def test_a_lease_that_was_given_by_a_clock_that_was_behind_for_a_moment_goes_on(
    setting: Setting, given_by: str, ends: str
) -> None:
    """The clock goes back and forth between two looks of the node, which sees no step; a lease was given meanwhile."""
    steps = Steps(setting.clock)
    work = Work()
    node = Node(setting, work, steps=steps)
    rescuer = a_rescuer(setting, steps)
    await setting.add_run(lease_seconds=5, due_at=setting.now - 3_600 * SECOND)
    for service in (rescuer, node.collector, node.keeper):
        await service.step(setting.now)
    if given_by == "heartbeat":
        attempt = await claimed_by(node, work)
        setting.clock.step(-3_000)
        await attempt.heartbeat()
    else:
        setting.clock.step(-3_000)
        await claimed_by(node, work)
    setting.clock.step(3_000)
    if ends == "collector":
        work.go_on.set()
        await node.settle()
    elif ends == "rescuer":
        await rescuer.step(setting.now)
    await node.keeper.step(setting.now)
    work.go_on.set()
    await until(lambda: ends == "collector" or node.collector.waiting > 0)
    await node.collector.step(setting.now)
    run = await setting.run()
    assert (run.state, run.attempt, len(work.begun)) == (State.COMPLETED, 1, 1)


@pytest.mark.parametrize("more", [0, 3])
async def test_a_lease_that_had_ended_when_it_was_not_there_is_left_to_its_holder(setting: Setting, more: int) -> None:
    """Another process gave it while the clock was behind for a moment: this one saw no step, or what is left of it."""
    rescuer = a_rescuer(setting)
    await setting.add_run(lease_seconds=5, due_at=setting.now - 3_600 * SECOND)
    await rescuer.step(setting.now)
    setting.clock.step(-300)
    await setting.store.claim_runs(["pull/q"], 1, "w", setting.now, setting.now)
    setting.clock.step(300 + more)
    await rescuer.step(setting.now)
    assert await setting.state() is State.RUNNING
    setting.clock.advance(4)
    await rescuer.step(setting.now)
    assert await setting.state() is State.RUNNING
    setting.clock.advance(1)
    await rescuer.step(setting.now)
    assert await setting.state() is State.PENDING


def test_what_waits_for_a_place_is_given_back_in_time_though_it_seems_to_have_begun_later() -> None:
    """The clock went back, and forward again: the start of the run was put forward, and its lease had been renewed."""
    run = a_run(lease_seconds=30, started_at=NOW + 300 * SECOND, lease_expires_at=NOW + 30 * SECOND)
    assert Ready(run, None).patience_ends_at == NOW + 10 * SECOND
