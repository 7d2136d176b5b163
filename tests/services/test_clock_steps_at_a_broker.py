"""The wall clock steps while runs wait at a broker, or their workers speak."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest

from horarium.buses.memory import MemoryBroker, MemoryBus
from horarium.clock import SECOND
from horarium.delivery.bus import ONE_OFF
from horarium.model import Run, RunChange, State, awaits_worker
from horarium.ports import Report
from horarium.rules.settling import handed_over, put_forward, wait_seconds
from horarium.services.buses.handing_over import HandingOver
from horarium.services.buses.reports import Reports
from horarium.services.leases.leases import Leases
from tests.services.conftest import Setting, a_rescuer
from tests.services.node import taken_away

LEASE_SECONDS = 30
QUEUE = "bus/default"


async def claimed(setting: Setting) -> Run:
    """A run that a node has claimed for the broker."""
    await setting.add_run(queue=QUEUE, lease_seconds=LEASE_SECONDS)
    (run,) = (await setting.store.claim_runs([QUEUE], 1, "w", setting.now, setting.now)).runs
    return run


def reports_of(setting: Setting) -> Reports:
    """The reports of a node that has looked at its clock."""
    leases = Leases(setting.store, setting.clock)
    leases.watch.look(setting.now)
    return Reports(
        "default", MemoryBus(MemoryBroker()), setting.store, setting.clock, setting.telemetry,
        setting.operations.settling.settle, revive=leases.revive,
    )  # fmt: skip


def running(run: Run) -> Report:
    """The worker says that it has begun."""
    said = {"jobName": ONE_OFF, "runId": run.id, "token": run.token, "status": "running"}
    return Report("status", ONE_OFF, msgspec.json.encode(said))


@pytest.mark.parametrize("steps", [[3_600], [3_600, 300], [300, 3_600]])
async def test_the_first_word_of_a_worker_counts_right_after_a_step(setting: Setting, steps: Sequence[int]) -> None:
    reports = reports_of(setting)
    run = await claimed(setting)
    for step in steps:
        setting.clock.step(step)
    await reports._handle([running(run)])
    begun = await setting.run()
    assert (begun.state, awaits_worker(begun), begun.token) == (State.RUNNING, False, run.token)
    assert (begun.lease_expires_at or 0) > setting.now


async def test_the_word_of_a_worker_counts_after_its_wait_if_no_other_claim_was_made(setting: Setting) -> None:
    reports = reports_of(setting)
    run = await claimed(setting)
    setting.clock.advance(LEASE_SECONDS)
    await reports._handle([running(run)])
    begun = await setting.run()
    assert (begun.token, awaits_worker(begun)) == (run.token, False)
    await setting.store.settle_runs([taken_away(begun)], setting.now)
    await setting.store.claim_runs([run.queue], 1, "other", setting.now, setting.now)
    again = await setting.run()
    await reports._handle([running(run)])
    assert await setting.run() == again


async def test_what_waits_at_a_broker_waits_on_though_its_lease_was_put_forward_as_that_was_written(
    setting: Setting,
) -> None:
    run = await claimed(setting)
    handing_over = HandingOver("default", setting.store)
    handing_over.add(run, setting.now)
    setting.clock.advance(LEASE_SECONDS / 2)
    get_runs = setting.store.get_runs

    async def and_put_forward(ids: Sequence[str]) -> list[Run | None]:
        found = await get_runs(ids)
        setting.store.get_runs = get_runs  # type: ignore[method-assign]
        await setting.store.settle_runs([RunChange(put_forward(run, 5 * SECOND), run.token, run.state)], setting.now)
        return found

    setting.store.get_runs = and_put_forward  # type: ignore[method-assign]
    await handing_over.step(setting.now)
    await handing_over.step(setting.now)
    assert (await setting.run()).lease_expires_at == setting.now + wait_seconds(run) * SECOND


async def test_a_wait_that_was_given_between_two_steps_goes_on(setting: Setting) -> None:
    """A node sees both as one. No holder renews it, and what is sent again is performed twice."""
    run = await claimed(setting)
    rescuer = a_rescuer(setting)
    await rescuer.step(setting.now)
    setting.clock.step(3_600)
    waiting = handed_over(await setting.run(), setting.now)
    assert await setting.store.settle_runs([RunChange(waiting, run.token, run.state)], setting.now) == [True]
    setting.clock.step(400)
    await rescuer.step(setting.now)
    setting.clock.advance(LEASE_SECONDS + 1)
    await rescuer.step(setting.now)
    assert ((await setting.run()).token, await setting.state()) == (run.token, State.RUNNING)
