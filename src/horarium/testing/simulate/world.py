"""One simulated world: nodes, weather, people, and the end at which everything must have come to rest.

The seed decides all of it. A world runs through three parts: a storm of `steps` steps in which nodes die and freeze,
clocks step, calls fail and signals get lost; a calm in which nothing fails; and the reckoning. What is checked at every
write is in `watch.py`, what is checked at the end here and in `oracle.py`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from contextvars import Context
from hashlib import blake2b
from random import Random
from typing import Any

from msgspec import Struct

from horarium.buses.memory import MemoryBus
from horarium.clock import DAY, SECOND, Instant
from horarium.errors import BrokenInvariant, HorariumError
from horarium.model import Run, State
from horarium.stores.memory import MemoryDatabase, MemoryStore
from horarium.testing.simulate.bus import BusWorker
from horarium.testing.simulate.loop import NodeClock, Time, VirtualLoop
from horarium.testing.simulate.node import NODE, Chaos, SimulatedNode
from horarium.testing.simulate.oracle import check_fires
from horarium.testing.simulate.watch import Books, WatchedSpace
from horarium.testing.simulate.workload import HANDLERS, NAMES, Behaviour, People, RemoteWorker

START: Instant = 1_767_571_200 * SECOND
"""2026-01-05T00:00:00Z."""
STEPS = 30
TAIL_LINES = 60
REST_SECONDS_MAX = 120
"""How long the calm lasts while no run comes to its end."""
NODES_MAX = 3
CALLS_MAX = 3
"""Calls from outside that are under way at one time, besides those of the storm itself."""
DEATH_KNOWN_SECONDS = 45
"""How long it may take until the others have noticed that a node is dead, and looked for what it left."""

StoreFactory = Callable[[MemoryDatabase], Any]


class Violation(BrokenInvariant):
    """A seed under which something happened that must never happen."""


class Report(Struct, frozen=True):
    """What a world came to. `trace`: the hash of every line of its trace."""

    seed: int
    trace: str
    lines: int
    runs: int
    fires: int
    seconds: float


class World:
    """Everything that a seed implies. `make_store`: a node's view of the data (mutants come in here)."""

    def __init__(
        self, seed: int, steps: int = STEPS, make_store: StoreFactory | None = None, on_bus: float = 0.0
    ) -> None:
        self.seed = seed
        self.chance = Random(seed)
        self.time = Time(START)
        self._steps = steps
        self._step = 0
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._hash = blake2b(digest_size=8)
        self._lines = 0
        self.violation: str | None = None
        self.books = Books(self.fail, self.note, self._healthy_for)
        self.chaos = Chaos(self.chance)
        self._database = MemoryDatabase()
        self._space = self._database._spaces["default"] = WatchedSpace(self.books)
        self._make_store = make_store or (lambda database: MemoryStore(database=database))
        self._nodes: dict[str, SimulatedNode] = {}
        self._frozen: set[str] = set()
        self._count = 0
        self._skewed = self.chance.random() < 0.2
        self._steps_clock = self.chance.random() < 0.3
        self.exact = not self._skewed
        self._options = {
            "plan_ahead_seconds": self.chance.choice((0.5, 1.0, 5.0)),
            "execution_window_seconds": self.chance.choice((0.0, 0.0, 1.0)),
            "handler_concurrency": self.chance.choice((1, 4, 4, 20)),
            "on_bus": on_bus,
        }
        self._calls: set[asyncio.Task[None]] = set()

    # ---- what others tell it

    def fail(self, what: str) -> None:
        """Something happened that must never happen."""
        self.note(f"VIOLATION {what}")
        if self.violation is None:
            self.violation = what

    def note(self, line: str) -> None:
        """One line of the trace."""
        text = f"{self.time.elapsed} {line}"
        self._lines += 1
        self._hash.update(text.encode())
        self._tail.append(text)

    def adopt(self, task: asyncio.Task[Any], context: Any) -> None:
        """A task was made: it belongs to the node in whose name it was made."""
        node = NODE.get() if context is None else context.get(NODE)
        if node is not None:
            node.adopt(task)

    def _healthy_for(self, name: str) -> float:
        """Seconds for which nothing has happened to this node that could cost it a lease."""
        node = self._nodes.get(name)
        if node is None or node.dead or name in self._frozen or self._skewed:
            return 0.0
        return node.clock.monotonic() - max(node.trouble_at, self.chaos.went_back_at)

    def _called(self) -> None:
        """A user asks for something, in the middle of what the nodes do."""
        if len(self._calls) < CALLS_MAX:
            call = asyncio.get_running_loop().create_task(self.people.act(), context=Context())
            self._calls.add(call)
            call.add_done_callback(self._calls.discard)

    # ---- its course

    def run(self) -> Report:
        """From beginning to end. Raises Violation."""
        loop = VirtualLoop(self.time, self.adopt)
        loop.set_exception_handler(lambda _, context: self.fail(f"{context['message']}: {context.get('exception')!r}"))
        watcher = _LogWatcher(self.fail)
        asyncio.set_event_loop(loop)
        try:
            with watcher:
                fires = loop.run_until_complete(self._live())
        finally:
            asyncio.set_event_loop(None)
            loop.close()
        if self.violation is not None:
            trace = "\n".join(self._tail)
            raise Violation(f"seed {self.seed}, step {self._step}: {self.violation}\n{trace}")
        return Report(
            self.seed, self._hash.hexdigest(), self._lines, len(self.books.runs), fires, self.time.elapsed / SECOND
        )

    async def _live(self) -> int:
        self.behaviour = Behaviour(self.seed, self.books)
        self.people = People(self.chance, self.some_node, self.books, self._options["on_bus"])
        for _ in range(self.chance.randint(1, NODES_MAX)):
            await self._start_node()
        workers = [
            asyncio.ensure_future(RemoteWorker(f"worker-{index}", self.chance, self.some_node, self.behaviour).work())
            for index in range(2)
        ]
        if self._options["on_bus"]:
            worker = BusWorker(self.behaviour.broker, self.chance, self.books, self.behaviour.calm)
            workers += [asyncio.ensure_future(worker.work()) for _ in range(2)]
        fires = 0
        try:
            await self._storm()
            if self.violation is None:
                await self._calm()
            if self.violation is None:
                fires = check_fires(self.books, self.time.wall, self.exact, self.fail)
                self._space.witness.check(self.fail)
                self._space.follow_ups.check(self.exact)
        finally:
            await self._end(workers)
        return fires

    async def _end(self, workers: list[asyncio.Task[None]]) -> None:
        for node in self._nodes.values():
            node.kill()
        for task in workers:
            task.cancel()
        for _ in range(20):
            rest = asyncio.all_tasks() - {asyncio.current_task()}
            if not rest:
                return
            for left in rest:
                left.cancel()
            await asyncio.wait(rest, timeout=1)

    async def _storm(self) -> None:
        await self.people.define(self.chance.randint(1, len(NAMES)))
        for step in range(1, self._steps + 1):
            self._step = step
            await asyncio.sleep(self.chance.random() * 2)
            if self.violation is not None:
                return
            if self.chance.random() < 0.7:
                await self.people.act()
            else:
                await self._strike()

    async def _strike(self) -> None:
        kind = self.chance.randrange(6)
        names = sorted(self._nodes)
        if kind <= 1 and len(names) < NODES_MAX:
            await self._start_node()
        elif kind == 2 and names:
            self._kill(self.chance.choice(names))
        elif kind == 3 and names:
            await self._stop(self.chance.choice(names))
        elif kind == 4 and names:
            self._toggle_frozen(self.chance.choice(names))
        elif kind == 5 and self._steps_clock:
            self._step_clock()

    async def _calm(self) -> None:
        """Nothing fails any more. Everything must come to its end."""
        self.note("calm")
        self.chaos.calm()
        for name in sorted(self._frozen):
            self._nodes[name].thaw()
        self._frozen.clear()
        if not self._nodes:
            await self._start_node()
        await asyncio.sleep(3)
        await self._expect_in_place()
        self.behaviour.calm.set()
        await asyncio.sleep(5)
        await self._pause_all()
        waited, left = 0, len(self._left())
        while left and waited < REST_SECONDS_MAX:
            await asyncio.sleep(1)
            before, left = left, len(self._left())
            waited = 0 if left < before else waited + 1
        for run in self._left():
            self.fail(f"run {run.id} never came to an end: {run.state}, due at {run.due_at}, now {self.time.wall}")

    async def _expect_in_place(self) -> None:
        """What was put back follows its job within two seconds; what a node left that died, once it is known to be."""
        before = {run.id for run in self.books.misplaced()}
        if not before:
            return
        await asyncio.sleep(max(2.0, (self.chaos.last_death - self.time.elapsed) / SECOND + DEATH_KNOWN_SECONDS))
        for run in self.books.misplaced():
            if run.id in before:
                self.fail(f"run {run.id} goes on waiting in {run.queue}, though its job was deleted or has left that")

    def _left(self) -> list[Run]:
        """Runs that should have ended. Where the clock went back, those that wait for a later hour may wait, and those
        that wait for them in their line."""
        unfinished = [run for runs in self.books.open.values() for run in runs.values()]
        if not self.books.clock_stepped:
            return unfinished
        return [
            run
            for run in unfinished
            if run.state is not State.PENDING or (run.due_at <= self.time.wall and not run.serial)
        ]

    async def _pause_all(self) -> None:
        node = self.some_node()
        assert node is not None, "in the calm there is a node"
        for name in NAMES:
            try:
                await node.call(node.runtime.operations.jobs.pause_job(name))
            except HorariumError as error:
                self.note(f"not paused: {type(error).__name__}")

    # ---- nodes

    def some_node(self) -> SimulatedNode | None:
        """A node that answers."""
        names = sorted(self._nodes.keys() - self._frozen)
        return self._nodes[self.chance.choice(names)] if names else None

    async def _start_node(self) -> None:
        self._count += 1
        name = f"node-{self._count}"
        skew = self.chance.randrange(-SECOND // 3, SECOND // 3) if self._skewed else 0
        clock = NodeClock(self.time, skew)
        node = SimulatedNode(
            name, self._make_store(self._database), clock, self.chaos, self._options, self.note, self._called,
            {"default": MemoryBus(self.behaviour.broker)} if self._options["on_bus"] else None,
        )  # fmt: skip
        for handler in HANDLERS:
            node.handle(handler, self.behaviour.handler(clock))
        node.killed = lambda: self._kill(name)
        self._nodes[name] = node
        self.note(f"start {name}")
        await node.call(node.runtime.start())

    def _kill(self, name: str) -> None:
        self._frozen.discard(name)
        if (node := self._nodes.pop(name, None)) is not None:
            self.note(f"kill {name}")
            node.kill()
            self.chaos.last_death = self.time.elapsed

    async def _stop(self, name: str) -> None:
        if name in self._frozen:
            return
        self.note(f"stop {name}")
        node = self._nodes.pop(name)
        try:
            await node.call(node.runtime.stop())
        except HorariumError as error:
            self.note(f"stop failed: {type(error).__name__}")
        node.kill()
        self.chaos.last_death = self.time.elapsed

    def _toggle_frozen(self, name: str) -> None:
        node = self._nodes[name]
        if name in self._frozen:
            self.note(f"thaw {name}")
            self._frozen.discard(name)
            node.thaw()
        else:
            self.note(f"freeze {name}")
            self._frozen.add(name)
            node.freeze()

    def _step_clock(self) -> None:
        step = self.chance.choice((-300, -20, -3, 3, 20, 90)) * SECOND
        if self.chance.random() < 0.2:
            step = 3_650 * DAY if self.time.wall < START + DAY else -3_650 * DAY
        if self.time.wall + step < START - DAY:
            return
        self.exact = False
        self.books.clock_stepped = True
        self.books.clock_went_back |= step < 0
        if step < 0:
            self.chaos.went_back_at = self.time.elapsed / SECOND
        self.note(f"the clock steps by {step // SECOND} s")
        self.time.offset += step


class _LogWatcher(logging.Handler):
    """A step that fails for any other reason than an outage is a bug: it is only logged, so we read the log."""

    def __init__(self, fail: Callable[[str], None]) -> None:
        super().__init__(logging.ERROR)
        self._fail = fail

    def emit(self, record: logging.LogRecord) -> None:
        if hasattr(record, "run") or hasattr(record, "left_out"):
            return  # work that failed, as it is made to, or the count of such lines
        reason = f": {record.exc_info[1]!r}" if record.exc_info else ""
        self._fail(f"logged: {record.getMessage()}{reason}")

    def __enter__(self) -> None:
        self._log = logging.getLogger("horarium")
        self._kept = self._log.propagate
        self._log.propagate = False
        self._log.addHandler(self)

    def __exit__(self, *error: object) -> None:
        self._log.removeHandler(self)
        self._log.propagate = self._kept


def simulate(seed: int, steps: int = STEPS, make_store: StoreFactory | None = None, on_bus: float = 0.0) -> Report:
    """Run the world of this seed. `on_bus`: the share of jobs that go to a broker. Raises Violation with the seed, the
    step and the end of the trace."""
    return World(seed, steps, make_store, on_bus).run()
