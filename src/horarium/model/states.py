"""The states of a run, which may follow which, and how and why a fire time came to its end.

The transition table below is the only statement of which state may follow which: `rules.settling` obeys it, the
simulator checks it, and the diagram in docs/lifecycle.md is generated from it.
"""

from __future__ import annotations

from enum import StrEnum


class State(StrEnum):
    """The state of a run. The last four are final."""

    PENDING = "pending"
    RUNNING = "running"
    CANCELLING = "cancelling"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    SKIPPED = "skipped"


TRANSITIONS: dict[State | None, dict[State, str]] = {
    None: {
        State.PENDING: "planned, or asked for by hand",
        State.SKIPPED: "its fire time is accounted for, but does not run",
        State.CANCELLED: "asked for by hand, and ended by the next one before it was stored",
    },
    State.PENDING: {
        State.RUNNING: "claimed",
        State.COMPLETED: "reported done by a ping or after its lease, or a notification told together with another",
        State.CANCELLED: "cancelled before it was claimed",
        State.FAILED: "not started in time, or reported so by a ping or after its lease",
        State.SKIPPED: "rejected by a person",
    },
    State.RUNNING: {
        State.COMPLETED: "succeeded",
        State.FAILED: "failed, no attempt left",
        State.PENDING: "failed, deferred, released or lost: another attempt",
        State.CANCELLING: "cancel asked, or over its time on a bus",
        State.CANCELLED: "terminated, or it stopped by itself",
        State.SKIPPED: "not approved in time",
    },
    State.CANCELLING: {
        State.CANCELLED: "stopped, or its grace ran out",
        State.PENDING: "stopped since it was over its time: another attempt",
        State.FAILED: "stopped since it was over its time, no attempt left",
        State.COMPLETED: "succeeded before it saw the cancel",
    },
    State.COMPLETED: {},
    State.FAILED: {},
    State.CANCELLED: {},
    State.SKIPPED: {},
}
UNFINISHED = frozenset({State.PENDING, State.RUNNING, State.CANCELLING})
CLAIMED = frozenset({State.RUNNING, State.CANCELLING})


class JobState(StrEnum):
    """The state of a job, as it is shown. `finished`: it can never fire again, and its runs have ended."""

    ENABLED = "enabled"
    PAUSED = "paused"
    FINISHED = "finished"


class Disposition(StrEnum):
    """How a fire time ended. `excluded`, `dst_gap` and `limit_reached` follow from the rule (`rules.explaining`):
    no stored run has them."""

    RAN = "ran"
    SKIPPED_OVERLAP = "skipped_overlap"
    SKIPPED_PAUSED = "skipped_paused"
    HELD = "held"
    MISSED = "missed"
    EXCLUDED = "excluded"
    DST_GAP = "dst_gap"
    LIMIT_REACHED = "limit_reached"
    WITHDRAWN = "withdrawn"
    NOT_STARTED = "not_started"
    CANCELLED = "cancelled"
    SKIPPED_OVERRIDE = "skipped_override"
    REJECTED = "rejected"
    APPROVAL_EXPIRED = "approval_expired"


class Cause(StrEnum):
    """Why a run exists."""

    SCHEDULE = "schedule"
    CATCH_UP = "catch_up"
    MANUAL = "manual"
    BACKFILL = "backfill"
    ENQUEUED = "enqueued"
    FOLLOW_UP = "follow_up"
    PING = "ping"
    """It follows from the end of another run."""
