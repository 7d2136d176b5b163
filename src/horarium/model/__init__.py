"""The values that flow through Horarium: jobs, runs, outcomes, and the table of states.

Everything is a frozen struct; a change is a new value. Instants are integers (see `clock`).
"""

from __future__ import annotations

from horarium.model.changes import Plan, RunChange
from horarium.model.follows import TIMED, Follow, Occasion
from horarium.model.identity import fraction, run_id, uuid7, uuid7s
from horarium.model.jobs import Job
from horarium.model.kinds import EventKind
from horarium.model.limits import (
    ERROR_CHARS_MAX,
    HEADER_CHARS_MAX,
    HEADERS_MAX,
    HISTORY_MAX,
    JITTER_SECONDS_MAX,
    LABELS_MAX,
    NAME_LENGTH_MAX,
    PAYLOAD_BYTES_MAX,
    PRIORITY_MAX,
    PRIORITY_MIN,
    RESULT_BYTES_MAX,
    TITLE_CHARS_MAX,
    TRACE_CHARS_MAX,
    TRACES_MAX,
    URL_CHARS_MAX,
)
from horarium.model.nodes import Node
from horarium.model.outcomes import Cancelled, Deferred, Failed, Outcome, Released, Succeeded
from horarium.model.runs import (
    BUS_QUEUES,
    DEFAULT_RUN_POLICY,
    Event,
    Run,
    RunPolicy,
    awaits_worker,
    encode_payload,
    lease_end,
    prune_instant,
    shown_state,
    timeline,
)
from horarium.model.states import CLAIMED, TRANSITIONS, UNFINISHED, Cause, Disposition, State
from horarium.model.targets import (
    EXTERNAL,
    BusTarget,
    Completion,
    ExternalTarget,
    HandlerTarget,
    HttpTarget,
    Name,
    QueueTarget,
    StatusCode,
    Target,
    queue_of,
)

__all__ = [
    "BUS_QUEUES",
    "CLAIMED",
    "DEFAULT_RUN_POLICY",
    "ERROR_CHARS_MAX",
    "EXTERNAL",
    "HEADERS_MAX",
    "HEADER_CHARS_MAX",
    "HISTORY_MAX",
    "JITTER_SECONDS_MAX",
    "LABELS_MAX",
    "NAME_LENGTH_MAX",
    "PAYLOAD_BYTES_MAX",
    "PRIORITY_MAX",
    "PRIORITY_MIN",
    "RESULT_BYTES_MAX",
    "TIMED",
    "TITLE_CHARS_MAX",
    "TRACES_MAX",
    "TRACE_CHARS_MAX",
    "TRANSITIONS",
    "UNFINISHED",
    "URL_CHARS_MAX",
    "BusTarget",
    "Cancelled",
    "Cause",
    "Completion",
    "Deferred",
    "Disposition",
    "Event",
    "EventKind",
    "ExternalTarget",
    "Failed",
    "Follow",
    "HandlerTarget",
    "HttpTarget",
    "Job",
    "Name",
    "Node",
    "Occasion",
    "Outcome",
    "Plan",
    "QueueTarget",
    "Released",
    "Run",
    "RunChange",
    "RunPolicy",
    "State",
    "StatusCode",
    "Succeeded",
    "Target",
    "awaits_worker",
    "encode_payload",
    "fraction",
    "lease_end",
    "prune_instant",
    "queue_of",
    "run_id",
    "shown_state",
    "timeline",
    "uuid7",
    "uuid7s",
]
