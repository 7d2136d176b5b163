"""What will run in a span, counted for all jobs together, in a thread beside the event loop."""

from __future__ import annotations

import asyncio
from array import array
from collections import Counter
from collections.abc import AsyncIterator, Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from heapq import nlargest
from operator import add
from typing import Any, TypeVar
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from horarium.clock import DAY, INSTANT_MAX, SECOND, Instant, to_micros
from horarium.errors import InvalidRequest, TooExpensive
from horarium.model import HttpTarget, Job, State
from horarium.model.holds import HeldMissed, Hold
from horarium.operations.bounds.evaluating import in_thread
from horarium.operations.bounds.listing import pages_of
from horarium.operations.settling.holding import PLANNED_SECONDS, Holding
from horarium.operations.writing.context import Context
from horarium.ports import JobFilter, Store
from horarium.rules.ahead import counted, last_of, listed
from horarium.rules.forecasting import (
    Ahead,
    Bucket,
    Every,
    Lying,
    Pattern,
    Rule,
    Span,
    Starts,
    add_intervals,
    add_running,
    add_starts,
    ahead,
    interval_count,
    interval_crossing,
    interval_of,
    interval_starts,
    is_plain,
    jittered,
    moved_by_jitter,
    never_starts,
    nothing,
    overridden,
    packed,
    peaks,
    quiet,
    rule_of,
    spread,
    together,
    under_holds,
)
from horarium.rules.holds import covers_job, stretches
from horarium.triggers.budget import LIST_STEPS, apart, limited
from horarium.triggers.cron_trigger import drawn

JOBS_AT_ONCE = 500
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
JITTERS_EXACT = 100_000
"""Fire times of one forecast whose jitter is worked out to tell in which bucket they fall due: a fifth of a second of a
processor. Beyond them, those of rules that many jobs have are spread over the buckets evenly."""
LEFT_OUT_MAX = 20
LEAST = 1e-9
"""A load below this is none, but for sums that were rounded."""
FREED_AT_ONCE = 1_000
KEPT_MAX = 5_000_000
"""Buckets with starts in all patterns together: 40 MB. Jobs that have no room are left out, and named."""

T = TypeVar("T")


class Buckets(Sequence[Bucket]):
    """The buckets of a span, each made when it is asked for: all of them at once take a hundred bytes for each count,
    where these take eight."""

    def __init__(self, span: Span, starts: Mapping[str, array[float]], loads: Mapping[str, array[float]]) -> None:
        self._span, self._starts, self._loads = span, starts, loads

    def __len__(self) -> int:
        return self._span.buckets

    def __getitem__(self, place: Any) -> Any:
        at = self._span.since + range(len(self))[place] * self._span.bucket
        began = {label: round(of[place]) for label, of in self._starts.items() if of[place]}
        busy = {label: round(of[place], 3) for label, of in self._loads.items() if of[place] > LEAST}
        return Bucket(at, began, busy)


class Forecast(Struct, frozen=True):
    """`peaks`: the buckets with the most starts; `quiet`: those with the fewest. `left_out`: jobs whose rules take too
    long to evaluate. `seconds`: how long runs of each job took, as measured; `estimated`: those that count with
    `usual_seconds`, the average of the others, since no run of theirs ended of late."""

    buckets: Sequence[Bucket]
    peaks: list[Bucket]
    quiet: list[Bucket]
    left_out: list[str]
    seconds: Mapping[str, float] = {}
    estimated: frozenset[str] = frozenset()
    usual_seconds: float = 0.0


Asked = tuple[Instant, Instant, int, str]
"""A span, the seconds of its buckets, and by which label the jobs are told."""


class Weighed(Struct, frozen=True, gc=False):
    """A job, as far as a forecast goes on with it: all of them are held at once, so the collector of garbage, which
    would hold up the event loop, does not know them."""

    name: str
    label: str
    key: Hashable


class StartCounts:
    """Patterns of starts in one span, and which job (`jobs`) has which. For one thread at a time."""

    def __init__(self, span: Span, holds: Sequence[Hold] = ()) -> None:
        self.span = span
        self.patterns: dict[Hashable, Pattern] = {}
        """Those of plain intervals, which are worked out when they are asked for, are not among them."""
        self.kept = 0
        self.left_out: list[str] = []
        self.jobs: list[Weighed] = []
        self.weights: Counter[Hashable] = Counter()
        """How many jobs of each pattern are counted alone."""
        self._once: dict[Any, Any] = {}
        self.moved: dict[Hashable, Hashable] = {}
        """Patterns that are changes of another: most jobs with a jitter have one of their own."""
        self._exact = JITTERS_EXACT
        self._rules: dict[bytes, Rule] = {}
        self._crossing: dict[tuple[bytes, int], list[Instant] | None] = {}
        self.over = False
        """Set from elsewhere once no one waits for them: jobs are looked at no further."""
        self._holds = [
            (hold, [Lying(*each, hold.missed is HeldMissed.SKIP) for each in stretches(hold, span.since, span.until)])
            for hold in holds
            if hold.probing is None
        ]

    def let_go(self) -> None:
        """Forget all, in parts: to free a hundred thousand things at once holds up every thread of the process, and the
        event loop, where they end with the frame that asked for them."""
        while self.jobs:
            del self.jobs[-FREED_AT_ONCE:]
        for kept in (self._once, self.moved, self.patterns, self.weights):
            while kept:
                kept.popitem()

    def weigh(self, jobs: Iterable[Job], by: str | None) -> None:
        """Take those of these jobs of which something lies ahead, with their patterns. Equal labels and patterns are
        kept once. `by`: None: the jobs are counted alone."""
        once = self._once.setdefault
        keyed = ((job, key) for job in jobs if not self.over and (key := self.key(job)) is not None)
        if by is None:
            self.weights.update(key for _, key in keyed)
            return
        self.jobs += (Weighed(job.name, once(label := label_of(job, by), label), once(key, key)) for job, key in keyed)

    def key(self, job: Job) -> Hashable | None:
        """The pattern of this job; None: nothing of it lies ahead, or its rule takes too long."""
        if never_starts(job):
            return None
        over = [each for hold, some in self._holds if covers_job(hold.scope, job) for each in some]
        plain = not over and is_plain(job, self.span)
        try:
            if plain and (interval := interval_of(job, self.span)) is not None:
                return self._interval(job, interval)
            with limited(LIST_STEPS):
                return self._held(job, over) if over else self._plain(job) if plain else self._own(job)
        except TooExpensive:
            self.left_out.append(job.name)
            return None

    def _interval(self, job: Job, interval: Every) -> Hashable | None:
        if interval.first >= self.span.until - self.span.since:
            return None
        if interval.jitter and self._is_exact(job):
            return self._moved(job, interval.punctual, interval_crossing(interval, self.span))
        return interval

    def _plain(self, job: Job) -> Hashable:
        spec, jitter = msgspec.json.encode(drawn(job.trigger, job.name)), to_micros(job.jitter_seconds)
        rule = self._rule(spec)
        if not rule.shared:
            return self._own(job)
        if (spec, jitter) not in self._crossing:
            try:
                lists = listed(ahead(job, self.span, rule.trigger))
                base, self._crossing[spec, jitter] = jittered(lists, jitter, self.span)
                self._keep((spec, jitter), packed(base))
            except TooExpensive:
                self._crossing[spec, jitter] = None
        crossing = self._crossing[spec, jitter]
        if crossing is None:
            raise TooExpensive("the rule takes too long for any job that has it", field="trigger")
        if not crossing or self._is_exact(job):
            return self._moved(job, (spec, jitter), crossing)
        if (key := (spec, jitter, "spread")) not in self.patterns:
            self._keep(key, spread(self.patterns[spec, jitter], crossing, jitter, self.span))
        return key

    def _is_exact(self, job: Job) -> bool:
        """Whether the jitter of this job is worked out for each fire time: some are, and those asked for again."""
        return self._exact > 0 or (job.id, job.version) in self.moved

    def _own(self, job: Job) -> Hashable:
        interval = None if job.jitter_seconds or job.overrides else interval_of(job, self.span)
        if interval is not None:
            wanted = self._ahead(job)
            begins = Every(interval.every, (wanted.trigger.next_fire(wanted.after) or INSTANT_MAX) - self.span.since)
            return self._keep_own(job, interval_starts(begins, self.span, last_of(wanted, interval.every)))
        fires = [fire for some in listed(self._ahead(job)) for fire in some]
        rule = jittered([fires], to_micros(job.jitter_seconds), self.span)
        starts = together(rule.base, moved_by_jitter(job, rule.crossing, self.span))
        return self._keep_own(job, overridden(job, fires, starts, self.span) if job.overrides else starts)

    def _held(self, job: Job, over: Sequence[Lying]) -> Hashable:
        """One by one: what a hold does with a fire time depends on those beside it."""
        wanted = self._ahead(job)
        if job.enabled and any(each.begins_at <= self.span.since for each in over):
            wanted = wanted._replace(after=min(wanted.after, job.planned_until))
        left = None if wanted.left is None else wanted.left - counted(wanted)
        gone = {each.fire_at for each in job.overrides}
        fires = [fire for some in listed(wanted._replace(left=None)) for fire in some if fire not in gone]
        return self._keep_own(job, self.span.starts(under_holds(job, fires, over, left)))

    def _moved(self, job: Job, base: Hashable, crossing: Sequence[Instant]) -> Hashable:
        if not crossing:
            return base
        self._exact -= len(crossing)
        key = self._keep_own(job, moved_by_jitter(job, crossing, self.span))
        self.moved[key] = base
        return key

    def _keep_own(self, job: Job, starts: Starts) -> Hashable:
        """The pattern of this job alone."""
        key = (job.id, job.version)
        self._keep(key, packed(starts))
        return key

    def _keep(self, key: Hashable, pattern: Pattern) -> None:
        """Raises TooExpensive where there is no room for it."""
        self.kept += len(pattern.places)
        if self.kept > KEPT_MAX:
            raise TooExpensive("there are too many patterns of starts in too many buckets", field="bucket_seconds")
        self.patterns[key] = pattern

    def size(self, key: Hashable) -> float:
        """How many starts a job of this pattern has."""
        if isinstance(key, Every):
            return interval_count(key, self.span)
        return sum(self.patterns[key].counts) + (self.size(self.moved[key]) if key in self.moved else 0)

    def _rule(self, spec: bytes) -> Rule:
        if spec not in self._rules:
            self._rules[spec] = rule_of(msgspec.json.decode(spec))
        return self._rules[spec]

    def _ahead(self, job: Job) -> Ahead:
        return ahead(job, self.span, self._rule(msgspec.json.encode(job.trigger)).trigger)

    def total(self, weights: Mapping[Hashable, int]) -> array[float]:
        """How many starts there are in each bucket."""
        total, bases, intervals = nothing(self.span), Counter[Hashable](), dict[tuple[int, int], Counter[int]]()
        for key in weights.keys() & self.moved.keys():
            bases[self.moved[key]] += weights[key]
        for key, weight in (*weights.items(), *bases.items()):
            if isinstance(key, Every):
                intervals.setdefault((key.every, key.jitter), Counter())[key.first] += weight
            else:
                add_starts(total, self.patterns[key], weight)
        for (every, jitter), firsts in intervals.items():
            add_intervals(total, every, jitter, firsts, self.span)
        return total


@asynccontextmanager
async def weighed(
    store: Store, asked: Sequence[tuple[Span, str | None]], holds: Sequence[Hold]
) -> AsyncIterator[list[StartCounts]]:
    """Every job of the store that who reads may see and of which something lies ahead, read once, with its pattern in
    each of these spans, and the label by which it is told there."""
    many = [await in_thread(StartCounts, span, holds) for span, _ in asked]
    try:
        async for page in pages_of(lambda after: store.list_jobs(JobFilter(finished=False), after, JOBS_AT_ONCE)):
            for counts, (_, by) in zip(many, asked, strict=True):
                await in_thread(counts.weigh, page, by)
        yield many
    finally:
        for counts in many:
            counts.over = True
            asyncio.get_running_loop().run_in_executor(None, counts.let_go)


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

    def __init__(self, context: Context, holding: Holding) -> None:
        self._store, self._clock, self._holding = context.store, context.clock, holding
        self._turn = asyncio.Lock()

    async def forecast(
        self,
        since: Instant | None = None,
        until: Instant | None = None,
        bucket_seconds: int = 3600,
        by: str = "queue",
    ) -> Forecast:
        """Starts by the rules and the holds as they are now, in [since, until): from now on for seven days, unless it
        is said. Raises InvalidRequest."""
        return await self.told(_whole, since, until, bucket_seconds, by)

    async def several(self, asked: Sequence[Asked]) -> list[Forecast]:
        """Forecasts for which the jobs are read once. Raises InvalidRequest."""
        return await self._told([(self._span(*span), by) for *span, by in asked], _whole)

    async def told(
        self,
        say: Callable[[Forecast], T],
        since: Instant | None = None,
        until: Instant | None = None,
        bucket_seconds: int = 3600,
        by: str = "queue",
    ) -> T:
        """What `say` makes of a forecast, in a thread beside the event loop as all of it. Raises InvalidRequest, and
        what `say` raises."""
        (found,) = await self._told([(self._span(since, until, bucket_seconds), by)], say)
        return found

    def _span(self, since: Instant | None, until: Instant | None, bucket_seconds: int) -> Span:
        since = self._clock.now() if since is None else since
        until = since + 7 * DAY if until is None else until
        span = Span(since, until, bucket_seconds * SECOND)
        if until <= since:
            raise InvalidRequest("until: must be later than since", field="until")
        if span.buckets > BUCKETS_MAX:
            message = f"bucket_seconds: the span has {span.buckets:,} such buckets; at most {BUCKETS_MAX:,} are told"
            raise InvalidRequest(message, field="bucket_seconds")
        return span

    async def _told(self, asked: Sequence[tuple[Span, str]], say: Callable[[Forecast], T]) -> list[T]:
        told: list[T] = []
        holds = await self._holding.look(PLANNED_SECONDS)
        async with self._turn:  # several at once would take as long together, and their memory together
            with apart(FORECAST_STEPS):
                async with weighed(self._store, asked, holds) as many:
                    for counts in many:
                        labels, busiest = await in_thread(_labelled, counts)
                        seconds = await self._durations(busiest)
                        found = await in_thread(_told, counts, labels, seconds, busiest)
                        told.append(await in_thread(say, found))
        return told

    async def _durations(self, names: Sequence[str]) -> dict[str, float]:
        """How many seconds the last runs of these jobs took on average, by name: the completed ones, or where there is
        none the failed ones. Those that have not run are left out."""
        now = self._clock.now()
        if not names:
            return {}
        found = await self._store.last_runs(names, now - MEASURED_SINCE, now + 1, RUNS_MEASURED)
        measured: dict[str, float] = {}
        for name, runs in found.items():
            of = [(run.state, run.took) for run in runs if run.took is not None]
            by_state = ([took for was, took in of if was is state] for state in (State.COMPLETED, State.FAILED))
            if took := next(filter(None, by_state), None):
                measured[name] = sum(took) / len(took) / SECOND
        return measured


def _whole(found: Forecast) -> Forecast:
    return replace(found, buckets=[*found.buckets])


def _labelled(counts: StartCounts) -> tuple[list[str], list[str]]:
    """The label of each of these jobs, and the names of those with the most starts."""
    sizes = {key: counts.size(key) for key in {job.key for job in counts.jobs}}
    labels = [job.label for job in counts.jobs]
    totals: Counter[str] = Counter()
    for job in counts.jobs:
        totals[job.label] += sizes[job.key]  # type: ignore[assignment]
    busiest = nlargest(MEASURED_MAX, ((sizes[job.key], job.name) for job in counts.jobs))
    if len(totals) > LABELS_MAX:
        told = {label for label, _ in totals.most_common(LABELS_MAX)}
        labels = [label if label in told else "" for label in labels]
    return labels, [name for _, name in busiest]


def _told(
    counts: StartCounts,
    labels: Sequence[str],
    seconds: Mapping[str, float],
    measured: Sequence[str],
) -> Forecast:
    usual = sum(seconds.values()) / len(seconds) if seconds else 0.0
    weights: dict[tuple[str, float], Counter[Hashable]] = {}
    for label, job in zip(labels, counts.jobs, strict=True):
        weights.setdefault((label, seconds.get(job.name, usual)), Counter())[job.key] += 1
    starts: dict[str, array[float]] = {}
    loads: dict[str, array[float]] = {}
    for (label, took), of in weights.items():
        total = counts.total(of)
        if took:
            add_running(loads.setdefault(label, nothing(counts.span)), total, took, counts.span)
        known = starts.get(label)
        starts[label] = total if known is None else array("d", map(add, known, total))
    buckets = Buckets(counts.span, starts, loads)
    estimated = frozenset(name for name in measured if usual and name not in seconds)
    left_out = counts.left_out[:LEFT_OUT_MAX]
    return Forecast(buckets, peaks(buckets), quiet(buckets), left_out, seconds, estimated, usual)
