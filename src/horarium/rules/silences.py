"""When a run whose worker fell silent is tried again: at once, and later apart from those that fell silent with it.

Work that kills or stops its process takes along what was performed beside it. All of it is rescued at one instant, and
would be claimed together again, the culprit among it: the same neighbours would lose attempt after attempt.
"""

from __future__ import annotations

from horarium.clock import Instant, to_micros
from horarium.model import EventKind, Run, fraction

APART_SECONDS_MAX = 10.0
"""Over how long those that fell silent together are spread, where their leases are not shorter."""


def next_try_at(run: Run, attempts_max: int, now: Instant) -> Instant:
    """After a first silence: now. After a further one, or where the next attempt is the last: some part of a lease
    later, another one for each run."""
    before = any(event.kind is EventKind.LOST for event in run.history)
    if not before and run.attempt + 1 < attempts_max:
        return now
    seconds = min(run.lease_seconds, APART_SECONDS_MAX)
    return now + to_micros(seconds * fraction(run.id, "apart", run.attempt, run.token))
