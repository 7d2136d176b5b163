"""A queue over the last hour, from its runs: how many waited and how many were held at each minute, and how many ended.
Pure; what was not read is not known, and is not drawn."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence

from msgspec import Struct

from horarium.clock import Instant
from horarium.dashboard.activity import Bar
from horarium.dashboard.charts import Label, Spoken, nice, spoken, ticks
from horarium.dashboard.formats import clock_text, span
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
    """When each of its attempts began, and ended."""
    found: list[tuple[Instant, Instant]] = []
    begun: Instant | None = None
    for event in timeline(run):
        if begun is None and event.state is State.RUNNING:
            begun = event.at
        elif begun is not None and event.state not in (State.RUNNING, State.CANCELLING):
            found.append((begun, event.at))
            begun = None
    return found if begun is None else [*found, (begun, now + 1)]


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
    return Backlog(
        waiting=_points([each.waiting if each.at >= known_since else None for each in moments], top),
        held=_points([each.held if each.at >= known_since else None for each in moments], top),
        lines=tuple(Label(0, TOP + HEIGHT * (1 - share), f"{round(top * share):,}") for share in (1.0, 0.5, 0.0)),
        ticks=ticks(bars, zone, 106),
        spoken=spoken(bars, words),
        known_x=round(100 * (len(moments) - len(known)) / max(len(moments), 1), 2),
    )


def _points(values: Sequence[int | None], top: int) -> str:
    width = 1000 / max(len(values), 1)
    return " ".join(
        f"{(place + 0.375) * width:.1f},{HEIGHT * (1 - value / top):.1f}"
        for place, value in enumerate(values)
        if value is not None
    )
