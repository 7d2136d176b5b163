"""Low-water marks: where a claim begins to look in a level (a priority of a queue).

Claimed runs stay in the index until it is vacuumed, which a snapshot that is held open anywhere (a dump, a report)
prevents: at a thousand runs a second each claim would soon step over a hundred thousand dead entries. So where a look
at everything is slow, the next ones begin shortly before the first run that it found. Once a second everything is
looked at again: a run that was written before a mark waits for that, and for no longer. Nothing is stored or shared.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from horarium.clock import SECOND, Instant, to_micros
from horarium.stores.postgres.rows import QUEUE_COLUMN

LOOK_SECONDS = 1.0
"""Between two looks at everything, per set of queues."""
SLOW_SECONDS = 0.02
"""A look that takes longer leaves marks."""
SLACK = 2 * SECOND
"""How long before the first run that was found the next look begins: clients' clocks and commits are not in order."""
LEVELS_MAX = 1_000

DUE_COLUMN, PRIORITY_COLUMN = 0, 16

Marks = tuple[list[int], list[int], list[Instant]]
"""Queues, priorities, instants, as the statement is given them."""
NO_MARKS: Marks = ([], [], [])


def not_after_the_next_look(next_due_at: Instant | None, until: Instant) -> Instant:
    """When to come again after a claim that began at marks: what waits before these is not counted in `next_due_at`."""
    look_at = until + to_micros(LOOK_SECONDS)
    return look_at if next_due_at is None else min(look_at, next_due_at)


class LowWaterMarks:
    """Those of one store."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._known: dict[tuple[int, int], Instant] = {}
        self._until = 0.0

    def of(self, queues: Collection[str], names: Mapping[int, str]) -> Marks:
        """The marks of these queues; `NO_MARKS`: look at everything."""
        if not self._known or self._clock() >= self._until:
            self._known.clear()
            return NO_MARKS
        found = [(*level, mark) for level, mark in self._known.items() if names.get(level[0], "") in queues]
        if not found:
            return NO_MARKS
        numbers, priorities, marks = zip(*found, strict=True)
        return list(numbers), list(priorities), list(marks)

    def looked(self, rows: Sequence[Any], seconds: float) -> None:
        """Everything was looked at, which took so long, and found these rows."""
        if seconds < SLOW_SECONDS or len(self._known) >= LEVELS_MAX:
            return
        if not self._known:
            self._until = self._clock() + LOOK_SECONDS  # counted from the first mark: no other look puts it off
        for row in rows:
            level = row[QUEUE_COLUMN], row[PRIORITY_COLUMN]
            mark = row[DUE_COLUMN] - SLACK
            self._known[level] = min(mark, self._known.get(level, mark))
