"""What will run, counted: how many runs of a job fall due in each bucket of a span, and how many run at once. Pure.

Jobs that have one rule have one pattern of starts, which is worked out once; an interval's follows by arithmetic. Only
a job that differs from its rule (a count, a jitter, a window, a pause) is counted for itself.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from heapq import nsmallest
from itertools import accumulate, groupby, pairwise
from typing import NamedTuple

from msgspec import Struct

from horarium.clock import INSTANT_MAX, SECOND, Instant, to_micros
from horarium.model import Job
from horarium.policies import CatchUpPolicy
from horarium.rules.overridden import MISFIRE_GRACE
from horarium.rules.planning import due_of
from horarium.rules.windows import exhausted
from horarium.triggers import Trigger, read_stored
from horarium.triggers.spec import read_instant

Starts = dict[int, int]
"""How many runs are due, by the number of the bucket; those without any are left out."""


class Pattern(Struct, frozen=True, gc=False):
    """The same, as it is kept: eight bytes a bucket, where a dictionary takes a hundred; twelve if spread."""

    places: array[int]
    counts: array[int] | array[float]

    def items(self) -> Iterable[tuple[int, float]]:
        """The number of each bucket, and how many are due in it."""
        return zip(self.places, self.counts, strict=True)


MARKED = 5
"""How many peaks, and how many quiet buckets, are told."""


class Span(NamedTuple):
    """[since, until) in buckets of one length, the last of which may be shorter."""

    since: Instant
    until: Instant
    bucket: int

    @property
    def buckets(self) -> int:
        return -(-(self.until - self.since) // self.bucket)

    def starts(self, dues: Iterable[Instant]) -> Starts:
        """These instants, in any order, counted; those outside are left out."""
        counts: Starts = {}
        for due in dues:
            if self.since <= due < self.until:
                place = (due - self.since) // self.bucket
                counts[place] = counts.get(place, 0) + 1
        return counts


class Rule(NamedTuple):
    """A trigger as it is stored. `shared`: its fire times are the same for all jobs that have it."""

    trigger: Trigger
    shared: bool


class Ahead(NamedTuple):
    """Which fire times of a trigger fall due: those in (after, until]; of those beyond `counted_from`
    at most `left`."""

    trigger: Trigger
    after: Instant
    until: Instant
    first: Instant | None = None
    left: int | None = None
    counted_from: Instant = 0


def rule_of(spec: Mapping[str, object]) -> Rule:
    """The rule of a stored trigger."""
    trigger = read_stored(spec)
    same_anchor = trigger.anchored(0) == trigger.anchored(SECOND)
    return Rule(trigger, same_anchor and trigger.seeded("a") == trigger.seeded("b") and trigger.after_end is None)


class Every(Struct, frozen=True, gc=False):
    """A plain interval in microseconds: its length; its first fire time behind the beginning of a span of which a
    start may lie in it; the jitter over which each start is spread evenly."""

    every: int
    first: int
    jitter: int = 0

    @classmethod
    def begun(cls, every: int, start: int, jitter: int = 0) -> Every:
        """That of an interval whose first fire time of all lies `start` behind the beginning of the span."""
        return cls(every, start if start > -jitter else (start + jitter) % every - jitter, jitter)

    @property
    def punctual(self) -> Every:
        """The same without its jitter."""
        return Every.begun(self.every, self.first)


def interval_of(job: Job, span: Span) -> Every | None:
    """The interval of the job's rule; None: it is none."""
    spec = job.trigger
    if spec.get("type") != "interval" or spec.get("from") == "end":
        return None
    every, anchor = to_micros(spec["every_seconds"]), spec.get("anchor")
    start = job.anchor_at + every if anchor is None else read_instant(anchor, "anchor")
    return Every.begun(every, start - span.since, to_micros(job.jitter_seconds) if job.jitter_seconds else 0)


def packed(starts: Starts) -> Pattern:
    """Starts, as they are kept."""
    return Pattern(array("i", starts), array("i", starts.values()))


def interval_count(interval: Every, span: Span) -> int:
    """How many fire times of it lie in the span."""
    every = interval.every
    return max(0, (span.until - span.since - interval.punctual.first + every - 1) // every)


def add_intervals(total: array[float], every: int, jitter: int, firsts: Sequence[int], span: Span) -> None:
    """Add the starts of many intervals of one length and one jitter, by where each first fires, in order."""
    length = span.until - span.since
    for later, group in groupby(firsts, lambda first: (first + jitter) // every):
        begins = later * every - jitter
        order = array("q", (first - begins for first in group))
        if len(order) * (length - begins) < span.buckets * every:
            base, crossing = Counter[int](), list[Instant]()
            for at in order:
                interval = Every(every, begins + at, jitter)
                base.update(interval_starts(interval.punctual, span))
                if jitter:
                    crossing += interval_crossing(interval, span)
            add_starts(total, spread(base, sorted(crossing), jitter, span) if crossing else base, 1)
        else:
            _add_round(total, begins, every, jitter, order, span)


def _add_round(total: array[float], begins: int, every: int, jitter: int, order: Sequence[int], span: Span) -> None:
    """Intervals that first fire within one round, `begins` behind the beginning of the span. Their number up to an
    instant is known for all of them together, from how many of them fire before that part of their round; with a
    jitter the sum of the times since each of their fires, too."""
    many, length = len(order), span.until - span.since
    moments = [0, *accumulate(order)] if jitter else []

    def fired(edge: int) -> int:
        if edge <= 0:
            return 0
        number, rest = divmod(edge, every)
        before = bisect_left(order, rest)
        if not jitter:
            return number * many + before
        whole = number * (edge * many - moments[-1]) - number * (number - 1) // 2 * every * many
        return whole + rest * before - moments[before]

    def started(edge: int) -> int:
        return fired(edge - begins) - fired(edge - begins - jitter) if jitter else fired(edge - begins)

    before = started(0)
    for place, edge in enumerate((*range(span.bucket, length, span.bucket), length)):
        reached = started(edge)
        total[place] += (reached - before) / (jitter or 1)
        before = reached


def interval_starts(interval: Every, span: Span, until: Instant = INSTANT_MAX) -> Starts:
    """By arithmetic: how many fire times up to `until` of an interval without a jitter lie in each bucket."""
    every, first = interval.every, interval.first
    length, bucket = min(span.until, until + 1) - span.since, span.bucket
    if every >= bucket:
        counts: Starts = {}
        for at in range(first, length, every):
            counts[at // bucket] = counts.get(at // bucket, 0) + 1
        return counts
    edges = [*range(0, length, bucket), length]
    ends = [(edge - first + every - 1) // every if edge > first else 0 for edge in edges]
    return {place: after - before for place, (before, after) in enumerate(pairwise(ends)) if after > before}


def is_plain(job: Job, span: Span) -> bool:
    """Whether the job starts at each fire time of its rule within the span, and at no other instant, but for jitter."""
    return (
        job.enabled
        and job.fires_max is None
        and not job.overrides
        and (job.starts_at is None or job.starts_at <= span.since)
        and (job.ends_at is None or job.ends_at >= span.until)
    )


def never_starts(job: Job) -> bool:
    """Whether nothing of the job lies ahead."""
    paused = not job.enabled and job.paused_until is None
    return paused or job.deleted_at is not None or job.finished_at is not None or exhausted(job)


def ahead(job: Job, span: Span, rule: Trigger) -> Ahead:
    """The fire times of this job, whose trigger is `rule` as it is stored, that may fall due within the span."""
    after, until = span.since - to_micros(job.jitter_seconds) - 1, span.until - 1
    trigger, first = rule.seeded(job.name).anchored(job.anchor_at), None
    if not job.enabled:
        after = max(after, (job.paused_until or 0) - 1)
    if trigger.after_end is not None and (first := job.next_fire_at) is not None:
        trigger = rule.seeded(job.name).anchored(first)
        after = max(after, first - 1)
    counted_from = job.planned_until if job.enabled else max(job.planned_until, (job.paused_until or 0) - 1)
    if job.starts_at is not None:
        after, counted_from = max(after, job.starts_at - 1), max(counted_from, job.starts_at - 1)
    if job.ends_at is not None:
        until = min(until, job.ends_at - 1)
    left = None if job.fires_max is None else job.fires_max - job.fires_count
    return Ahead(trigger, after, until, first, left, counted_from)


class Jittered(NamedTuple):
    """The starts of a rule without its jitter, and its fire times that a jitter may carry into another bucket."""

    base: Starts
    crossing: list[Instant]


def jittered(lists: Iterable[Sequence[Instant]], jitter: int, span: Span) -> Jittered:
    """`lists`: the fire times that may fall due within the span, in order; the first of them lie before it. They are
    looked at a bucket at a time."""
    since, until, bucket = span
    base: Starts = {}
    crossing: list[Instant] = []
    for fires in lists:
        begin = 0
        while begin < len(fires):
            place = (fires[begin] - since) // bucket
            edge = min(since + (place + 1) * bucket, until)
            end = bisect_left(fires, edge, begin)
            if place >= 0:
                base[place] = base.get(place, 0) + end - begin
            if jitter:
                crossing += fires[bisect_left(fires, edge - jitter, begin, end) : end]
            begin = end
    return Jittered(base, crossing)


def spread(base: Starts | Pattern, crossing: Sequence[Instant], jitter: int, span: Span) -> Pattern:
    """How many starts of a rule are to be expected in each bucket: each of its fire times `crossing` falls due within
    the jitter, at any instant of it alike."""
    since, until, bucket = span
    sums = [0, *accumulate(crossing)]

    def due_before(edge: Instant) -> float:
        over, begun = bisect_left(crossing, edge - jitter), bisect_left(crossing, edge)
        return over + ((begun - over) * edge - (sums[begun] - sums[over])) / jitter

    counts: dict[int, float] = dict(base.items())
    places: set[int] = set()
    for fire in crossing:
        first = (fire - since) // bucket
        if first >= 0:
            counts[first] -= 1
        if len(places) < span.buckets:
            places.update(range(max(first, 0), min((fire + jitter - since) // bucket + 1, span.buckets)))
    for place in places:
        begins = since + place * bucket
        counts[place] = counts.get(place, 0) + due_before(min(begins + bucket, until)) - due_before(begins)
    return Pattern(array("i", counts), array("d", counts.values()))


def interval_crossing(interval: Every, span: Span) -> list[Instant]:
    """The fire times of an interval that its jitter may carry into another bucket: of one that fires often, only what
    lies before the edges of buckets is looked at."""
    every, first, jitter = interval.every, interval.first, interval.jitter
    length, bucket = span.until - span.since, span.bucket
    if 2 * every >= bucket:
        near = range(first, length, every)
        return [span.since + at for at in near if at % bucket + jitter >= bucket or at + jitter >= length]
    if not (length % bucket or bucket % every) and first % every + jitter < every:
        return []  # they lie alike in all buckets, none of them near the edge
    crossing: list[Instant] = []
    for before, edge in pairwise((-jitter, *range(0, length, bucket), length)):
        low = max(before, edge - jitter, first)
        if (at := low + (first - low) % every) < edge:
            crossing += range(span.since + at, span.since + edge, every)
    return crossing


def moved_by_jitter(job: Job, crossing: Iterable[Instant], span: Span) -> Starts:
    """What the job's jitter changes in the starts of its rule: in one bucket less, in another more."""
    moved: Starts = {}
    since, until, bucket = span
    for fire in crossing:
        due = due_of(job, fire)
        was, place = (fire - since) // bucket, (due - since) // bucket
        if was != place or due >= until:
            if since <= fire < until:
                moved[was] = moved.get(was, 0) - 1
            if since <= due < until:
                moved[place] = moved.get(place, 0) + 1
    return moved


def together(base: Starts, moved: Starts) -> Starts:
    """Starts, changed so."""
    return {place: base.get(place, 0) + moved.get(place, 0) for place in {*base, *moved}}


def overridden(job: Job, fires: Iterable[Instant], counts: Starts, span: Span) -> Starts:
    """The same, with single fire times skipped and moved. `fires`: those that were counted."""
    known = set(fires)
    for each in job.overrides:
        if each.fire_at in known:
            _count(counts, due_of(job, each.fire_at), -1, span)
        if each.to is not None and not each.done:
            _count(counts, each.to, 1, span)
    return counts


class Lying(NamedTuple):
    """A stretch of a hold that lies over a job. `skips`: its fire times do not run when it ends either."""

    begins_at: Instant
    ends_at: Instant
    skips: bool


def under_holds(job: Job, fires: Iterable[Instant], over: Sequence[Lying], left: int | None) -> list[Instant]:
    """When the runs of these fire times are due under holds: those within one are caught up at its end by the job's
    policy, or skipped; what waits is due then. `left`: how many run at most, of those that are not planned yet."""
    joined = _joined(over)

    def end_of(at: Instant) -> Instant | None:
        return next((ends for begins, ends, _ in joined if begins <= at < ends), None)

    kept = [fire for fire in fires if not any(each.skips and each.begins_at <= fire < each.ends_at for each in over)]
    runs: list[tuple[Instant, Instant]] = []
    known = set(kept)
    for end, group in groupby(kept, end_of):
        some = list(group)
        some = some if end is None else _caught_up(job, some, end, end in known)
        runs += [(fire, max(due_of(job, fire), end or 0)) for fire in some]
    if left is not None:
        before = sum(fire <= job.planned_until for fire, _ in runs)
        runs = runs[: before + max(0, left)]
    dues = [due for _, due in runs] + [each.to for each in job.overrides if each.to is not None and not each.done]
    dues = [due if (end := end_of(due)) is None else end for due in dues]
    return [due for due in dues if due < INSTANT_MAX]


def _joined(over: Sequence[Lying]) -> list[Lying]:
    """Stretches that overlap or meet, as one."""
    found: list[Lying] = []
    for each in sorted(over):
        if found and each.begins_at <= found[-1].ends_at:
            last = found.pop()
            each = Lying(last.begins_at, max(last.ends_at, each.ends_at), False)
        found.append(each)
    return found


def _caught_up(job: Job, fires: list[Instant], end: Instant, at_end: bool) -> list[Instant]:
    """Those that run, of the fire times that a hold kept from running up to its end. `at_end`: the job fires then."""
    window, punctual = job.catch_up.window_seconds, end - MISFIRE_GRACE
    if fires[0] > punctual:
        return fires
    if window is not None:
        fires = [fire for fire in fires if fire >= end - to_micros(window)]
    asks = job.catch_up.policy is CatchUpPolicy.ASK
    match CatchUpPolicy(str(job.catch_up.then)) if asks else job.catch_up.policy:
        case CatchUpPolicy.NONE:
            return [fire for fire in fires if fire > punctual]
        case CatchUpPolicy.LATEST:
            return [] if at_end else fires[-1:]
        case _:
            return fires


def _count(counts: Starts, at: Instant, step: int, span: Span) -> None:
    if span.since <= at < span.until:
        place = (at - span.since) // span.bucket
        counts[place] = counts.get(place, 0) + step
        if not counts[place]:
            del counts[place]


# ---- answers -----------------------------------------------------------------------------------------


class Bucket(Struct, frozen=True):
    """One bucket: by label how many runs start, and how many run at once on average."""

    at: Instant
    starts: dict[str, int]
    running: dict[str, float]

    @property
    def total(self) -> int:
        return sum(self.starts.values())


def nothing(span: Span) -> array[float]:
    """No starts, and nothing that runs, in each bucket."""
    return array("d", bytes(8 * span.buckets))


def add_starts(total: array[float], pattern: Starts | Pattern, weight: float) -> None:
    """Add a pattern, times its weight."""
    for place, count in pattern.items():
        total[place] += count * weight


def add_running(load: array[float], starts: Sequence[float], seconds: float, span: Span) -> None:
    """Add how many run at once on average in each bucket (Little's law): starts, times how long of the bucket each
    takes. Runs that last for longer than a bucket go on in those behind it."""
    bucket = span.bucket / SECOND
    whole, rest = divmod(seconds, bucket)
    for place, number in enumerate(starts):
        if not number:
            continue
        end = place + int(whole)
        for later in range(place, min(end, span.buckets)):
            load[later] += number
        if end < span.buckets:
            load[end] += number * rest / bucket


def peaks(sums: Sequence[int]) -> list[int]:
    """The places of the buckets with the most starts, the greatest first; none without any."""
    busy = (place for place, count in enumerate(sums) if count)
    return nsmallest(MARKED, busy, key=lambda place: (-sums[place], place))


def quiet(sums: Sequence[int]) -> list[int]:
    """The places of the buckets with the fewest starts, the least first."""
    return nsmallest(MARKED, range(len(sums)), key=lambda place: (sums[place], place))
