"""A wall clock that steps: nothing is forgotten, and no healthy worker loses its lease, by a time that may be wrong."""

from __future__ import annotations

from msgspec.structs import replace

from horarium.clock import SECOND
from horarium.model import RunChange, State
from horarium.services.clock_watch import ClockWatch
from horarium.services.pruner import STEP_STANDS_SECONDS, Pruner
from horarium.services.rescuer import GRACE_SECONDS
from tests.services.conftest import Setting, a_rescuer

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
    setting.clock.advance(STEP_STANDS_SECONDS - 1)
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
