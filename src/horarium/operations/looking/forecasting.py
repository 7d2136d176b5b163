"""What will run in a span, counted for all jobs together, in a thread beside the event loop."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import repeat
from operator import add
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from horarium.clock import DAY, SECOND, Instant
from horarium.errors import InvalidRequest
from horarium.model import State
from horarium.model.holds import Hold
from horarium.operations.bounds.evaluating import in_thread
from horarium.operations.bounds.listing import Slices, pages_of
from horarium.operations.looking.starts import Key, StartCounts
from horarium.operations.settling.holding import PLANNED_SECONDS, Holding
from horarium.operations.writing.context import Context
from horarium.ports import JobFilter, Store
from horarium.rules.forecasting import Bucket, Span, add_running, nothing, peaks, quiet
from horarium.triggers.budget import apart

JOBS_AT_ONCE = 500
FORECAST_STEPS = 5_000_000
"""For all rules of one forecast: some ten seconds of a processor, in slices."""
BUCKETS_MAX = 10_080
"""A week by the minute."""
LABELS_MAX = 100
"""Labels that are told for themselves: those with the most starts. All others are the label ""."""
RUNS_MEASURED = 5
MEASURED_SINCE = 30 * DAY
LEFT_OUT_MAX = 20
LEAST = 1e-9
"""A load below this is none, but for sums that were rounded."""

T = TypeVar("T")


class Buckets(Sequence[Bucket]):
    """The buckets of a span, each made when it is asked for: all of them at once take a hundred bytes for each count,
    where these take eight."""

    def __init__(self, span: Span, starts: Mapping[str, array[float]], loads: Mapping[str, array[float]]) -> None:
        self._span, self._starts, self._loads = span, starts, loads

    def __len__(self) -> int:
        return self._span.buckets

    def __getitem__(self, place: Any) -> Any:
        began, busy = ([of[place] for of in columns.values()] for columns in (self._starts, self._loads))
        return self._bucket(range(len(self))[place], began, busy)

    def __iter__(self) -> Iterator[Bucket]:
        loads = zip(*self._loads.values(), strict=True) if self._loads else repeat(())
        for place, (began, busy) in enumerate(zip(zip(*self._starts.values(), strict=True), loads, strict=False)):
            yield self._bucket(place, began, busy)

    def _bucket(self, place: int, began: Sequence[float], busy: Sequence[float]) -> Bucket:
        return Bucket(
            self._span.since + place * self._span.bucket,
            {label: round(count) for label, count in zip(self._starts, began, strict=True) if count},
            {label: round(count, 3) for label, count in zip(self._loads, busy, strict=True) if count > LEAST},
        )

    def sums(self) -> list[int]:
        """How many starts each of them has."""
        sums = array("q", bytes(8 * len(self)))
        for of in self._starts.values():
            sums = array("q", map(add, sums, map(round, of)))
        return [*sums]


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


@asynccontextmanager
async def weighed(
    store: Store, asked: Sequence[tuple[Span, str | None]], holds: Sequence[Hold], without: Collection[str] = ()
) -> AsyncIterator[list[StartCounts]]:
    """The starts in each of these spans, told by a label, of every job of the store that who reads may see, read once.
    `without`: names of those that are left out."""
    many, slices = [await in_thread(StartCounts, span, holds, by) for span, by in asked], Slices()
    try:
        async for page in pages_of(lambda after: store.list_jobs(JobFilter(finished=False), after, JOBS_AT_ONCE)):
            jobs = [job for job in page if job.name not in without] if without else page
            for counts in many:
                await in_thread(counts.weigh, jobs)
            await slices.give_way()
        yield many
    finally:
        for counts in many:
            counts.over = True
            asyncio.get_running_loop().run_in_executor(None, counts.let_go)


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
                        seconds = await self._durations([each.name for each in counts.busiest])
                        found = await in_thread(_told, counts, seconds)
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


def _told(counts: StartCounts, seconds: Mapping[str, float]) -> Forecast:
    span, told = counts.span, counts.told(LABELS_MAX)
    usual = sum(seconds.values()) / len(seconds) if seconds else 0.0
    measured: dict[tuple[str, float], list[Key]] = {}
    for job in counts.busiest:
        if job.name in seconds:
            label = job.label if job.label in told else ""
            measured.setdefault((label, seconds[job.name]), []).append(job.key)
        else:
            counts.others.add(counts.labels.setdefault(job.label, len(counts.labels)), job.key)
    starts = dict(zip(told, counts.totals(told), strict=True))
    loads = {label: nothing(span) for label in told if seconds}
    for label, load in loads.items():
        add_running(load, starts[label], usual, span)
    for (label, took), keys in measured.items():
        total = counts.total(keys)
        add_running(loads[label], total, took, span)
        starts[label] = array("d", map(add, starts[label], total))
    buckets = Buckets(span, starts, loads)
    sums = buckets.sums()
    estimated = frozenset(job.name for job in counts.busiest if usual and job.name not in seconds)
    return Forecast(
        buckets=buckets,
        peaks=[buckets[place] for place in peaks(sums)],
        quiet=[buckets[place] for place in quiet(sums)],
        left_out=counts.left_out[:LEFT_OUT_MAX],
        seconds=seconds,
        estimated=estimated,
        usual_seconds=usual,
    )
