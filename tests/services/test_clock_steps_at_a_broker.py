"""The wall clock steps while runs wait at a broker, or their workers speak."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest

from horarium.buses.memory import MemoryBroker, MemoryBus
from horarium.clock import SECOND
from horarium.delivery.bus import ONE_OFF
from horarium.model import Run, State, awaits_worker
from horarium.ports import Report
from horarium.rules.settling import wait_seconds
from horarium.services.buses.handing_over import HandingOver
from horarium.services.buses.reports import Reports
from tests.services.conftest import Setting, a_rescuer
from tests.services.node import taken_away

LEASE_SECONDS = 30
QUEUE = "bus/default"


async def claimed(setting: Setting) -> Run:
    """A run that a node has claimed for the broker."""
    await setting.add_run(queue=QUEUE, lease_seconds=LEASE_SECONDS)
    (run,) = (await setting.store.claim_runs([QUEUE], 1, "w", setting.now, setting.now, setting.steady)).runs
    return run


def reports_of(setting: Setting) -> Reports:
    return Reports(
        "default", MemoryBus(MemoryBroker()), setting.store, setting.clock, setting.telemetry,
        setting.operations.settling.settle,
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
    assert (begun.lease_expires_at or 0) > setting.steady


async def test_the_word_of_a_worker_counts_after_its_wait_if_no_other_claim_was_made(setting: Setting) -> None:
    reports = reports_of(setting)
    run = await claimed(setting)
    setting.clock.advance(LEASE_SECONDS)
    await reports._handle([running(run)])
    begun = await setting.run()
    assert (begun.token, awaits_worker(begun)) == (run.token, False)
    await setting.store.settle_runs([taken_away(begun)], setting.now)
    await setting.store.claim_runs([run.queue], 1, "other", setting.now, setting.now, setting.steady)
    again = await setting.run()
    await reports._handle([running(run)])
    assert await setting.run() == again


@pytest.mark.parametrize("jumps", [(3_600,), (-3_600,), (3_600, 400)])
async def test_the_wait_at_a_broker_is_not_shortened(setting: Setting, jumps: Sequence[int]) -> None:
    """No holder renews it, and what is sent again is performed twice."""
    run = await claimed(setting)
    rescuer, handing_over = a_rescuer(setting), HandingOver("default", setting.store, setting.clock)
    handing_over.add(run, setting.now)
    setting.clock.advance(LEASE_SECONDS / 2)
    for jump in jumps:
        setting.clock.step(jump)
        await rescuer.step(setting.now)
        await handing_over.step(setting.now)
    assert (await setting.run()).lease_expires_at == setting.steady + wait_seconds(run) * SECOND
    setting.clock.advance(wait_seconds(run) - 1)
    await rescuer.step(setting.now)
    assert ((await setting.run()).token, await setting.state()) == (run.token, State.RUNNING)
    setting.clock.advance(1)
    await rescuer.step(setting.now)
    assert await setting.state() is State.PENDING
