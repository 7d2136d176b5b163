"""Between the outside and the model: what an owner writes, and what a reader is shown.

`JobDefinition` is a job as people write it (JSON, YAML, keyword arguments); `define` checks it and makes a `Job`.
`JobView`, `RunView` and their like are what the API, the command line and exports show: instants as aware datetimes
(RFC 3339 in JSON), secrets left out. Nothing here touches a store.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType
from msgspec.structs import replace

from horarium.clock import INSTANT_MAX, Instant, to_datetime, to_instant
from horarium.errors import InvalidJob, InvalidTrigger
from horarium.masking import keep_secrets, shown_target
from horarium.model import (
    JITTER_SECONDS_MAX,
    LABELS_MAX,
    PAYLOAD_BYTES_MAX,
    PRIORITY_MAX,
    PRIORITY_MIN,
    BusTarget,
    Cause,
    Disposition,
    HandlerTarget,
    HttpTarget,
    Job,
    Name,
    Node,
    QueueTarget,
    Run,
    State,
    Target,
    timeline,
)
from horarium.planning import next_fire, trigger_of
from horarium.policies import CatchUp, Concurrency, Overlap, Retention, Retry, Timeouts
from horarium.triggers import parse_trigger
from horarium.triggers.words import say_patterns

LabelText = Annotated[str, Meta(max_length=200)]
LabelName = Annotated[str, Meta(min_length=1, max_length=63, pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]*(?!\n)$")]
Labels = Annotated[dict[LabelName, LabelText], Meta(max_length=LABELS_MAX)]
Priority = Annotated[int, Meta(ge=PRIORITY_MIN, le=PRIORITY_MAX)]
Moment = Annotated[datetime, Meta(tz=True)]
JitterSeconds = Annotated[float, Meta(ge=0, le=JITTER_SECONDS_MAX)]
FiresMax = Annotated[int, Meta(ge=1, le=2**53)]


class JobDefinition(Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A job as its owner writes it. `enabled` left out means: as it is, or true for a new job."""

    name: Name
    trigger: dict[str, Any]
    target: Target
    enabled: bool | UnsetType = UNSET
    labels: Labels = {}
    catch_up: CatchUp = CatchUp()
    overlap: Overlap = Overlap.ALLOW
    retry: Retry = Retry()
    timeouts: Timeouts = Timeouts()
    priority: Priority = 0
    concurrency: Concurrency | None = None
    jitter_seconds: JitterSeconds = 0.0
    starts_at: Moment | None = None
    ends_at: Moment | None = None
    fires_max: FiresMax | None = None
    retention: Retention = Retention()


class JobView(Struct, kw_only=True):
    """A job as it is shown: the definition, and where it stands."""

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
    jitter_seconds: float
    starts_at: datetime | None
    ends_at: datetime | None
    fires_max: int | None
    retention: Retention
    id: str
    version: int
    words: str
    next_fire_at: datetime | None
    fires_count: int
    paused_at: datetime | None
    pause_reason: str | None
    created_at: datetime
    updated_at: datetime


class EventView(Struct):
    """One line of a run's history."""

    at: datetime
    state: State
    message: str


class LeaseView(Struct):
    """A claim: its fencing token, and until when it stands."""

    token: int
    expires_at: datetime


class RunView(Struct, kw_only=True):
    """A run as it is shown. `fires` > 1: a skipped run that stands for the fire times from `fire_at` to `last_fire_at`.
    `idempotency_key` is the same for every attempt."""

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


TargetCheck = Callable[[Target], None]
"""Raises InvalidJob for a target that may not be used here (an address that is not allowed, a bad secret)."""


# ---- definition -> job ------------------------------------------------------------------------------------------


def read_definition(fields: Mapping[str, Any]) -> JobDefinition:
    """A definition from plain data. Raises InvalidJob that names the field and what was expected."""
    try:
        return msgspec.convert(fields, JobDefinition, strict=True)
    except msgspec.ValidationError as error:
        raise invalid_job(str(error)) from None


def invalid_job(message: str) -> InvalidJob:
    """msgspec's message (`Expected ... - at `$.path``) as our error, with the path as its field."""
    text, _, path = say_patterns(message).partition(" - at `")
    field = path.rstrip("`").removeprefix("$").lstrip(".") or None
    return InvalidJob(f"{field}: {text}" if field else text, field=field)


def define(definition: JobDefinition, *, id: str, now: Instant, check_target: TargetCheck) -> Job:
    """A new job from its definition. Raises InvalidJob or InvalidTrigger (also for a rule that fires no more)."""
    keep_secrets(definition.target, None)
    job = _shape(definition, id=id, now=now)
    check_target(job.target)
    _check_sizes(job)
    _check_window(job)
    first = next_fire(replace(job, enabled=True), now)
    if first is None:
        raise InvalidTrigger(_never(job), field="trigger")
    return replace(job, next_fire_at=first if job.enabled else None)


def redefine(job: Job, definition: JobDefinition, *, now: Instant, check_target: TargetCheck) -> Job:
    """The stored job with its owner's fields replaced; unchanged content gives an equal job back."""
    enabled = job.enabled if definition.enabled is UNSET else definition.enabled
    target = keep_secrets(definition.target, job.target)
    shaped = _shape(msgspec.structs.replace(definition, enabled=enabled, target=target), id=job.id, now=now)
    ours = {field: getattr(job, field) for field in _OURS}
    revised = replace(shaped, **ours)
    if revised == job:
        return job
    check_target(revised.target)
    _check_sizes(revised)
    _check_window(revised)
    if (revised.trigger, revised.starts_at, revised.ends_at) != (job.trigger, job.starts_at, job.ends_at):
        anchored = replace(revised, anchor_at=now, enabled=True, planned_until=now)
        if next_fire(replace(anchored, fires_max=None), now) is None:
            raise InvalidTrigger(_never(revised), field="trigger")
    return revised


_OURS = (
    "anchor_at", "planned_until", "next_fire_at", "fires_count", "paused_at", "pause_reason", "created_at",
    "updated_at", "deleted_at", "version",
)  # fmt: skip


def _shape(definition: JobDefinition, *, id: str, now: Instant) -> Job:
    trigger = parse_trigger(definition.trigger)
    enabled = definition.enabled is UNSET or definition.enabled
    return Job(
        name=definition.name,
        trigger=trigger.spec(),
        target=definition.target,
        enabled=enabled,
        labels=definition.labels,
        catch_up=definition.catch_up,
        overlap=definition.overlap,
        retry=definition.retry,
        timeouts=definition.timeouts,
        priority=definition.priority,
        concurrency=definition.concurrency,
        jitter_seconds=definition.jitter_seconds,
        starts_at=_instant(definition.starts_at, "starts_at"),
        ends_at=_instant(definition.ends_at, "ends_at"),
        fires_max=definition.fires_max,
        retention=definition.retention,
        id=id,
        anchor_at=now,
        planned_until=now,
        created_at=now,
        updated_at=now,
        paused_at=None if enabled else now,
    )


def _instant(moment: datetime | None, field: str) -> Instant | None:
    if moment is None:
        return None
    instant = to_instant(moment)
    if not 0 <= instant <= INSTANT_MAX:
        raise InvalidJob(f"{field}: {moment.isoformat()} lies outside of the years 1970 to 2200", field=field)
    return instant


def _check_sizes(job: Job) -> None:
    for field in ("trigger", "target"):
        size = len(msgspec.json.encode(getattr(job, field)))
        if size > PAYLOAD_BYTES_MAX:
            raise InvalidJob(f"{field}: {size:,} bytes; at most {PAYLOAD_BYTES_MAX:,} are kept", field=field)


def _check_window(job: Job) -> None:
    if job.starts_at is not None and job.ends_at is not None and job.starts_at >= job.ends_at:
        raise InvalidJob("ends_at: must be later than starts_at", field="ends_at")


def _never(job: Job) -> str:
    window = " within starts_at and ends_at" if job.starts_at is not None or job.ends_at is not None else ""
    return f"trigger: {trigger_of(job).words()!r} has no fire time in the future{window}; give a rule that fires"


def definition_of(job: Job) -> JobDefinition:
    """What its owner would write to get this job (secrets masked)."""
    return JobDefinition(
        **{field: getattr(job, field) for field in JobDefinition.__struct_fields__ if field not in _SHOWN_OTHERWISE},
        target=shown_target(job.target),
        starts_at=moment(job.starts_at),
        ends_at=moment(job.ends_at),
    )


_SHOWN_OTHERWISE = frozenset({"target", "starts_at", "ends_at"})


# ---- views ------------------------------------------------------------------------------------------------------


def moment(instant: Instant | None) -> datetime | None:
    """An instant, or the lack of one, as a datetime."""
    return None if instant is None else to_datetime(instant)


def job_view(job: Job) -> JobView:
    """A job as it is shown."""
    shared = {field: getattr(job, field) for field in _JOB_SHARED}
    return JobView(
        **shared,
        target=shown_target(job.target),
        words=trigger_of(job).words(),
        starts_at=moment(job.starts_at),
        ends_at=moment(job.ends_at),
        next_fire_at=moment(job.next_fire_at),
        paused_at=moment(job.paused_at),
        created_at=to_datetime(job.created_at),
        updated_at=to_datetime(job.updated_at),
    )


_JOB_SHARED = (
    "name", "trigger", "enabled", "labels", "catch_up", "overlap", "retry", "timeouts", "priority", "concurrency",
    "jitter_seconds", "fires_max", "retention", "id", "version", "fires_count", "pause_reason",
)  # fmt: skip


def run_view(run: Run) -> RunView:
    """A run as it is shown."""
    return RunView(
        id=run.id,
        job=run.job,
        queue=run.queue,
        fire_at=to_datetime(run.fire_at),
        due_at=to_datetime(run.due_at),
        state=run.state,
        attempt=run.attempt,
        priority=run.priority,
        cause=run.cause,
        disposition=run.disposition,
        fires=run.fires,
        last_fire_at=moment(run.last_fire_at),
        created_at=to_datetime(run.created_at),
        started_at=moment(run.started_at),
        finished_at=moment(run.finished_at),
        worker=run.worker,
        error=run.error,
        result=_json(run.result),
        progress=_json(run.progress),
        payload=_json(run.payload),
        idempotency_key=run.id,
        history=[EventView(to_datetime(event.at), event.state, event.message) for event in timeline(run)],
    )


def claimed_view(run: Run, job: Job | None) -> RunView:
    """A run as its worker gets it: with the lease, and with the payload in force."""
    view = run_view(run)
    assert run.lease_expires_at is not None
    view.lease = LeaseView(run.token, to_datetime(run.lease_expires_at))
    view.attempts_max = (job.retry if job else run.policy.retry if run.policy else Retry()).attempts_max
    if run.payload is None and job is not None:
        view.payload = payload_of(job.target)
    return view


def payload_of(target: Target) -> Any:
    """The payload that a target carries for whoever does the work."""
    match target:
        case HandlerTarget(args=args):
            return args
        case QueueTarget(payload=payload) | BusTarget(payload=payload):
            return payload
        case HttpTarget(body=body):
            return body


def node_view(node: Node) -> NodeView:
    """A node as it is shown."""
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
