"""A queue over the last hour, from its runs: how many waited and how many were held at each minute, and how many ended.
Pure; what was not read is not known, and is not drawn."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence

from msgspec import Struct

from horarium.clock import Instant
from horarium.dashboard.activity import Bar
from horarium.dashboard.charts import Label, Spoken, heights, nice, points, spoken, ticks
from horarium.dashboard.formats import clock_text, span
from horarium.dashboard.marks import attempts_of
from horarium.model import Disposition, Run, State, timeline

TOP, HEIGHT = 8.0, 80.0
LATE_ENDS = frozenset({Disposition.MISSED, Disposition.NOT_STARTED})


class Moment(Struct):
    """The middle of a minute (most rules fire at its beginning). `oldest`: since when the run waits that waits for
    longest."""

    at: Instant
    waiting: int = 0
    held: int = 0
    oldest: Instant | None = None


class Backlog(Struct, frozen=True):
    """Two lines in a box of 1000 by HEIGHT; what lies left of `known_x` (in percent) is not known."""

    waiting: str
    held: str
    lines: tuple[Label, ...]
    ticks: tuple[Label, ...]
    spoken: Spoken
    known_x: float


def bars_of(runs: Iterable[Run], starts: range, known_since: Instant) -> list[Bar]:
    """What ended in each step."""
    counts = {start: [0, 0, 0] for start in starts}
    for run in runs:
        start = None if run.finished_at is None else run.finished_at - (run.finished_at - starts.start) % starts.step
        if start in counts and start >= known_since:
            late = run.disposition in LATE_ENDS
            place = 0 if run.state is State.COMPLETED else 1 if run.state is State.FAILED else 2 if late else None
            if place is not None:
                counts[start][place] += 1
    return [Bar(start, ok, failed, missed, None, None) for start, (ok, failed, missed) in counts.items()]


def moments_of(runs: Iterable[Run], starts: range, now: Instant) -> list[Moment]:
    """Who waited and who was held in the middle of each step, the last one now."""
    moments = [Moment(start + starts.step // 2) for start in starts[:-1]] + [Moment(now)]
    ends = [moment.at for moment in moments]
    waits: list[tuple[Instant, Instant]] = []
    for run in runs:
        waits.append(_wait(run, now))
        for begin, end in _attempts(run, now):
            for moment in moments[bisect_left(ends, begin) : bisect_left(ends, end)]:
                moment.held += 1
    for due, first in sorted(waits):
        for moment in moments[bisect_left(ends, due) : bisect_left(ends, first)]:
            moment.waiting += 1
            moment.oldest = due if moment.oldest is None else moment.oldest
    return moments


def longest_wait(runs: Iterable[Run], since: Instant, now: Instant) -> Instant | None:
    """How long the run waited that waited for longest, of those that waited since then; None: none did."""
    waits = (_wait(run, now) for run in runs if run.state is not State.SKIPPED)
    return max((min(end, now) - due for due, end in waits if end >= since and due <= now), default=None)


def _wait(run: Run, now: Instant) -> tuple[Instant, Instant]:
    """From when until when it waited for its first attempt."""
    attempts = _attempts(run, now)
    return run.due_at_first, attempts[0][0] if attempts else run.finished_at or now + 1


def _attempts(run: Run, now: Instant) -> list[tuple[Instant, Instant]]:
    """When each of its attempts began, and ended; one that goes on has not by now."""
    found = attempts_of(run, timeline(run), now + 1)
    return [(begun, ended) for _, begun, ended, _ in found]


def backlog(moments: Sequence[Moment], bars: Sequence[Bar], known_since: Instant, zone: str, now: Instant) -> Backlog:
    """The chart of these moments."""
    top = nice(max((max(each.waiting, each.held) for each in moments), default=0) or 2)
    known = [each for each in moments if each.at >= known_since]
    words = [
        f"{clock_text(each.at, zone, now)}: not known"
        if each.at < known_since
        else f"{clock_text(each.at, zone, now)}: {each.waiting:,} waiting"
        + (f", the oldest for {span(each.at - each.oldest)}" if each.oldest is not None else "")
        + f", {each.held:,} held"
        for each in moments
    ]
    waiting, held = (
        points([None if each.at < known_since else HEIGHT * (1 - count / top) for each, count in counts])
        for counts in ([(each, each.waiting) for each in moments], [(each, each.held) for each in moments])
    )
    return Backlog(
        waiting=waiting,
        held=held,
        lines=heights(top, TOP, HEIGHT),
        ticks=ticks([bar.start for bar in bars], zone, 106),
        spoken=spoken(words),
        known_x=round(100 * (len(moments) - len(known)) / max(len(moments), 1), 2),
    )
