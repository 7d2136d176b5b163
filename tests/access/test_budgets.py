"""Budgets of keys: counted over all nodes, never more than was granted."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from horarium.access.budgets import PREFIX
from horarium.access.keys import Keys
from horarium.access.roles import Principal, Role
from horarium.errors import OverBudget
from horarium.model.records import RecordFilter
from horarium.stores.memory import MemoryDatabase, MemoryStore
from horarium.testing.clock import ManualClock
from horarium.testing.values import NOW
from tests.access.test_keys import TOKEN, a_key


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOW)


async def two_nodes(clock: ManualClock, **budget: Any) -> tuple[list[Keys], Principal]:
    database = MemoryDatabase()
    nodes = [Keys(MemoryStore(database=database), clock) for _ in range(2)]
    await nodes[0].add(a_key(roles=(Role.OPERATOR,), **budget))
    found = await nodes[1].find(TOKEN)
    assert found is not None
    return nodes, found


async def test_two_nodes_at_once_grant_exactly_the_budget(clock: ManualClock) -> None:
    nodes, caller = await two_nodes(clock, calls_per_hour=30)
    asked = [nodes[number % 2].spend(caller, "calls") for number in range(50)]
    answers = await asyncio.gather(*asked, return_exceptions=True)
    refused = [each for each in answers if each is not None]
    assert [type(each) for each in refused] == [OverBudget] * 20
    assert "a budget of 30 calls an hour, of which 0 are left" in str(refused[0])


async def test_the_next_window_begins_anew_and_a_refusal_costs_nothing(clock: ManualClock) -> None:
    (here, _), caller = await two_nodes(clock, runs_per_day=10)
    await here.spend(caller, "calls", 1_000)  # it has no budget of these
    await here.spend(caller, "runs", 8)
    with pytest.raises(
        OverBudget, match=r"a budget of 10 runs a day, of which 2 are left until .*; asked for: 3$"
    ) as over:
        await here.spend(caller, "runs", 3)
    await here.spend(caller, "runs", 2)
    clock.advance(over.value.retry_after_seconds)
    await here.spend(caller, "runs", 10)
    with pytest.raises(OverBudget):
        await here.spend(caller, "runs")


async def test_a_budget_that_was_spent_under_a_clock_that_was_ahead_is_not_missed_for_years(clock: ManualClock) -> None:
    (here, there), caller = await two_nodes(clock, runs_per_day=1)
    clock.step(3_650 * 86_400)
    await here.spend(caller, "runs")
    clock.step(-3_650 * 86_400)
    await there.spend(caller, "runs")
    with pytest.raises(OverBudget):
        await there.spend(caller, "runs")


async def test_the_counts_go_with_their_key(clock: ManualClock) -> None:
    (here, there), caller = await two_nodes(clock, calls_per_hour=1, runs_per_day=1)
    await here.spend(caller, "calls")
    await there.spend(caller, "runs")
    assert len((await here._store.list_records(RecordFilter(PREFIX), None, 9)).items) == 2
    await here.revoke("ci")
    assert (await here._store.list_records(RecordFilter(PREFIX), None, 9)).items == ()
