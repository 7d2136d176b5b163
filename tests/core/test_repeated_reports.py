"""A report that is repeated under its token is answered as it was the first time; another one is refused."""

from __future__ import annotations

import pytest

from horarium.clock import SECOND
from horarium.errors import LeaseLost
from horarium.model import Cancelled, Deferred, Failed, Outcome, Refused, Released, RunChange, Succeeded
from horarium.operations.settling.settling import Settlement
from horarium.rules.settling import rescue
from tests.core.test_operations import START, World, a_claimed_run


@pytest.fixture
def world() -> World:
    return World()


@pytest.mark.parametrize(
    "outcome",
    [Succeeded(b"1"), Failed("no"), Failed("no", retryable=False), Deferred(START + 60 * SECOND), Released("why"),
     Refused("why"), Cancelled("why")],
)  # fmt: skip
@pytest.mark.parametrize("cancelled", [False, True])
async def test_a_repeated_report_is_answered_as_the_first_one_was(
    world: World, outcome: Outcome, cancelled: bool
) -> None:
    run = await a_claimed_run(world)
    if cancelled:
        await world.operations.runs.cancel_run(run.id)
    report = Settlement(run.id, run.token, outcome)
    first = await world.operations.settling.settle_one(report)
    assert await world.operations.settling.settle_one(report) == first
    with pytest.raises(LeaseLost):
        await world.operations.settling.settle_one(Settlement(run.id, run.token, Succeeded(b"2")))


async def test_what_a_rescuer_wrote_is_no_answer_to_a_late_report(world: World) -> None:
    run = await a_claimed_run(world)
    world.clock.advance(31)
    rescued = rescue(run, await world.operations.jobs.get_job("job"), world.clock.now())
    await world.store.settle_runs([RunChange(rescued, run.token, run.state)], world.clock.now())
    assert (await world.claim()).runs
    with pytest.raises(LeaseLost):
        await world.operations.settling.settle_one(Settlement(run.id, run.token, Failed("no")))
