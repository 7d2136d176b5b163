"""Workers outside of the node: a step forward of its clock makes none of their reports void."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from horarium.clock import SECOND
from horarium.errors import LeaseLost
from horarium.model import Failed, Run, State, Succeeded
from horarium.node.runtime import Options, Runtime
from horarium.operations.settling.settling import Settlement
from horarium.stores.memory import MemoryStore
from horarium.testing import ManualClock
from tests.services.conftest import START
from tests.services.node import taken_away


@pytest_asyncio.fixture
async def node() -> AsyncIterator[Runtime]:
    """A node that serves the API alone."""
    clock = ManualClock(START)
    node = Runtime(MemoryStore(), Options(roles=("api",)), clock=clock, entropy=os.urandom)
    await node.open()
    await node.start()
    yield node
    await node.close()


async def claimed(node: Runtime) -> Run:
    now = node.clock.now()
    await node.store.add_runs([Run(id="run", queue="pull/q", fire_at=now, due_at=now, created_at=now)])
    (run,) = (await node.operations.claiming.claim(["pull/q"], 1, "w", now, now)).runs
    return run


def step(node: Runtime, seconds: float) -> None:
    assert isinstance(node.clock, ManualClock)
    node.clock.step(seconds)


@pytest.mark.parametrize("outcome", [Succeeded(), Failed("no", retryable=False)])
async def test_a_report_right_after_a_step_forward_counts(node: Runtime, outcome: Succeeded | Failed) -> None:
    run = await claimed(node)
    step(node, 3_600)
    done = await node.operations.settling.settle_one(Settlement(run.id, run.token, outcome))
    assert done.state is (State.COMPLETED if isinstance(outcome, Succeeded) else State.FAILED)


async def test_a_heartbeat_right_after_a_step_forward_renews_the_lease(node: Runtime) -> None:
    run = await claimed(node)
    step(node, 3_600)
    pulse = await node.operations.runs.heartbeat(run.id, run.token)
    assert pulse.expires_at == node.clock.now() + round(run.lease_seconds * SECOND)


async def test_a_lease_is_lost_once_another_claim_was_made(node: Runtime) -> None:
    run = await claimed(node)
    assert isinstance(node.clock, ManualClock)
    node.clock.advance(31)
    await node.store.settle_runs([taken_away(run)], node.clock.now())
    await node.store.claim_runs(["pull/q"], 1, "other", node.clock.now(), node.clock.now(), node.clock.steady())
    with pytest.raises(LeaseLost):
        await node.operations.runs.heartbeat(run.id, run.token)
    with pytest.raises(LeaseLost):
        await node.operations.settling.settle_one(Settlement(run.id, run.token, Succeeded()))
