"""A node of the simulated world: the real `Runtime`, on a store that fails, lags and freezes as the seed says.

A killed node is gone at once: its tasks are cancelled and nothing that it does counts any more. A frozen one (a zombie)
is stopped in the middle of its store calls, before or after they took effect, and goes on later with what it knew.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import ContextVar, copy_context
from random import Random
from typing import Any, TypeVar, cast

from horarium.delivery.handler import Handler, HandlerFunction
from horarium.errors import StoreUnavailable
from horarium.ports import Store
from horarium.signals import LocalSignal
from horarium.testing.simulate.loop import NodeClock
from horarium.wiring import Options, Runtime

T = TypeVar("T")

ROLES = ("api", "planner", "rescuer", "pruner")
NODE: ContextVar[SimulatedNode | None] = ContextVar("node", default=None)


class Chaos:
    """How bad the weather is. Chances are per store call or per signal."""

    def __init__(self, chance: Random) -> None:
        self.chance = chance
        self.faults = chance.choice((0.0, 0.02, 0.1))
        self.lag = chance.choice((0.0, 0.2, 0.5))
        self.lag_seconds = chance.choice((0.02, 0.3))
        self.dropped = chance.choice((0.0, 0.3, 1.0))

    def calm(self) -> None:
        """No more of it."""
        self.faults = self.lag = self.dropped = 0.0


class UnreliableStore:
    """The shared store as one node sees it."""

    def __init__(self, inner: Any, node: SimulatedNode, chaos: Chaos, note: Callable[[str], None]) -> None:
        self._inner = inner
        self._node = node
        self._chaos = chaos
        self._note = note

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._inner, name)

        async def call(*args: Any) -> Any:
            await self._node.pass_gate(self._chaos)
            if self._chaos.chance.random() < self._chaos.faults:
                raise StoreUnavailable(f"fault before {name}")
            self._note(f"{self._node.name} {name}")
            answer = await method(*args)
            await self._node.pass_gate(self._chaos)
            if self._chaos.chance.random() < self._chaos.faults:
                raise StoreUnavailable(f"fault after {name}")
            return answer

        setattr(self, name, call)
        return call


class LossySignal(LocalSignal):
    """Wake-ups of one process, of which some never arrive."""

    def __init__(self, chaos: Chaos) -> None:
        super().__init__()
        self._chaos = chaos

    def publish(self, topic: str) -> None:
        if self._chaos.chance.random() >= self._chaos.dropped:
            super().publish(topic)


class SimulatedNode:
    """One process of ours."""

    def __init__(
        self,
        name: str,
        inner: Any,
        clock: NodeClock,
        chaos: Chaos,
        options: dict[str, float],
        note: Callable[[str], None],
    ) -> None:
        self.name = name
        self.clock = clock
        self.dead = False
        self._thawed: asyncio.Future[None] | None = None
        self._tasks: dict[asyncio.Task[Any], None] = {}
        store = cast(Store, UnreliableStore(inner, self, chaos, note))
        made = Options(
            roles=ROLES,
            node_name=name,
            plan_ahead_seconds=options["plan_ahead_seconds"],
            execution_window_seconds=options["execution_window_seconds"],
            handler_concurrency=4,
            grace_seconds=2.0,
        )
        self.runtime = Runtime(
            store, made, clock=clock, signal=LossySignal(chaos), entropy=lambda size: chaos.chance.randbytes(size)
        )

    def handle(self, name: str, function: HandlerFunction) -> None:
        """Register a handler, before the start."""
        self.runtime.handlers[name] = Handler(name, function)

    async def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Do this on the node, as a client of it would have it done. Raises StoreUnavailable if the node dies."""
        context = copy_context()
        context.run(NODE.set, self)
        task = asyncio.get_running_loop().create_task(work, context=context)
        if self.dead:
            task.cancel()
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.wait([task])
            if not task.cancelled():
                task.exception()
            raise
        if task.cancelled():
            raise StoreUnavailable(f"node {self.name} is gone")
        return task.result()

    def adopt(self, task: asyncio.Task[Any]) -> None:
        """This task is part of the node."""
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._tasks.pop(done, None))
        if self.dead:
            task.cancel()

    async def pass_gate(self, chaos: Chaos) -> None:
        """Where the weather strikes."""
        if chaos.lag and chaos.chance.random() < chaos.lag:
            await asyncio.sleep(chaos.chance.random() * chaos.lag_seconds)
        while self._thawed is not None:
            await asyncio.shield(self._thawed)
        if self.dead:
            raise asyncio.CancelledError

    def freeze(self) -> None:
        """Stop in the middle of whatever it does."""
        if self._thawed is None:
            self._thawed = asyncio.get_running_loop().create_future()

    def thaw(self) -> None:
        """Go on, as though no time had passed."""
        if self._thawed is not None:
            self._thawed.set_result(None)
            self._thawed = None

    def kill(self) -> None:
        """Gone, with all that it had under way."""
        self.dead = True
        self.thaw()
        for task in list(self._tasks):
            task.cancel()
