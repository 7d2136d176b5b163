"""Everything that can be asked of one namespace, in one place: the API and the library both come through here.

`Operations` puts the parts together, each with what it needs of the others: `operations.jobs.create_job(...)`,
`operations.runs.cancel_run(...)`. It decides nothing. Each operation reads, lets a pure rule decide, and
writes if nothing changed meanwhile; where it lost a race it reads again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property

from horarium.access.acting import who_reads
from horarium.clock import SECOND, Clock
from horarium.model import Health, Job, Node, Run
from horarium.operations.batches import Batches
from horarium.operations.bounds.reaching import reaching
from horarium.operations.calendars import CalendarOperations
from horarium.operations.channels import ChannelCheck, ChannelOperations
from horarium.operations.deciding.approving import Approving
from horarium.operations.deciding.overriding import Overriding
from horarium.operations.holds import HoldOperations
from horarium.operations.jobs.backfilling import Backfilling
from horarium.operations.jobs.changes import Changes
from horarium.operations.jobs.importing import Importing
from horarium.operations.jobs.jobs import JobOperations
from horarium.operations.jobs.triggering import Triggering
from horarium.operations.jobs.versions import Versions
from horarium.operations.looking.attending import Attending
from horarium.operations.looking.counting import Counting, with_holds, with_unserved
from horarium.operations.looking.explaining import Explaining
from horarium.operations.looking.feeds import Feeds
from horarium.operations.looking.forecasting import Forecasting
from horarium.operations.plans.applying import PlanApplying
from horarium.operations.plans.making import PlanMaking
from horarium.operations.queues import QueueOperations
from horarium.operations.rates import RateOperations
from horarium.operations.runs.bulk import Bulk
from horarium.operations.runs.history import History
from horarium.operations.runs.logs import Logs
from horarium.operations.runs.one_offs import OneOffs
from horarium.operations.runs.pings import Pings
from horarium.operations.runs.runs import RunOperations
from horarium.operations.runs.waiting import Waiting
from horarium.operations.settling.claiming import Claiming
from horarium.operations.settling.following import Following
from horarium.operations.settling.members import Members
from horarium.operations.settling.reconciling import Reconciler
from horarium.operations.settling.settling import Settled, Settling
from horarium.operations.writing.context import Context, Entropy
from horarium.operations.writing.tracing import Tracing
from horarium.ports import Signal, Stats, Store
from horarium.wire.definitions import TargetCheck

NODES_SHOWN = 24 * 3600 * SECOND


class Operations:
    """Raises the errors of `errors`, nothing else. `settled` is called with runs that were written and their jobs, for
    metrics and trimming; `cancel_asked` with claimed runs that were asked to stop."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        signal: Signal,
        entropy: Entropy,
        check_target: TargetCheck,
        settled: Settled = lambda runs, jobs: None,
        cancel_asked: Callable[[Run], None] = lambda run: None,
        check_channel: ChannelCheck = lambda channel: None,
        tracing: Tracing | None = None,
    ) -> None:
        store = reaching(store, entropy)
        self.context = context = Context(store, clock, signal, entropy)
        self.store, self.clock = store, clock
        following, versions = Following(store, Members(context)), Versions(store)
        self.reconciler = Reconciler(context, following, lambda runs: settled(runs, {}))
        waiting = Waiting(context)

        def told(runs: Sequence[Run], jobs: Mapping[str, Job]) -> None:
            waiting.settled(runs)
            settled(runs, jobs)

        self.settling = Settling(context, self.reconciler, following, told)
        changes = Changes(context, self.reconciler, versions, following)
        self.overriding = Overriding(context, changes)
        tracing = tracing or Tracing()
        triggering = Triggering(context, self.reconciler, tracing)
        self.calendars = CalendarOperations(context)
        self.channels = ChannelOperations(context, check_channel)
        self.jobs = JobOperations(
            context, check_target, changes, triggering, Backfilling(context, self.reconciler), versions
        )
        self.importing = Importing(context, self.jobs, self.reconciler, versions, following)
        self.logs = Logs(context)
        self.pings = Pings(context, changes, self.settling, self.logs)
        self.runs = RunOperations(context, self.jobs, self.settling, waiting, self.reconciler.holding, cancel_asked)
        self.one_offs = OneOffs(context, check_target, self.runs, tracing, self.reconciler.holding)
        self.bulk = Bulk(context, changes, triggering, self.settling, cancel_asked)

    @property
    def approving(self) -> Approving:
        return Approving(self.context, self.settling, self.versions, self.jobs.changes)

    @property
    def versions(self) -> Versions:
        return self.jobs.versions

    @property
    def following(self) -> Following:
        return self.reconciler.following

    @property
    def waiting(self) -> Waiting:
        return self.runs.waiting

    @property
    def queues(self) -> QueueOperations:
        return QueueOperations(self.context)

    @property
    def batches(self) -> Batches:
        return Batches(self.context, self.runs, self.bulk)

    @property
    def rates(self) -> RateOperations:
        return RateOperations(self.context)

    @property
    def claiming(self) -> Claiming:
        return Claiming(self.context, self.settling, self.reconciler.holding)

    @property
    def holds(self) -> HoldOperations:
        return HoldOperations(self.context, self.reconciler.holding)

    @property
    def planned_changes(self) -> PlanMaking:
        return PlanMaking(self.context, self.jobs, self.calendars, self.channels, self.reconciler.holding)

    @property
    def applying(self) -> PlanApplying:
        return PlanApplying(self.context, self.jobs, self.importing, self.reconciler, self.calendars, self.channels)

    @property
    def feeds(self) -> Feeds:
        return Feeds(self.context, self.reconciler.holding)

    @cached_property
    def forecasting(self) -> Forecasting:
        return Forecasting(self.context, self.reconciler.holding)

    @property
    def attending(self) -> Attending:
        return Attending(self.context, self.channels.untold, self.stats, self.nodes, self.holds.seen_now)

    @property
    def explaining(self) -> Explaining:
        return Explaining(self.context, self.jobs, self.versions, self.reconciler.holding)

    @property
    def history(self) -> History:
        return History(self.context, self.jobs)

    @cached_property
    def _counting(self) -> Counting:
        return Counting(self.context)

    async def nodes(self) -> list[Node]:
        """The nodes that gave a sign of life within the last day."""
        return await self.store.list_nodes(self.clock.now() - NODES_SHOWN)

    async def health(self, jobs: Sequence[Job]) -> list[Health]:
        """How the runs of each of these jobs have ended of late."""
        found = await self.store.job_health([job.id for job in jobs])
        return [found[job.id] for job in jobs]

    async def stats(self) -> Stats:
        """Counts by queue, and which queues no worker serves; where they are large, some seconds old."""
        now = self.clock.now()
        mine = None if who_reads() is None else await self.store.stats(now)
        stats = await self._counting.stats() if mine is None else await with_unserved(self.store, mine, now)
        holds = await self.reconciler.holding.look()
        return with_holds(stats, holds, self.clock.now()) if holds else stats
