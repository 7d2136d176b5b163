"""Where everything is put together. A `Runtime` is one running node: its services, their loops, and the order in which
they start and stop. Which store a URL stands for is in `backends.py`."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import metadata
from typing import TYPE_CHECKING, Any

from horarium.backends import Part, make_bus
from horarium.clock import Clock, SystemClock
from horarium.delivery.bus import BusDelivery, check_bus
from horarium.delivery.handler import Handler, HandlerDelivery
from horarium.errors import HorariumError, InvalidSetting, Outage
from horarium.model import BusTarget, HttpTarget, Node, Run
from horarium.model import Target as TargetSpec
from horarium.operations import Operations, Settlement
from horarium.ports import Bus, Signal, Store, Target
from horarium.report_keys import key_digest, report_key
from horarium.services.beat import NodeBeat
from horarium.services.cancels import BusCancels, HttpCancels
from horarium.services.claims import Claims
from horarium.services.collector import Collector
from horarium.services.dispatcher import Dispatcher, Keeper
from horarium.services.planner import Planner
from horarium.services.pruner import Pruner
from horarium.services.reports import Claim, Reports
from horarium.services.rescuer import Rescuer
from horarium.services.service import Health, Loop, Service
from horarium.signals import LocalSignal
from horarium.telemetry import Telemetry

if TYPE_CHECKING:
    from horarium.delivery.http import HttpDelivery

ROLES = ("api", "planner", "dispatcher", "rescuer", "pruner")
BUS_PLACES = 200
"""Runs that are published to one bus at a time."""
CONCURRENCY_MAX = 10_000
HURRY_SECONDS = 2.0
"""How long a stop tries to write the last outcomes, whatever its grace."""

log = logging.getLogger("horarium")


def version() -> str:
    """The installed version."""
    try:
        return metadata.version("horarium")
    except metadata.PackageNotFoundError:
        return "0"


def default_node_name() -> str:
    """A name that no other process on any host has at the same time."""
    return f"{socket.gethostname()}-{os.getpid()}"


class Options:
    """How a node behaves. Defaults are right for one machine."""

    def __init__(
        self,
        *,
        roles: Sequence[str] = ROLES,
        node_name: str | None = None,
        allow_private_targets: bool = False,
        signing_secret: str | None = None,
        report_url: str | None = None,
        report_secret: str | None = None,
        plan_ahead_seconds: float = 1.0,
        execution_window_seconds: float = 0.0,
        catch_up_per_second: float = 100.0,
        http_concurrency: int = 100,
        handler_concurrency: int = 100,
        grace_seconds: float = 30.0,
        buses: Mapping[str, str | Bus] | None = None,
    ) -> None:
        for name, value in (("http_concurrency", http_concurrency), ("handler_concurrency", handler_concurrency)):
            if not 1 <= value <= CONCURRENCY_MAX:
                raise InvalidSetting(f"{name}: must be from 1 to {CONCURRENCY_MAX:,}, not {value}", field=name)
        if not 0 <= grace_seconds < float("inf"):
            raise InvalidSetting(f"grace_seconds: must be 0 or more, not {grace_seconds}", field="grace_seconds")
        self.roles = tuple(roles)
        self.node_name = node_name or default_node_name()
        self.allow_private_targets = allow_private_targets
        self.signing_secret = signing_secret
        self.report_url = report_url
        self.report_secret = report_secret
        self.plan_ahead_seconds = plan_ahead_seconds
        self.execution_window_seconds = execution_window_seconds
        self.catch_up_per_second = catch_up_per_second
        self.http_concurrency = http_concurrency
        self.handler_concurrency = handler_concurrency
        self.grace_seconds = grace_seconds
        self.buses = dict(buses or {})


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
        self._parts = tuple(parts)
        self.options = options
        self.clock = clock or SystemClock()
        self.signal = signal or LocalSignal()
        self.entropy = entropy
        self.telemetry = Telemetry()
        self.health = Health()
        self.handlers: dict[str, Handler] = {}
        self._buses = {name: make_bus(bus) if isinstance(bus, str) else bus for name, bus in options.buses.items()}
        self._buses_elsewhere: set[str] = set()
        self._pruner = Pruner(store, self.telemetry)
        self.operations = Operations(
            store,
            self.clock,
            self.signal,
            entropy,
            self._check_target,
            settled=self._settled_elsewhere,
            cancel_asked=self._cancel_asked,
        )
        self.claims = Claims(store, self.clock, self.signal, lambda runs: self.telemetry.claimed(runs, "pull"))
        self._collector = Collector(store, self.clock, self.signal, self.telemetry, self._pruner.note)
        self._dispatchers: tuple[Dispatcher, ...] = ()
        self._targets: list[Target] = []
        self._beat: NodeBeat | None = None
        self._http_cancels: HttpCancels | None = None
        self._loops: dict[str, Loop] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._starting = asyncio.Lock()
        self._patience: asyncio.Timeout | None = None
        self._hurried = False

    # ---- life

    async def open(self) -> None:
        """Connect the store and bring its schema up to date."""
        await self.store.open()
        for part in self._parts:
            await part.start()

    async def close(self) -> None:
        """Disconnect. What runs is drained first."""
        if self._tasks:
            await self.stop()
        for target in self._targets:
            await target.close()
        for part in reversed(self._parts):
            await part.stop()
        await self.store.close()

    @property
    def running(self) -> bool:
        return bool(self._tasks)

    async def start(self) -> None:
        """Set the services of our roles going. They run until `stop`."""
        async with self._starting:
            if not self._tasks:
                self._hurried = False
                self._start()

    def _start(self) -> None:
        for service in self._services():
            loop = Loop(service, self.clock, self.signal, self.health)
            if hasattr(service, "wake"):
                service.wake = loop.wake
            self._loops[service.name] = loop
        keeper = self._loops.get("keeper")
        for dispatcher in self._dispatchers:
            if keeper is not None:
                dispatcher.keeper_wake = keeper.wake
        self._open_buses()
        for name, loop in self._loops.items():
            self._tasks[name] = asyncio.create_task(loop.run(), name=f"horarium-{name}")

    async def stop(self, grace_seconds: float | None = None) -> None:
        """Drain: what runs finishes and is settled, what is only claimed is given back, waiters are sent home."""
        async with self._starting:
            if self._tasks:
                await self._stop(self.options.grace_seconds if grace_seconds is None else grace_seconds)

    def hurry(self) -> None:
        """Let a stop that is under way wait no longer for what runs."""
        self._hurried = True
        for dispatcher in self._dispatchers:
            dispatcher.hurry()
        if self._patience is not None:
            self._patience.reschedule(asyncio.get_running_loop().time() + HURRY_SECONDS)

    async def _stop(self, grace_seconds: float) -> None:
        self.claims.close()
        await self._end("planner", "claims")
        for dispatcher in self._dispatchers:
            self._loops[dispatcher.name].stop()
        await asyncio.gather(*(dispatcher.drain(grace_seconds) for dispatcher in self._dispatchers))
        await self._settle_rest(grace_seconds)
        await asyncio.gather(*(bus.drain() for bus in self._serving_buses().values()))
        await self._end(*list(self._tasks))
        if self._http_cancels is not None:
            await self._http_cancels.stop()
        await asyncio.gather(*(bus.close() for bus in self._serving_buses().values()))
        await self._say_farewell()
        self._loops.clear()
        self._tasks.clear()

    async def _end(self, *names: str) -> None:
        """Stop these loops after their present step; one that hangs in its step is cancelled."""
        tasks = [self._tasks[name] for name in names if name in self._tasks]
        for name in names:
            if name in self._loops:
                self._loops[name].stop()
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=5.0)
            for task in late:
                task.cancel()

    async def _settle_rest(self, grace_seconds: float) -> None:
        """Write the last outcomes. What can't be written within the grace is left to the rescuer of another node."""
        seconds = HURRY_SECONDS if self._hurried else max(grace_seconds, HURRY_SECONDS)
        try:
            async with asyncio.timeout(seconds) as self._patience:
                await self._collector.flush()
        except TimeoutError:
            log.warning("%d outcomes were not written in time; they will be rescued", self._collector.waiting)
        finally:
            self._patience = None

    async def _say_farewell(self) -> None:
        if self._beat is not None:
            try:
                await self._beat.farewell(self.clock.now())
            except Outage as outage:
                log.warning("the node's end was not written: %s", outage)

    # ---- parts

    def _services(self) -> list[Service]:
        options, roles = self.options, set(self.options.roles)
        self._beat = NodeBeat(self.store, self._node())
        services: list[Service] = [self._beat]
        if "planner" in roles:
            services.append(
                Planner(
                    self.store,
                    self.signal,
                    self.telemetry,
                    ahead_seconds=options.plan_ahead_seconds,
                    catch_up_per_second=options.catch_up_per_second,
                )
            )
        if "rescuer" in roles:
            services.append(Rescuer(self.store, self.signal, self.telemetry))
        if "pruner" in roles:
            services.append(self._pruner)
        if "api" in roles:
            services.append(self.claims)
        self._dispatchers = self._make_dispatchers(roles)
        for name, bus in self._serving_buses().items():
            services += self._bus_services(name, bus)
        if self._dispatchers:
            services += [*self._dispatchers, self._collector, Keeper(self._dispatchers)]
        if self._http_cancels is not None:
            services.append(self._http_cancels)
        return services

    def _serving_buses(self) -> dict[str, Bus]:
        """The buses that this node serves: those of its dispatcher."""
        return self._buses if "dispatcher" in self.options.roles else {}

    def _open_buses(self) -> None:
        """Let them connect. A broker that is down delays nobody."""
        for name, bus in self._serving_buses().items():
            bus.open(self._loops[f"reports-{name}"].wake)

    def _bus_services(self, name: str, bus: Bus) -> list[Service]:
        delivery = BusDelivery(bus, self.clock)
        reports = Reports(name, bus, self.store, self.clock, self.telemetry, self._settle_reported)
        cancels = BusCancels(name, bus, self.store, delivery.cancel)
        reports.cancel_asked = cancels.add
        return [reports, cancels]

    async def _settle_reported(self, claims: Sequence[Claim]) -> Sequence[Run | HorariumError]:
        return await self.operations.settle([Settlement(*claim) for claim in claims])

    def _make_dispatchers(self, roles: set[str]) -> tuple[Dispatcher, ...]:
        options = self.options
        made: list[Dispatcher] = []
        if "dispatcher" in roles:
            made.append(self._http_dispatcher())
        for name, bus in self._serving_buses().items():
            made.append(self._dispatcher(f"bus-{name}", {f"bus/{name}": BusDelivery(bus, self.clock)}, BUS_PLACES))
        if self.handlers:
            delivery = HandlerDelivery(self.handlers)
            self._targets.append(delivery)
            targets: dict[str, Target] = {f"handler/{name}": delivery for name in self.handlers}
            limits = {f"handler/{name}": one.concurrency for name, one in self.handlers.items() if one.concurrency}
            made.append(self._dispatcher("handlers", targets, options.handler_concurrency, limits))
        return tuple(made)

    def _dispatcher(
        self, name: str, targets: Mapping[str, Target], places: int, limits: Mapping[str, int] | None = None
    ) -> Dispatcher:
        return Dispatcher(
            self.store,
            self.clock,
            self.signal,
            self._collector,
            self.telemetry,
            targets,
            self.options.node_name,
            places=places,
            window_seconds=self.options.execution_window_seconds,
            name=name,
            limits=limits,
        )

    def _http_dispatcher(self) -> Dispatcher:
        delivery = self._http()
        dispatcher = self._dispatcher("http", {"http": delivery}, self.options.http_concurrency)
        self._http_cancels = HttpCancels(
            self.store,
            self.clock,
            self.options.node_name,
            delivery.notify_cancel,
            lambda run: (run.id, run.token) in dispatcher.attempts or self._collector.holds(run),
        )
        return dispatcher

    def _http(self) -> HttpDelivery:
        from horarium.delivery.http import HttpDelivery, load_client

        load_client()
        options, secret = self.options, self.options.report_secret
        target = HttpDelivery(
            clock=self.clock,
            allow_private=options.allow_private_targets,
            signing_secret=options.signing_secret,
            report_url=options.report_url,
            report_key=None if secret is None else partial(report_key, key_digest(secret)),
        )
        self._targets.append(target)
        return target

    def _check_target(self, target: TargetSpec) -> None:
        if isinstance(target, HttpTarget):
            from horarium.delivery.http import check_target

            check_target(target, self.options.allow_private_targets)
        if isinstance(target, BusTarget):
            check_bus(target, self._buses)
            if not self._buses and target.bus not in self._buses_elsewhere:
                self._buses_elsewhere.add(target.bus)
                log.warning("a job goes to the bus %r; its runs wait for a dispatcher that has it", target.bus)

    def _cancel_asked(self, run: Run) -> None:
        for dispatcher in self._dispatchers:
            dispatcher.cancel_asked(run)

    def _settled_elsewhere(self, run: Any, job: Any) -> None:
        self.telemetry.settled([run])
        self._pruner.note(run, job)

    def _node(self) -> Node:
        now = self.clock.now()
        return Node(
            name=self.options.node_name,
            roles=self.options.roles,
            started_at=now,
            beat_at=now,
            host=socket.gethostname(),
            pid=os.getpid(),
            version=version(),
        )
