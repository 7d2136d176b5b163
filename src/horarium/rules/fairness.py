"""Fairness: within a priority of a queue, keys take turns, each as often as its weight says.

Start-time fair queueing (Goyal, Vin and Cheng, SIGCOMM 1996): a run's turn follows that of the last run of its key by
one step, divided by the key's weight, but is never before the first run that waits. A turn is the instant at which the
run is due for its store, before the present one: so a claim, which takes what was due first, goes from key to key, and
costs no more than without keys. A key that waits for nothing keeps no credit.

A run that is due later takes its turn when it is. If nothing else waits, it is claimed at once; else it is held back
`GRACE` after it fell due, as a run is that was not started in time, and the rescuer that finds it gives it its turn.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from horarium.clock import SECOND, Instant
from horarium.model import Level, Run, State

STEP = 10
"""Microseconds between two turns of a key of weight 1."""
CLAIMED_AHEAD = 60 * SECOND
"""So long before it is due a run may be claimed. An instant further ahead is of a wrong clock."""
LEAD = SECOND
"""How far before the present the first turn lies where nothing waits, so that 100,000 runs of one key that come at once
are all due."""
PARTS = 1_000
"""Parts of a microsecond in which the last turn of a key is kept, so that weights hold exactly."""
GRACE = SECOND + 1
"""After this time a run that fell due takes its turn. No limit for starting in time that a person gives is the same."""

Key = tuple[str, int, str]
"""A queue, a priority in it, and a fairness key."""


class Turns(Struct, frozen=True):
    """`runs`: as they are to be. `ends`: the last turn of each key that has changed, in parts of a microsecond."""

    runs: list[Run]
    ends: dict[Key, int]


def key_of(run: Run) -> Key:
    """Which turns the run takes. (Of runs with a key.)"""
    return run.queue, run.priority, run.fair or ""


def levels_of(run: Run) -> list[Level]:
    """Where those wait that the run may not overtake by more than its turn."""
    return [(run.queue, run.priority, gated) for gated in ((False, True) if run.is_gated else (False,))]


def take_turns(
    runs: Iterable[Run],
    firsts: Mapping[Level, Instant | None],
    ends: Mapping[Key, int],
    weights: Mapping[str, Mapping[str, int]],
    now: Instant,
) -> Turns:
    """Runs that are due, each at its turn. `firsts`: when the first run that waits in a level is due; `ends`: the last
    turn of each key, 0 for a new one; `weights`: of the keys of each queue."""
    known, placed = dict(ends), list[Run]()
    for run in runs:
        key = key_of(run)
        waiting = [at for level in levels_of(run) if (at := firsts[level]) is not None]
        follows = known[key] + STEP * PARTS // weights[run.queue].get(key[2], 1)
        known[key] = max(follows, min([now - LEAD, *waiting]) * PARTS)
        start_by = None if awaits_turn(run) else run.start_by
        placed.append(replace(run, due_at=known[key] // PARTS, start_by=start_by))
    return Turns(placed, {key: end for key, end in known.items() if end != ends[key]})


def turn_later(run: Run) -> Run:
    """The run that waits with a key, so that it takes its turn once it is due. One with a limit of its own for starting
    in time stays with that, and with its place by due time."""
    return run if run.fair is None or run.start_by is not None else replace(run, start_by=run.due_at + GRACE)


def awaits_turn(run: Run) -> bool:
    """Whether the run takes its turn once it is due."""
    return run.fair is not None and run.state is State.PENDING and run.start_by == run.due_at + GRACE


def without_turn(run: Run) -> Run:
    """The claimed run, which needs no turn any more."""
    return replace(run, start_by=None) if run.fair is not None and run.start_by == run.due_at + GRACE else run


def is_over(end: int, firsts: Sequence[Instant | None], now: Instant) -> bool:
    """Whether the last turn of a key is before all that waits, so that nothing is lost if it is forgotten."""
    return end < min([now - LEAD, *(at for at in firsts if at is not None)]) * PARTS
