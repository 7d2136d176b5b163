"""The values that flow through Horarium: jobs, runs, outcomes, and the table of states.

Everything is a frozen struct; a change is a new value. Instants are integers (see `clock`). The transition table below
is the only statement of which state may follow which: `settling.py` obeys it, the simulator checks it, and the diagram
in docs/lifecycle.md is generated from it.
"""

from __future__ import annotations

from enum import StrEnum
from hashlib import blake2b
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from horarium.clock import MICROSECOND, Instant, to_micros
from horarium.policies import (
    LEASE_SECONDS_DEFAULT,
    CatchUp,
    Concurrency,
    Overlap,
    Retention,
    Retry,
    Timeouts,
)

NAME_LENGTH_MAX = 200
LABELS_MAX = 64
PAYLOAD_BYTES_MAX = 256 * 1024
RESULT_BYTES_MAX = 64 * 1024
ERROR_CHARS_MAX = 4_000
HEADERS_MAX = 50
HEADER_CHARS_MAX = 4_096
URL_CHARS_MAX = 2_048
PRIORITY_MIN, PRIORITY_MAX = -1_000, 1_000
HISTORY_MAX = 250
JITTER_SECONDS_MAX = 24 * 3600

# ---- states -----------------------------------------------------------------------------------------------------


class State(StrEnum):
    """Where a run stands. The last four are final."""

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
    },
    State.PENDING: {
        State.RUNNING: "claimed",
        State.CANCELLED: "cancelled before it was claimed",
        State.FAILED: "not started in time",
    },
    State.RUNNING: {
        State.COMPLETED: "succeeded",
        State.FAILED: "failed, no attempt left",
        State.PENDING: "failed, deferred, released or lost: another attempt",
        State.CANCELLING: "cancel asked",
        State.CANCELLED: "terminated, or stopped of its own accord",
    },
    State.CANCELLING: {
        State.CANCELLED: "stopped, or its grace ran out",
        State.COMPLETED: "succeeded before it saw the cancel",
    },
    State.COMPLETED: {},
    State.FAILED: {},
    State.CANCELLED: {},
    State.SKIPPED: {},
}

UNFINISHED = frozenset({State.PENDING, State.RUNNING, State.CANCELLING})
CLAIMED = frozenset({State.RUNNING, State.CANCELLING})


class Disposition(StrEnum):
    """How a fire time ended."""

    RAN = "ran"
    SKIPPED_OVERLAP = "skipped_overlap"
    SKIPPED_PAUSED = "skipped_paused"
    MISSED = "missed"
    EXCLUDED = "excluded"
    DST_GAP = "dst_gap"
    LIMIT_REACHED = "limit_reached"
    WITHDRAWN = "withdrawn"
    NOT_STARTED = "not_started"
    CANCELLED = "cancelled"


class Cause(StrEnum):
    """Why a run exists."""

    SCHEDULE = "schedule"
    CATCH_UP = "catch_up"
    MANUAL = "manual"
    BACKFILL = "backfill"
    ENQUEUED = "enqueued"


# ---- targets ----------------------------------------------------------------------------------------------------

Name = Annotated[str, Meta(min_length=1, max_length=NAME_LENGTH_MAX, pattern=r"^[A-Za-z0-9][A-Za-z0-9._:@-]*(?!\n)$")]
StatusCode = Annotated[int, Meta(ge=100, le=599)]


class Completion(StrEnum):
    """When an HTTP run is done: with its response, or when the endpoint calls back."""

    RESPONSE = "response"
    CALLBACK = "callback"


class HttpTarget(Struct, frozen=True, tag="http", tag_field="type", omit_defaults=True, forbid_unknown_fields=True):
    """An HTTP request. `expected_status` holds codes; empty means any 2xx. `signing_secret` is write-only."""

    url: Annotated[str, Meta(min_length=1, max_length=URL_CHARS_MAX)]
    method: Annotated[str, Meta(pattern=r"^[A-Z]{1,16}(?!\n)$")] = "POST"
    headers: dict[str, str] = {}
    body: Any = None
    timeout_seconds: Annotated[float, Meta(gt=0, le=3600)] = 30.0
    expected_status: tuple[StatusCode, ...] = ()
    signing_secret: str | None = None
    completion: Completion = Completion.RESPONSE
    cancel_url: str | None = None


class HandlerTarget(
    Struct, frozen=True, tag="handler", tag_field="type", omit_defaults=True, forbid_unknown_fields=True
):
    """A registered Python function, called with `args`."""

    name: Name
    args: dict[str, Any] = {}


class QueueTarget(Struct, frozen=True, tag="queue", tag_field="type", omit_defaults=True, forbid_unknown_fields=True):
    """A named queue from which workers pull."""

    queue: Name
    payload: Any = None


class BusTarget(Struct, frozen=True, tag="bus", tag_field="type", omit_defaults=True, forbid_unknown_fields=True):
    """A message bus, by the name under which it is configured."""

    bus: Name = "default"
    payload: Any = None


Target = HttpTarget | HandlerTarget | QueueTarget | BusTarget


def queue_of(target: Target) -> str:
    """The queue in which runs for this target wait: `http`, `handler/NAME`, `pull/NAME` or `bus/NAME`."""
    match target:
        case HttpTarget():
            return "http"
        case HandlerTarget(name=name):
            return f"handler/{name}"
        case QueueTarget(queue=queue):
            return f"pull/{queue}"
        case BusTarget(bus=bus):
            return f"bus/{bus}"


# ---- jobs -------------------------------------------------------------------------------------------------------


class Job(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The stored definition: what to run, when, under which policies.

    The first group is the owner's; the second is ours. `version` grows with every write: whoever writes names the
    version that it read. `planned_until` is the cursor: every fire time up to it (included) has been accounted for.
    `next_fire_at` is the first fire time after the cursor (None: nothing more to plan, or paused).
    `anchor_at` is the instant to which a trigger without a start of its own is anchored.
    """

    name: str
    trigger: dict[str, Any]
    target: Target
    enabled: bool = True
    labels: dict[str, str] = {}
    catch_up: CatchUp = CatchUp()
    overlap: Overlap = Overlap.ALLOW
    retry: Retry = Retry()
    timeouts: Timeouts = Timeouts()
    priority: int = 0
    concurrency: Concurrency | None = None
    jitter_seconds: float = 0.0
    starts_at: Instant | None = None
    ends_at: Instant | None = None
    fires_max: int | None = None
    retention: Retention = Retention()

    id: str
    version: int = 1
    anchor_at: Instant = 0
    planned_until: Instant = 0
    next_fire_at: Instant | None = None
    fires_count: int = 0
    paused_at: Instant | None = None
    pause_reason: str | None = None
    created_at: Instant = 0
    updated_at: Instant = 0
    deleted_at: Instant | None = None

    @property
    def queue(self) -> str:
        return queue_of(self.target)


# ---- runs -------------------------------------------------------------------------------------------------------


class Event(Struct, frozen=True, array_like=True):
    """One line of a run's history."""

    at: Instant
    state: State
    message: str


class RunPolicy(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The policies of a run that belongs to no job."""

    retry: Retry = Retry()
    timeouts: Timeouts = Timeouts()
    retention: Retention = Retention()
    target: HttpTarget | None = None


DEFAULT_RUN_POLICY = RunPolicy()


class Run(Struct, frozen=True, kw_only=True):
    """One execution owed for one fire time (or asked for by hand).

    `job` and `job_id` are None for a one-off run, whose `payload` and `policy` say everything. `payload` is JSON text
    that stands in for the target's own args, payload or body. `token` grows at every claim. `attempt` is the number of
    the current or last attempt, counted when it is claimed. `lease_seconds` and `execution_seconds` are copied from
    the job so that a store can extend a lease without knowing a policy: a lease never outlives
    `started_at + execution_seconds`. `start_by`: pending beyond this, it fails. `serial`: claimed only when no
    earlier run of its job is unfinished. `fires` and `last_fire_at`: a skipped run may stand for a range of fire times.
    `history` holds what can't be derived from the other fields; `timeline()` gives all of it.
    """

    id: str
    queue: str
    fire_at: Instant
    due_at: Instant
    created_at: Instant
    state: State = State.PENDING
    priority: int = 0
    job_id: str | None = None
    job: str | None = None
    cause: Cause = Cause.SCHEDULE
    payload: bytes | None = None
    policy: RunPolicy | None = None
    unique_key: str | None = None
    concurrency_key: str | None = None
    concurrency_max: int = 0
    serial: bool = False
    lease_seconds: float = LEASE_SECONDS_DEFAULT
    execution_seconds: float | None = None
    start_by: Instant | None = None
    attempt: int = 0
    token: int = 0
    worker: str | None = None
    lease_expires_at: Instant | None = None
    started_at: Instant | None = None
    finished_at: Instant | None = None
    progress: bytes | None = None
    error: str | None = None
    result: bytes | None = None
    disposition: Disposition | None = None
    fires: int = 1
    last_fire_at: Instant | None = None
    prune_at: Instant | None = None
    history: tuple[Event, ...] = ()

    @property
    def finished(self) -> bool:
        return self.state not in UNFINISHED

    @property
    def due_at_first(self) -> Instant:
        """When its age begins: its fire time, or when it was asked for if that was later."""
        return max(self.fire_at, self.created_at)


def timeline(run: Run) -> list[Event]:
    """All of a run's history, oldest first: created, whatever was recorded, and where it stands."""
    events = [] if run.state is State.SKIPPED else [Event(run.created_at, State.PENDING, f"planned ({run.cause})")]
    events.extend(run.history)
    if run.started_at is not None and run.attempt and not _recorded(run, State.RUNNING, run.started_at):
        claimed = Event(run.started_at, State.RUNNING, f"attempt {run.attempt} claimed by {run.worker or 'a worker'}")
        if run.state is not State.PENDING:
            events.append(claimed)
            events.sort(key=lambda event: event.at)
    if run.finished_at is not None and not _recorded(run, run.state, run.finished_at):
        events.append(Event(run.finished_at, run.state, run.error or str(run.disposition or run.state)))
    return events


def _recorded(run: Run, state: State, at: Instant) -> bool:
    return any(event.state is state and event.at == at for event in run.history)


class RunChange(Struct, frozen=True):
    """Write `run` over the stored run of that id if the stored one still has this token and this state, and its lease
    stands as said: `held` True: not expired at `now`; False: expired; None: not looked at."""

    run: Run
    token: int
    state: State
    held: bool | None = None


class Plan(Struct, frozen=True):
    """What `planning.plan` decided for one job: the job as it shall be (its `version` still the one that was read),
    the runs to add, the changes to unfinished runs, and the withdrawals: runs that were planned ahead and shall be
    deleted, as though never planned, if they are still pending under the token that was read. One transaction: all of
    it, or nothing."""

    job: Job
    runs: tuple[Run, ...] = ()
    changes: tuple[RunChange, ...] = ()
    withdrawals: tuple[Run, ...] = ()


# ---- outcomes ---------------------------------------------------------------------------------------------------


class Succeeded(Struct, frozen=True):
    """The work is done. `result` is JSON text, or None."""

    result: bytes | None = None


class Failed(Struct, frozen=True):
    """The attempt failed. `retry_after_seconds`: the target asked for this delay."""

    error: str
    retryable: bool = True
    retry_after_seconds: float | None = None
    result: bytes | None = None


class Deferred(Struct, frozen=True):
    """Not now: try again at `until`. Costs no attempt."""

    until: Instant
    reason: str = "deferred"


class Released(Struct, frozen=True):
    """Claimed, but never begun: given back, costs no attempt."""

    reason: str = "released"


class Cancelled(Struct, frozen=True):
    """The work stopped because it was asked to."""

    reason: str = "cancelled"


Outcome = Succeeded | Failed | Deferred | Released | Cancelled


# ---- nodes ------------------------------------------------------------------------------------------------------


class Node(Struct, frozen=True, kw_only=True):
    """One process of ours. `beat_at` is its last sign of life."""

    name: str
    roles: tuple[str, ...]
    started_at: Instant
    beat_at: Instant
    host: str = ""
    pid: int = 0
    version: str = ""
    stopped_at: Instant | None = None


# ---- identity ---------------------------------------------------------------------------------------------------


def uuid7(instant: Instant, entropy: bytes) -> str:
    """A version 7 UUID (RFC 9562, 5.7): milliseconds of `instant`, then 74 bits of `entropy` (10 bytes or more)."""
    millis = max(instant // (1000 * MICROSECOND), 0) & 0xFFFF_FFFF_FFFF
    tail = int.from_bytes(entropy[:10], "big")
    value = (millis << 80) | (0x7 << 76) | ((tail >> 68 & 0xFFF) << 64) | (0b10 << 62) | (tail & 0x3FFF_FFFF_FFFF_FFFF)
    text = f"{value:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def uuid7s(instant: Instant, entropy: bytes, count: int) -> list[str]:
    """Version 7 UUIDs that ascend (RFC 9562, 6.2, method 2): the first is random, each next one lies 2**42 further on.
    A batch so made is appended to an index, not scattered over it. `count`: up to 2**31."""
    millis = max(instant // (1000 * MICROSECOND), 0) & 0xFFFF_FFFF_FFFF
    head = f"{millis:012x}"
    head = f"{head[:8]}-{head[8:]}-7"
    first = int.from_bytes(entropy[:10], "big") & ((1 << 73) - 1)
    made: list[str] = []
    for tail in range(first, first + (count << 42), 1 << 42):
        low = f"{0b10 << 62 | tail & 0x3FFF_FFFF_FFFF_FFFF:016x}"
        made.append(f"{head}{tail >> 62 & 0xFFF:03x}-{low[:4]}-{low[4:]}")
    return made


def run_id(job_id: str, fire_at: Instant, cause: str = "") -> str:
    """The id of the run that a job owes for a fire time: the same on every node, ordered by fire time."""
    return uuid7(fire_at, blake2b(f"{job_id}/{fire_at}/{cause}".encode(), digest_size=10).digest())


def fraction(*parts: object) -> float:
    """A reproducible number in [0, 1) from the parts: our chance, wherever chance must be the same on every node."""
    digest = blake2b("/".join(map(str, parts)).encode(), digest_size=7).digest()
    return int.from_bytes(digest, "big") / (1 << 56)


def encode_payload(value: Any) -> bytes | None:
    """JSON text of a payload; None stays None."""
    return None if value is None else msgspec.json.encode(value)


def prune_instant(finished_at: Instant, retention: Retention) -> Instant | None:
    """When a run that finished then may be forgotten."""
    seconds = retention.finished_seconds
    return None if seconds is None else finished_at + to_micros(seconds)
