"""Runs that workers refuse, since their code does not know an argument of it: while a new release is rolled out, old
workers and new ones serve one queue. Such a run waits for another worker, and fails only if none takes it."""

from __future__ import annotations

from horarium.clock import SECOND, Instant
from horarium.model import EventKind, Run

REFUSALS_SECONDS = 600
"""For how long workers may refuse a run before it fails."""
PAUSE_SECONDS_MAX = 10.0
"""For as long as this a run may wait beside a worker that knows the argument."""


def refused_seconds(run: Run, now: Instant) -> float | None:
    """How long the run waits that is refused now; None: it fails."""
    refusals: list[Instant] = []
    for event in reversed(run.history):
        if event.kind is EventKind.REFUSED:
            refusals.append(event.at)
        elif event.kind is not None:
            break
    if refusals and now - refusals[-1] >= REFUSALS_SECONDS * SECOND:
        return None
    return min(2.0 ** len(refusals), PAUSE_SECONDS_MAX)
