"""A forecast is what enumeration gives, for jobs of every kind of rule; by arithmetic where that is possible."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import threading
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from itertools import chain
from types import FrameType
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from horarium.clock import DAY, HOUR, MINUTE, SECOND, Instant
from horarium.model import Job
from horarium.model.overrides import Override
from horarium.operations.looking.forecasting import JOBS_AT_ONCE, Forecasting
from horarium.operations.looking.starts import StartCounts
from horarium.operations.plans.shown import forecast_text
from horarium.operations.settling.holding import Holding
from horarium.operations.writing.context import Context
from horarium.ports import JobFilter, Page
from horarium.rules.compiled import trigger_of
from horarium.rules.forecasting import (
    Every,
    Span,
    add_intervals,
    add_starts,
    interval_crossing,
    interval_starts,
    jittered,
    nothing,
    peaks,
    quiet,
    spread,
)
from horarium.rules.planning import due_of
from horarium.rules.windows import fires_in_window
from horarium.stores.memory import MemoryStore
from horarium.stores.wakeups import LocalSignal
from horarium.testing.clock import ManualClock
from horarium.testing.values import NOW, a_job

SPRING = 1_806_192_000 * SECOND
"""2027-03-28T00:00:00Z, an hour before the clocks of Berlin go forward."""
ZONES = st.sampled_from(["UTC", "Europe/Berlin", "America/New_York", "Asia/Kathmandu"])
CRONS = st.builds(
    lambda minute, hour, day, zone: {
        "type": "cron", "expression": f"{minute} {hour} * * {day}", "timezone": zone,
    },
    st.sampled_from(["0", "30", "*/7", "H", "17,43"]), st.sampled_from(["2", "*", "*/5", "1-3", "H"]),
    st.sampled_from(["*", "1-5", "SUN"]), ZONES,
)  # fmt: skip
INTERVALS = st.builds(
    lambda every, anchor: {"type": "interval", "every_seconds": every, **anchor},
    st.sampled_from([7, 60, 90, 600, 3600, 5400, 86_400, 0.5 * 3601]),
    st.sampled_from([{}, {"anchor": "2027-03-20T00:00:07Z"}, {"anchor": "2027-03-28T05:00:00Z"}]),
)
RULES = st.sampled_from(["FREQ=HOURLY;INTERVAL=3", "FREQ=DAILY;BYHOUR=2;BYMINUTE=30", "FREQ=MINUTELY;INTERVAL=25"])
RRULES = st.builds(lambda rule: {"type": "rrule", "rrule": rule}, RULES)
PLAIN = CRONS | INTERVALS | RRULES
TRIGGERS = (
    PLAIN
    | st.builds(lambda inner: {"type": "except", "trigger": inner, "except": [{"dates": ["2027-03-28"]}]}, CRONS)
    | st.builds(lambda some: {"type": "any_of", "triggers": some}, st.lists(PLAIN, min_size=2, max_size=3))
)


@st.composite
def jobs(draw: st.DrawFn) -> list[Job]:
    found: list[Job] = []
    for number in range(draw(st.integers(1, 6))):
        fields: dict[str, Any] = {
            "trigger": draw(TRIGGERS),
            "anchor_at": SPRING - draw(st.sampled_from([1, HOUR, 3 * DAY + 17 * SECOND])),
            "planned_until": SPRING - draw(st.sampled_from([1, HOUR])),
            "jitter_seconds": draw(st.sampled_from([0.0, 0.0, 45.0, 4_000.0])),
            "fires_max": draw(st.sampled_from([None, None, 3, 50])),
            "starts_at": draw(st.sampled_from([None, None, SPRING + 5 * HOUR])),
            "ends_at": draw(st.sampled_from([None, None, SPRING + 9 * HOUR])),
        }
        if draw(st.integers(0, 4)) == 0:
            fields |= {"enabled": False, "paused_until": draw(st.sampled_from([None, SPRING + 4 * HOUR]))}
        if draw(st.integers(0, 3)) == 0 and fields.get("enabled", True):
            made = a_job("job", **fields)
            fires = fires_in_window(made, SPRING, SPRING + DAY, 5)
            to = draw(st.sampled_from([None, SPRING + 8 * HOUR + 1]))
            fields["overrides"] = tuple(Override(fire_at=fire, to=to) for fire in fires[1:3:2])
        found.append(a_job(f"job-{number}", labels={"team": draw(st.sampled_from("ab"))}, **fields))
    return found


def enumerated(job: Job, span: Span) -> list[Instant]:
    """When its runs are due, one fire time after the other."""
    if not job.enabled and job.paused_until is None:
        return []
    after = job.planned_until if job.enabled else max(job.planned_until, (job.paused_until or 0) - 1)
    counted_from = after
    after = min(after, span.since - 5_000 * SECOND) if job.enabled else after
    trigger, found, count = trigger_of(job), list[Instant](), 0
    while (fire := trigger.next_fire(after)) is not None and fire < span.until:
        after = fire
        if (job.starts_at is not None and fire < job.starts_at) or (job.ends_at is not None and fire >= job.ends_at):
            continue
        if job.fires_max is not None and fire > counted_from and (count := count + 1) > job.fires_max:
            break
        if fire in {each.fire_at for each in job.overrides}:
            continue
        if span.since <= (due := due_of(job, fire)) < span.until:
            found.append(due)
    return [*found, *(each.to for each in job.overrides if each.to is not None and span.since <= each.to < span.until)]


LONG = 0.010
"""Seconds of a processor for which nothing may hold up the event loop."""
BUCKETS, OFFSETS = st.sampled_from([60, 600, 3600, 7_000, 86_400]), st.sampled_from([0, MINUTE, 37 * SECOND])
SEARCH = settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])


@pytest.mark.slow
@SEARCH
@given(jobs(), BUCKETS, OFFSETS)
async def test_a_forecast_is_what_enumeration_gives(given_jobs: list[Job], bucket: int, offset: int) -> None:
    await compare(given_jobs, bucket, offset)


@pytest.mark.proof
@pytest.mark.slow
@settings(SEARCH, max_examples=2_000)
@given(jobs(), BUCKETS, OFFSETS)
async def test_forecasts_of_2000_sets_of_jobs_are_what_enumeration_gives(
    given_jobs: list[Job], bucket: int, offset: int
) -> None:
    await compare(given_jobs, bucket, offset)


async def compare(given_jobs: list[Job], bucket: int, offset: int) -> None:
    store = MemoryStore()
    await store.add_jobs(given_jobs)
    since = SPRING + offset
    span = Span(since, since + DAY, bucket * SECOND)
    context = Context(store, ManualClock(SPRING), LocalSignal(), os.urandom)
    forecasting = Forecasting(context, Holding(context))
    found = await forecasting.forecast(span.since, span.until, bucket, "label:team")
    wanted: Counter[tuple[int, str]] = Counter()
    for job in given_jobs:
        wanted.update(((due - since) // span.bucket, job.labels["team"]) for due in enumerated(job, span))
    told = {(place, label): count for place, each in enumerate(found.buckets) for label, count in each.starts.items()}
    assert told == dict(wanted)


@given(st.integers(1, 4_000), st.integers(-5_000, 9_000), st.integers(1, 900), st.integers(1, 8_000))
def test_intervals_are_counted_by_arithmetic(every: int, start: int, bucket: int, length: int) -> None:
    span = Span(NOW, NOW + length, bucket)
    first = start if start >= 0 else start % every
    wanted = span.starts(NOW + at for at in range(first, length, every))
    assert interval_starts(Every.begun(every, start), span) == wanted


@given(
    st.lists(st.tuples(st.integers(1, 400), st.integers(-5_000, 900), st.sampled_from([0, 0, 1, 70, 900])), max_size=9),
    st.integers(1, 900), st.integers(1, 8_000),
)  # fmt: skip
def test_intervals_are_counted_together(some: list[tuple[int, int, int]], bucket: int, length: int) -> None:
    span = Span(NOW, NOW + length, bucket)
    wanted, total, alike = nothing(span), nothing(span), dict[tuple[int, int], list[int]]()
    for weight, (every, start, jitter) in enumerate(some, 1):
        for at in range(start, length, every):
            for place, count in _shares(at, jitter, span):
                wanted[place] += count * weight
        alike.setdefault((every, jitter), []).extend([Every.begun(every, start, jitter).first] * weight)
    for (every, jitter), firsts in alike.items():
        add_intervals(total, every, jitter, sorted(firsts), span)
    assert total == pytest.approx(wanted)


def _shares(at: int, jitter: int, span: Span) -> Iterator[tuple[int, float]]:
    """How much of the start of a fire time, so far behind the beginning of the span, is to be expected where."""
    length = span.until - span.since
    if not jitter:
        yield from [(at // span.bucket, 1.0)] if at >= 0 else ()
        return
    for place in range(max(0, at // span.bucket), min(span.buckets, (at + jitter) // span.bucket + 1)):
        begins, ends = place * span.bucket, min((place + 1) * span.bucket, length)
        yield place, max(min(ends, at + jitter) - max(begins, at), 0) / jitter


@given(st.lists(st.integers(-3_000, 8_000)), st.integers(1, 900), st.integers(1, 8_000), st.integers(1, 2_000))
def test_fire_times_are_spread_over_the_buckets_of_their_jitter(
    fires: list[Instant], bucket: int, length: int, jitter: int
) -> None:
    span, fires = Span(0, length, bucket), sorted(fire for fire in fires if -jitter <= fire < length)
    base, crossing = jittered([fires[:3], fires[3:]], jitter, span)
    wanted = nothing(span)
    for place, share in chain.from_iterable(_shares(fire, jitter, span) for fire in fires):
        wanted[place] += share
    total = nothing(span)
    add_starts(total, spread(base, crossing, jitter, span), 1)
    assert total == pytest.approx(wanted)


@pytest.mark.parametrize(
    "spec", [{"type": "cron", "expression": "*/3 * * * *"}, {"type": "interval", "every_seconds": 100}]
)
async def test_of_many_jitters_some_are_worked_out_and_the_others_spread(
    spec: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, many, exact = MemoryStore(), 300, 0
    await store.add_jobs([
        a_job(f"job-{number}", trigger=spec, jitter_seconds=500, anchor_at=NOW - number * SECOND,
              planned_until=SPRING - HOUR)
        for number in range(many)
    ])  # fmt: skip
    context, told = Context(store, ManualClock(SPRING), LocalSignal(), os.urandom), []
    for exact in (0, 5_000, 1_000_000):
        monkeypatch.setattr("horarium.operations.looking.starts.JITTERS_EXACT", exact)
        found = await Forecasting(context, Holding(context)).forecast(SPRING, SPRING + DAY)
        told.append([bucket.total for bucket in found.buckets])
    for expected in told[:2]:
        assert expected != told[-1]
        assert sum(expected) == pytest.approx(sum(told[-1]), rel=0.001)
        assert expected == pytest.approx(told[-1], rel=0.02)


@pytest.mark.proof
@pytest.mark.slow
@pytest.mark.parametrize("seconds", [3600, 60])
async def test_a_forecast_of_100000_jobs_holds_up_the_loop_for_ten_milliseconds_at_most(
    seconds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By processor time: of what the loop does itself in one turn, and of what another thread does in one call, within
    which it does not hand over the interpreter."""
    store, worst, began = MemoryStore(), [(0.0, "")], threading.local()
    for first in range(0, 100_000, 1_000):
        await store.add_jobs([_of_kind(number) for number in range(first, first + 1_000)])
    context = Context(store, ManualClock(NOW), LocalSignal(), os.urandom)

    def watch(frame: FrameType, event: str, called: Any) -> None:
        if event == "c_call":
            began.at = time.thread_time()
        elif event.startswith("c_") and (spent := time.thread_time() - began.at) > LONG / 3:
            worst.append((spent, f"{called} in {frame.f_code.co_name}"))

    turn = asyncio.Handle._run

    def timed(handle: asyncio.Handle) -> None:
        begins = time.thread_time()
        turn(handle)
        worst.append((time.thread_time() - begins, repr(handle)))

    monkeypatch.setattr(asyncio.Handle, "_run", timed)
    gc.collect()
    gc.freeze()  # a server has its jobs in a file; a full collection of those in memory takes longer
    threading.setprofile(watch)
    try:
        text = await Forecasting(context, Holding(context)).told(forecast_text, NOW, NOW + 7 * DAY, seconds, "job")
    finally:
        threading.setprofile(None)
        gc.unfreeze()
    assert len(msgspec.json.decode(b"".join(text))["buckets"]) == 7 * DAY // (seconds * SECOND)
    assert max(worst)[0] < LONG, max(worst)


def _of_kind(number: int) -> Job:
    """One of a hundred thousand: of each kind of rule a fifth."""
    spec = [
        {"type": "cron", "expression": f"{number % 60} {number // 60 % 24} * * *", "timezone": "Europe/Berlin"},
        {"type": "cron", "expression": f"*/{1 + number % 30} * * * *"},
        {"type": "interval", "every_seconds": 60 + number % 3600},
        {"type": "cron", "expression": "H H * * *"},
        {"type": "rrule", "rrule": f"FREQ=DAILY;BYHOUR=2;BYMINUTE={number % 60}"},
    ][number % 5]
    return a_job(f"job-{number}", trigger=spec, anchor_at=NOW - number, jitter_seconds=number % 2 * 60.0)


def test_peaks_and_quiet_buckets_are_told_in_order() -> None:
    sums = [3, 0, 9, 9, 1, 0, 2]
    assert peaks(sums) == [2, 3, 0, 6, 4]
    assert quiet(sums) == [1, 5, 4, 6, 0]


class Copies(MemoryStore):
    """Answers with copies, as a store outside of the process does."""

    async def list_jobs(self, where: JobFilter, after: str | None, limit: int) -> Page[Job]:
        page = await super().list_jobs(where, after, limit)
        return replace(page, items=tuple(msgspec.json.decode(msgspec.json.encode(page.items), type=list[Job])))


async def test_of_many_jobs_few_are_held_at_a_time_and_of_many_forecasts_one(monkeypatch: pytest.MonkeyPatch) -> None:
    store, many = Copies(), 2 * JOBS_AT_ONCE + 1
    daily = {"type": "cron", "expression": "0 3 * * *"}
    await store.add_jobs([a_job(f"job-{number}", trigger=daily) for number in range(many)])
    context = Context(store, ManualClock(SPRING), LocalSignal(), os.urandom)
    forecasting = Forecasting(context, Holding(context))
    under_way, most, held = 0, 0, list[int]()

    async def measured(names: object) -> dict[str, float]:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        gc.collect()
        held.append(sum(isinstance(each, Job) for each in gc.get_objects()) - many)
        await asyncio.sleep(0)
        under_way -= 1
        return {}

    before = sum(isinstance(each, Job) for each in gc.get_objects()) - many
    monkeypatch.setattr(forecasting, "_durations", measured)
    found = await asyncio.gather(*(forecasting.forecast(SPRING, SPRING + DAY, 3600, "job") for _ in range(3)))
    assert [sum(bucket.total for bucket in each.buckets) for each in found] == [many] * 3
    assert most == 1
    assert max(held) <= before + JOBS_AT_ONCE


@pytest.mark.parametrize("ends", ["answered", "given up"])
async def test_what_a_forecast_held_is_freed_in_parts_beside_the_loop(
    ends: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, clock = MemoryStore(), ManualClock(SPRING)
    spec = {"type": "cron", "expression": "0 3 * * *"}
    await store.add_jobs(
        [a_job(f"job-{number}", trigger=spec, planned_until=SPRING, labels={"app": str(number)}) for number in range(9)]
    )
    context = Context(store, clock, LocalSignal(), os.urandom)
    forecasting = Forecasting(context, Holding(context))
    freed, done, loop, honest = (
        list[tuple[int, list[int], bool]](),
        asyncio.Event(),
        asyncio.get_running_loop(),
        StartCounts,
    )

    class Counts(honest):  # type: ignore[misc, valid-type]
        def let_go(self) -> None:
            held = len(self.labels)
            super().let_go()
            left = [self.labels, self.patterns.all, self._numbers, self._rules, self._crossing]
            freed.append((held, [len(each) for each in left], threading.current_thread() is threading.main_thread()))
            loop.call_soon_threadsafe(done.set)

    monkeypatch.setattr("horarium.operations.looking.forecasting.StartCounts", Counts)
    if ends == "given up":

        async def never(names: object) -> dict[str, float]:
            asking.cancel()
            return await asyncio.Event().wait()  # type: ignore[return-value]

        monkeypatch.setattr(forecasting, "_durations", never)
    asking = asyncio.ensure_future(forecasting.forecast(SPRING, SPRING + DAY, by="label:app"))
    await asyncio.wait((asking,))
    assert asking.cancelled() == (ends == "given up")
    await done.wait()
    assert freed == [(10, [0] * 5, False)]


@given(
    st.integers(1, 4_000), st.integers(-5_000, 9_000), st.integers(1, 900), st.integers(1, 8_000), st.integers(1, 2_000)
)
def test_fire_times_that_a_jitter_may_carry_into_another_bucket_are_all_found(
    every: int, start: int, bucket: int, length: int, jitter: int
) -> None:
    edges = [*range(0, length, bucket), length]
    near = [at for at in range(start, length, every) if edges[bisect_right(edges, at)] <= at + jitter]
    assert interval_crossing(Every.begun(every, start, jitter), Span(0, length, bucket)) == near


def test_of_an_interval_with_a_jitter_each_fire_is_looked_at_not_each_bucket() -> None:
    steps = 0

    def count(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal steps
        steps += 1
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        found = interval_crossing(Every(DAY, HOUR, MINUTE), Span(NOW, NOW + 7 * DAY, MINUTE))
    finally:
        sys.settrace(before)
    assert len(found) == 7
    assert steps < 100, "of 10,080 buckets"


@pytest.mark.parametrize("by", ["job", "label:app"])
async def test_labels_beyond_a_hundred_are_told_together(by: str) -> None:
    store, many = MemoryStore(), 700
    await store.add_jobs([
        a_job(f"job-{number}", trigger={"type": "interval", "every_seconds": 60 if number < 90 else 7_200 + number},
              anchor_at=SPRING, planned_until=SPRING, labels={"app": f"app-{number}"})
        for number in range(many)
    ])  # fmt: skip
    context = Context(store, ManualClock(SPRING), LocalSignal(), os.urandom)
    found = await Forecasting(context, Holding(context)).forecast(SPRING, SPRING + DAY, 3600, by)
    told = Counter[str]()
    for bucket in found.buckets:
        told.update(bucket.starts)
    names = {f"{'job' if by == 'job' else 'app'}-{number}": 1_439 for number in range(90)}
    assert names.items() <= told.items()
    assert len(told) == 101
    assert sum(told.values()) == 90 * 1_439 + sum(86_399 // (7_200 + number) for number in range(90, many))
