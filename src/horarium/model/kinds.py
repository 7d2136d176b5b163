"""What lines of a run's history mean to the rules, which never read their text."""

from __future__ import annotations

from enum import StrEnum


class EventKind(StrEnum):
    """What a line of a run's history means to us, where we go by it later."""

    FAILED = "failed"
    """Put back after a failure; the next four: put back for that reason."""
    DEFERRED = "deferred"
    RELEASED = "released"
    TIMED_OUT = "timed_out"
    LOST = "lost"
    CANCEL_TAKEN = "cancel_taken"
    CANCEL_NOT_TAKEN = "cancel_not_taken"
