"""Ends of runs, counted by their measured values: of a batch that ended together, most are alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from operator import attrgetter
from typing import NamedTuple

from horarium.clock import Instant
from horarium.model import Disposition, Run, State


class End(NamedTuple):
    """The measured values of a settled run; it may go on."""

    job: str | None
    state: State
    disposition: Disposition | None
    finished_at: Instant | None
    started_at: Instant | None
    fires: int


_end_of = attrgetter(*End._fields)


def ends_of(runs: Iterable[Run]) -> list[tuple[End, int]]:
    """Each kind of end, and how many of these runs came to it."""
    ends = list(map(_end_of, runs))
    if len(ends) == 1:  # a counter costs as much as a hundred of them
        return [(End._make(ends[0]), 1)]
    return [(End._make(end), count) for end, count in Counter(ends).items()]
