"""What each figure of `bench.scale` is to stay under, and one line for each: met or not.

    nice python -m bench.scale --bars --store sqlite,postgres

A bar is for the large case; `x` in front of a number: times the small one. On a machine that is not quiet milliseconds
say little: let it run alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

BARS: dict[str, dict[str, float | str]] = {
    "fires": {
        "idle": "x 1.5", "p99 of 300": "x 1.2", "p99 while": "x 1.2", "GET /api": 20, "GET /metrics": 10,
        "GET /api/v1/stats": 10,
    },
    "jobs": {
        "first page": 20, "prefix=": 20, "label=": 20, "enabled=": 20, "finished=": 20,
        "stats as scraped": 10, "due_jobs": 20, "jobs_ahead, all": "x 3", "jobs_trimmed, all": "x 3",
    },
    "queues": {
        "claim from one queue": "x 3", "stats as scraped": 10, "overdue_runs": 20, "runs?queue": 20,
        "adding a run": "x 3",
    },
    "gates": {"a full key": "x 3", "a job whose turn": "x 3"},
    "edits": {"trigger": 50, "pause": 50, "resume": 50, "patch": 50, "delete": 50, "longest callback": 10},
    "downtime": {"steps until": 2},
    "planners": {"share of plans lost": 0.1},
    "pruning": {"a batch of 500": "x 3"},
    "snapshot": {"a claim of 100": "x 2"},
    "bytes": {"bytes a finished run": 200, "in memory": 900},
    "lists": {"worst median": 20},
}  # fmt: skip
"""By part, and by a piece of the figure's name; the last one that fits counts."""

SMALL = 2.0
"""Small cases that take less count as much: what lies below is noise."""


class Figure(Struct, frozen=True):
    """One line of a part."""

    store: str
    part: str
    name: str
    small: float
    large: float

    @property
    def bar(self) -> float | None:
        """The highest value that is well; None: this figure is for information."""
        fitting = [bar for piece, bar in BARS.get(self.part, {}).items() if piece in self.name]
        if not fitting:
            return None
        bar = fitting[-1]
        return max(self.small, SMALL) * float(bar.split()[1]) if isinstance(bar, str) else float(bar)


class Noted:
    """The figures of this process, and what is being measured."""

    def __init__(self) -> None:
        self.store = self.part = ""
        self.figures: list[Figure] = []

    def note(self, name: str, small: float, large: float) -> None:
        """A figure of the part that is under way."""
        self.figures.append(Figure(self.store, self.part, name, small, large))


NOTED = Noted()


def table(figures: Sequence[Figure]) -> str:
    """A line for each figure that has a bar, those that do not meet it marked; and how many there are of each."""
    lines, missed = [], 0
    for one in figures:
        bar = one.bar
        if bar is None:
            continue
        met = one.large <= bar
        missed += not met
        lines.append(
            f"{'ok  ' if met else 'OVER'}  {one.store:<9} {one.part:<9} {one.name:<54} {one.large:10.2f}  bar {bar:.2f}"
        )
    return "\n".join([*lines, f"{len(lines) - missed} of {len(lines)} rows are within their bars"])
