"""A node that was frozen for longer than its leases: what it had claimed and not begun loses no attempt."""

from __future__ import annotations

import pytest

from horarium.clock import SECOND
from horarium.errors import StoreUnavailable
from horarium.model import EventKind, RunPolicy, State
from horarium.model.holds import HoldScope
from horarium.policies import Retry
from horarium.services.leases.rescuer import Rescuer
from horarium.testing import Fault, FaultyStore, by_script
from horarium.wire.holds import HoldDefinition
from tests.services.conftest import START, Setting, a_rescuer
from tests.services.node import Node, Work
from tests.waiting import until

FROZEN_SECONDS = 40
ONCE = RunPolicy(retry=Retry(attempts_max=1))


def its_rescuer(setting: Setting, node: Node) -> Rescuer:
    """The rescuer of the same process."""
    return a_rescuer(setting, node.own)


async def a_frozen_node(setting: Setting, policy: RunPolicy | None = None) -> Node:
    """Work has begun on it, and a neighbour was claimed ahead of its instant. All of it has stood still since."""
    await setting.add_run("poison")
    await setting.add_run("neighbour", due_at=START + SECOND, policy=policy)
    work = Work()
    node = Node(setting, work, window_seconds=1)
    await node.claim()
    await until(lambda: bool(work.begun))
    setting.clock.advance(FROZEN_SECONDS)
    return node


async def test_its_own_rescuer_gives_back_what_had_not_begun(setting: Setting) -> None:
    node = await a_frozen_node(setting, ONCE)
    await its_rescuer(setting, node).step(setting.now)
    neighbour, poison = await setting.run("neighbour"), await setting.run("poison")
    assert (neighbour.state, neighbour.attempt) == (State.PENDING, 0)
    assert (poison.state, poison.attempt) == (State.RUNNING, 1)


@pytest.mark.parametrize("policy", [None, ONCE], ids=["three attempts", "one attempt"])
async def test_what_no_other_node_has_taken_begins_under_the_same_claim(
    setting: Setting, policy: RunPolicy | None
) -> None:
    node = await a_frozen_node(setting, policy)
    await node.claim()
    neighbour = await setting.run("neighbour")
    assert (neighbour.state, neighbour.token, neighbour.attempt) == (State.RUNNING, 1, 1)
    assert (neighbour.lease_expires_at or 0) > setting.now


@pytest.mark.parametrize("retry", [Retry(), Retry(silences_max=1)], ids=["attempts", "silences"])
async def test_an_attempt_that_another_node_took_is_given_back(setting: Setting, retry: Retry) -> None:
    node = await a_frozen_node(setting, RunPolicy(retry=retry))
    await a_rescuer(setting).step(setting.now)
    taken = await setting.run("neighbour")
    assert taken.history[-1].kind is EventKind.LOST
    setting.store = FaultyStore(setting.store, by_script(("claim_runs", Fault.BEFORE)))
    node.dispatcher._claiming = setting.operations.claiming
    with pytest.raises(StoreUnavailable):
        await node.claim()
    neighbour = await setting.run("neighbour")
    assert (neighbour.state, neighbour.attempt, neighbour.error) == (State.PENDING, 0, None)
    assert neighbour.history[-1].kind is EventKind.RELEASED


async def test_what_another_node_has_begun_since_is_left_alone(setting: Setting) -> None:
    node = await a_frozen_node(setting)
    await a_rescuer(setting).step(setting.now)
    await setting.store.claim_runs(["pull/q"], 10, "other", setting.now, setting.now, setting.steady)
    begun = await setting.run("neighbour")
    await node.claim()
    assert await setting.run("neighbour") == begun


@pytest.mark.parametrize("fault", [Fault.BEFORE, Fault.AFTER])
async def test_a_claim_without_an_answer_costs_no_attempt(setting: Setting, fault: Fault) -> None:
    await setting.add_run("run", policy=ONCE)
    setting.store = FaultyStore(setting.store, by_script(("claim_runs", fault)))
    node = Node(setting, Work())
    with pytest.raises(StoreUnavailable):
        await node.claim()
    setting.clock.advance(FROZEN_SECONDS)
    await its_rescuer(setting, node).step(setting.now)
    run = await setting.run("run")
    assert (run.state, run.attempt) == (State.PENDING, 0)


async def test_a_claim_without_an_answer_is_given_back_before_others_take_it_for_lost(setting: Setting) -> None:
    await setting.add_run("run", policy=ONCE)
    setting.store = FaultyStore(setting.store, by_script(("claim_runs", Fault.AFTER)))
    node = Node(setting, Work())
    with pytest.raises(StoreUnavailable):
        await node.claim()
    rescuer = its_rescuer(setting, node)
    for _ in range(FROZEN_SECONDS):
        setting.clock.advance(1)
        await rescuer.step(setting.now)
        await a_rescuer(setting).step(setting.now)
    assert (await setting.run("run")).attempt == 0


async def test_a_claim_that_could_not_be_put_back_costs_no_attempt(setting: Setting) -> None:
    await setting.add_job(name="held")
    for id, job in (("run", "held"), ("beside", None)):
        await setting.add_run(id, job=job, job_id=job, policy=ONCE)
    await setting.operations.holds.add(HoldDefinition(scope=HoldScope(job="held"), reason="moving"))
    setting.store = FaultyStore(setting.store, by_script(("settle_runs", Fault.BEFORE)))
    claimed = await setting.operations.claiming.claim(["pull/q"], 9, "w", setting.now, setting.now)
    assert [run.id for run in claimed.runs] == ["beside"]
    setting.clock.advance(FROZEN_SECONDS)
    await its_rescuer(setting, Node(setting, Work())).step(setting.now)
    run, beside = await setting.run("run"), await setting.run("beside")
    assert (run.state, run.attempt) == (State.PENDING, 0)
    assert beside.state is State.FAILED, "that one was handed out, and may have begun"
