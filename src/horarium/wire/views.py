"""What a reader is shown of jobs, runs and nodes: instants are aware datetimes (RFC 3339 in JSON), secrets are masked.

The API, the command line, the client and the library show these and nothing else. Policies and targets leave their
defaults out where they are stored; in a view every default is written out, so that what is shown can be read without
knowing them, and sent back as it is.
"""

from __future__ import annotations

from datetime import datetime
from operator import attrgetter
from threading import Lock
from typing import Any, Literal, TypeVar, cast

import msgspec
from msgspec import UNSET, Struct, UnsetType

from horarium.clock import Instant, moment, to_datetime
from horarium.model import (
    NO_HEALTH,
    BusTarget,
    Cause,
    CommandTarget,
    Disposition,
    Event,
    ExternalTarget,
    Follow,
    HandlerTarget,
    Health,
    HttpTarget,
    Job,
    JobState,
    Node,
    Occasion,
    QueueTarget,
    Run,
    State,
    Target,
    awaits_worker,
    claimed_text,
    own_labels,
    planned_text,
    timeline,
)
from horarium.policies import (
    DEFAULT_CATCH_UP,
    DEFAULT_RETENTION,
    DEFAULT_RETRY,
    DEFAULT_TIMEOUTS,
    Approval,
    CatchUp,
    Concurrency,
    Overlap,
    Rate,
    Retention,
    Retry,
    Timeouts,
)
from horarium.rules.batches import batch_of
from horarium.rules.calendars import without_days
from horarium.rules.compiled import words_of
from horarium.rules.planning import next_run_at
from horarium.rules.rates import waits_for
from horarium.rules.tracing import handed_on
from horarium.wire.masking import shown_target
from horarium.wire.overrides import MissedView, OverrideView, missed_view, override_views

S = TypeVar("S", bound=Struct)


class LastRunView(Struct):
    """The run of a job that completed or failed last."""

    id: str
    state: State
    finished_at: datetime
    error: str | None


class JobView(Struct, kw_only=True):
    """A job as it is shown: the definition, its state, and its health (which an entry of the audit leaves out)."""

    name: str
    trigger: dict[str, Any]
    target: Target
    enabled: bool
    labels: dict[str, str]
    catch_up: CatchUp
    overlap: Overlap
    retry: Retry
    timeouts: Timeouts
    priority: int
    concurrency: Concurrency | None
    rate: tuple[Rate, ...] = ()
    fair: str | None = None
    jitter_seconds: float
    starts_at: datetime | None
    ends_at: datetime | None
    fires_max: int | None
    retention: Retention
    title: str | None = None
    buffer_max: int | None = None
    approval: Approval | None = None
    on: dict[Occasion, tuple[Follow, ...]]
    id: str
    version: int
    state: JobState
    words: str
    next_fire_at: datetime | None
    fires_count: int
    paused_at: datetime | None
    pause_reason: str | None
    paused_until: datetime | None = None
    overrides: list[OverrideView] | UnsetType = UNSET
    overrides_dropped: list[datetime] | UnsetType = UNSET
    missed: MissedView | UnsetType = UNSET
    created_at: datetime
    updated_at: datetime
    finished_at: datetime | None
    last_run: LastRunView | UnsetType | None = UNSET
    last_success_at: datetime | UnsetType | None = UNSET
    failures_in_a_row: int | UnsetType = UNSET
    failing_since: datetime | UnsetType | None = UNSET
    ping_url: str | UnsetType = UNSET


_PENDING, _RUNNING = State.PENDING, State.RUNNING


class EventView(Struct):
    """One line of a run's history. `detail`: of a failed attempt, the end of its traceback; left out of all others."""

    at: datetime
    state: State
    message: str
    detail: str | UnsetType = UNSET


class LeaseView(Struct):
    """A claim: its fencing token, and until when it lasts."""

    token: int
    expires_at: datetime


class RunView(Struct, kw_only=True):
    """A run as it is shown. `fires` > 1: a skipped run for the fire times from `fire_at` to `last_fire_at`.
    `idempotency_key` is the same for every attempt. `target`: the program to start, for the worker that claims it.
    `labels`: its own, if it belongs to no job. `rates`: its limits;
    `waits_for`: the key of the one for which it waits. `fair`: its fairness key. `batch`: its batch."""

    id: str
    job: str | None
    queue: str
    fire_at: datetime
    due_at: datetime
    state: State
    attempt: int
    attempts_max: int | UnsetType = UNSET
    priority: int
    cause: Cause
    disposition: Disposition | None
    fires: int
    last_fire_at: datetime | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    worker: str | None
    error: str | None
    result: Any
    progress: Any
    payload: Any
    idempotency_key: str
    history: list[EventView]
    lease: LeaseView | UnsetType = UNSET
    traceparent: str | UnsetType = UNSET
    target: CommandTarget | UnsetType = UNSET
    labels: dict[str, str] | UnsetType = UNSET
    rates: tuple[Rate, ...] | UnsetType = UNSET
    waits_for: str | UnsetType = UNSET
    fair: str | UnsetType = UNSET
    batch: str | UnsetType = UNSET


RunOutcome = Literal["created", "exists", "replaced", "debounced"]


class AddedRunView(RunView, kw_only=True):
    """The run, and the effect of the call: it was made, or another one holds its key, changed by this call perhaps."""

    outcome: RunOutcome = "created"


class NodeView(Struct, kw_only=True):
    """One process of ours."""

    name: str
    roles: list[str]
    started_at: datetime
    beat_at: datetime
    host: str
    pid: int
    version: str
    stopped_at: datetime | None


class HealthView(Struct):
    """The health of a job as it is shown with it."""

    last_run: LastRunView | None
    last_success_at: datetime | None
    failures_in_a_row: int
    failing_since: datetime | None


def health_view(health: Health) -> HealthView:
    last = health.last_run
    shown = None if last is None else LastRunView(last.id, last.state, to_datetime(last.finished_at), last.error)
    return HealthView(shown, moment(health.last_success_at), health.failures_in_a_row, moment(health.failing_since))


def job_view(job: Job, health: Health | None = None) -> JobView:
    """A job as it is shown, every default written out."""
    view = _job_view(job)
    if health is not None:
        shown = health_view(health)
        view.last_run, view.last_success_at = shown.last_run, shown.last_success_at
        view.failures_in_a_row, view.failing_since = shown.failures_in_a_row, shown.failing_since
    return view


def _job_view(job: Job) -> JobView:
    shown: dict[str, Any] = dict(zip(_OF_JOB, _shown_of_job(job), strict=True))
    for name in _MOMENTS:
        if (instant := shown[name]) is not None:
            shown[name] = to_datetime(instant)
    if not job.enabled:
        shown["next_fire_at"] = None
    elif job.overrides or job.missed:
        shown["next_fire_at"] = moment(next_run_at(job))
    shown["overrides"] = override_views(job.overrides) if job.overrides else UNSET
    shown["overrides_dropped"] = [*map(to_datetime, job.overrides_dropped)] or UNSET
    shown["missed"] = UNSET if job.missed is None else missed_view(job.missed)
    shown["target"] = shown_target(job.target)
    for name in _SPELT:
        if (value := shown[name]) is not None:
            shown[name] = _DEFAULTS_IN_FULL.get(id(value)) or _spelt(value)
    shown["trigger"], shown["state"], shown["words"] = without_days(job.trigger), job.state, words_of(job)
    return JobView(**shown)


_OF_JOB = tuple(name for name in JobView.__struct_fields__ if name in Job.__struct_fields__)
_MOMENTS = (*(name for name in _OF_JOB if name.endswith("_at")), "paused_until")
_SPELT = ("target", "catch_up", "retry", "timeouts", "concurrency", "retention", "approval")
_shown_of_job = attrgetter(*_OF_JOB)

_shown: dict[tuple[str, int], tuple[Job, msgspec.Raw, int]] = {}
_shown_bytes = 0
_showing = Lock()
"""Schedulers of several threads share what is kept."""
SHOWN_BYTES_MAX = 512 * 1024
"""What is kept of jobs as they were shown, and of their texts."""


def job_text(job: Job) -> msgspec.Raw:
    """A job as it is shown, as JSON. That of the last versions is kept, for as long as this very value is shown: what
    a change is told as in the audit is also its answer, and jobs are read more often than they are changed."""
    kept = _shown.get((job.id, job.version))
    if kept is not None and kept[0] is job:
        return kept[1]
    text = msgspec.Raw(msgspec.json.encode(job_view(job)))
    with _showing:
        _keep_shown(job, text)
    return text


def healthy_text(job: Job, health: Health) -> bytes:
    """The same with the job's health."""
    said = _NO_HEALTH if health is NO_HEALTH else msgspec.json.encode(health_view(health))
    return b"%b,%b" % (bytes(job_text(job))[:-1], said[1:])


_NO_HEALTH = msgspec.json.encode(health_view(NO_HEALTH))


def _keep_shown(job: Job, text: msgspec.Raw) -> None:
    global _shown_bytes
    weight = 2 * len(text)  # the job itself takes about as much
    key = job.id, job.version
    _shown_bytes -= _shown.pop(key, (job, text, 0))[2]
    while _shown and _shown_bytes + weight > SHOWN_BYTES_MAX:
        _shown_bytes -= _shown.pop(next(iter(_shown)))[2]
    if weight <= SHOWN_BYTES_MAX:
        _shown[key] = (job, text, weight)
        _shown_bytes += weight


_FULL: dict[type[Struct], Any] = {
    kind: msgspec.defstruct(kind.__name__, [], bases=(kind,), frozen=True, omit_defaults=False)
    for kind in (
        CatchUp,
        Retry,
        Timeouts,
        Retention,
        Concurrency,
        Approval,
        HttpTarget,
        HandlerTarget,
        QueueTarget,
        CommandTarget,
        BusTarget,
        ExternalTarget,
    )
}


def in_full(view: JobView) -> JobView:
    """The same view, with no default left out of its JSON."""
    for name in _SPELT:
        setattr(view, name, _spelt(getattr(view, name)))
    return view


def _spelt(value: S) -> S:
    if (default := _DEFAULTS_IN_FULL.get(id(value))) is not None:
        return cast(S, default)
    if value is None:
        return value
    full: S = _FULL.get(type(value), type(value))(*msgspec.structs.astuple(value))
    return full


_DEFAULT_POLICIES = (DEFAULT_CATCH_UP, DEFAULT_RETRY, DEFAULT_TIMEOUTS, DEFAULT_RETENTION)
_DEFAULTS_IN_FULL = {id(each): _FULL[type(each)](*msgspec.structs.astuple(each)) for each in _DEFAULT_POLICIES}


def run_view(run: Run, kind: type[RunView] = RunView, **beside: Any) -> RunView:
    """The view of a run, or one of a `kind` that has fields `beside`."""
    pending = run.state is _PENDING
    waits = not pending and awaits_worker(run)
    started_at, payload = None if waits else run.started_at, run.payload
    created_at = to_datetime(run.created_at)
    return kind(
        id=run.id,
        job=run.job,
        queue=run.queue,
        fire_at=to_datetime(run.fire_at),
        due_at=to_datetime(run.due_since),
        state=_PENDING if waits else run.state,
        attempt=run.attempt,
        priority=run.priority,
        cause=run.cause,
        disposition=run.disposition,
        fires=run.fires,
        last_fire_at=None if run.last_fire_at is None else to_datetime(run.last_fire_at),
        created_at=created_at,
        started_at=None if started_at is None else to_datetime(started_at),
        finished_at=None if run.finished_at is None else to_datetime(run.finished_at),
        worker=None if waits else run.worker,
        error=run.error,
        result=None if run.result is None else _json(run.result),
        progress=None if run.progress is None else _json(run.progress),
        payload=None if payload is None else _json(payload),
        idempotency_key=run.id,
        history=_begun(run, created_at, started_at) or [event_view(event) for event in timeline(run)],
        labels=UNSET if run.policy is None else own_labels(run) or UNSET,
        rates=run.rates or UNSET,
        waits_for=(waits_for(run) if run.rates else None) or UNSET,
        fair=run.fair or UNSET,
        batch=UNSET if run.policy is None else batch_of(run) or UNSET,
        **beside,
    )


def _begun(run: Run, created_at: datetime, started_at: Instant | None) -> list[EventView] | None:
    """The timeline of a run of which nothing is recorded: it waits, or its first attempt is under way. None: of which
    there is more to say."""
    if run.history or run.finished_at is not None:
        return None
    if run.state is _PENDING and run.started_at is None:
        return [EventView(created_at, _PENDING, planned_text(run))]
    if run.state is _RUNNING and started_at is not None and run.attempt and run.created_at <= started_at:
        return [
            EventView(created_at, _PENDING, planned_text(run)),
            EventView(to_datetime(started_at), _RUNNING, claimed_text(run)),
        ]
    return None


def event_view(event: Event) -> EventView:
    return EventView(to_datetime(event.at), event.state, event.message, event.trace or UNSET)


def claimed_view(run: Run, job: Job | None, ahead: int) -> RunView:
    """A run as its worker gets it: with the lease, and with the payload in force. `ahead`: how far wall time is ahead
    of the steady scale at present, in microseconds."""
    view = run_view(run)
    assert run.lease_expires_at is not None
    view.lease = LeaseView(run.token, to_datetime(run.lease_expires_at + ahead))
    view.attempts_max = (job.retry if job else run.policy.retry if run.policy else Retry()).attempts_max
    view.traceparent = handed_on(run) or UNSET
    view.payload = _json(run.payload) if run.payload is not None or job is None else payload_of(job.target)
    target = job.target if job is not None else run.policy.target if run.policy is not None else None
    if isinstance(target, CommandTarget):
        view.target = target
    return view


def payload_of(target: Target) -> Any:
    match target:
        case HandlerTarget(args=args):
            return args
        case QueueTarget(payload=payload) | BusTarget(payload=payload):
            return payload
        case HttpTarget(body=body):
            return body
        case ExternalTarget() | CommandTarget():
            return None


def node_view(node: Node) -> NodeView:
    return NodeView(
        name=node.name,
        roles=list(node.roles),
        started_at=to_datetime(node.started_at),
        beat_at=to_datetime(node.beat_at),
        host=node.host,
        pid=node.pid,
        version=node.version,
        stopped_at=moment(node.stopped_at),
    )


def _json(text: bytes | None) -> Any:
    return None if text is None else msgspec.Raw(text)
