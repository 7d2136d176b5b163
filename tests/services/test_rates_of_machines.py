"""Rate limits over machines whose wall clocks differ by seconds, whose processes die, and whose attempts fail."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from horarium.clock import SECOND, Clock, Instant, to_micros
from horarium.model import Failed
from horarium.operations.facade import Operations
from horarium.operations.settling.settling import Settlement
from horarium.policies import Limit
from horarium.services.loop.steady import SteadyScale
from horarium.stores.memory import MemoryStore
from horarium.stores.server_clock import ServerClock
from horarium.stores.wakeups import LocalSignal
from horarium.testing import ManualClock
from horarium.testing.values import NOW
from horarium.wire.one_offs import read_run

QUEUE = "pull/work"
SKEW_MAX = 2 * SECOND
READ = 10
"""Microseconds within which nodes read one time."""


class Machine:
    """The clocks of a machine: its wall clock is wrong, and it counts from its own start."""

    def __init__(self, true: ManualClock, skew: int, up_seconds: float) -> None:
        self._true, self._skew, self._up = true, skew, up_seconds
        self.machine = f"{skew} {up_seconds}"
        self.steady_offset = self.now() - to_micros(self.monotonic())

    def now(self) -> Instant:
        return self._true.now() + self._skew

    def monotonic(self) -> float:
        return self._true.monotonic() + self._up

    def steady(self) -> Instant:
        return to_micros(self.monotonic()) + self.steady_offset


class Server:
    """The database server, which is asked for its time."""

    def __init__(self, true: ManualClock) -> None:
        self._true = true

    async def server_time(self) -> Instant:
        return self._true.now()


class Node:
    """A node on a machine of its own, as it is after its start."""

    def __init__(self, world: World) -> None:
        chance = world.chance
        machine = Machine(world.true, chance.randint(-SKEW_MAX, SKEW_MAX), chance.uniform(1, 10**6))
        self.clock: Clock = ServerClock(Server(world.true), machine)
        self.operations = Operations(world.store, self.clock, LocalSignal(), chance.randbytes, lambda _: None)
        self.scale = SteadyScale(world.store, self.clock)

    async def keep_up(self) -> None:
        """As a node does at its start, and every ten seconds."""
        if isinstance(self.clock, ServerClock):
            await self.clock.measure()
        await self.scale.follow()


class World:
    """Nodes on one store, in true time. `begins`: when attempts began, as their receiver sees it."""

    def __init__(self, limit: Limit, seed: int) -> None:
        self.limit, self.chance = limit, Random(seed)
        self.store, self.true = MemoryStore(), ManualClock(NOW)
        self.nodes: list[Node] = []
        self.begins: list[Instant] = []

    async def run(self, steps: int) -> None:
        self.nodes = [Node(self) for _ in range(4)]
        for node in self.nodes:
            await node.keep_up()
        for _ in range(steps):
            await self._add(self.chance.choice((0, 1, 5)))
            await asyncio.gather(*(self._claim(node) for node in self.nodes))
            if self.chance.random() < 0.1:
                self.nodes[0] = node = Node(self)  # it was killed, and is on another machine now
                await node.keep_up()
            await self.chance.choice(self.nodes).keep_up()
            self.true.advance(min(self.chance.uniform(0, 2) * self.limit.per_seconds / self.limit.max, 5))

    async def _add(self, count: int) -> None:
        rate = {"key": "api", "max": self.limit.max, "per_seconds": self.limit.per_seconds, "burst": self.limit.burst}
        wanted = read_run({"target": {"type": "queue", "queue": "work"}, "rate": [rate]})
        await self.chance.choice(self.nodes).operations.one_offs.add_runs([wanted] * count)

    async def _claim(self, node: Node) -> None:
        now, ahead = node.clock.now(), self.chance.choice((0, SECOND))
        claimed = await node.operations.claiming.claim([QUEUE], self.chance.choice((1, 3, 50)), "w", now, now + ahead)
        if self.chance.random() < 0.1:
            return  # killed with all that it claimed
        for run in claimed.runs:
            if self.chance.random() < 0.1:
                await node.operations.settling.release([run], claimed.jobs, "released")
                continue
            first, last = (at - node.clock.steady() for at in claimed.turns[run.id])
            self.begins.append(self.true.now() + self.chance.randint(max(first, 0) + READ, last - READ))
            outcome = Failed("no", retry_after_seconds=self.chance.uniform(0, 1))
            await node.operations.settling.settle_one(Settlement(run.id, run.token, outcome))

    def fullest(self) -> int:
        begins, window = sorted(self.begins), to_micros(self.limit.per_seconds)
        return max((bisect_left(begins, at + window) - index for index, at in enumerate(begins)), default=0)


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(st.sampled_from([Limit(1, 2.0), Limit(5, 1.0), Limit(20, 10.0, 20), Limit(10, 60.0, 3)]), st.integers(0, 2**32))
async def test_no_window_is_overfilled_though_wall_clocks_differ_and_nodes_die(limit: Limit, seed: int) -> None:
    world = World(limit, seed)
    await world.run(60)
    assert len(world.begins) >= min(limit.max, 10)
    assert world.fullest() <= limit.max
