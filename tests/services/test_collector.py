"""The collector: outcomes outlast an outage."""

from __future__ import annotations

import asyncio

import pytest

from horarium.errors import StoreUnavailable
from horarium.model import RunChange, State, Succeeded
from horarium.policies import Retention
from horarium.rules.settling import cancel
from horarium.testing import Fault, FaultyStore, by_script
from tests.services.conftest import Setting, a_collector
from tests.services.node import Node, answer
from tests.waiting import until


@pytest.mark.parametrize("call", ["settle_runs", "get_runs"])
async def test_an_outcome_outlasts_an_outage(setting: Setting, call: str) -> None:
    await setting.add_run()
    claimed = await setting.store.claim_runs(["pull/q"], 1, "w", setting.now, setting.now, setting.steady)
    (run,) = claimed.runs
    asked = RunChange(cancel(run, Retention(), setting.now, "why"), run.token, run.state)
    await setting.store.settle_runs([asked], setting.now)
    store = FaultyStore(setting.store, by_script((call, Fault.BEFORE)))
    collector = a_collector(setting, store)
    collector.add(run, None, Succeeded())
    with pytest.raises(StoreUnavailable):
        await collector.step(setting.now)
    await collector.step(setting.now)
    assert (await setting.state(), collector.waiting) == (State.COMPLETED, 0)


async def test_a_write_whose_answer_was_lost_is_repeated_without_harm(setting: Setting) -> None:
    await setting.add_run()
    (run,) = (await setting.store.claim_runs(["pull/q"], 1, "w", setting.now, setting.now, setting.steady)).runs
    store = FaultyStore(setting.store, by_script(("settle_runs", Fault.AFTER)))
    collector = a_collector(setting, store)
    collector.add(run, None, Succeeded())
    with pytest.raises(StoreUnavailable):
        await collector.step(setting.now)
    await collector.step(setting.now)
    assert (await setting.state(), collector.waiting) == (State.COMPLETED, 0)


async def test_flush_returns_when_everything_is_written(setting: Setting) -> None:
    await setting.add_run()
    (run,) = (await setting.store.claim_runs(["pull/q"], 1, "w", setting.now, setting.now, setting.steady)).runs
    collector = a_collector(setting)
    collector.add(run, None, Succeeded())
    flushing = asyncio.create_task(collector.flush())
    await asyncio.sleep(0)
    await collector.step(setting.now)
    await flushing
    assert await setting.state() is State.COMPLETED


async def test_an_outcome_whose_answer_was_lost_counts_as_written(
    setting: Setting, caplog: pytest.LogCaptureFixture
) -> None:
    await setting.add_run()
    setting.store = FaultyStore(setting.store, by_script(("settle_runs", Fault.AFTER)))
    node = Node(setting, answer(Succeeded()))
    await node.claim()
    await until(lambda: node.collector.waiting > 0)
    with pytest.raises(StoreUnavailable):
        await node.collector.step(setting.now)
    await node.collector.step(setting.now)
    assert (await setting.run()).state is State.COMPLETED
    assert node.collector.waiting == 0
    assert "lease was lost" not in caplog.text
