"""Poison-message isolation: when a run whose worker stopped sending heartbeats is tried again: at once, and later apart
from those that were lost with it.

Work that kills or stops its process takes along the runs beside it. All of it is rescued at one instant, and would be
claimed together again, the culprit among it: the same neighbours would lose attempt after attempt.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

from horarium.clock import SECOND, Instant, to_micros
from horarium.model import BUS_QUEUES, EventKind, Run, State, fraction

APART_SECONDS_MAX = 10.0
"""Over how long those that were lost together are spread, where their leases are not shorter."""


def next_try_at(run: Run, attempts_max: int, now: Instant) -> Instant:
    """After a first silence: now. After a further one, or where the next attempt is the last: some part of a lease
    later, another one for each run."""
    before = any(event.kind is EventKind.LOST for event in run.history)
    if not before and run.attempt + 1 < attempts_max:
        return now
    return now + _apart(run)


def beside_others(claimed: Sequence[Run]) -> list[Run]:
    """Of runs that were claimed together: those to be put off, since all of them had been set apart, and no one claimed
    until several were due. The first goes on. A run is put off once for each silence."""
    if len(claimed) < 2 or max(map(_token_of, claimed), default=0) <= 1:
        return []
    return [run for run in claimed if _was_set_apart(run)][1:]


def put_off_until(run: Run, now: Instant) -> Instant:
    """When one of them is tried instead."""
    return now + SECOND + _apart(run)


def _apart(run: Run) -> Instant:
    seconds = min(run.lease_seconds, APART_SECONDS_MAX)
    return to_micros(seconds * fraction(run.id, "apart", run.attempt, run.token))


def _was_set_apart(run: Run) -> bool:
    """A broker hands its runs to workers one by one."""
    if run.token <= 1 or run.queue.startswith(BUS_QUEUES):
        return False
    last = next((event for event in reversed(run.history) if event.state is State.PENDING), None)
    return last is not None and last.kind is EventKind.LOST and run.due_at > last.at


_token_of = attrgetter("token")
