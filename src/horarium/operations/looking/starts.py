"""How many runs begin when, of very many jobs, kept in columns: a few bytes for each job, where an object for each
takes hundreds. The busiest jobs alone are kept by name."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import msgspec

from horarium.clock import INSTANT_MAX, Instant, to_micros
from horarium.errors import TooExpensive
from horarium.model import HttpTarget, Job
from horarium.model.holds import HeldMissed, Hold
from horarium.rules.ahead import counted, last_of, listed
from horarium.rules.forecasting import (
    Ahead,
    Every,
    Lying,
    Pattern,
    Rule,
    Span,
    Starts,
    add_intervals,
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
    rule_of,
    spread,
    together,
    under_holds,
)
from horarium.rules.holds import covers_job, stretches
from horarium.triggers.budget import LIST_STEPS, limited
from horarium.triggers.cron_trigger import drawn

BUSIEST_MAX = 500
"""Jobs that are kept by name: those with the most starts."""
JITTERS_EXACT = 100_000
"""Fire times of one forecast whose jitter is worked out to tell in which bucket they fall due: a fifth of a second of a
processor. Beyond them, those of rules that many jobs have are spread over the buckets evenly."""
KEPT_MAX = 3_000_000
"""Buckets with starts in all patterns together: 30 MB. Jobs that have no room are left out, and named."""


class Key(NamedTuple):
    """When a job starts: by an interval, by the pattern of this number, or by neither; and its own starts, or its
    differences from that pattern."""

    base: Every | int | None
    own: Pattern | None = None


class Busy(NamedTuple):
    """A job by name, in order of `idle`: less the number of its starts."""

    idle: float
    name: str
    label: str
    key: Key


class Column(NamedTuple):
    """The number that came with each key, and its value."""

    numbers: array[int]
    values: array[int]


class Columns:
    """Keys of jobs, each with a number of the caller's: that of the job's label."""

    def __init__(self) -> None:
        self._rules = Column(array("i"), array("i"))
        self._intervals: dict[tuple[int, int], Column] = {}
        self._own = array("i"), array("i"), array("i")

    def add(self, number: int, key: Key) -> None:
        base, own = key
        column = self._rules
        if isinstance(base, Every):
            column = self._intervals.setdefault((base.every, base.jitter), Column(array("i"), array("q")))
            base = base.first
        if base is not None:
            column.numbers.append(number)
            column.values.append(base)
        if own is not None:
            of, places, counts = self._own
            of.extend(repeat(number, len(own.places)))
            places.extend(own.places)
            counts.extend(map(int, own.counts))

    def totals(self, to: Sequence[int], number: int, patterns: Sequence[Pattern], span: Span) -> list[array[float]]:
        """How many starts there are in each bucket, in each of a number of groups. `to`: by the number that came with
        a key, its group."""
        totals = [nothing(span) for _ in range(number)]
        for total, of in zip(totals, _parted(self._rules, to, number), strict=True):
            for pattern, weight in Counter(of).items():
                add_starts(total, patterns[pattern], weight)
        for (every, jitter), column in self._intervals.items():
            for total, of in zip(totals, _parted(column, to, number), strict=True):
                if of:
                    add_intervals(total, every, jitter, array("q", sorted(of)), span)
        for each, place, count in zip(*self._own, strict=True):
            totals[to[each]][place] += count
        return totals


def _parted(column: Column, to: Sequence[int], number: int) -> list[array[int]]:
    """The values of each group."""
    parts = [array(column.values.typecode) for _ in range(number)]
    for each, value in zip(*column, strict=True):
        parts[to[each]].append(value)
    return parts


class Patterns:
    """Starts of rules that many jobs have, by number, and the room of all patterns."""

    def __init__(self) -> None:
        self.all: list[Pattern] = []
        self.sizes = array("d")
        self.kept = 0

    def add(self, pattern: Pattern) -> int:
        """Its number. Raises TooExpensive."""
        self.take_room(len(pattern.places))
        self.all.append(pattern)
        self.sizes.append(sum(pattern.counts))
        return len(self.all) - 1

    def take_room(self, buckets: int) -> None:
        """Raises TooExpensive where there is no room for them."""
        self.kept += buckets
        if self.kept > KEPT_MAX:
            raise TooExpensive("there are too many patterns of starts in too many buckets", field="bucket_seconds")


class StartCounts:
    """The starts of jobs in one span. For one thread at a time. `by`: by which label they are told; None: they are
    counted alone."""

    def __init__(self, span: Span, holds: Sequence[Hold] = (), by: str | None = None) -> None:
        self.span, self.by = span, by
        self.patterns = Patterns()
        self.left_out: list[str] = []
        self.labels: dict[str, int] = {"": 0}
        """The number of each; where jobs are told by name, that of those that are none of the busiest."""
        self.sizes = array("d", [0.0])
        """How many starts there are of each label."""
        self.busiest: list[Busy] = []
        self.others = Columns()
        self._numbers: dict[tuple[Any, ...], int] = {}
        self._exact = JITTERS_EXACT
        self._rules: dict[bytes, Rule] = {}
        self._crossing: dict[tuple[bytes, int], array[Instant] | None] = {}
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
        for kept in (self.labels, self._numbers, self._rules, self._crossing):
            while kept:
                kept.popitem()
        while self.patterns.all:
            self.patterns.all.pop()

    def weigh(self, jobs: Iterable[Job]) -> None:
        """Take those of these jobs of which something lies ahead."""
        busy = self.busiest
        for job in jobs:
            if self.over:
                break
            if (key := self.key(job)) is None:
                continue
            if self.by is None:
                self.others.add(0, key)
                continue
            size, label = self.size(key), label_of(job, self.by)
            if self.by != "job":
                self.sizes[self._number(label)] += size
            busy.append(Busy(-size, job.name, label, key))
        busy.sort()
        for each in busy[BUSIEST_MAX:]:
            self.others.add(self.label_number(each), each.key)
        del busy[BUSIEST_MAX:]

    def label_number(self, busy: Busy) -> int:
        """Under which number this job is with the others."""
        return 0 if self.by == "job" else self.labels[busy.label]

    def _number(self, label: str) -> int:
        number = self.labels.setdefault(label, len(self.labels))
        if number == len(self.sizes):
            self.sizes.append(0.0)
        return number

    def key(self, job: Job) -> Key | None:
        """When this job starts; None: nothing of it lies ahead, or its rule takes too long."""
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

    def _interval(self, job: Job, interval: Every) -> Key | None:
        if interval.first >= self.span.until - self.span.since:
            return None
        if interval.jitter and self._exact > 0:
            return self._moved(job, interval.punctual, interval_crossing(interval, self.span))
        return Key(interval)

    def _plain(self, job: Job) -> Key:
        spec, jitter = msgspec.json.encode(drawn(job.trigger, job.name)), to_micros(job.jitter_seconds)
        rule = self._rule(spec)
        if not rule.shared:
            return self._own(job)
        if (spec, jitter) not in self._crossing:
            try:
                lists = listed(ahead(job, self.span, rule.trigger))
                base, crossing = jittered(lists, jitter, self.span)
                self._numbers[spec, jitter] = self.patterns.add(packed(base))
                self._crossing[spec, jitter] = array("q", crossing)
            except TooExpensive:
                self._crossing[spec, jitter] = None
        some = self._crossing[spec, jitter]
        if some is None:
            raise TooExpensive("the rule takes too long for any job that has it", field="trigger")
        number = self._numbers[spec, jitter]
        if not some or self._exact > 0:
            return self._moved(job, number, some)
        if (key := (spec, jitter, "spread")) not in self._numbers:
            self._numbers[key] = self.patterns.add(spread(self.patterns.all[number], some, jitter, self.span))
        return Key(self._numbers[key])

    def _own(self, job: Job) -> Key:
        interval = None if job.jitter_seconds or job.overrides else interval_of(job, self.span)
        if interval is not None:
            wanted = self._ahead(job)
            begins = Every(interval.every, (wanted.trigger.next_fire(wanted.after) or INSTANT_MAX) - self.span.since)
            return self._alone(interval_starts(begins, self.span, last_of(wanted, interval.every)))
        fires = [fire for some in listed(self._ahead(job)) for fire in some]
        rule = jittered([fires], to_micros(job.jitter_seconds), self.span)
        starts = together(rule.base, moved_by_jitter(job, rule.crossing, self.span))
        return self._alone(overridden(job, fires, starts, self.span) if job.overrides else starts)

    def _held(self, job: Job, over: Sequence[Lying]) -> Key:
        """One by one: what a hold does with a fire time depends on those beside it."""
        wanted = self._ahead(job)
        if job.enabled and any(each.begins_at <= self.span.since for each in over):
            wanted = wanted._replace(after=min(wanted.after, job.planned_until))
        left = None if wanted.left is None else wanted.left - counted(wanted)
        gone = {each.fire_at for each in job.overrides}
        fires = [fire for some in listed(wanted._replace(left=None)) for fire in some if fire not in gone]
        return self._alone(self.span.starts(under_holds(job, fires, over, left)))

    def _moved(self, job: Job, base: Every | int, crossing: Sequence[Instant]) -> Key:
        if not crossing:
            return Key(base)
        self._exact -= len(crossing)
        return self._alone(moved_by_jitter(job, crossing, self.span), base)

    def _alone(self, starts: Starts, base: Every | int | None = None) -> Key:
        self.patterns.take_room(len(starts))
        return Key(base, packed(starts))

    def size(self, key: Key) -> float:
        """How many starts a job has."""
        base, own = key
        size: float = 0 if own is None else sum(own.counts)
        if isinstance(base, Every):
            return size + interval_count(base, self.span)
        return size if base is None else size + self.patterns.sizes[base]

    def _rule(self, spec: bytes) -> Rule:
        if spec not in self._rules:
            self._rules[spec] = rule_of(msgspec.json.decode(spec))
        return self._rules[spec]

    def _ahead(self, job: Job) -> Ahead:
        return ahead(job, self.span, self._rule(msgspec.json.encode(job.trigger)).trigger)

    # ---- totals

    def total(self, keys: Iterable[Key]) -> array[float]:
        """How many starts there are in each bucket, of jobs with these keys."""
        columns = Columns()
        for key in keys:
            columns.add(0, key)
        return columns.totals((0,), 1, self.patterns.all, self.span)[0]

    def told(self, most: int) -> list[str]:
        """Labels that are told for themselves: those with the most starts. Where there are more, the
        last one is of all the others: ""."""
        if self.by == "job":
            found = [each.name for each in self.busiest]
        else:
            found = sorted(self.labels, key=lambda label: -self.sizes[self.labels[label]])
        return [*(label for label in found[:most] if label), ""]

    def totals(self, told: Sequence[str]) -> list[array[float]]:
        """The starts of all that are none of the busiest, by label; the last one is of those that are not told."""
        places = {label: place for place, label in enumerate(told)}
        to = array("i", (places.get(label, len(told) - 1) for label in self.labels))
        return self.others.totals(to, len(told), self.patterns.all, self.span)


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
