"""The kinds of lines of a run's history: rules go by them, and never read the text."""

from __future__ import annotations

from enum import StrEnum


class EventKind(StrEnum):
    """The kind of a line of a run's history, where rules go by it later."""

    FAILED = "failed"
    """Put back after a failure; the next five: put back for that reason."""
    DEFERRED = "deferred"
    RELEASED = "released"
    REFUSED = "refused"
    TIMED_OUT = "timed_out"
    LOST = "lost"
    LIMITED = "limited"
    """It has a place in the line of a rate limit, whose key is the `detail`; the next one: after the target asked for a
    pause."""
    THROTTLED = "throttled"
    UNTAKEN = "untaken"
    """Handed to a broker, and no worker took it."""
    BEGUN = "begun"
    """A worker behind a broker sent its first report."""
    LATE_START = "late_start"
    """Asked to stop, since no worker had begun in time; the next one: since it took too long."""
    OVERTIME = "overtime"
    AGAIN = "again"
    """It does the work of another run again, whose fire time is the instant of the line."""
    ASKED = "asked"
    """It waits for a decision, from the instant of the line on; the next two: it was decided, or not in time."""
    DECIDED = "decided"
    EXPIRED = "expired"
    TRACED = "traced"
    """The trace to which the run belongs."""
    HELD = "held"
    """Put back, or made, to wait for the end of a hold."""
    CANCEL_TAKEN = "cancel_taken"
    CANCEL_NOT_TAKEN = "cancel_not_taken"
