"""What one node is made of, by its roles: services, dispatchers with their places, and what delivers.

An `Assembly` is made at each start, from parts that outlive it (`Shared`). Everything is complete when it is made: a
wake-up comes first, and is handed to the service that it wakes and to what sets it.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from msgspec import Struct

from horarium.clock import Clock
from horarium.delivery.bus import BusDelivery
from horarium.delivery.channels import Post
from horarium.delivery.handler import Handler, HandlerDelivery
from horarium.delivery.secrets import Secrets
from horarium.model import Node, Run, fraction
from horarium.model.targets import FOLLOW_QUEUE, NOTIFY_QUEUE
from horarium.model.version import version
from horarium.node.options import Options
from horarium.operations.facade import Operations
from horarium.operations.settling.report_keys import key_digest, report_key
from horarium.operations.writing.tracing import Tracing
from horarium.ports import Bus, Delivery, Signal, Store
from horarium.services.alerts.breaker import Breaker, Counted, Limits
from horarium.services.alerts.endings import Endings
from horarium.services.alerts.follow import FollowDelivery
from horarium.services.alerts.joins import BatchCounter, Joiner
from horarium.services.alerts.notifier import NotifyDelivery
from horarium.services.alerts.serving import Serving
from horarium.services.alerts.troubles import Troubles
from horarium.services.alerts.unanswered import Unanswered
from horarium.services.alerts.watcher import Watcher
from horarium.services.buses.cancels import BusCancels, HttpCancels
from horarium.services.buses.handing_over import HandingOver
from horarium.services.buses.reports import Reports
from horarium.services.leases.leases import Leases, Own
from horarium.services.leases.rescuer import Rescuer
from horarium.services.loop.beat import NodeBeat
from horarium.services.loop.service import Service, Wake
from horarium.services.loop.steady import SteadyScale
from horarium.services.metrics.job_recall import JobRecall
from horarium.services.metrics.tallies import Tallies
from horarium.services.metrics.telemetry import Telemetry
from horarium.services.performing.collector import Collector
from horarium.services.performing.dispatcher import Dispatcher
from horarium.services.performing.keeper import Keeper
from horarium.services.performing.log_writer import LogWriter
from horarium.services.performing.performing import Performing
from horarium.services.planning.planner import Planner
from horarium.services.polling.claims import Claims
from horarium.services.polling.news import News
from horarium.services.upkeep.applier import Applier
from horarium.services.upkeep.calendars import CalendarApplier
from horarium.services.upkeep.finisher import Finisher
from horarium.services.upkeep.holds import HoldApplier, HoldCancels, HoldReader
from horarium.services.upkeep.log_pruner import LogPruner
from horarium.services.upkeep.pruner import Pruner
from horarium.services.upkeep.rates import RateApplier, RatePruner, TurnPruner
from horarium.services.upkeep.sweeper import Sweeper

if TYPE_CHECKING:
    from horarium.delivery.http import HttpDelivery

BUS_PLACES = 200
"""Runs that are published to one bus at a time."""
FOLLOW_PLACES = 50
"""Follow-ups that are under way at a time: runs of other jobs that are asked for, and notifications."""


class Shared(Struct, frozen=True):
    """What a node has from its first start to its end."""

    store: Store
    clock: Clock
    signal: Signal
    telemetry: Telemetry
    scale: SteadyScale
    collector: Collector
    pruner: Pruner
    claims: Claims
    operations: Operations
    log_writer: LogWriter
    news: News


class Assembly:
    """The services of one node, from one start to the next stop."""

    def __init__(
        self, shared: Shared, options: Options, handlers: Mapping[str, Handler], buses: Mapping[str, Bus]
    ) -> None:
        self._shared = shared
        self._options = options
        self._leases = Leases(shared.store, shared.clock)
        self._leased = Wake()
        self._performing: list[Performing] = []
        # Handlers need no role: a process that registers some performs their runs.
        dispatching = "dispatcher" in options.roles
        self.buses: dict[str, Bus] = dict(buses) if dispatching else {}
        """The buses that this node serves: those of its dispatcher."""
        self.deliveries: list[Delivery] = []
        self.dispatchers: list[Dispatcher] = []
        self.http_cancels: HttpCancels | None = None
        places = {"http": options.http_concurrency} if dispatching else {}
        places |= {"handler": options.handler_concurrency} if handlers else {}
        self.beat = NodeBeat(shared.store, self._node(places), shared.scale)
        self.reports: dict[str, Reports] = {}
        self.handing_over: list[HandingOver] = []
        believed = shared.pruner.believed if "pruner" in options.roles else None
        self.tallies = Tallies(shared.store, shared.telemetry.tally, options.name, shared.clock, believed)
        holds = HoldReader(shared.operations.reconciler.holding, shared.operations.reconciler.joining.members)
        self.services: list[Service] = [self.beat, holds, self.tallies, shared.log_writer, *self._by_role()]
        if dispatching:
            self._dispatch_http()
        for name, bus in self.buses.items():
            self._dispatch_bus(name, bus)
        if handlers:
            self._dispatch_handlers(handlers)
        if dispatching or handlers:
            self._dispatch_follow_ups(dispatching)
        if self.dispatchers:
            keeper = Keeper(self._performing, self._leases, self._leased, shared.clock)
            self.services += [*self.dispatchers, shared.collector, keeper]
        if self.http_cancels is not None:
            self.services.append(self.http_cancels)

    def cancel_asked(self, run: Run) -> None:
        """A cancel was asked for this claimed run, in this process."""
        for performing in self._performing:
            performing.cancel_asked(run)

    def _own(self) -> Own:
        since = [each.claiming_since for each in self.dispatchers if each.claiming_since is not None]
        return Own(
            self._options.name,
            self._shared.collector.claims(),
            frozenset(attempt.claim for each in self._performing for attempt in each.lively()),
            frozenset(claim for each in self._performing for claim in each.waiting.claims()),
            min(since, default=None),
            frozenset(self._shared.operations.settling.astray),
            frozenset(self._leases.timed_out),
        )

    def _node(self, places: dict[str, int]) -> Node:
        now = self._shared.clock.now()
        return Node(
            name=self._options.name,
            roles=tuple(self._options.roles),
            started_at=now,
            beat_at=now,
            host=socket.gethostname(),
            pid=os.getpid(),
            version=version(),
            places=places,
        )

    def _by_role(self) -> list[Service]:
        shared, options = self._shared, self._options
        services: list[Service] = []
        if "planner" in options.roles:
            planner = Planner(
                shared.store,
                shared.signal,
                shared.operations.reconciler,
                shared.operations.following,
                shared.telemetry,
                ahead_seconds=options.plan_ahead_seconds,
                catch_up_per_second=options.catch_up_per_second,
                jobs_max=options.jobs_max,
                lead=0.25 + fraction(options.name, "planner") / 2,
                tracing=Tracing(shared.telemetry.spans is not None),
                node=options.name,
            )
            services += [planner, planner.costly]
        if "rescuer" in options.roles:
            of = shared.operations
            settling, reconciler = of.settling, of.reconciler
            rescuer = Rescuer(
                shared.store,
                settling,
                reconciler,
                shared.telemetry,
                shared.clock,
                shared.scale,
                self._own,
                of.logs.ends_of,
            )
            services.append(rescuer)
            applier = Applier(shared.store, shared.clock, reconciler, options.name)
            services += [
                applier,
                CalendarApplier(shared.store, shared.clock, reconciler, options.name, of.importing, of.holds),
                HoldApplier(shared.store, shared.clock, reconciler, options.name, settling, shared.signal),
                HoldCancels(shared.store, reconciler.holding, of.runs, of.holds),
                RateApplier(shared.operations.context, reconciler, settling, options.name),
                Sweeper(shared.store, reconciler),
                Serving(shared.operations.stats),
                *self._watching(),
            ]
        if "pruner" in options.roles:
            believed, keep = shared.pruner.believed, (options.run_log_seconds, options.run_log_bytes_max)
            services += [
                shared.pruner,
                Finisher(shared.store, believed),
                LogPruner(shared.operations, believed, *keep),
                RatePruner(shared.store, shared.clock),
                TurnPruner(shared.store, shared.clock),
            ]
        if "api" in options.roles:
            services += [shared.claims, JobRecall(shared.store, shared.telemetry)]
        return services

    def _watching(self) -> list[Service]:
        store, clock, operations = self._shared.store, self._shared.clock, self._shared.operations
        return [
            Watcher(operations.context, operations.following, operations.reconciler.holding),
            Troubles(operations.context, operations.channels, operations.stats),
            Endings(operations.context, operations.channels, self._options.certificate),
            Unanswered(store, clock, operations.settling),
            BatchCounter(store, operations.runs.batching, operations.batches),
            Joiner(operations.reconciler.joining),
        ]

    # ---- dispatchers

    def _dispatch(
        self, name: str, deliveries: Mapping[str, Delivery], places: int, limits: Mapping[str, int] | None = None
    ) -> Performing:
        shared, options = self._shared, self._options
        performing = Performing(
            shared.clock,
            self._leases,
            shared.collector,
            deliveries,
            self._leased,
            places=places,
            holding=shared.operations.reconciler.holding,
        )
        dispatcher = Dispatcher(
            name,
            shared.operations.claiming,
            shared.clock,
            self._leases,
            shared.telemetry,
            performing,
            tuple(deliveries),
            options.name,
            window_seconds=options.execution_window_seconds,
            limits=limits,
        )
        self._performing.append(performing)
        self.dispatchers.append(dispatcher)
        return performing

    def _dispatch_http(self) -> None:
        delivery = self._http()
        operations, options = self._shared.operations, self._options
        limits = Limits(options.http_breaker_failures, options.http_breaker_seconds)
        holding = operations.reconciler.holding
        breaker = Breaker(operations.context, operations.holds, holding, operations.channels, options.name, limits)
        self.services.append(breaker)
        performing = self._dispatch("http", {"http": Counted(delivery, breaker)}, self._options.http_concurrency)
        collector = self._shared.collector
        self.http_cancels = HttpCancels(
            self._shared.store,
            self._shared.clock,
            self._options.name,
            delivery.notify_cancel,
            lambda run: (run.id, run.token) in performing.attempts or (run.id, run.token) in collector.claims(),
        )

    def _http(self) -> HttpDelivery:
        from horarium.delivery.http import HttpDelivery

        options, secret = self._options, self._options.report_secret
        delivery = HttpDelivery(
            clock=self._shared.clock,
            allow_private=options.allow_private_targets,
            signing_secret=options.signing_secret,
            report_url=options.report_url,
            secrets=Secrets(options.secrets_env_prefix, options.secrets_dir),
            report_key=None if secret is None else partial(report_key, key_digest(secret)),
        )
        self.deliveries.append(delivery)
        return delivery

    def _dispatch_follow_ups(self, notify: bool) -> None:
        operations, options = self._shared.operations, self._options
        deliveries: dict[str, Delivery] = {FOLLOW_QUEUE: FollowDelivery(operations.jobs)}
        if notify:
            post = Post(
                self._http(),
                options.smtp_url,
                options.signing_secret,
                allow_private=options.allow_private_targets,
                public_url=options.public_url,
            )
            shared = self._shared
            deliveries[NOTIFY_QUEUE] = NotifyDelivery(
                shared.store, shared.clock, operations.channels, operations.logs, post
            )
        self._dispatch("follow-ups", deliveries, FOLLOW_PLACES)

    def _dispatch_bus(self, name: str, bus: Bus) -> None:
        shared = self._shared
        handing_over = HandingOver(name, shared.store, shared.clock)
        delivery = BusDelivery(bus, shared.clock, handing_over.add)
        cancels = BusCancels(name, bus, shared.store, shared.clock, delivery.cancel)
        reports = Reports(
            name,
            bus,
            shared.store,
            shared.clock,
            shared.telemetry,
            shared.operations.settling.settle,
            cancels.add,
        )
        self.reports[name] = reports
        self.handing_over.append(handing_over)
        self.services += [reports, cancels, handing_over]
        self._dispatch(f"bus-{name}", {f"bus/{name}": delivery}, BUS_PLACES)

    def _dispatch_handlers(self, handlers: Mapping[str, Handler]) -> None:
        delivery = HandlerDelivery(handlers, self._shared.log_writer, capture=self._options.capture_logging)
        self.deliveries.append(delivery)
        deliveries: dict[str, Delivery] = {f"handler/{name}": delivery for name in handlers}
        limits = {f"handler/{name}": one.concurrency for name, one in handlers.items() if one.concurrency}
        self._dispatch("handlers", deliveries, self._options.handler_concurrency, limits)
