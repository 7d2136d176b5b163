"""A node of the simulated world: the real `Runtime`, on a store that fails, lags and freezes as the seed says.

A killed node is gone at once: its tasks are cancelled and nothing that it does counts any more. A frozen one (a zombie)
is stopped in the middle of its store calls, before or after they took effect, and goes on later with what it knew.

Every store call waits, as a real one does, and during each wait anything may come in: a wake-up or a call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from contextvars import ContextVar, copy_context
from random import Random
from typing import Any, TypeVar, cast

from horarium.clock import DAY
from horarium.delivery.handler import Handler, HandlerFunction
from horarium.errors import StoreUnavailable
from horarium.node.runtime import Options, Runtime
from horarium.ports import CANCEL, Bus, Claimed, Store, Topic
from horarium.services.alerts.breaker import Counted
from horarium.services.performing.performing import Pace
from horarium.stores.wakeups import LocalSignal
from horarium.testing.simulate.chances import Chances
from horarium.testing.simulate.hands import Hands
from horarium.testing.simulate.hosts import FAILURES, PROBE_SECONDS, Asking, Hosts
from horarium.testing.simulate.keeping import AUDIT_SECONDS
from horarium.testing.simulate.loop import NodeClock

T = TypeVar("T")
Carried = Callable[[str, tuple[Any, ...], Any], bool]
"""Whether a call of the store that took effect (its name, its arguments, its answer) is the one that is meant."""

TURNS_MAX = 2
"""Turns that other tasks get, at most, before a store call takes effect, and again before it is answered."""
COMING_IN_MAX = 12
"""Occasions on which something may come in to one node in one instant."""
CANCELS = 0.5
"""How many of the wake-ups tell of a cancel: claimed runs that have not begun are then looked at again."""
LAG_HARMLESS_SECONDS = 0.05
"""A store call held up for longer than this may cost its node a lease."""
READS = (
    "due_",
    "failing_",
    "first_",
    "get_",
    "job_health",
    "jobs_",
    "last_",
    "list_",
    "overdue_",
    "stats",
    "unfinished_",
)
"""How the names of the store's methods begin that write nothing."""
ROLES = ("api", "planner", "rescuer", "pruner")
NODE: ContextVar[SimulatedNode | None] = ContextVar("node", default=None)


class Chaos:
    """How bad the weather is. Chances are per store call or per signal."""

    def __init__(self, chances: Chances) -> None:
        self.chances = chances
        self.faults = self._one("faults", (0.0, 0.02, 0.1))
        self.lag = self._one("lag", (0.0, 0.2, 0.5))
        self.lag_seconds = self._one("lag_seconds", (0.02, 0.3))
        self.dropped = self._one("dropped", (0.0, 0.3, 1.0))
        self.last_death = -DAY
        self.written = 0
        """How many calls have written to the store."""
        self.woken = self._one("woken", (0.02, 0.2, 0.5))
        self.called = self._one("called", (0.0, 0.002, 0.01))
        self.stepped = self._one("stepped", (0.0, 0.0, 0.001))
        """How likely the wall clock steps in the middle of a call of the store."""
        self.plans_wait = 0.0
        """Seconds, at most, from when a plan is made to its write."""

    def _one(self, name: str, values: tuple[float, ...]) -> float:
        return self.chances.of("weather", name).choice(values)

    @property
    def call_seconds(self) -> float:
        """How long a call of the store takes at most, where one that fails is made again."""
        lag = 2 * self.lag_seconds if self.lag else 0.0
        return lag + (0.5 if self.faults else 0.0)

    def calm(self) -> None:
        """No more of it."""
        self.faults = self.lag = self.dropped = self.woken = self.called = self.stepped = 0.0


class UnreliableStore:
    """The shared store as one node sees it."""

    def __init__(self, inner: Any, node: SimulatedNode, chaos: Chaos, note: Callable[[str], None]) -> None:
        self._inner = inner
        self._node = node
        self._chaos = chaos
        self._note = note

    def _fail(self, when: str, call: str) -> StoreUnavailable:
        self._node.has_trouble()
        self._node.hands.has_trouble(call)
        return StoreUnavailable(f"fault {when} {call}")

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._inner, name)

        async def call(*args: Any) -> Any:
            chance = self._chaos.chances.here(self._node.name, name)
            coming = self._chaos.chances.here(self._node.name, "coming in", name)
            await self._node.pass_gate(self._chaos, chance, coming)
            if chance.random() < self._chaos.faults:
                raise self._fail("before", name)
            if name == "commit_plans" and self._chaos.plans_wait:
                # What a plan is made from has changed, mostly, when it is written.
                await asyncio.sleep(chance.random() * self._chaos.plans_wait)
            self._note(f"{self._node.name} {name}")
            self._node.comes_to(name, args)
            answer = await method(*args)
            self._chaos.written += _wrote(name, answer)
            self._node.carried_out(name, args, answer)
            await self._node.pass_gate(self._chaos, chance, coming)
            if chance.random() < self._chaos.faults:
                raise self._fail("after", name)
            return answer

        setattr(self, name, call)
        return call


def _wrote(name: str, answer: Any) -> bool:
    """Whether this answer is that of a call which wrote to the store."""
    if name.startswith(READS):
        return False
    if isinstance(answer, list):
        return any(answer)
    return bool(answer.runs) if isinstance(answer, Claimed) else answer is None or answer > 0


class LossySignal(LocalSignal):
    """Wake-ups of one process, of which some never arrive."""

    def __init__(self, chaos: Chaos, node: str) -> None:
        super().__init__()
        self._chaos = chaos
        self._node = node

    def publish(self, topic: Topic) -> None:
        if self._chaos.chances.of(self._node, "signal", topic).random() >= self._chaos.dropped:
            super().publish(topic)

    def writes(self) -> int | None:
        """Told where signals are lost: then it is the looks that find everything, and they are left out where nothing
        was written."""
        return self._chaos.written if self._chaos.dropped else None

    def wake_some(self, chance: Random) -> None:
        """One that comes from elsewhere, of any topic that is listened to."""
        if self._wakes:
            topics = sorted(self._wakes)
            self.wake(CANCEL if chance.random() < CANCELS else chance.choice(topics))


class _GivenPace(Pace):
    """A given throughput: a measured one means little where work takes no time."""

    def __init__(self, clock: NodeClock, ahead: int) -> None:
        super().__init__(clock)
        self._least = self.ahead = ahead

    def look(self) -> None:
        super().look()
        self.ahead = max(self.ahead, self._least)


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
        called: Callable[[Random], None] = lambda chance: None,
        stepped: Callable[[Random], None] = lambda chance: None,
        buses: Mapping[str, Bus] | None = None,
        fail: Callable[[str], None] = lambda what: None,
    ) -> None:
        self.name = name
        self.clock = clock
        self.dead = False
        self.trouble_at = clock.monotonic()
        self._came_in, self._came_at = 0, 0.0
        self._called = called
        self._stepped = stepped
        self._signal = LossySignal(chaos, name)
        self.killed: Callable[[], None] = self.kill
        self._dies_at: tuple[Carried, bool] | None = None
        self._thawed: asyncio.Future[None] | None = None
        self._tasks: dict[asyncio.Task[Any], None] = {}
        store = cast(Store, UnreliableStore(inner, self, chaos, note))
        made = Options(
            roles=(*ROLES, "dispatcher") if buses or options["hosts"] else ROLES,
            buses=buses,
            node_name=name,
            plan_ahead_seconds=options["plan_ahead_seconds"],
            execution_window_seconds=options["execution_window_seconds"],
            handler_concurrency=int(options["handler_concurrency"]),
            grace_seconds=2.0,
            audit_retention_seconds=AUDIT_SECONDS,
            http_breaker_failures=FAILURES,
            http_breaker_seconds=PROBE_SECONDS,
        )
        self.runtime = Runtime(
            store, made, clock=clock, signal=self._signal,
            entropy=lambda size: chaos.chances.here(name, "entropy").randbytes(size),
        )  # fmt: skip
        self.runtime._shared.operations.jobs.changes.looked_at = int(options["looked_at"])
        self.hands = Hands(name, clock, self.runtime._shared.collector, fail, int(options["ahead"]))

    async def start(self, hosts: Hosts) -> None:
        """Set it going, once it has heard of the steady scale. `hosts`: those that it asks over HTTP."""
        await asyncio.get_running_loop().create_task(self._open())  # whose chance is its own
        await self.runtime.start()
        assert self.runtime._assembly is not None
        for dispatcher in self.runtime._assembly.dispatchers:
            counted = dispatcher._performing._deliveries.get("http")
            if isinstance(counted, Counted):
                counted._delivery = Asking(self.name, hosts)
        self.hands.watch(self.runtime._assembly.dispatchers)
        for dispatcher in self.runtime._assembly.dispatchers if self.hands.ahead else ():
            dispatcher._performing.pace = _GivenPace(self.clock, self.hands.ahead)

    @property
    def is_open(self) -> bool:
        """Whether it has heard of the steady scale, and answers."""
        return self.runtime._shared.scale.is_known

    async def _open(self) -> None:
        while not self.dead:
            try:
                await self.runtime._shared.scale.follow()
                return
            except StoreUnavailable:
                await asyncio.sleep(0.1)

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

    async def pass_gate(self, chaos: Chaos, chance: Random, coming: Random) -> None:
        """Where faults strike, and where calls from outside come in."""
        for _ in range(chance.randrange(TURNS_MAX + 1)):
            await asyncio.sleep(0)
            self._come_in(chaos, coming)
        if chaos.lag and chance.random() < chaos.lag:
            seconds = chance.random() * chaos.lag_seconds
            if seconds > LAG_HARMLESS_SECONDS:
                self.has_trouble()
            await asyncio.sleep(seconds)
        while self._thawed is not None:
            await asyncio.shield(self._thawed)
        if self.dead:
            raise asyncio.CancelledError

    def _come_in(self, chaos: Chaos, chance: Random) -> None:
        """A wake-up or a call may come in the middle of anything, but not without end while no time passes."""
        now = self.clock.monotonic()
        self._came_in = self._came_in + 1 if self._came_at == now else 1
        self._came_at = now
        if self._came_in > COMING_IN_MAX:
            return
        if chance.random() < chaos.woken and self._thawed is None:
            self._signal.wake_some(chance)
        if chance.random() < chaos.called:
            self._called(chance)
        if chaos.stepped and chance.random() < chaos.stepped:
            self._stepped(chance)

    def has_trouble(self) -> None:
        """What happens to it now may cost it a lease through no fault of its own."""
        self.trouble_at = self.clock.monotonic()

    def die_at(self, call: Carried | None, before: bool = False) -> None:
        """Be killed as soon as the store has carried out such a call, or just `before` it. None: no more of that."""
        self._dies_at = None if call is None else (call, before)

    def comes_to(self, method: str, args: tuple[Any, ...]) -> None:
        """A store call is about to take effect."""
        if self._dies_at is not None and self._dies_at[1] and self._dies_at[0](method, args, None):
            self.killed()
            raise asyncio.CancelledError

    def carried_out(self, method: str, args: tuple[Any, ...], answer: Any) -> None:
        """A store call took effect; its answer is not back yet."""
        if self._dies_at is not None and not self._dies_at[1] and self._dies_at[0](method, args, answer):
            self.killed()

    def freeze(self) -> None:
        """Stop in the middle of what it does."""
        self.has_trouble()
        if self._thawed is None:
            self._thawed = asyncio.get_running_loop().create_future()

    def thaw(self) -> None:
        """Go on, as though no time had passed."""
        if self._thawed is not None:
            self.has_trouble()
            self._thawed.set_result(None)
            self._thawed = None

    def kill(self) -> None:
        """Gone, with all that it had under way."""
        self.dead = True
        self.thaw()
        for task in list(self._tasks):
            task.cancel()
