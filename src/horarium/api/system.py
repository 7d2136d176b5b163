"""What operators ask: nodes, counts, health, metrics."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from typing import Protocol

from horarium.access.roles import LOCAL, NO_LABELS, Scope
from horarium.api.answers import Ready
from horarium.api.endpoints import Answer, Call, Endpoint, Handlers, answer
from horarium.api.events import EVENT_STREAM, event_stream
from horarium.api.looking_schemas import UpcomingView, ahead_view
from horarium.api.problems import InvalidContent
from horarium.api.reading import read_cursor, write_cursor
from horarium.api.routing import AnyRequest
from horarium.api.runs import bounded_instant
from horarium.api.schemas import (
    Alive,
    NodePage,
    PageQuery,
    QueueView,
    Readiness,
    StatsView,
    UpcomingQuery,
)
from horarium.clock import DAY, Instant, moment
from horarium.errors import Outage
from horarium.operations.bounds.listing import Slices
from horarium.operations.facade import Operations
from horarium.operations.looking.upcoming import upcoming
from horarium.ports import BATCH_MAX, JobFilter, Stats
from horarium.services.polling.claims import Claims
from horarium.services.polling.news import News
from horarium.siblings import Siblings
from horarium.wire.faults import Fault
from horarium.wire.views import node_view

METRICS = "metrics"
"""What siblings ask for; their supervisor answers with the figures of all."""
NODE_NAME_CHARS_MAX = 300
REASON_HIDDEN = "does not work; ask with an API key for the reason"
"""A reason may name the store's address, which is not for everyone."""


class Health(Protocol):
    """Whether this node can work."""

    def problems(self) -> dict[str, str]:
        """By part, why not; empty when all is well."""


class Telemetry(Protocol):
    """The metrics."""

    async def render_in_steps(self, stats: Stats | None = None, now: Instant = 0) -> tuple[bytes, str]:
        """The text that Prometheus scrapes, and its content type."""

    def refused(self, reason: str) -> None:
        """A request was refused before any work."""


JOB_LABEL = re.compile(r'[{,]job="([^"]*)"')


class System(Handlers):
    """Handlers for nodes, counts, health and metrics."""

    def __init__(
        self,
        operations: Operations,
        claims: Claims,
        health: Health,
        telemetry: Telemetry,
        trusted: Callable[[AnyRequest], bool],
        news: News,
        siblings: Siblings,
    ) -> None:
        super().__init__(operations)
        self._claims = claims
        self._health = health
        self._telemetry = telemetry
        self._trusted = trusted
        self._news = news
        self._siblings = siblings
        siblings.hear(METRICS, self._metrics_of_this_process)

    @Endpoint(
        "GET", "/nodes", "listNodes", tag="system", scope=Scope.RUNS_READ, query=PageQuery, costly=True,
        summary="The nodes that gave a sign of life within a day",
        answers={200: (NodePage, "One page")}, problems=("invalid_cursor",),
    )  # fmt: skip
    async def nodes(self, call: Call) -> Answer:
        query: PageQuery = call.query
        after = read_cursor("nodes", query.cursor, lambda name: 0 < len(name) <= NODE_NAME_CHARS_MAX) or ""
        nodes = [node for node in await self._operations.nodes() if node.name > after]
        page = nodes[: query.limit]
        more = page[-1].name if len(nodes) > len(page) else None
        return answer(NodePage([node_view(node) for node in page], write_cursor("nodes", more)))

    @Endpoint(
        "GET", "/stats", "getStats", tag="system", scope=Scope.RUNS_READ, bound=True, costly=True,
        summary="Counts of jobs, of unfinished runs by queue, and of waiting workers",
        description="A caller that is bound to queues gets the counts of these, and none of jobs.",
        answers={200: (StatsView, "Counts")},
    )  # fmt: skip
    async def stats(self, call: Call) -> Answer:
        stats, caller = await self._operations.stats(), call.principal
        workers = (await self._claims.waiting_everywhere()).workers(lambda queue: caller.may_reach(queue, NO_LABELS))
        queues = [
            QueueView(one.queue, one.due, one.scheduled, one.running, moment(one.oldest_due_at), one.unserved, one.hold)
            for one in stats.queues
        ]
        everything = any(hold.scope.all for hold in await self._operations.holds.in_force())
        if caller.bound and caller.labels is None:
            return answer(StatsView(queues, workers, hold=everything))
        return answer(StatsView(queues, workers, stats.queues_left_out, everything, stats.jobs, stats.jobs_enabled))

    @Endpoint(
        "GET", "/upcoming", "listUpcoming", tag="system", scope=Scope.JOBS_READ, query=UpcomingQuery, bound=True,
        costly=True,
        summary="What fires next, of all jobs together",
        answers={200: (UpcomingView, "Fire times, earliest first")},
    )  # fmt: skip
    async def upcoming(self, call: Call) -> Answer:
        query: UpcomingQuery = call.query
        since = bounded_instant(query.since, "since")
        since = self._operations.clock.now() if since is None else since
        until = bounded_instant(query.until, "until")
        until = since + DAY if until is None else until
        if until < since:
            raise InvalidContent([Fault("until", "must not be earlier than since")])
        holds = await self._operations.reconciler.holding.look()
        found = await upcoming(self._operations.store, since, until, query.limit, holds=holds)
        return answer(UpcomingView([ahead_view(one) for one in found.items], found.truncated))

    @Endpoint(
        "GET", "/events", "listen", tag="system", scope=Scope.RUNS_READ, bound=True, media_type=EVENT_STREAM,
        summary="A stream of server-sent events: `changed`, with what kind of thing has",
        answers={200: (str, "The stream; it goes on until one side hangs up")}, problems=("too_many_waiters",),
    )  # fmt: skip
    async def events(self, call: Call) -> Answer:
        return event_stream(call.request, self._news, call.principal)

    @Endpoint(
        "GET", "/healthz", "alive", tag="health", open=True,
        summary="Whether the process lives",
        answers={200: (Alive, "It does")},
    )  # fmt: skip
    async def alive(self, call: Call) -> Answer:
        return answer(Alive())

    @Endpoint(
        "GET", "/readyz", "ready", tag="health", open=True,
        summary="Whether this node can work",
        answers={200: (Readiness, "It can"), 503: (Readiness, "It can't, and why")},
    )  # fmt: skip
    async def ready(self, call: Call) -> Answer:
        problems = self._health.problems()
        if not self._trusted(call.request):
            problems = dict.fromkeys(problems, REASON_HIDDEN)
        return answer(Readiness(not problems, problems), 503 if problems else 200)

    async def metrics(self, call: Call) -> Answer:
        bound = call.request.scope.get("user", LOCAL).bound
        try:
            stats, now = (None, 0) if bound else (await self._operations.stats(), self._clock.now())
        except Outage:
            stats, now = None, 0
        text, media_type = await self._telemetry.render_in_steps(stats, now)
        for whole in await self._siblings.ask(METRICS, text):
            text = whole
        return Ready(await self._of_its_jobs(text) if bound else text, media_type=media_type)

    async def _of_its_jobs(self, text: bytes) -> bytes:
        """For a bound caller, the metrics of the jobs that it may see."""
        names = {job.name for job in (await self._operations.store.list_jobs(JobFilter(), None, BATCH_MAX)).items}
        lines, slices = list[str](), Slices()
        for line in text.decode().splitlines(keepends=True):
            if line.startswith("#") or _is_of(line, names):
                lines.append(line)
            await slices.give_way()
        return "".join(lines).encode()

    async def _metrics_of_this_process(self, said: bytes) -> bytes:
        return (await self._telemetry.render_in_steps())[0]

    def metrics_endpoint(self, *, open: bool) -> Endpoint:
        """`/metrics`, which names jobs and queues: `open` to all, or to those who may read jobs."""
        return Endpoint(
            "GET", "/metrics", "metrics", tag="health", scope=None if open else Scope.JOBS_READ, bound=True,
            costly=True, open=open, media_type="text/plain", handle=self.metrics,
            summary="Metrics for Prometheus", answers={200: (str, "The text format of Prometheus")},
        )  # fmt: skip


def _is_of(line: str, names: Collection[str]) -> bool:
    found = JOB_LABEL.search(line)
    return found is not None and found[1] in names
