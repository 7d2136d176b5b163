"""What will run, counted: how many runs of a job fall due in each bucket of a span, and how many run at once. Pure.

Jobs that have one rule have one pattern of starts, which is worked out once; an interval's follows by arithmetic. Only
a job that differs from its rule (a count, a jitter, a window, a pause) is counted for itself.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
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


class Every(NamedTuple):
    """A plain interval: its length, and its first fire time as far behind the beginning of the span (or before it)."""

    every: int
    start: int

    @property
    def first(self) -> int:
        """Its first fire time from the beginning of the span on."""
        return self.start if self.start > 0 else self.start % self.every


def interval_of(job: Job, span: Span) -> Every | None:
    """The interval of the job's rule; None: it is none."""
    spec = job.trigger
    if spec.get("type") != "interval" or spec.get("from") == "end":
        return None
    every, anchor = to_micros(spec["every_seconds"]), spec.get("anchor")
    start = job.anchor_at + every if anchor is None else read_instant(anchor, "anchor")
    return Every(every, start - span.since)


class Spread(NamedTuple):
    """A plain interval with a jitter, told by how many of its runs are to be expected in each bucket."""

    interval: Every
    jitter: int


def packed(starts: Starts) -> Pattern:
    """Starts, as they are kept."""
    return Pattern(array("i", starts), array("i", starts.values()))


def interval_count(interval: Every, span: Span) -> int:
    """How many fire times of it lie in the span."""
    return max(0, (span.until - span.since - interval.first + interval.every - 1) // interval.every)


def alike(interval: Every, span: Span) -> Every:
    """An interval with the same starts in each bucket: the same one for many that begin at other instants."""
    every, first = interval.every, interval.first
    if (span.until - span.since) % span.bucket == 0:
        if span.bucket % every == 0 and interval.start < every:
            first = 0
        elif every % span.bucket == 0:
            first -= first % span.bucket
    return Every(every, first)


def add_intervals(total: array[float], every: int, firsts: Mapping[int, float], span: Span) -> None:
    """Add the starts of many intervals of one length, by where each first fires, times its weight. Their number up to
    an instant is known for all of them together, from how many of them first fire before that part of their round."""
    length, order = span.until - span.since, sorted(first for first in firsts if first < every)
    for first in firsts.keys() - set(order):
        add_starts(total, interval_starts(Every(every, first), span), firsts[first])
    if len(order) * length < span.buckets * every:
        for first in order:
            add_starts(total, interval_starts(Every(every, first), span), firsts[first])
        return
    sums = [0.0, *accumulate(firsts[first] for first in order)]
    before = 0.0
    for place, edge in enumerate((*range(span.bucket, length, span.bucket), length)):
        rounds, rest = divmod(edge, every)
        reached = rounds * sums[-1] + sums[bisect_left(order, rest)]
        total[place] += reached - before
        before = reached


def interval_starts(interval: Every, span: Span, until: Instant = INSTANT_MAX) -> Starts:
    """By arithmetic: how many fire times up to `until` lie in each bucket."""
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


def spread(base: Iterable[tuple[int, float]], crossing: Sequence[Instant], jitter: int, span: Span) -> Pattern:
    """How many starts of a rule are to be expected in each bucket: each of its fire times `crossing` falls due within
    the jitter, at any instant of it alike."""
    since, until, bucket = span
    sums = [0, *accumulate(crossing)]

    def due_before(edge: Instant) -> float:
        over, begun = bisect_left(crossing, edge - jitter), bisect_left(crossing, edge)
        return over + ((begun - over) * edge - (sums[begun] - sums[over])) / jitter

    counts: dict[int, float] = dict(base)
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


def begun_about(interval: Every, jitter: int) -> Every:
    """The interval begun a sixteenth of the jitter earlier at most: the same one for many."""
    every, start = interval
    if start <= 0:
        start = max(start, start % every - (jitter // every + 1) * every)
    return Every(every, start - start % max(jitter // 16, 1))


def interval_crossing(interval: Every, jitter: int, span: Span) -> list[Instant]:
    """The fire times of an interval that a jitter may carry into another bucket: of one that fires often, only what
    lies before the edges of buckets is looked at."""
    every, start = interval
    length, bucket = span.until - span.since, span.bucket
    if never_crosses(interval, jitter, span):
        return []
    if every >= bucket:
        first = max(start, start - (start + jitter) // every * every)
        near = range(first, length, every)
        return [span.since + at for at in near if at % bucket + jitter >= bucket or at + jitter >= length]
    crossing: list[Instant] = []
    seen = start
    for edge in (*range(0, length, bucket), length):
        at = start - (start + jitter - edge) // every * every
        if at < seen:
            at = seen
        if at < edge:
            crossing += range(span.since + at, span.since + edge, every)
            seen = edge + (start - edge) % every
    return crossing


def never_crosses(interval: Every, jitter: int, span: Span) -> bool:
    """Whether the fire times of an interval lie alike in all buckets that have any, and none of them is moved into
    another by a jitter."""
    every, bucket = interval.every, span.bucket
    if (span.until - span.since) % bucket or (bucket % every and every % bucket):
        return False
    return interval.start % every % bucket + jitter < min(every, bucket)


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


def peaks(buckets: Sequence[Bucket]) -> list[Bucket]:
    """The buckets with the most starts, the greatest first; none without any."""
    return nsmallest(MARKED, (each for each in buckets if each.total), key=lambda each: (-each.total, each.at))


def quiet(buckets: Sequence[Bucket]) -> list[Bucket]:
    """The buckets with the fewest starts, the least first."""
    return nsmallest(MARKED, buckets, key=lambda bucket: (bucket.total, bucket.at))
