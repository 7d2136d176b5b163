"""The run: one execution owed for one fire time, and its history."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from horarium.clock import INSTANT_MIN, Clock, Instant, to_micros, to_wall
from horarium.model.kinds import EventKind
from horarium.model.overrides import Override
from horarium.model.states import UNFINISHED, Cause, Disposition, State
from horarium.model.targets import CommandTarget, HttpTarget
from horarium.policies import LEASE_SECONDS_DEFAULT, Rate, Retention, Retry, Timeouts

_NO_TRACE = frozenset({EventKind.LIMITED, EventKind.DECIDED})


class Event(Struct, frozen=True, array_like=True):
    """One line of a run's history. `message` is for people; what decides anything is `kind`, where a line has one.
    `detail`: of a failed attempt, the end of its traceback; of a run that waits for a rate limit, the key; of an
    approval, the approved work (`rules.approving`). `override`: by which the fire time was skipped or moved."""

    at: Instant
    state: State
    message: str
    kind: EventKind | None = None
    detail: str | None = None
    override: Override | None = None

    @property
    def trace(self) -> str | None:
        """Of a failed attempt, the end of its traceback."""
        return None if self.kind in _NO_TRACE else self.detail


Level = tuple[str, int, bool]
"""A queue, a priority in it, and whether its gated runs are meant (`Run.is_gated`) or the others."""


class RunPolicy(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The policies of a run that belongs to no job, and its labels. `batch`: its batch, and the page of that which
    holds its id. `then`: what follows once it has completed."""

    retry: Retry = Retry()
    timeouts: Timeouts = Timeouts()
    retention: Retention = Retention()
    target: HttpTarget | CommandTarget | None = None
    labels: dict[str, str] = {}
    batch: str | None = None
    then: tuple[RunFollow, ...] = ()


class RunFollow(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A run that follows from another one, `delay` microseconds after its end. Without a payload of its own it gets the
    result of that one."""

    queue: str
    payload: Any = None
    delay: int = 0
    priority: int = 0
    policy: RunPolicy | None = None
    concurrency_key: str | None = None
    concurrency_max: int = 0
    rates: tuple[Rate, ...] = ()
    fair: str | None = None


DEFAULT_RUN_POLICY = RunPolicy()


class Run(Struct, frozen=True, kw_only=True, gc=False):
    """One execution owed for one fire time (or asked for by hand).

    `job` and `job_id` are None for a one-off run, whose `payload` and `policy` say everything. `payload` is JSON text
    that replaces the target's own args, payload or body. `token` grows at every claim. `attempt` is the number of the
    current or last attempt, counted when it is claimed. `lease_seconds` and `execution_seconds` are copied from the job
    so that a store can extend a lease without knowing a policy: a lease never outlives `deadline`, which is
    `execution_seconds` after the begin; only a claimed run has one. `lease_expires_at` and `deadline` are on the steady
    scale (`clock.Clock`); of a run that is yet to be written they may be durations (`lasting`). `start_by`:
    pending beyond this, it fails. `rates`: the limits that an attempt needs a place under, with their keys in full.
    `fair`: its fairness key; such a run may be `due_at` its turn, which lies before the instant at which it fell due.
    `serial`: claimed only when no earlier run of its job is unfinished. `fires` and
    `last_fire_at`: a skipped run may cover a range of fire times. `history` holds events that can't be derived from the
    other fields; `timeline()` gives all of it.
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
    rates: tuple[Rate, ...] = ()
    fair: str | None = None
    lease_seconds: float = LEASE_SECONDS_DEFAULT
    execution_seconds: float | None = None
    start_by: Instant | None = None
    attempt: int = 0
    token: int = 0
    worker: str | None = None
    lease_expires_at: Instant | None = None
    deadline: Instant | None = None
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
    def took(self) -> int | None:
        """The microseconds of its last attempt, once that has ended."""
        return None if self.started_at is None or self.finished_at is None else self.finished_at - self.started_at

    @property
    def due_at_first(self) -> Instant:
        """When its age begins: its fire time, or when it was asked for if that was later."""
        return max(self.fire_at, self.created_at)

    @property
    def due_since(self) -> Instant:
        """When it fell due, or will: `due_at`, unless that is a turn. (Then: when it was made, or put back.)"""
        if self.fair is None:
            return self.due_at
        put_back = (event.at for event in reversed(self.history) if event.state is State.PENDING)
        return max(self.due_at, self.due_at_first, next(put_back, INSTANT_MIN))

    @property
    def is_gated(self) -> bool:
        """Whether a concurrency key or the order of its job may hold it back."""
        return self.concurrency_key is not None or (self.serial and self.job_id is not None)


def one_off_run(
    *,
    id: str,
    queue: str,
    due_at: Instant,
    now: Instant,
    priority: int = 0,
    payload: bytes | None = None,
    policy: RunPolicy | None = None,
    unique_key: str | None = None,
    cause: Cause = Cause.ENQUEUED,
) -> Run:
    timeouts = (policy or DEFAULT_RUN_POLICY).timeouts
    return Run(
        id=id,
        queue=queue,
        fire_at=due_at,
        due_at=due_at,
        created_at=now,
        priority=priority,
        cause=cause,
        payload=payload,
        policy=policy,
        unique_key=unique_key,
        lease_seconds=timeouts.heartbeat_seconds,
        execution_seconds=timeouts.execution_seconds,
        start_by=None if timeouts.start_seconds is None else max(due_at, now) + to_micros(timeouts.start_seconds),
    )


def lease_end(run: Run, steady: Instant) -> Instant:
    """Until when a lease on this run is held if it is renewed now: `lease_seconds` on, but never beyond its
    deadline."""
    end = steady + to_micros(run.lease_seconds)
    return end if run.deadline is None else min(end, run.deadline)


def deadline_of(run: Run, begins: Instant) -> Instant | None:
    """The deadline of an attempt that begins then, on the steady scale."""
    return None if run.execution_seconds is None else begins + to_micros(run.execution_seconds)


def lasting(seconds: float) -> Instant:
    """As `lease_expires_at`, or as `deadline` beside one: that long from the write on. (Rules know no clock.)"""
    return -to_micros(seconds)


def due_then(run: Run, due_at: Instant) -> Run:
    """The run, due at another instant; the limit for starting in time moves along."""
    start_by = None if run.start_by is None else run.start_by + due_at - run.due_at
    return replace(run, due_at=due_at, start_by=start_by)


def leased(run: Run, steady: Instant) -> Run:
    """The run as a store writes it at this instant of the steady scale."""
    lease = run.lease_expires_at
    if lease is None or lease >= 0:
        return run
    deadline = run.deadline
    if deadline is not None and deadline < 0:
        deadline = steady - deadline
    return replace(run, lease_expires_at=steady - lease, deadline=deadline)


def in_wall_time(run: Run, clock: Clock) -> Run:
    """The run with its lease and its deadline as wall time, for those outside."""
    lease, deadline = run.lease_expires_at, run.deadline
    if lease is None:
        return run
    wall = None if deadline is None else to_wall(clock, deadline)
    return replace(run, lease_expires_at=to_wall(clock, lease), deadline=wall)


_RUNNING = State.RUNNING
BUS_QUEUES = "bus/"
"""What the queues of runs begin with that go to a broker."""


def awaits_worker(run: Run) -> bool:
    """True if the run is claimed for a broker, and no worker behind it has reported yet."""
    return run.state is _RUNNING and run.queue.startswith(BUS_QUEUES) and not has_begun(run)


def has_begun(run: Run) -> bool:
    """Whether a worker behind a broker has reported on its present or last attempt."""
    for event in reversed(run.history):
        if event.kind is EventKind.BEGUN or event.state is State.PENDING:
            return event.kind is EventKind.BEGUN
    return False


def own_labels(run: Run) -> dict[str, str]:
    """Those of a run that belongs to no job."""
    return {} if run.policy is None else run.policy.labels


def shown_state(run: Run) -> State:
    """The state as a reader sees it: until a worker behind a broker reports, its run is pending."""
    return State.PENDING if awaits_worker(run) else run.state


_PLANNED = {cause: f"planned ({cause})" for cause in Cause}


def planned_text(run: Run) -> str:
    """What a run's history says of its making."""
    return _PLANNED[run.cause]


def claimed_text(run: Run) -> str:
    """And of the beginning of its present attempt."""
    return f"attempt {run.attempt} claimed by {run.worker or 'a worker'}"


def timeline(run: Run) -> list[Event]:
    """All of a run's history, oldest first: created, recorded events, and its present state."""
    events = [] if run.state is State.SKIPPED else [Event(run.created_at, State.PENDING, planned_text(run))]
    events.extend(run.history)
    started_at = run.started_at
    claimed = started_at is not None and run.attempt and not _recorded(run, _RUNNING, started_at)
    if started_at is not None and claimed and shown_state(run) is not State.PENDING:
        events.append(Event(started_at, _RUNNING, claimed_text(run)))
        if run.history or run.created_at > started_at:
            events.sort(key=lambda event: (event.at, event.state not in (State.PENDING, _RUNNING)))
    if run.finished_at is not None and not _recorded(run, run.state, run.finished_at):
        events.append(Event(run.finished_at, run.state, run.error or str(run.disposition or run.state)))
    return events


def _recorded(run: Run, state: State, at: Instant) -> bool:
    return bool(run.history) and any(event.state is state and event.at == at for event in run.history)


def encode_payload(value: Any) -> bytes | None:
    """JSON text of a payload; None stays None."""
    return None if value is None else msgspec.json.encode(value)


def prune_instant(finished_at: Instant, retention: Retention) -> Instant | None:
    """When a run that finished then expires."""
    seconds = retention.finished_seconds
    return None if seconds is None else finished_at + to_micros(seconds)
