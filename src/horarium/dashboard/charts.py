"""Charts as numbers: where bars, lines and dots lie. Drawn as SVG by the templates, with their figures in words."""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec import Struct

from horarium.clock import SECOND, Instant
from horarium.dashboard.activity import Bar
from horarium.dashboard.formats import MILLISECOND, duration, local, span
from horarium.model import Run, State

LEFT = 4.5
"""Percent of the width that the labels of the axis take."""
BARS_HEIGHT = 86.0
BARS_TOP = 21.0
LATE_MIN, LATE_MAX = 10 * MILLISECOND, 10 * SECOND
LATE_HEIGHT = 80.0
DOTS_TOP, DOTS_HEIGHT = 12.0, 88.5


class Rect(Struct, frozen=True):
    """A piece of a bar; `x` and `width` in percent."""

    kind: str
    x: float
    y: float
    width: float
    height: float


class Label(Struct, frozen=True):
    """A text at a place."""

    x: float
    y: float
    text: str


class BarChart(Struct, frozen=True):
    """Bars of what happened, step by step."""

    rects: tuple[Rect, ...]
    lines: tuple[Label, ...]
    ticks: tuple[Label, ...]


class Dot(Struct, frozen=True):
    """One run of a chart of durations."""

    x: float
    y: float
    kind: str
    link: str
    title: str


class DotChart(Struct, frozen=True):
    """How long runs took, in order."""

    dots: tuple[Dot, ...]
    median_y: float
    top: str
    words: str


def _nice(most: int) -> int:
    """A round number at or above this."""
    for step in (2, 4, 6, 10):
        power: int = 10 ** int(math.log10(max(most, 1)))
        if step * power >= most:
            return step * power
    return most


def bar_chart(bars: Sequence[Bar], step: Instant, zone: str) -> BarChart:
    """The bars, with three lines and five times below."""
    top = _nice(max((bar.total for bar in bars), default=0) or 2)
    width = (100 - LEFT) / max(len(bars), 1)
    rects: list[Rect] = []
    for place, bar in enumerate(bars):
        y = BARS_TOP + BARS_HEIGHT
        for kind, count in (("ok", bar.ok), ("bad", bar.failed), ("gone", bar.missed)):
            if count:
                height = max(BARS_HEIGHT * count / top, 1.5)
                y -= height
                rects.append(
                    Rect(kind, round(LEFT + place * width, 2), round(y, 1), round(width * 0.75, 2), round(height, 1))
                )
    lines = tuple(
        Label(0, BARS_TOP + BARS_HEIGHT * (1 - share), f"{round(top * share):,}") for share in (1.0, 0.5, 0.0)
    )
    marks = range(0, len(bars), max(len(bars) // 4, 1))
    ticks = tuple(
        Label(round(LEFT + place * width, 2), 126, f"{local(bars[place].start, zone):%H:%M}") for place in marks
    )
    return BarChart(tuple(rects), lines, ticks)


def late_lines(bars: Sequence[Bar]) -> tuple[str, str]:
    """The points of the median and of the 99th percentile, on a logarithmic axis from 10 ms to 10 s."""
    return _points([bar.late_half for bar in bars]), _points([bar.late_most for bar in bars])


def _points(values: Sequence[int | None]) -> str:
    width = 1000 / max(len(values) - 1, 1)
    span_of_logs = math.log10(LATE_MAX / LATE_MIN)
    points = []
    for place, value in enumerate(values):
        if value is not None:
            share = math.log10(min(max(value, LATE_MIN), LATE_MAX) / LATE_MIN) / span_of_logs
            points.append(f"{place * width:.1f},{LATE_HEIGHT * (1 - share):.1f}")
    return " ".join(points)


def dot_chart(runs: Sequence[Run]) -> DotChart | None:
    """How long runs took (`runs`: newest first); None if none has ended."""
    ended = [run for run in reversed(runs) if run.started_at is not None and run.finished_at is not None]
    if not ended:
        return None
    took = [(run.finished_at or 0) - (run.started_at or 0) for run in ended]
    most, middle = max(*took, 1), sorted(took)[len(took) // 2]
    dots = tuple(
        Dot(
            x=round(10 + 88 * place / max(len(ended) - 1, 1), 2),
            y=round(DOTS_TOP + DOTS_HEIGHT * (1 - micros / most), 1),
            kind="bad" if run.state is State.FAILED else "",
            link=f"/runs/{run.id}",
            title=f"{duration(micros)}, {run.state}",
        )
        for place, (run, micros) in enumerate(zip(ended, took, strict=True))
    )
    words = f"last {len(ended)} runs, half within {duration(middle)}, longest {duration(most)}"
    return DotChart(dots, round(DOTS_TOP + DOTS_HEIGHT * (1 - middle / most), 1), duration(most), words)


class Piece(Struct, frozen=True):
    """A piece of a run's life: an attempt (`number`), back-off or the lease that is left; in percent."""

    kind: str
    x: float
    width: float
    number: int = 0
    title: str = ""
    below: str = ""


class Life(Struct, frozen=True):
    """A run's life on one lane."""

    pieces: tuple[Piece, ...]
    ticks: tuple[Label, ...]
    now_x: float | None
    words: str


def life_of(run: Run, attempts: Sequence[tuple[int, Instant, Instant, str]], now: Instant, zone: str) -> Life:
    """`attempts`: number, begin, end, and how it ended (`running` for one that goes on)."""
    begin = min([run.due_at_first, *(start for _, start, _, _ in attempts)])
    lease = run.lease_expires_at if not run.finished else None
    end = max([run.finished_at or now, *(stop for *_, stop, _ in attempts), lease or 0])
    whole = max(end - begin, 1)

    def place(instant: Instant) -> float:
        return round(1 + 98 * (instant - begin) / whole, 2)

    pieces: list[Piece] = []
    story = [f"Due {local(run.due_at_first, zone):%H:%M:%S}"]
    before: Instant | None = None
    for number, start, stop, how in attempts:
        if before is not None and start > before:
            pieces.append(
                Piece(
                    "thread", place(before), place(start) - place(before), below=f"back-off {duration(start - before)}"
                )
            )
            story.append(f"back-off {duration(start - before)}")
        took = duration(stop - start)
        pieces.append(Piece(how, place(start), max(place(stop) - place(start), 0.4), number, how.capitalize(), took))
        story.append(f"attempt {number} {how} {'for' if how == 'running' else 'after'} {took}")
        before = stop
    if lease is not None and lease > now and run.state in (State.RUNNING, State.CANCELLING):
        pieces.append(Piece("lease", place(now), place(lease) - place(now), below=f"lease ends in {span(lease - now)}"))
    ticks = tuple(
        Label(
            1 + 98 * share, 102, f"{local(begin, zone):%H:%M:%S}" if not share else f"+{duration(int(whole * share))}"
        )
        for share in (0, 0.25, 0.5, 0.75, 1)
    )
    return Life(tuple(pieces), ticks, place(now) if begin <= now < end else None, ", ".join(story))
