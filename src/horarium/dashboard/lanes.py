"""The lanes of the timeline as numbers: where bars lie, row by row. Pure; the template draws them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from operator import itemgetter

from msgspec import Struct

from horarium.clock import Instant

ROWS_MAX = 6
"""Rows of one lane; what finds no place in them is counted, not drawn."""
ROW, PAD, BAR = 22, 8, 16
THIN = 0.25
LINE, NOTE_LETTERS = 18, 19
"""The height of a line below the name of a lane, and how many letters it has."""
LETTER, NARROWER = 0.76, 1.7
"""The width of a letter, in percent of a lane on a wide screen; and how many times that on a screen of half the width,
where words that have less room are left out (`far`)."""
WORST = {kind: place for place, kind in enumerate(("fail", "late", "lost", "run", "done", "exp", "unk"))}
_begin = itemgetter(0)


class Piece(Struct, frozen=True):
    """A part of a bar: an attempt, or what is expected. `kind`: done, fail, lost, run, exp or unk."""

    kind: str
    begin: Instant
    end: Instant


class Bar(Struct, frozen=True):
    """One run (the id of which is `run`), or one fire time ahead. `name`: of its job, if it has one. `due`: when it
    should have begun, where it was late; `waits`: it has not."""

    lane: str
    name: str
    title: str
    pieces: tuple[Piece, ...]
    due: Instant | None = None
    waits: bool = False
    run: str = ""

    @property
    def begin(self) -> Instant:
        first = self.pieces[0].begin
        return first if self.due is None else min(self.due, first)

    @property
    def end(self) -> Instant:
        return self.pieces[-1].end

    @property
    def worst(self) -> int:
        """Those with the least are drawn first where there is no room for all."""
        return WORST["late"] if self.waits else min([WORST[piece.kind] for piece in self.pieces])


class Drawn(Struct, frozen=True):
    """A piece at its place; `x` and `width` in percent."""

    kind: str
    x: float
    width: float


class Row(Struct, frozen=True):
    """The pieces of one bar at their places, as one link."""

    bar: Bar
    y: int
    pieces: list[Drawn]


class Word(Struct, frozen=True):
    """A text in a bar, or right of it (`out`)."""

    x: float
    y: int
    text: str
    kind: str


class Band(Struct, frozen=True):
    """A stretch of time over a whole lane: a hold, or (`dead`) that no worker was there. `text`: what it says of itself
    where there is room, and `text_x` where that begins."""

    x: float
    width: float
    words: str
    text: str = ""
    text_x: float = 0.0
    kind: str = "hold"

    @property
    def has_room(self) -> bool:
        return room_for(self.text) < self.width


class Lane(Struct):
    """One lane. `note`: what stands below its name, `bad`: it is a fault. `threads` and `tails`: x, x, y of lines;
    `crosses`: x and y of the marks of failed attempts."""

    name: str
    height: int
    bars: list[Row]
    words: list[Word]
    threads: list[tuple[float, float, int]]
    tails: list[tuple[float, float, int, bool]]
    crosses: list[tuple[float, int]]
    label: str
    left_out: int = 0
    failed_left_out: int = 0
    bands: list[Band] = []
    note: str = ""
    bad: bool = False

    def make_room(self) -> None:
        """For what stands below its name, at its left."""
        lines = 1 + -(-len(self.note) // NOTE_LETTERS) + (self.left_out > 0)
        self.height = max(self.height, 2 * PAD + LINE * lines)


class Axis(Struct, frozen=True):
    """[since, until) as percents."""

    since: Instant
    until: Instant

    def x(self, at: Instant) -> float:
        share = (at - self.since) / (self.until - self.since)
        return round(100 * min(max(share, 0.0), 1.0), 2)


def lane_of(name: str, bars: Iterable[Bar], axis: Axis) -> Lane:
    """A lane with its bars, overlapping ones in rows below each other; those that matter most find a place first."""
    ordered = sorted(bars, key=lambda bar: (bar.worst, -(bar.end - bar.begin), bar.begin))
    rows: list[list[tuple[Instant, Instant, Bar]]] = []
    left_out: list[Bar] = []
    gap = (axis.until - axis.since) // 250
    for bar in ordered:
        if not any(_placed(row, bar, gap) for row in rows):
            if len(rows) < ROWS_MAX:
                rows.append([(bar.begin, bar.end, bar)])
            else:
                left_out.append(bar)
    rows.sort(key=lambda row: row[0][0])
    lane = Lane(name, 2 * PAD + ROW * max(len(rows), 1) - (ROW - BAR), [], [], [], [], [], "")
    for place, row in enumerate(rows):
        y = PAD + place * ROW
        for number, (_, _, bar) in enumerate(row):
            free = axis.x(row[number + 1][0]) if number + 1 < len(row) else 100.0
            _draw(lane, bar, y, axis, free)
    lane.bars.sort(key=_at)
    lane.left_out = len(left_out)
    lane.failed_left_out = sum(bar.worst == 0 for bar in left_out)
    lane.label = _label(name, [bar for row in rows for _, _, bar in row], lane)
    return lane


def _at(row: Row) -> tuple[float, int]:
    return row.pieces[0].x, row.y


def _placed(row: list[tuple[Instant, Instant, Bar]], bar: Bar, gap: Instant) -> bool:
    """Whether it was put into this row: bars in the order of their begin and end, each this far from the next."""
    begin, end = bar.begin, bar.end
    place = bisect_left(row, begin, key=_begin)
    if (place and row[place - 1][1] + gap > begin) or (place < len(row) and end + gap > row[place][0]):
        return False
    row.insert(place, (begin, end, bar))
    return True


def _draw(lane: Lane, bar: Bar, y: int, axis: Axis, free: float) -> None:
    middle = y + BAR // 2
    if bar.due is not None:
        end = bar.pieces[0].begin
        lane.tails.append((axis.x(bar.due), axis.x(end), middle, bar.waits))
    widest, end_x = (0.0, 0.0, ""), 0.0
    before: Piece | None = None
    drawn: list[Drawn] = []
    for piece in bar.pieces:
        x = axis.x(piece.begin)
        width = max(round(axis.x(piece.end) - x, 2), THIN)
        if before is not None and before.kind not in ("run",) and piece.begin > before.end:
            lane.threads.append((axis.x(before.end), x, middle))
        drawn.append(Drawn(piece.kind, min(x, 100 - THIN), width))
        if piece.kind == "fail" and width > 1:
            lane.crosses.append((round(x + width / 2, 2), y + 3))
        if piece.kind not in ("exp", "unk", "fail"):
            widest = max(widest, (width, x, piece.kind))
        end_x, before = max(end_x, x + width), piece
    lane.bars.append(Row(bar, y, drawn))
    wanted, beside = room_for(bar.name), free - end_x
    if bar.name and wanted < max(widest[0], beside):
        inside = wanted < widest[0]
        x, room, kind = (widest[1], widest[0], f"in on-{widest[2]}") if inside else (round(end_x, 2), beside, "out")
        lane.words.append(word_in(room, x, y + 12, bar.name, kind))


def word_in(room: float, x: float, y: int, text: str, kind: str) -> Word:
    """A text with so much room, in percent."""
    return Word(x, y, text, kind + " far" * (room <= room_for(text) * NARROWER))


def room_for(text: str) -> float:
    """How much of a lane these words take on a wide screen, in percent."""
    return len(text) * LETTER + 1


def _label(name: str, bars: Sequence[Bar], lane: Lane) -> str:
    told = "; ".join(bar.title for bar in sorted(bars, key=lambda bar: bar.worst)[:8])
    more = len(bars) + lane.left_out - 8
    return f"{name}: {told or 'nothing'}" + (f"; and {more} more" if more > 0 else "")
