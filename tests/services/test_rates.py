"""Rate limits in the flow of runs: places in line, what waits costs claims nothing, and a limit that changes."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from itertools import pairwise
from typing import Any

import pytest

from horarium.clock import MINUTE, SECOND
from horarium.model import Failed, Run, State
from horarium.model.records import RecordFilter
from horarium.operations.facade import Operations
from horarium.operations.settling.rating import CHANGED, PREFIX
from horarium.operations.settling.settling import Settlement
from horarium.policies import Rate
from horarium.ports import Claimed
from horarium.rules.rates import IDLE, Override, waits_for
from horarium.services.upkeep.rates import PAUSE, RateApplier, RatePruner
from horarium.stores.memory import MemoryStore
from horarium.stores.wakeups import LocalSignal
from horarium.testing import ManualClock
from horarium.testing.values import NOW, a_run
from horarium.wire.one_offs import read_run

QUEUE = "pull/work"
RATE = {"key": "api", "max": 10, "per_seconds": 60}


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
        self.begins: list[int] = []

    @property
    def operations(self) -> Operations:
        return self.nodes[0]

    async def add(self, count: int, **fields: object) -> list[Run]:
        wanted = {"target": {"type": "queue", "queue": "work"}, "rate": [RATE], **fields}
        answers = await self.operations.one_offs.add_runs([read_run(wanted) for _ in range(count)])
        return [answer.run for answer in answers if hasattr(answer, "run")]

    async def claim(self, node: int = 0, limit: int = 100, ahead: int = 0) -> Claimed:
        now = self.clock.now()
        claimed = await self.nodes[node].claiming.claim([QUEUE], limit, f"n{node}", now, now + ahead)
        self.begins += (max(now, run.due_at) for run in claimed.runs if run.rates)
        return claimed

    async def stored(self, run: Run) -> Run:
        (found,) = await self.store.get_runs([run.id])
        assert found is not None
        return found


async def test_a_burst_begins_and_the_others_are_due_at_their_places() -> None:
    world = World()
    runs = await world.add(5)
    claimed = await world.claim()
    assert [run.id for run in claimed.runs] == [runs[0].id]
    waiting = [await world.stored(run) for run in runs[1:]]
    assert [(run.state, run.attempt, waits_for(run)) for run in waiting] == [(State.PENDING, 0, "api")] * 4
    assert all(a.due_at < b.due_at for a, b in pairwise(waiting))
    assert not (await world.claim()).runs
    for _ in range(4):
        world.clock.advance((waiting[0].due_at - world.clock.now()) / SECOND)
        assert [run.id for run in (await world.claim()).runs] == [waiting.pop(0).id]


async def test_no_window_holds_more_than_max_though_four_nodes_claim_at_once() -> None:
    world = World(nodes=4)
    for _ in range(60):
        await world.add(3)
        await asyncio.gather(*(world.claim(node, 2, ahead=SECOND) for node in range(4)))
        world.clock.advance(2.5)
    begins = sorted(world.begins)
    assert len(begins) >= 20
    fullest = max(bisect_left(begins, at + MINUTE) - index for index, at in enumerate(begins))
    assert fullest <= 10


async def test_what_waits_is_outside_of_what_claims_walk_over() -> None:
    """However many runs wait behind a key, a claim beside them is answered by the store's first look."""
    world = World()
    await world.add(3000)
    (beside,) = await world.add(1, rate=[])
    claimed = await world.claim(limit=5)
    assert {run.id for run in claimed.runs} >= {beside.id}
    (stats,) = (await world.store.stats(world.clock.now())).queues
    assert stats.due == 0
    assert stats.scheduled >= 2998


class StepsBack(MemoryStore):
    """The clock is set back while runs are claimed."""

    clock: ManualClock | None = None

    async def claim_runs(self, *asked: Any) -> Claimed:
        claimed = await super().claim_runs(*asked)
        if self.clock is not None:
            self.clock.step(-3)
        self.clock = None
        return claimed


async def test_a_run_that_is_claimed_before_its_instant_since_the_clock_went_back_takes_no_later_place() -> None:
    store = StepsBack()
    world = World(store=store)
    (run,) = await world.add(1)
    store.clock = world.clock
    claimed = await world.claim()
    assert claimed.runs == (), "it would begin three seconds before the place that it took"
    assert (await world.stored(run)).state is State.PENDING
    world.clock.advance(30)
    assert [each.id for each in (await world.claim()).runs] == [run.id]


async def test_runs_that_were_due_long_ago_do_not_burst() -> None:
    world = World()
    await world.store.add_runs([a_run(n, queue=QUEUE, rates=(Rate(10, 60.0, key="api"),)) for n in range(200)])
    assert len((await world.claim(limit=200)).runs) == 1


async def test_a_pause_that_a_target_asks_for_shuts_its_keys_for_everybody_and_costs_no_attempt() -> None:
    world = World(nodes=2)
    await world.add(2, rate=[{**RATE, "max": 100}])
    first, second = (await world.claim()).runs
    outcome = Failed("answered 429", retry_after_seconds=30.0, throttled=True)
    after = await world.operations.settling.settle_one(Settlement(first.id, first.token, outcome))
    assert (after.state, after.attempt, waits_for(after)) == (State.PENDING, 0, "api")
    assert await world.operations.settling.settle_one(Settlement(first.id, first.token, outcome)) == after, "repeated"
    (late,) = await world.add(1, rate=[{**RATE, "max": 100}])
    assert late.due_at >= world.clock.now() + 30 * SECOND
    assert not (await world.claim(1)).runs
    world.clock.advance(30)
    assert {run.id for run in (await world.claim(1)).runs} == {first.id, late.id}
    assert second.id not in {first.id, late.id}


async def test_what_had_its_place_when_a_key_was_shut_begins_within_a_second_or_not_at_all() -> None:
    world = World(nodes=2)
    await world.add(2, rate=[{"key": "api", "max": 1000, "per_seconds": 86_400}])
    (first,), beside = (await world.claim(0, 1)).runs, await world.claim(1, 1)
    outcome = Failed("answered 503", retry_after_seconds=30.0, throttled=True)
    await world.operations.settling.settle_one(Settlement(first.id, first.token, outcome))
    assert [last <= world.clock.steady() + SECOND for _, last in beside.turns.values()] == [True]


async def test_without_a_rate_limit_a_pause_costs_an_attempt_as_ever() -> None:
    world = World()
    await world.add(1, rate=[])
    (run,) = (await world.claim()).runs
    outcome = Failed("answered 429", retry_after_seconds=30.0, throttled=True)
    assert (await world.operations.settling.settle_one(Settlement(run.id, run.token, outcome))).attempt == 1


async def carry(world: World) -> None:
    operations = world.operations
    applier = RateApplier(operations.context, operations.reconciler, operations.settling, "n")
    for _ in range(50):
        if not (await world.store.list_records(RecordFilter(CHANGED), None, 1)).items:
            return
        await applier.step(world.clock.now())
    raise AssertionError("a change of a limit is never done")


@pytest.mark.parametrize("count", [5, 700])
async def test_a_wider_limit_brings_those_forward_that_wait_in_their_order(count: int) -> None:
    world = World()
    runs = await world.add(count, rate=[{"key": "api", "max": 1, "per_seconds": 3600}])
    await world.claim()
    await world.operations.rates.put("api", Override(1000, 10.0, 1))
    await carry(world)
    waiting = [await world.stored(run) for run in runs[1:]]
    assert waiting[-1].due_at <= world.clock.now() + count * SECOND // 90
    assert all(a.due_at <= b.due_at for a, b in pairwise(waiting))
    await world.operations.rates.reset("api")
    await carry(world)
    assert (await world.stored(runs[2])).due_at >= world.clock.now() + 3600 * SECOND


async def test_keys_are_forgotten_once_they_hold_nothing_back() -> None:
    world = World()
    for number in range(250):
        await world.add(1, rate=[{**RATE, "key": f"k{number:03}"}])
    await world.claim(limit=250)
    await world.operations.rates.put("kept", Override(1, 1.0))
    pruner = RatePruner(world.store, world.clock)
    for seconds, pause in ((0, PAUSE), (IDLE / SECOND + 120, 0)):
        world.clock.advance(seconds)
        now = world.clock.now()
        pages = [await pruner.step(now) for _ in range(2)]
        assert pages == [now + pause, now + MINUTE], "a page of keys that are all needed is followed by a pause"
    names = [record.name for record in (await world.store.list_records(RecordFilter(PREFIX), None, 200)).items]
    assert names == ["rate/kept"]
