"""Charts as numbers: where bars, lines and dots lie. Drawn as SVG by the templates, with their figures in words."""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec import Struct

from horarium.clock import DAY, HOUR, MINUTE, SECOND, Instant
from horarium.dashboard.activity import Bar
from horarium.dashboard.formats import MILLISECOND, day_text, duration, local, span
from horarium.model import Run, State
from horarium.triggers.words import counted

BARS_HEIGHT = 86.0
BARS_TOP = 21.0
LATE_MIN, LATE_MAX = MILLISECOND, 10 * SECOND
LATE_TOP, LATE_HEIGHT = 8.0, 80.0
LATE_LABELS = ((MILLISECOND, "1 ms"), (10 * MILLISECOND, "10 ms"), (100 * MILLISECOND, "100 ms"), (SECOND, "1 s"),
               (10 * SECOND, "10 s"))  # fmt: skip
DOTS_TOP, DOTS_HEIGHT = 12.0, 88.5
_STEPS = tuple(
    count * unit
    for unit, counts in (
        (SECOND, (1, 2, 5, 10, 15, 20, 30)),
        (MINUTE, (1, 2, 5, 10, 15, 20, 30)),
        (HOUR, (1, 2, 3, 6, 12)),
        (DAY, (1, 2, 7)),
    )
    for count in counts
)
"""How far apart the times below a run's life may stand."""


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


class Spoken(Struct, frozen=True):
    """The texts of a chart at each of its places, under the pointer or by the arrow keys, a line for each: where they
    lie, in percent; the words; and where Enter leads, if anywhere."""

    at: str
    words: str
    links: str = ""


class BarChart(Struct, frozen=True):
    """Bars of what happened, step by step. `held_from`: where a hold on everything begins that is still in force, in
    percent."""

    rects: tuple[Rect, ...]
    lines: tuple[Label, ...]
    ticks: tuple[Label, ...]
    spoken: Spoken
    held_from: float | None = None


class LateChart(Struct, frozen=True):
    """How late attempts began, on a logarithmic axis: the points of two lines in a box of 1000 by LATE_HEIGHT."""

    half: str
    most: str
    lines: tuple[Label, ...]
    ticks: tuple[Label, ...]
    spoken: Spoken


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
    spoken: Spoken


def nice(most: int) -> int:
    """A round number at or above this."""
    for step in (2, 4, 6, 10):
        power: int = 10 ** int(math.log10(max(most, 1)))
        if step * power >= most:
            return step * power
    return most


def bar_chart(bars: Sequence[Bar], step: Instant, zone: str, held_since: Instant | None = None) -> BarChart:
    """The bars, with three lines and five times below."""
    top = nice(max((bar.total for bar in bars), default=0) or 2)
    width = 100 / max(len(bars), 1)
    rects: list[Rect] = []
    for place, bar in enumerate(bars):
        y = BARS_TOP + BARS_HEIGHT
        for kind, count in (("ok", bar.ok), ("bad", bar.failed), ("gone", bar.missed)):
            if count:
                height = max(BARS_HEIGHT * count / top, 1.5)
                y -= height
                rects.append(Rect(kind, round(place * width, 2), round(y, 1), round(width * 0.75, 2), round(height, 1)))
    words = [
        f"{_span_of(bar.start, step, zone)}: {bar.ok:,} completed, {bar.failed:,} failed, {bar.missed:,} missed"
        for bar in bars
    ]
    held_from = None
    if held_since is not None and bars:
        held_from = round(max((held_since - bars[0].start) / step * width, 0), 2)
    times = [bar.start for bar in bars]
    lines = heights(top, BARS_TOP, BARS_HEIGHT)
    return BarChart(tuple(rects), lines, ticks(times, zone, 126), spoken(words), held_from)


def heights(top: int, y: float, height: float) -> tuple[Label, ...]:
    """Three numbers beside a chart: the greatest, its half and 0."""
    return tuple(Label(0, y + height * (1 - share), f"{round(top * share):,}") for share in (1.0, 0.5, 0.0))


def ticks(times: Sequence[Instant], zone: str, y: float) -> tuple[Label, ...]:
    """Four of the times below a chart that begin its steps."""
    width = 100 / max(len(times), 1)
    return tuple(
        Label(round(place * width, 2), y, f"{local(times[place], zone):%H:%M}")
        for place in range(0, len(times), max(len(times) // 4, 1))
    )


def points(ys: Sequence[float | None]) -> str:
    """A line over the steps of a chart, in a box that is 1000 wide; None: not known."""
    width = 1000 / max(len(ys), 1)
    return " ".join(f"{(place + 0.375) * width:.1f},{y:.1f}" for place, y in enumerate(ys) if y is not None)


def _span_of(start: Instant, step: Instant, zone: str) -> str:
    begin = f"{local(start, zone):%H:%M}"
    return begin if step <= MINUTE else f"{begin} to {local(start + step, zone):%H:%M}"


def spoken(words: Sequence[str], middle: float = 0.375) -> Spoken:
    """The words of each step, at its middle."""
    width = 100 / max(len(words), 1)
    return Spoken(" ".join(f"{(place + middle) * width:.2f}" for place in range(len(words))), "\n".join(words))


def late_chart(bars: Sequence[Bar], step: Instant, zone: str) -> LateChart:
    """The median and the 99th percentile."""
    words = [
        f"{_span_of(bar.start, step, zone)}: "
        + (
            "nothing began"
            if bar.late_half is None
            else f"half within {duration(bar.late_half)}, 99 of 100 within {duration(bar.late_most)}"
        )
        for bar in bars
    ]
    return LateChart(
        half=points([_late_y(bar.late_half) for bar in bars]),
        most=points([_late_y(bar.late_most) for bar in bars]),
        lines=tuple(Label(0, round(LATE_TOP + (_late_y(value) or 0), 1), text) for value, text in LATE_LABELS),
        ticks=ticks([bar.start for bar in bars], zone, 106),
        spoken=spoken(words),
    )


def _late_y(value: int | None) -> float | None:
    if value is None:
        return None
    share = math.log10(min(max(value, LATE_MIN), LATE_MAX) / LATE_MIN) / math.log10(LATE_MAX / LATE_MIN)
    return LATE_HEIGHT * (1 - share)


def dot_chart(runs: Sequence[Run], zone: str) -> DotChart | None:
    """How long runs took (`runs`: newest first); None if none has ended."""
    ended = [run for run in reversed(runs) if run.took is not None]
    if not ended:
        return None
    took = [run.took or 0 for run in ended]
    most, middle = max(*took, 1), sorted(took)[len(took) // 2]
    dots = tuple(
        Dot(
            x=round(1 + 98 * place / max(len(ended) - 1, 1), 2),
            y=round(DOTS_TOP + DOTS_HEIGHT * (1 - micros / most), 1),
            kind="bad" if run.state is State.FAILED else "",
            link=f"/runs/{run.id}",
            title=f"{duration(micros)}, {run.state}",
        )
        for place, (run, micros) in enumerate(zip(ended, took, strict=True))
    )
    words = f"last {counted(len(ended), 'run')}, half within {duration(middle)}, longest {duration(most)}"
    spoken = Spoken(
        " ".join(f"{dot.x:.2f}" for dot in dots),
        "\n".join(f"{day_text(run.fire_at, zone)}: {dot.title}" for run, dot in zip(ended, dots, strict=True)),
        "\n".join(dot.link for dot in dots),
    )
    return DotChart(dots, round(DOTS_TOP + DOTS_HEIGHT * (1 - middle / most), 1), duration(most), words, spoken)


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


def _round_steps(whole: int) -> list[int]:
    """Round times within a span, five at most."""
    if whole < SECOND:
        return []
    step = next((one for one in _STEPS if 5 * one >= whole), -(-whole // (5 * DAY)) * DAY)
    return list(range(step, whole + 1, step))


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
    ticks = (
        Label(1, 102, f"{local(begin, zone):%H:%M:%S}"),
        *(Label(place(begin + after), 102, f"+{span(after)}") for after in _round_steps(whole)),
    )
    return Life(tuple(pieces), ticks, place(now) if begin <= now < end else None, ", ".join(story))


class LoadChart(Struct, frozen=True):
    """The load expected over a day: its outline in a box of 1000 by 100, and the part above the slots.
    `until`: when all that had to wait for a place is done."""

    area: str
    over: str
    until: str
    places_y: float | None
    top: str
    peak: Label
    ticks: tuple[Label, ...]
    spoken: Spoken


def load_chart(times: Sequence[Instant], values: Sequence[float], places: int | None, zone: str) -> LoadChart:
    """`values`: for each step what is expected in it, such as how many runs go on at once."""
    top = nice(math.ceil(max(*values, places or 0, 1)))
    width = 1000 / max(len(values), 1)

    def outline(floor: float) -> str:
        steps = (
            f"L{place * width:.1f} {100 - 100 * max(value, floor) / top:.1f}"
            f"L{(place + 1) * width:.1f} {100 - 100 * max(value, floor) / top:.1f}"
            for place, value in enumerate(values)
        )
        base = 100 - 100 * floor / top
        return f"M0 {base:.1f}{''.join(steps)}L1000 {base:.1f}Z"

    peak = max(range(len(values)), key=lambda place: values[place])
    words = [f"{local(at, zone):%H:%M}: {value:,.1f}" for at, value in zip(times, values, strict=True)]
    return LoadChart(
        area=outline(0),
        over="" if places is None or values[peak] <= places else outline(places),
        until="" if places is None else _caught_up(times, values, places, zone),
        places_y=None if places is None else round(8 + 100 - 100 * places / top, 1),
        top=f"{top:,}",
        peak=Label(round(peak * width / 10, 2), 8, f"{values[peak]:,.1f} at {local(times[peak], zone):%H:%M}"),
        ticks=ticks(times, zone, 126),
        spoken=spoken(words, 0.5),
    )


def _caught_up(times: Sequence[Instant], values: Sequence[float], places: int, zone: str) -> str:
    """The end of the step in which all is done that has waited in the worst step; "": nothing waits in it."""
    peak, waiting = max(range(len(values)), key=lambda place: values[place]), 0.0
    if values[peak] <= places:
        return ""
    for place, value in enumerate(values):
        waiting = max(waiting + value - places, 0.0)
        if place > peak and not waiting:
            return f"by {local(times[place] + times[1] - times[0], zone):%H:%M}"
    return "after this day"
