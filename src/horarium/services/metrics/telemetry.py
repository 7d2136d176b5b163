"""The metrics, under the names that /metrics shows. Labels are few and bounded: of jobs a number that is set, never a
run."""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from functools import cache
from itertools import groupby
from operator import attrgetter

from prometheus_client.metrics import Counter, Gauge
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import CollectorRegistry

from horarium.clock import SECOND, Instant
from horarium.model import Disposition, Run, State
from horarium.ports import Stats
from horarium.services.metrics.ends import ends_of
from horarium.services.metrics.job_meters import JOBS_MAX_DEFAULT, JobMeters
from horarium.services.metrics.lateness import Lateness
from horarium.services.metrics.spans import Spans
from horarium.services.metrics.tallies import Tally

LATENESS_BUCKETS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 3600)
QUEUES_SHOWN_MAX = 100
_begun = attrgetter("started_at", "attempt")


class Telemetry:
    """Counters of one process. Methods take batches; none of them can fail."""

    def __init__(self, jobs_max: int = JOBS_MAX_DEFAULT, version: str = "0") -> None:
        self.registry = CollectorRegistry()
        self.tally = Tally()
        ProcessCollector(registry=self.registry)
        self.jobs = JobMeters(jobs_max)
        self.spans: Spans | None = None
        build = Gauge("horarium_build_info", "1, with the version.", ["version", "python"], registry=self.registry)
        build.labels(version, platform.python_version()).set(1)
        self._planned = self._counters("horarium_runs_planned_total", "Runs created, by cause.", "cause")
        self._skipped = self._counters(
            "horarium_fires_skipped_total", "Fire times that did not run, by disposition.", "disposition"
        )
        self._claimed = self._counters(
            "horarium_runs_claimed_total", "Attempts begun by this process, by kind.", "kind"
        )
        self._settled = self._counters("horarium_attempts_settled_total", "Attempts ended, by outcome.", "outcome")
        self._rescued = self._counters(
            "horarium_runs_rescued_total", "Runs whose lease expired, by what came of it.", "state"
        )
        self._lost = self._counter("horarium_leases_lost_total", "Outcomes that came too late to count.")
        self._pruned = self._counter("horarium_runs_pruned_total", "Finished runs deleted by retention.")
        self._reported = self._counters(
            "horarium_bus_reports_total", "Messages from workers on a bus, by what came of them.", "outcome"
        )
        self._refused = self._counters(
            "horarium_requests_refused_total", "Requests and connections refused before any work, by reason.", "reason"
        )
        self._lateness = Lateness(
            "horarium_run_lateness_seconds",
            "From the instant a run was due to the start of its attempt.",
            LATENESS_BUCKETS,
            self.registry,
        )
        self._queues = _Queues(self.registry)

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(name, text, registry=self.registry)

    def _counters(self, name: str, text: str, label: str) -> Callable[[str], Counter]:
        """One for each value of a label. (Each is kept: the library checks labels whenever it is asked for one.)"""
        counters = Counter(name, text, [label], registry=self.registry)
        return cache(counters.labels)

    def planned(self, runs: Sequence[Run]) -> None:
        """A plan was committed."""
        for run in runs:
            if run.state is State.PENDING:
                self._planned(run.cause.value).inc()
            else:
                self._skipped((run.disposition or Disposition.MISSED).value).inc(run.fires)
                self.tally.skipped(run)
        self.jobs.ended(ends_of(runs))
        if self.spans is not None:
            self.spans.planned(runs)

    def claimed(self, runs: Sequence[Run], kind: str) -> None:
        """Attempts begin."""
        self._claimed(kind).inc(len(runs))
        first: dict[Instant, list[int]] = {}
        again: list[int] = []
        for (started_at, attempt), begun in groupby(runs, _begun):
            if started_at is not None:
                lates = again if attempt != 1 else first.setdefault(started_at, [])
                lates += [started_at - (run.due_at if run.fair is None else run.due_since) for run in begun]
        for started_at, lates in first.items():
            lates.sort()
            self.tally.claimed(started_at, lates)
            self._lateness.observe(lates)
        if again:
            self._lateness.observe(sorted(again))

    def settled(self, runs: Sequence[Run]) -> None:
        """Attempts ended and were written."""
        ends = ends_of(runs)
        for end, count in ends:
            self._settled("retry" if end.state is State.PENDING else end.state.value).inc(count)
            self.tally.settled(end, count)
        self.jobs.ended(ends)
        if self.spans is not None:
            self.spans.settled(runs)

    def rescued(self, runs: Sequence[Run]) -> None:
        """Leases expired."""
        for run in runs:
            self._rescued(run.state.value).inc()

    def lease_lost(self) -> None:
        """An outcome came too late."""
        self._lost.inc()

    def reported(self, outcome: str) -> None:
        """A message came from a worker on a bus: written, duplicate, stale, foreign, malformed, error."""
        self._reported(outcome).inc()

    def refused(self, reason: str) -> None:
        """A request or a connection was refused: unauthorized, throttled, host, site, head, slow, malformed,
        connections."""
        self._refused(reason).inc()

    def pruned(self, count: int) -> None:
        """Runs were deleted by their retention."""
        if count:
            self._pruned.inc(count)

    def render(self, stats: Stats | None = None, now: int = 0) -> tuple[bytes, str]:
        """The text that Prometheus scrapes, and its content type."""
        from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

        self.jobs.scraped = True
        if stats is not None:
            self._queues.show(stats, now)
        return generate_latest(self.registry) + self.jobs.render(), CONTENT_TYPE_LATEST

    async def render_in_steps(self, stats: Stats | None = None, now: int = 0) -> tuple[bytes, str]:
        """As `render`. Other tasks have their turn while it is made."""
        await self.jobs.put_into_words()
        return self.render(stats, now)


class _Queues:
    """The figures of each queue, and the number of jobs."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._jobs = Gauge("horarium_jobs", "Defined jobs.", ["enabled"], registry=registry)
        self._depth = Gauge(
            "horarium_queue_runs", "Unfinished runs, by queue and condition.", ["queue", "condition"], registry=registry
        )
        self._age = Gauge(
            "horarium_queue_oldest_due_seconds", "How long the oldest due run has waited.", ["queue"], registry=registry
        )
        self._unserved = Gauge(
            "horarium_queue_unserved",
            "1 if runs have been due for a minute and no worker claims any.",
            ["queue"],
            registry=registry,
        )

    def show(self, stats: Stats, now: int) -> None:
        """As the store counts them now."""
        self._jobs.labels("true").set(stats.jobs_enabled)
        self._jobs.labels("false").set(stats.jobs - stats.jobs_enabled)
        self._depth.clear()
        self._age.clear()
        self._unserved.clear()
        for queue in stats.queues[:QUEUES_SHOWN_MAX]:
            for condition in ("due", "scheduled", "running"):
                self._depth.labels(queue.queue, condition).set(getattr(queue, condition))
            waited = 0 if queue.oldest_due_at is None or queue.hold else max(now - queue.oldest_due_at, 0)
            self._age.labels(queue.queue).set(waited / SECOND)
            self._unserved.labels(queue.queue).set(queue.unserved)
