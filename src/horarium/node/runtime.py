"""A `Runtime` is one running node: the order in which its services start and stop. What they are is in `assembly.py`,
which store a URL names in `backends.py`."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import chain, count
from typing import Any
from weakref import WeakSet

from horarium.clock import MINUTE, Clock, SystemClock
from horarium.delivery.bus import check_bus
from horarium.delivery.channels import check_channel
from horarium.delivery.handler import Handler
from horarium.delivery.secrets import check_allowed
from horarium.errors import InvalidJob, Outage
from horarium.model import BusTarget, HttpTarget, Job, Run, State, Target, fraction
from horarium.model.channels import AnyChannel
from horarium.model.version import version
from horarium.node.assembly import Assembly, Shared
from horarium.node.backends import Part, backend_of, make_bus
from horarium.node.loops import Loops
from horarium.node.options import ROLES, Options, default_node_name
from horarium.operations.facade import Operations
from horarium.operations.writing.tracing import Tracing
from horarium.ports import Bus, Signal, Store
from horarium.services.loop.service import Health
from horarium.services.loop.steady import SteadyScale
from horarium.services.metrics.spans import make_spans
from horarium.services.metrics.telemetry import Telemetry
from horarium.services.performing.collector import Collector
from horarium.services.performing.failures import FailureLog
from horarium.services.performing.log_writer import LogWriter
from horarium.services.polling.claims import Claims
from horarium.services.polling.news import News
from horarium.services.upkeep.pruner import Pruner
from horarium.triggers.words import counted

__all__ = ["HURRY_SECONDS", "ROLES", "Options", "Runtime", "default_node_name", "version"]

HURRY_SECONDS = 2.0
"""How long a stop tries to write the last outcomes, beyond its grace if need be."""

log = logging.getLogger("horarium")


STARTED: WeakSet[Runtime] = WeakSet()
"""Nodes of this process."""


class Runtime:
    """One node. `open` connects the store; `start` sets the services going; `stop` drains them; `close` disconnects."""

    def __init__(
        self,
        store: Store,
        options: Options,
        *,
        clock: Clock | None = None,
        signal: Signal | None = None,
        parts: Sequence[Part] = (),
        entropy: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self.store = store
        self.options = options
        self.clock = clock or SystemClock()
        self.signal = signal or backend_of(store).signal
        self.telemetry = Telemetry(options.metrics_jobs_max, version())
        self.failures = FailureLog()
        self.health = Health(self.clock.monotonic)
        self.handlers: dict[str, Handler] = {}
        self._parts = tuple(parts)
        self.buses: dict[str, Bus] = {
            name: make_bus(bus) if isinstance(bus, str) else bus for name, bus in (options.buses or {}).items()
        }
        """The buses that this node knows, by name."""
        self._shared = self._make_shared(entropy)
        self._assembly: Assembly | None = None
        self._loops: Loops | None = None
        self._starting = asyncio.Lock()
        self._hurried = asyncio.Event()

    def _make_shared(self, entropy: Callable[[int], bytes]) -> Shared:
        pruner = Pruner(self.store, self.telemetry, self.clock, self.options.audit_retention_seconds)
        self.telemetry.spans = make_spans()
        operations = Operations(
            self.store,
            self.clock,
            self.signal,
            entropy,
            _TargetCheck(self),
            settled=self._settled,
            cancel_asked=self._cancel_asked,
            tracing=Tracing(self.telemetry.spans is not None),
            check_channel=self._check_channel,
        )
        claims = Claims(operations.claiming, self.clock, self.signal, lambda runs: self.telemetry.claimed(runs, "pull"))
        collector = Collector(operations.settling, self.clock, self.telemetry)
        log_writer = LogWriter(operations.logs, self.clock)
        return Shared(
            store=self.store,
            clock=self.clock,
            signal=self.signal,
            telemetry=self.telemetry,
            scale=SteadyScale(self.store, self.clock),
            collector=collector,
            pruner=pruner,
            claims=claims,
            operations=operations,
            log_writer=log_writer,
            news=News(operations.stats, self.signal, lambda: self.telemetry.tally.seen),
        )

    @property
    def operations(self) -> Operations:
        return self._shared.operations

    @property
    def news(self) -> News:
        """Events of changes, for listeners."""
        return self._shared.news

    @property
    def claims(self) -> Claims:
        """Runs for long-polling workers."""
        return self._shared.claims

    def configure(self, **changes: Any) -> None:
        """Other options, from the next start on. Raises InvalidSetting."""
        self.options = replace(self.options, **changes)

    # ---- life

    async def open(self) -> None:
        """Connect the store and bring its schema up to date. Raises StoreUnavailable."""
        await self.store.open()
        for part in self._parts:
            await part.start()
        await self._shared.scale.follow()

    async def close(self) -> None:
        """Disconnect. Runs under way are drained first."""
        if self.running:
            await self.stop()
        self.operations.waiting.close()
        if self._assembly is not None:
            for delivery in self._assembly.deliveries:
                await delivery.close()
        for part in reversed(self._parts):
            await part.stop()
        await self.store.close()
        if self.telemetry.spans is not None:
            await asyncio.to_thread(self.telemetry.spans.close)

    @property
    def running(self) -> bool:
        """Whether it was started, and not stopped since."""
        return self._loops is not None

    async def start(self) -> None:
        """Set the services of our roles going. They run until `stop`. A node that runs already stays as it is; options
        and handlers that were changed since the last start count from here on."""
        async with self._starting:
            if self._loops is None:
                self._hurried.clear()
                self.operations.waiting.open()
                if self._assembly is not None:
                    for delivery in self._assembly.deliveries:
                        await delivery.close()
                queues = self.options.queues
                served = {name: one for name, one in self.handlers.items() if queues is None or one.queue in queues}
                self.options = replace(self.options, node_name=self._name())
                STARTED.add(self)
                self._assembly = assembly = Assembly(self._shared, self.options, served, self.buses)
                for name, bus in assembly.buses.items():
                    bus.open(assembly.reports[name].wake.set)  # a broker that is down delays nothing
                self._loops = Loops(
                    assembly.services, self.clock, self.signal, self.health, fraction(self.options.name, "looks")
                )

    def _name(self) -> str:
        """Its own, or the one by default, with a number where another node of this process has that."""
        name, taken = self.options.name, {each.options.name for each in STARTED if each is not self and each.running}
        if name != default_node_name():
            return name
        return next(each for each in chain([name], (f"{name}-{number}" for number in count(2))) if each not in taken)

    async def stop(self, grace_seconds: float | None = None) -> None:
        """Drain: runs under way finish and are settled, runs that are only claimed are given back, waiters are
        answered. What still runs after `grace_seconds` (left out: the option) is interrupted, and its run given back.
        What an outage of the store keeps from being written is logged, and made good by the rescuer of another node."""
        async with self._starting:
            if self._loops is not None and self._assembly is not None:
                grace = self.options.grace_seconds if grace_seconds is None else grace_seconds
                await self._stop(self._assembly, self._loops, grace)
                self._loops = None

    def hurry(self) -> None:
        """Let a stop wait no longer for runs under way: they are interrupted and given back."""
        self._hurried.set()
        for dispatcher in self._assembly.dispatchers if self._assembly is not None else ():
            dispatcher.hurry()

    async def _stop(self, assembly: Assembly, loops: Loops, grace_seconds: float) -> None:
        """First what brings in work ends, then what performs it. The other loops go on until then: leases are kept and
        outcomes written while runs finish."""
        self.claims.close()
        self.operations.logs.close()
        self.operations.waiting.close()
        self.news.close()
        await loops.end("planner", "costly", "claims")
        for dispatcher in assembly.dispatchers:
            loops.stop(dispatcher.name)
        await asyncio.gather(*(dispatcher.drain(grace_seconds) for dispatcher in assembly.dispatchers))
        if assembly.dispatchers:  # a claim that is still being answered is given back
            await loops.end(*(dispatcher.name for dispatcher in assembly.dispatchers))
        await self._settle_rest(grace_seconds)
        await self._hand_over(assembly)
        await asyncio.gather(*(bus.drain() for bus in assembly.buses.values()))
        await loops.end()
        if assembly.http_cancels is not None:
            await assembly.http_cancels.stop()
        await asyncio.gather(*(bus.close() for bus in assembly.buses.values()))
        try:
            await self._shared.log_writer.flush()
            await assembly.tallies.write(self.clock.now() + MINUTE)
            await assembly.beat.farewell(self.clock.now())
        except Outage as outage:
            log.warning("the node's end was not written: %s", outage)

    async def _settle_rest(self, grace_seconds: float) -> None:
        """Write the last outcomes. An outcome that can't be written within the grace is left to the rescuer of another
        node."""
        collector = self._shared.collector
        flushing = asyncio.ensure_future(collector.flush())
        hurried = asyncio.ensure_future(self._hurried.wait())
        patience = max(grace_seconds, HURRY_SECONDS)
        try:
            await asyncio.wait([flushing, hurried], timeout=patience, return_when=asyncio.FIRST_COMPLETED)
            if not flushing.done() and hurried.done():
                await asyncio.wait([flushing], timeout=HURRY_SECONDS)
            if not flushing.done():
                log.warning("%s not written in time; left to the rescuer", counted(collector.waiting, "outcome"))
        finally:
            flushing.cancel()
            hurried.cancel()

    async def _hand_over(self, assembly: Assembly) -> None:
        """Let runs at a broker wait on without us."""
        try:
            for handing_over in assembly.handing_over:
                await asyncio.wait_for(handing_over.flush(self.clock.now()), HURRY_SECONDS)
        except (Outage, TimeoutError) as outage:
            log.warning("runs that wait at a broker will be sent again: %s", str(outage) or "the store does not answer")

    def _check_channel(self, channel: AnyChannel) -> None:
        check_allowed(channel, self.options.secrets_allowed)
        check_channel(channel, self.options.allow_private_targets)

    # ---- what others tell it

    def _cancel_asked(self, run: Run) -> None:
        if self._assembly is not None:
            self._assembly.cancel_asked(run)

    def _settled(self, runs: Sequence[Run], jobs: Mapping[str, Job]) -> None:
        """Runs were settled: they are counted, failures are logged, and surplus ones will be trimmed."""
        self.telemetry.settled(runs)
        now = self.clock.now()
        self.failures.tell_rest(now)
        completed = State.COMPLETED
        for run in runs:
            if run.state is not completed:
                self.failures.tell(run, now)
        for job_id in {run.job_id for run in runs} if jobs else ():
            self._shared.pruner.note(jobs.get(job_id or ""))


class _TargetCheck:
    """Whether a target can be delivered to, as this node is set up."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._buses_elsewhere: set[str] = set()

    def __call__(self, target: Target) -> None:
        """Raises InvalidJob."""
        check_allowed(target, self._runtime.options.secrets_allowed, InvalidJob)
        if isinstance(target, HttpTarget):
            from horarium.delivery.http import check_target

            check_target(target, self._runtime.options.allow_private_targets)
        if isinstance(target, BusTarget):
            check_bus(target, self._runtime.buses)
            if not self._runtime.buses and target.bus not in self._buses_elsewhere:
                self._buses_elsewhere.add(target.bus)
                log.warning("a job goes to the bus %r; its runs wait for a dispatcher that has it", target.bus)
