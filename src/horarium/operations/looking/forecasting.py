"""What will run in a span, counted for all jobs together, beside the event loop: a few milliseconds at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from functools import partial
from heapq import nlargest
from urllib.parse import urlsplit

from msgspec import Struct

from horarium.access.roles import Principal
from horarium.clock import DAY, SECOND, Instant, to_micros
from horarium.errors import InvalidRequest, TooExpensive
from horarium.model import HttpTarget, Job, State
from horarium.operations.bounds.evaluating import evaluate
from horarium.operations.bounds.listing import Slices
from horarium.operations.bounds.reaching import may_reach_job
from horarium.operations.writing.context import Context
from horarium.ports import JobFilter, Store
from horarium.rules.forecasting import (
    Bucket,
    Jittered,
    Rule,
    Span,
    Starts,
    add_running,
    add_starts,
    ahead,
    alike,
    interval_of,
    interval_starts,
    is_plain,
    jittered,
    jittered_interval,
    moved_by_jitter,
    never_starts,
    overridden,
    peaks,
    quiet,
    rule_of,
    spec_key,
)
from horarium.triggers.budget import LIST_STEPS, apart

JOBS_AT_ONCE = 500
FIRES_AT_ONCE = 200
FORECAST_STEPS = 5_000_000
"""For all rules of one forecast: some ten seconds of a processor, in slices."""
BUCKETS_MAX = 10_080
"""A week by the minute."""
LABELS_MAX = 100
"""Labels that are told for themselves: those with the most starts. All others are the label ""."""
MEASURED_MAX = 500
"""Jobs whose last runs are looked at for how long they take: those with the most starts."""
RUNS_MEASURED = 5
MEASURED_SINCE = 30 * DAY
LEFT_OUT_MAX = 20


class Forecast(Struct, frozen=True):
    """`peaks`: the buckets with the most starts; `quiet`: those with the fewest. `left_out`: jobs whose rules take too
    long to evaluate."""

    buckets: list[Bucket]
    peaks: list[Bucket]
    quiet: list[Bucket]
    left_out: list[str]


class StartCounts:
    """Patterns of starts in one span, and which job has which."""

    def __init__(self, span: Span) -> None:
        self.span = span
        self.patterns: dict[Hashable, Starts] = {}
        self.left_out: list[str] = []
        self.slices = Slices()
        self._rules: dict[bytes, Rule] = {}
        self._jittered: dict[tuple[bytes, int], Jittered] = {}

    async def key(self, job: Job) -> Hashable | None:
        """The pattern of this job; None: nothing of it lies ahead, or its rule takes too long."""
        if never_starts(job):
            return None
        await self.slices.give_way()
        try:
            return await (self._plain(job) if is_plain(job, self.span) else self._own(job))
        except TooExpensive:
            self.left_out.append(job.name)
            return None

    async def _plain(self, job: Job) -> Hashable:
        jitter = to_micros(job.jitter_seconds)
        if (interval := interval_of(job, self.span)) is not None:
            if jitter:
                return self._keep(job, jittered_interval(interval, jitter, self.span))
            interval = alike(interval, self.span)
            if interval not in self.patterns:
                self.patterns[interval] = interval_starts(interval, self.span)
            return interval
        spec = spec_key(job)
        if not (await self._rule(job, spec)).shared:
            return await self._own(job)
        if not jitter:
            if spec not in self.patterns:
                self.patterns[spec] = self.span.starts(await self._list(job))
            return spec
        if (spec, jitter) not in self._jittered:
            self._jittered[spec, jitter] = jittered(await self._list(job), jitter, self.span)
        return self._keep(job, self._jittered[spec, jitter])

    async def _own(self, job: Job) -> Hashable:
        fires = await self._list(job)
        key = self._keep(job, jittered(fires, to_micros(job.jitter_seconds), self.span))
        if job.overrides:
            self.patterns[key] = overridden(job, fires, dict(self.patterns[key]), self.span)
        return key

    def _keep(self, job: Job, starts: Jittered) -> Hashable:
        key = (job.id, job.version)
        self.patterns[key] = moved_by_jitter(job, starts, self.span) if starts.crossing else starts.base
        return key

    async def _rule(self, job: Job, spec: bytes) -> Rule:
        if spec not in self._rules:
            self._rules[spec] = await evaluate(lambda: rule_of(job.trigger), LIST_STEPS)
        return self._rules[spec]

    async def _list(self, job: Job) -> list[Instant]:
        """Its fire times that may fall due within the span."""
        rule = (await self._rule(job, spec_key(job))).trigger
        wanted = await evaluate(lambda: ahead(job, self.span, rule), LIST_STEPS)
        after, found = wanted.after, list[Instant]()
        if wanted.first is not None and wanted.after < wanted.first <= wanted.until:
            found.append(wanted.first)
        left = wanted.left
        if left is not None and after > wanted.counted_from:
            passed = await evaluate(
                lambda: wanted.trigger.count_fires(wanted.counted_from, wanted.after, wanted.left or 0), LIST_STEPS
            )
            left -= passed
        while left is None or left > 0:
            count = FIRES_AT_ONCE if left is None else min(left, FIRES_AT_ONCE)
            fires = await evaluate(partial(wanted.trigger.list_fires, after, wanted.until, count), LIST_STEPS)
            found += fires
            left = None if left is None else left - sum(fire > wanted.counted_from for fire in fires)
            if len(fires) < count:
                break
            after = fires[-1]
            await self.slices.give_way()
        return found

    async def total(self, weights: Mapping[Hashable, float]) -> list[float]:
        """How many starts there are in each bucket."""
        total = [0.0] * self.span.buckets
        for key, weight in weights.items():
            await self.slices.give_way()
            add_starts(total, self.patterns[key], weight)
        return total

    async def load(self, weights: Mapping[Hashable, float], seconds: Mapping[Hashable, float]) -> list[float]:
        """How many run at once on average in each bucket. `seconds`: of all jobs of a pattern together."""
        load = [0.0] * self.span.buckets
        for key, weight in weights.items():
            await self.slices.give_way()
            add_running(load, self.patterns[key], weight, seconds[key], self.span)
        return load


async def weigh_all(store: Store, counts: StartCounts, reader: Principal | None) -> list[tuple[Job, Hashable]]:
    """Every job of the store that this reader may see and of which something lies ahead, with its pattern."""
    found: list[tuple[Job, Hashable]] = []
    after: str | None = None
    while True:
        page = await store.list_jobs(JobFilter(finished=False), after, JOBS_AT_ONCE)
        for job in page.items:
            if reader is None or may_reach_job(reader, job):
                key = await counts.key(job)
                if key is not None:
                    found.append((job, key))
        if (after := page.next_after) is None:
            return found


def label_of(job: Job, by: str) -> str:
    """What the starts of this job are told under."""
    match by:
        case "job":
            return job.name
        case "queue":
            return job.queue
        case "host":
            return (urlsplit(job.target.url).hostname or "") if isinstance(job.target, HttpTarget) else ""
    return job.labels.get(by.removeprefix("label:"), "")


class Forecasting:
    """Forecasts of one namespace."""

    def __init__(self, context: Context) -> None:
        self._store, self._clock = context.store, context.clock

    async def forecast(
        self,
        since: Instant | None = None,
        until: Instant | None = None,
        bucket_seconds: int = 3600,
        by: str = "queue",
        reader: Principal | None = None,
    ) -> Forecast:
        """Starts by the rules as they are now, in [since, until): from now on for seven days, unless it is said.
        Raises InvalidRequest."""
        since = self._clock.now() if since is None else since
        until = since + 7 * DAY if until is None else until
        span = Span(since, until, bucket_seconds * SECOND)
        if until <= since:
            raise InvalidRequest("until: must be later than since", field="until")
        if span.buckets > BUCKETS_MAX:
            message = f"bucket_seconds: the span has {span.buckets:,} such buckets; at most {BUCKETS_MAX:,} are told"
            raise InvalidRequest(message, field="bucket_seconds")
        with apart(FORECAST_STEPS):
            counts = StartCounts(span)
            jobs = await weigh_all(self._store, counts, reader)
            return await self._told(counts, jobs, by)

    async def _told(self, counts: StartCounts, jobs: list[tuple[Job, Hashable]], by: str) -> Forecast:
        sizes = {key: sum(pattern.values()) for key, pattern in counts.patterns.items()}
        totals: Counter[str] = Counter()
        busiest: list[tuple[int, str]] = []
        for start in range(0, len(jobs), JOBS_AT_ONCE):
            await counts.slices.give_way()
            some = jobs[start : start + JOBS_AT_ONCE]
            for job, key in some:
                totals[label_of(job, by)] += sizes[key]
            busiest = nlargest(MEASURED_MAX, [*busiest, *((sizes[key], job.name) for job, key in some)])
        told = {label for label, _ in totals.most_common(LABELS_MAX)} if len(totals) > LABELS_MAX else set(totals)
        seconds = await self._durations([name for _, name in busiest])
        usual = sum(seconds.values()) / len(seconds) if seconds else 0.0
        weights: dict[str, Counter[Hashable]] = {}
        taken: dict[str, dict[Hashable, float]] = {}
        for number, (job, key) in enumerate(jobs):
            if number % JOBS_AT_ONCE == 0:
                await counts.slices.give_way()
            label = label_of(job, by)
            shown = label if label in told else ""
            weights.setdefault(shown, Counter())[key] += 1
            of_label = taken.setdefault(shown, {})
            of_label[key] = of_label.get(key, 0.0) + seconds.get(job.name, usual)
        starts = {label: await counts.total(of) for label, of in weights.items()}
        loads = {label: await counts.load(of, taken[label]) for label, of in weights.items()}
        buckets = _buckets(counts.span, starts, loads)
        return Forecast(buckets, peaks(buckets), quiet(buckets), counts.left_out[:LEFT_OUT_MAX])

    async def _durations(self, names: Sequence[str]) -> dict[str, float]:
        """How many seconds the last runs of these jobs took on average, by name; those that have not run are left
        out."""
        now = self._clock.now()
        if not names:
            return {}
        found = await self._store.last_runs(names, now - MEASURED_SINCE, now + 1, RUNS_MEASURED)
        measured: dict[str, float] = {}
        for name, runs in found.items():
            took = [
                run.finished_at - run.started_at
                for run in runs
                if run.state is State.COMPLETED and run.finished_at is not None and run.started_at is not None
            ]
            if took:
                measured[name] = sum(took) / len(took) / SECOND
        return measured


def _buckets(span: Span, starts: Mapping[str, list[float]], loads: Mapping[str, list[float]]) -> list[Bucket]:
    found: list[Bucket] = []
    for place in range(span.buckets):
        began = {label: round(of[place]) for label, of in starts.items() if of[place]}
        busy = {label: round(of[place], 3) for label, of in loads.items() if of[place]}
        found.append(Bucket(span.since + place * span.bucket, began, busy))
    return found
