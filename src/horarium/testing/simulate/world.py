"""One simulated world: nodes, weather, people, and the end at which everything must have come to rest.

The seed decides all of it. A world runs through three parts: a storm of `steps` steps in which nodes die and freeze,
clocks step, calls fail and signals get lost; a calm in which nothing fails; and the reckoning. Checks at every write
are in `watch.py`, those at the end here and in `oracle.py`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextvars import Context
from functools import partial
from random import Random

from msgspec import Struct

from horarium.clock import SECOND, Instant
from horarium.errors import BrokenInvariant, HorariumError
from horarium.model import EXTERNAL, Run, State
from horarium.stores.memory import MemoryDatabase, MemoryStore
from horarium.testing.simulate.batched import close_all
from horarium.testing.simulate.beside import DEATH_KNOWN
from horarium.testing.simulate.bus import BusWorker
from horarium.testing.simulate.chances import Chances
from horarium.testing.simulate.cluster import NODES_MAX, Cluster, StoreFactory
from horarium.testing.simulate.gates import lift_all
from horarium.testing.simulate.loop import Time, VirtualLoop
from horarium.testing.simulate.node import Chaos
from horarium.testing.simulate.oracle import check_fires
from horarium.testing.simulate.people import People
from horarium.testing.simulate.trace import Trace
from horarium.testing.simulate.watch import Books, WatchedSpace
from horarium.testing.simulate.workload import NAMES, SHARES, Behaviour, RemoteWorker, is_crowded

START: Instant = 1_767_571_200 * SECOND
"""2026-01-05T00:00:00Z."""
STEPS = 30
SLOWER = 10
"""How much longer the steps of a world take in which workers are away for minutes."""
REST_SECONDS_MAX = 120
"""How long the calm lasts while none of those that should have ended comes to its end."""
CALM_SECONDS_MAX = 3_600
"""How long it lasts at most, even if runs go on to come to their end."""
CALLS_MAX = 3
"""Calls from outside that are under way at one time, besides those of the storm itself."""


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
    """Everything that a seed implies. `make_store`: a node's view of the data (mutants come in here); `script`: what
    happens besides, at moments of its own."""

    def __init__(
        self,
        seed: int,
        steps: int = STEPS,
        make_store: StoreFactory | None = None,
        on_bus: float = 0.0,
        script: Script | None = None,
    ) -> None:
        self.seed = seed
        self.chances = Chances(seed)
        self.time = Time(START)
        self.trace = Trace(self.time)
        self.books = Books(self.trace, lambda name: self.cluster.healthy_for(name), lambda: self.cluster.calm)
        self.chaos = Chaos(self.chances)
        self._on_bus = on_bus
        self._script = script
        self._steps = steps
        self._step = 0
        self._calls: set[asyncio.Task[None]] = set()
        self._asked = 0
        database = MemoryDatabase()
        self._space = database._spaces["default"] = WatchedSpace(self.books)
        make = make_store or (lambda database: MemoryStore(database=database))
        self.cluster = Cluster(self.trace, self.time, self.chaos, database, make, self._called, on_bus > 0)
        if is_crowded(seed):
            self.cluster.crowd()

    def _people(self, chance: Random) -> People:
        """People who decide by this chance."""
        self._asked += 1
        node = partial(self.cluster.some_node, chance)
        return People(f"request-{self._asked}", chance, node, self.books, self._on_bus, is_crowded(self.seed))

    def _called(self, chance: Random) -> None:
        """A user asks for something, in the middle of what the nodes do."""
        people = self._people(Chances.drawn(chance))
        if len(self._calls) < CALLS_MAX:
            call = asyncio.get_running_loop().create_task(people.act(), context=Context())
            self._calls.add(call)
            call.add_done_callback(self._calls.discard)

    # ---- its course

    def run(self) -> Report:
        """From beginning to end. Raises Violation."""
        loop = VirtualLoop(self.time, self.cluster.adopt, self.trace.fail)
        loop.set_exception_handler(
            lambda _, context: self.trace.fail(f"{context['message']}: {context.get('exception')!r}")
        )
        watcher = _LogWatcher(self.trace.fail)
        asyncio.set_event_loop(loop)
        try:
            with watcher:
                fires = loop.run_until_complete(self._live())
        finally:
            asyncio.set_event_loop(None)
            loop.close()
        trace = self.trace
        if trace.violation is not None:
            raise Violation(f"seed {self.seed}, step {self._step}: {trace.violation}\n{trace.tail()}")
        seconds = self.time.elapsed / SECOND
        return Report(self.seed, trace.digest(), trace.lines, len(self.books.runs), fires, seconds)

    async def _live(self) -> int:
        self.behaviour = self.cluster.behaviour = Behaviour(self.seed, self.chances, self.books)
        cluster, hosts = self.cluster, self.behaviour.hosts
        self.books.jobs.absences.steady = hosts.steady = cluster.steady_seconds
        hosts.well_for, hosts.died_at = cluster.healthy_for, lambda: self.chaos.last_death
        for _ in range(self.chances.of("nodes").randint(1, NODES_MAX)):
            await self.cluster.start()
        workers = []
        for name in ("worker-0", "worker-1"):
            chance = self.chances.of(name)
            worker = RemoteWorker(name, chance, partial(self.cluster.some_node, chance), self.behaviour)
            workers.append(asyncio.ensure_future(worker.work()))
        if self._on_bus:
            behind = BusWorker(self.behaviour.broker, self.chances.of("bus"), self.books, self.behaviour.calm)
            workers += [asyncio.ensure_future(behind.work()) for _ in range(2)]
        fires = 0
        try:
            await self._storm()
            if self.trace.violation is None:
                await self._calm()
            for ended in workers:
                if ended.done():
                    ended.result()  # a worker that died of an error of its own made this world mean nothing
            if self.trace.violation is None:
                fires = check_fires(self.books, self.time.wall, self.cluster.exact, self.trace.fail)
                self._space.witness.check(self.trace.fail)
                self._space.keeping.check()
                self._space.follow_ups.check(self.cluster.exact)
                self.books.overlaps.check()
                self.books.batches.check(self.time.wall)
                node = self.cluster.some_node(self.chances.of("end"))
                if node is not None:
                    await self.behaviour.said.check(node.runtime.operations.logs, self._space.runs)
        finally:
            await self._end(workers)
        return fires

    async def _end(self, workers: list[asyncio.Task[None]]) -> None:
        for node in self.cluster.nodes.values():
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
        chance = self.chances.of("storm")
        script = None if self._script is None else asyncio.ensure_future(self._script(self))
        kept = asyncio.ensure_future(self._keep_one_node()) if SHARES["batches"] else None
        await self._people(self.chances.of("people")).define(chance.randint(1, len(NAMES)))
        if kept is not None:
            kept.cancel()
        for step in range(1, self._steps + 1):
            self._step = step
            await asyncio.sleep(chance.random() * 2 * (SLOWER if SHARES["away"] else 1))
            if self.trace.violation is not None:
                return
            if chance.random() < 0.7:
                await self._people(self.chances.of("people", str(step))).act()
            else:
                await self.cluster.strike(self.chances.of("strike", str(step)))
        if script is not None:
            await script

    async def _keep_one_node(self) -> None:
        """Calls that come in may kill every node before the first step, from which on others are started."""
        while True:
            await asyncio.sleep(1)
            if not self.cluster.nodes:
                await self.cluster.start()

    async def _calm(self) -> None:
        """Nothing fails any more. Everything must come to its end."""
        self.trace.note("calm")
        await self.cluster.recover()
        await asyncio.sleep(3)
        await self.cluster.recover()  # the last deed of the storm may have killed the last node meanwhile
        await self._expect_in_place()
        self.books.batches.look_for_late()
        self.behaviour.calm.set()
        self.behaviour.hosts.calm = True
        await asyncio.sleep(5)
        await self._pause_all()
        waited, left, until = 0, self._left(), self.time.elapsed + CALM_SECONDS_MAX * SECOND
        while left and waited < REST_SECONDS_MAX and self.time.elapsed < until and self.trace.violation is None:
            await asyncio.sleep(1)
            self.behaviour.hosts.look(self.books.jobs.versions)
            if not self.trace.clock_stepped:
                self.books.overlaps.look_for_late(self.time.wall)
            # Others that fall due meanwhile may be as many, where runs of a rate come one by one.
            waited = 0 if any(run.id not in self.books.open[run.job_id or ""] for run in left) else waited + 1
            left = self._left()
        await self._batches_rest()
        for run in self._left():
            self.trace.fail(
                f"run {run.id} in {run.queue} never came to an end: {run.state}, due at {run.due_at},"
                f" to begin by {run.start_by}, now {self.time.wall}"
            )

    async def _expect_in_place(self) -> None:
        """Runs that were put back follow their job within two seconds, and runs that a newer one ends are told so;
        those that a dead node left, once it is known to be dead."""
        beside = self.books.beside
        before = {run.id for run in (*self.books.misplaced(), *beside.not_asked_to_stop())}
        if not before:
            return
        await asyncio.sleep(max(2.0, (self.chaos.last_death + DEATH_KNOWN - self.time.elapsed) / SECOND))
        for run in self.books.misplaced():
            if run.id in before:
                self.trace.fail(
                    f"run {run.id} goes on waiting in {run.queue}, though its job was deleted or has left that"
                )
        for run in beside.not_asked_to_stop():
            if run.id in before:
                self.trace.fail(f"run {run.id} goes on ({run.state}) beside a newer one, though its job ends others")

    async def _batches_rest(self) -> None:
        """Batches come to their end, too, and what follows from that."""
        for _ in range(REST_SECONDS_MAX):
            if self.trace.violation is not None or not [*self.books.batches.unrest(self.time.wall)]:
                return
            await asyncio.sleep(1)

    def _left(self) -> list[Run]:
        """Runs that should have ended. Where the clock went back, those that wait for a later hour may wait, and those
        that wait for them in their line."""
        unfinished = [run for runs in self.books.open.values() for run in runs.values()]
        if not self.trace.clock_stepped:
            return unfinished
        return [
            run
            for run in unfinished
            if run.state is not State.PENDING or (_should_begin_by(run) <= self.time.wall and not run.serial)
        ]

    async def _pause_all(self) -> None:
        chance = self.chances.of("calm")
        if self.cluster.some_node(chance) is None:  # the last one died of its own calls
            await self.cluster.start()
        node = self.cluster.some_node(chance)
        assert node is not None, "in the calm there is a node"
        for name in NAMES:
            try:
                await node.call(node.runtime.operations.jobs.pause_job(name))
            except HorariumError as error:
                self.trace.note(f"not paused: {type(error).__name__}")
        if SHARES["gates"]:
            await lift_all(node)
        await close_all(node, self.books)


def _should_begin_by(run: Run) -> int:
    """When a pending run is taken, or, where its work is done elsewhere, given up."""
    return run.due_at if run.queue != EXTERNAL or run.start_by is None else run.start_by


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


Script = Callable[[World], Coroutine[None, None, None]]


def simulate(
    seed: int,
    steps: int = STEPS,
    make_store: StoreFactory | None = None,
    on_bus: float = 0.0,
    script: Script | None = None,
) -> Report:
    """Run the world of this seed. `on_bus`: the share of jobs that go to a broker. Raises Violation with the seed, the
    step and the end of the trace."""
    return World(seed, steps, make_store, on_bus, script).run()
