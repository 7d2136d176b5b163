"""Fairness in the flow of runs, on every path by which a run comes to wait."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from horarium.clock import SECOND
from horarium.errors import StoreUnavailable
from horarium.model import Failed, Run, State
from horarium.model.records import RecordFilter
from horarium.operations.facade import Operations
from horarium.operations.settling.settling import Settlement
from horarium.operations.settling.turns import ENDS, QueueSettings, end_name, line_of
from horarium.rules.explaining import explain
from horarium.rules.fairness import GRACE, awaits_turn
from horarium.services.leases.rescuer import Rescuer
from horarium.services.loop.steady import SteadyScale
from horarium.services.metrics.telemetry import Telemetry
from horarium.services.upkeep.rates import TurnPruner
from horarium.stores.memory import MemoryStore
from horarium.stores.wakeups import LocalSignal
from horarium.testing import ManualClock
from horarium.testing.values import NOW, a_job
from horarium.wire.one_offs import read_run

QUEUE = "pull/work"


class World:
    """One store, and some nodes on it."""

    def __init__(self, nodes: int = 1, store: MemoryStore | None = None) -> None:
        self.store, self.clock = store or MemoryStore(), ManualClock(NOW)
        numbers = iter(range(1, 10**9))
        self.nodes = [
            Operations(
                self.store, self.clock, LocalSignal(), lambda size: next(numbers).to_bytes(size, "big"), lambda _: None
            )
            for _ in range(nodes)
        ]
        self.operations = self.nodes[0]

    async def add(self, key: str, count: int, node: int = 0, **fields: Any) -> list[Run]:
        wanted = {"target": {"type": "queue", "queue": "work"}, "payload": {"tenant": key}, **fields}
        definition = read_run({"fair": "{payload.tenant}", **wanted})
        answers = await self.nodes[node].one_offs.add_runs([definition] * count)
        return [answer.run for answer in answers if hasattr(answer, "run")]

    async def claim(self, limit: int = 100) -> list[Run]:
        now = self.clock.now()
        return list((await self.operations.claiming.claim([QUEUE], limit, "w", now, now)).runs)

    async def rescue(self) -> None:
        operations, scale = self.operations, SteadyScale(self.store, self.clock)
        args = self.store, operations.settling, operations.reconciler, Telemetry(), self.clock, scale
        await Rescuer(*args).step(self.clock.now())


def shares(runs: list[Run]) -> dict[str | None, int]:
    return dict(Counter(run.fair for run in runs))


async def test_beside_a_flood_a_key_that_comes_later_has_every_second_turn() -> None:
    world = World()
    await world.add("a", 1_000)
    assert shares(await world.claim()) == {"a": 100}
    world.clock.advance(5)
    late = await world.add("b", 60)
    assert shares(await world.claim()) == {"a": 50, "b": 50}
    assert late[0].due_since == world.clock.now() > late[0].due_at
    assert shares(await world.claim()) == {"a": 90, "b": 10}


async def test_weights_hold_from_the_next_runs_on_over_all_nodes() -> None:
    world = World(nodes=3)
    await world.operations.queues.put(QUEUE, QueueSettings({"gold": 3}))
    for node in range(3):
        await world.add("gold", 400, node)
        await world.add("tin", 400, node)
    assert shares(await world.claim(400)) == {"gold": 300, "tin": 100}


async def test_runs_of_one_key_that_many_nodes_add_at_once_take_turns_of_their_own() -> None:
    world = World(nodes=5)
    await asyncio.gather(*(world.add("a", 1, node) for node in range(5) for _ in range(20)))
    await world.add("b", 100)
    runs = await world.claim(60)
    assert abs(shares(runs)["a"] - 30) <= 1


async def test_a_run_that_falls_due_later_takes_its_turn_before_the_rest_of_a_flood() -> None:
    world = World()
    (later,) = await world.add("b", 1, delay_seconds=5)
    await world.add("a", 500)
    assert awaits_turn(later)
    world.clock.advance(5)
    assert shares(await world.claim(10)) == {"a": 10}
    world.clock.advance((GRACE + 1) / SECOND)
    await world.rescue()
    (placed,) = await world.store.get_runs([later.id])
    assert placed is not None
    assert (placed.state, placed.start_by) == (State.PENDING, None)
    assert "b" in shares(await world.claim(2))


async def test_a_run_that_failed_takes_another_turn() -> None:
    world = World()
    await world.add("b", 1, retry={"attempts_max": 2, "backoff_seconds": 1})
    (run,) = await world.claim(1)
    await world.add("a", 500)
    failed = await world.operations.settling.settle_one(Settlement(run.id, run.token, Failed("no")))
    assert awaits_turn(failed)
    world.clock.advance(30)
    await world.rescue()
    assert shares(await world.claim(4)) == {"a": 3, "b": 1}


async def test_where_a_turn_can_not_be_taken_now_the_run_is_made_and_takes_it_later() -> None:
    class Lame(MemoryStore):
        async def put_records(self, changes: Any) -> list[bool]:
            raise StoreUnavailable("down")

    world = World(store=Lame())
    (run,) = await world.add("a", 1)
    assert awaits_turn(run)
    assert [run.id for run in await world.claim()] == [run.id]


async def test_last_turns_are_forgotten_once_nothing_waits_before_them() -> None:
    world = World()
    await world.add("a", 10)
    await world.add("b", 2)
    pruner = TurnPruner(world.store, world.clock)

    async def kept() -> list[str]:
        await pruner.step(world.clock.now())
        return [record.name[-1] for record in (await world.store.list_records(RecordFilter(ENDS), None, 200)).items]

    world.clock.advance(60)
    assert await kept() == ["a", "b"]
    await world.claim(6)
    assert await kept() == ["a"]
    await world.claim()
    assert await kept() == []
    assert line_of(end_name(("pull/a", -3, "x/y"))) == ("pull/a", -3)


async def test_it_is_explained_that_a_run_waits_for_its_turn() -> None:
    world = World()
    run = (await world.add("acme", 2))[1]
    assert "'acme'" in explain(a_job(), run.fire_at, NOW + SECOND, run).reason


async def test_a_unique_run_takes_its_turn_too() -> None:
    world = World()
    await world.add("a", 100)
    world.clock.advance(1)
    (run,) = await world.add("b", 1, unique={"key": "once"})
    assert not awaits_turn(run)
    assert run.id in [each.id for each in await world.claim(2)]


@pytest.mark.parametrize("weights", [{"a": 1}, {}])
async def test_the_same_weights_again_are_no_change(weights: dict[str, int]) -> None:
    world = World()
    for _ in range(2):
        await world.operations.queues.put(QUEUE, QueueSettings(weights))
    assert (await world.operations.queues.get(QUEUE)).fair_weights == weights
    found = (await world.operations.queues.page(None, 10)).items
    assert found == (((QUEUE, QueueSettings(weights)),) if weights else ())
