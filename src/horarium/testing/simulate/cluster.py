"""The nodes of a world, and its wall clock: what starts, dies, freezes and steps.

The seed decides what all nodes have in common: their options, whether their clocks disagree, whether the clock steps.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from random import Random
from typing import Any

from horarium.buses.memory import MemoryBus
from horarium.clock import DAY, SECOND
from horarium.errors import HorariumError
from horarium.model import Run
from horarium.operations.jobs.changes import LOOKED_AT
from horarium.stores.memory import MemoryDatabase
from horarium.testing.simulate.loop import NodeClock, Time
from horarium.testing.simulate.node import NODE, Chaos, SimulatedNode
from horarium.testing.simulate.trace import Trace
from horarium.testing.simulate.workload import HANDLERS, SHARES, Behaviour, has_races, has_rest

NODES_MAX = 3
HELD_UP = 15 * SECOND
"""How long after a frozen node went on something may be written that it had decided before."""
PLANS_WAIT_SECONDS = 0.1
TWICE = ((90, 3), (3, 90), (90, 86_400), (-300, 300), (-20, 23), (-300, 290), (90, -90), (90, -87))
"""Seconds by which the clock steps twice."""
MOMENT_SECONDS = 0.5

StoreFactory = Callable[[MemoryDatabase], Any]


class Cluster:
    """The nodes that there are. `make_store`: a node's view of the data; `called`: a call from outside comes in."""

    def __init__(
        self,
        trace: Trace,
        time: Time,
        chaos: Chaos,
        database: MemoryDatabase,
        make_store: StoreFactory,
        called: Callable[[Random], None],
        has_broker: bool = False,
    ) -> None:
        self.nodes: dict[str, SimulatedNode] = {}
        self.frozen: set[str] = set()
        self.behaviour: Behaviour
        self._trace = trace
        self._time = time
        self._chances = chaos.chances
        self._chaos = chaos
        self._database = database
        self._make_store = make_store
        self._called = called
        self._has_broker = has_broker
        chaos.plans_wait = PLANS_WAIT_SECONDS if has_races() else 0.0
        if SHARES["twice"]:
            chaos.faults = chaos.lag = 0.0  # what these cost a node would be its excuse
        if has_rest():
            chaos.faults = chaos.lag = chaos.stepped = 0.0  # their effects say nothing of the rule
        self._count = 0
        self._skewed = trace.skewed = self._chances.of("skew").random() < 0.2 and not has_rest()
        self._steps_clock = self._chances.of("clock").random() < 1 / 3
        self._options = {
            "plan_ahead_seconds": self._option("plan_ahead_seconds").choice((0.5, 1.0, 5.0)),
            "execution_window_seconds": self._option("execution_window_seconds").choice((0.0, 0.0, 1.0)),
            "handler_concurrency": self._option("handler_concurrency").choice((1, 4, 4, 20)),
            "ahead": 0,
            "hosts": SHARES["hosts"],
        }
        # In some worlds, a change of a job leaves nearly all of its runs for later.
        self._options["looked_at"] = 1 if self._options["plan_ahead_seconds"] == 5.0 else LOOKED_AT

    def _option(self, name: str) -> Random:
        return self._chances.of("option", name)

    @property
    def exact(self) -> bool:
        """Whether all nodes agree on the time, which only goes on."""
        return not (self._skewed or self._trace.clock_stepped)

    def some_node(self, chance: Random) -> SimulatedNode | None:
        """A node that answers, as this chance decides."""
        names = sorted(name for name, node in self.nodes.items() if node.is_open and name not in self.frozen)
        return self.nodes[chance.choice(names)] if names else None

    def adopt(self, task: asyncio.Task[Any], context: Any) -> None:
        """A task was made: it belongs to the node in whose name it was made."""
        node = NODE.get() if context is None else context.get(NODE)
        if node is not None:
            node.adopt(task)

    def healthy_for(self, name: str) -> float:
        """Seconds for which nothing has happened to this node that could cost it a lease."""
        node = self.nodes.get(name)
        if node is None or node.dead or name in self.frozen or self._skewed:
            return 0.0
        return node.clock.monotonic() - node.trouble_at

    def steady_seconds(self) -> float:
        """For how long some node has been well."""
        return max(map(self.healthy_for, self.nodes), default=0.0)

    @property
    def calm(self) -> tuple[int, float]:
        """When a node died last, and how many seconds a call of the store may take."""
        return self._chaos.last_death, self._chaos.call_seconds

    def _called_store(self, line: str) -> None:
        """A node calls the store."""
        self.behaviour.batches.look()
        self._trace.note(line)
        self.look(self._database.space("default").runs)

    def look(self, stored: Mapping[str, Run]) -> None:
        """Look into the hands of each node."""
        if self.frozen:
            self._trace.held_up_until = self._time.elapsed + HELD_UP
        for name, node in self.nodes.items():
            if name not in self.frozen:
                node.hands.look(stored)

    def crowd(self) -> None:
        """Few places, more that is claimed than they can take, and no peace."""
        self._options |= {"handler_concurrency": 4, "ahead": 8, "execution_window_seconds": 1.0}
        self._chaos.woken = 0.5
        self._chaos.called = 0.01

    async def strike(self, chance: Random) -> None:
        """Something goes wrong, or a node comes."""
        if SHARES["ahead"] and chance.random() < SHARES["ahead"]:
            await self._start_ahead(chance)
            return
        if SHARES["twice"] and chance.random() < SHARES["twice"]:
            self._step_twice(chance)
            return
        kind = chance.randrange(4 if has_rest() else 6)
        names = sorted(self.nodes)
        if kind <= 1 and len(names) < NODES_MAX:
            await self.start()
        elif kind == 2 and names:
            self.kill(chance.choice(names))
        elif kind == 3 and names:
            await self._stop(chance.choice(names))
        elif kind == 4 and names:
            self._toggle_frozen(chance.choice(names))
        elif kind == 5 and self._steps_clock:
            self._step_clock(chance)

    async def start(self) -> None:
        """One node more."""
        self._count += 1
        name = f"node-{self._count}"
        skew = self._chances.of(name, "skew").randrange(-SECOND // 3, SECOND // 3) if self._skewed else 0
        clock = NodeClock(self._time, skew)
        node = SimulatedNode(
            name, self._make_store(self._database), clock, self._chaos, self._options, self._called_store, self._called,
            self._step_clock, {"default": MemoryBus(self.behaviour.broker)} if self._has_broker else None,
            self._trace.fail,
        )  # fmt: skip
        for handler in HANDLERS:
            node.handle(handler, self.behaviour.handler(clock))
        node.killed = lambda: self.kill(name)
        self.nodes[name] = node
        self._trace.note(f"start {name}")
        await node.call(node.start(self.behaviour.hosts))

    async def _start_ahead(self, chance: Random) -> None:
        """A node that starts while the clock is ten years ahead; it goes back with the next occasion. All may start
        again so."""
        if self._time.wall > self._time.start + DAY:
            self._steps_by(-3_650 * DAY)
            return
        for name in sorted(self.nodes) if chance.random() < 0.5 else sorted(self.nodes)[:1]:
            self.kill(name)
        self._steps_by(3_650 * DAY)
        await self.start()

    def kill(self, name: str) -> None:
        """This node is gone at once."""
        self.frozen.discard(name)
        if (node := self.nodes.pop(name, None)) is not None:
            self._trace.note(f"kill {name}")
            node.kill()
            self._chaos.last_death = self._time.elapsed

    async def _stop(self, name: str) -> None:
        if name in self.frozen:
            return
        self._trace.note(f"stop {name}")
        node = self.nodes.pop(name)
        try:
            await node.call(node.runtime.stop())
        except HorariumError as error:
            self._trace.note(f"stop failed: {type(error).__name__}")
        node.kill()
        self._chaos.last_death = self._time.elapsed

    def _toggle_frozen(self, name: str) -> None:
        node = self.nodes[name]
        if name in self.frozen:
            self._trace.note(f"thaw {name}")
            self._trace.held_up_until = self._time.elapsed + HELD_UP
            self.frozen.discard(name)
            node.thaw()
        else:
            self._trace.note(f"freeze {name}")
            self.frozen.add(name)
            node.freeze()

    async def recover(self) -> None:
        """All of them go on, and there is at least one."""
        self._chaos.calm()
        for name in sorted(self.frozen):
            self._trace.held_up_until = self._time.elapsed + HELD_UP
            self.nodes[name].thaw()
        self.frozen.clear()
        if not self.nodes:
            await self.start()

    def _step_clock(self, chance: Random) -> None:
        step = chance.choice((-300, -20, -3, 3, 20, 90)) * SECOND
        now, start = self._time.wall, self._time.start
        if chance.random() < 0.2:
            step = 3_650 * DAY if now < start + DAY else -3_650 * DAY
        if now + step >= start - DAY:
            self._steps_by(step)

    def _step_twice(self, chance: Random) -> None:
        """Two steps within a moment: between two looks of most nodes, and heartbeats and claims come in between."""
        first, second = chance.choice(TWICE)
        if self._time.wall + first * SECOND >= self._time.start - DAY:
            self._steps_by(first * SECOND)
            later = chance.random() * MOMENT_SECONDS
            asyncio.get_running_loop().call_later(later, self._steps_by, second * SECOND)

    def _steps_by(self, step: int) -> None:
        self._trace.clock_stepped = True
        self._trace.stepped_at = self._trace.elapsed
        self._trace.clock_went_back |= step < 0
        self._trace.note(f"the clock steps by {step // SECOND} s")
        self._time.offset += step
