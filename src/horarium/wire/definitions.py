"""A job as its owner writes it (JSON, YAML, keyword arguments), and how it becomes a `Job`.

`job_from` and `with_definition` check a definition and make the job; `definition_of` goes the other way. What a reader
is shown is in `views`. Nothing here touches a store.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from operator import attrgetter
from typing import Annotated, Any, TypeVar, get_args

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType
from msgspec.structs import asdict, replace

from horarium.clock import Instant, to_datetime
from horarium.errors import InvalidJob, InvalidTrigger
from horarium.model import (
    JITTER_SECONDS_MAX,
    PAYLOAD_BYTES_MAX,
    PRIORITY_MAX,
    PRIORITY_MIN,
    TIMED,
    TITLE_CHARS_MAX,
    ExternalTarget,
    Follow,
    Job,
    Name,
    Occasion,
    Target,
)
from horarium.model.follows import FOLLOWS_MAX
from horarium.model.jobs import OWNED
from horarium.model.labels import Labels
from horarium.policies import (
    BUFFER_MAX_MAX,
    DEFAULT_CATCH_UP,
    DEFAULT_RETENTION,
    DEFAULT_RETRY,
    DEFAULT_TIMEOUTS,
    Approval,
    CatchUp,
    CatchUpPolicy,
    Concurrency,
    FairKey,
    Overlap,
    Rates,
    Retention,
    Retry,
    Timeouts,
)
from horarium.rules.calendars import without_days
from horarium.rules.compiled import after_end, know_trigger, trigger_of
from horarium.rules.joins import is_join
from horarium.rules.keys import check_keys
from horarium.rules.planning import next_fire
from horarium.triggers import Trigger, parse_trigger
from horarium.triggers.budget import PLAN_STEPS, bounded
from horarium.wire.faults import converted, instant_of
from horarium.wire.masking import keep_secrets, shown_target

Priority = Annotated[int, Meta(ge=PRIORITY_MIN, le=PRIORITY_MAX)]
Moment = Annotated[datetime, Meta(tz=True)]
JitterSeconds = Annotated[float, Meta(ge=0, le=JITTER_SECONDS_MAX)]
FiresMax = Annotated[int, Meta(ge=1, le=2**53)]
Title = Annotated[str, Meta(max_length=TITLE_CHARS_MAX)]
BufferMax = Annotated[int, Meta(ge=1, le=BUFFER_MAX_MAX)]
Follows = Annotated[tuple[Follow, ...], Meta(max_length=FOLLOWS_MAX)]
MOMENTS = ("starts_at", "ends_at")
"""Fields that are instants where they are stored."""

_owned_of = attrgetter(*OWNED)


class JobDefinition(Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A job as its owner writes it. `enabled` left out means: as it is, or true for a new job."""

    name: Name
    trigger: dict[str, Any]
    target: Target
    enabled: bool | UnsetType = UNSET
    labels: Labels = {}
    catch_up: CatchUp = DEFAULT_CATCH_UP
    overlap: Overlap = Overlap.ALLOW
    retry: Retry = DEFAULT_RETRY
    timeouts: Timeouts = DEFAULT_TIMEOUTS
    priority: Priority = 0
    concurrency: Concurrency | None = None
    rate: Rates = ()
    fair: FairKey | None = None
    jitter_seconds: JitterSeconds = 0.0
    starts_at: Moment | None = None
    ends_at: Moment | None = None
    fires_max: FiresMax | None = None
    retention: Retention = DEFAULT_RETENTION
    title: Title | None = None
    buffer_max: BufferMax | None = None
    approval: Approval | None = None
    on: dict[Occasion, Follows] = {}


TargetCheck = Callable[[Target], None]
"""Raises InvalidJob for a target that may not be used here (an address that is not allowed, a bad secret)."""


# ---- definition -> job ------------------------------------------------------------------------------------------


def read_definition(fields: Mapping[str, Any]) -> JobDefinition:
    """A definition from plain data. Raises InvalidJob that names each wrong field and the expected form."""
    definition: JobDefinition = converted(fields, JobDefinition, refusal=InvalidJob)
    return definition


def job_from(definition: JobDefinition, *, id: str, now: Instant, check_target: TargetCheck) -> Job:
    """A new job from its definition. Raises InvalidJob or InvalidTrigger (also for a rule that fires no more, unless
    the job is paused)."""
    with bounded(PLAN_STEPS):
        return _job_from(definition, id, now, check_target)


def _job_from(definition: JobDefinition, id: str, now: Instant, check_target: TargetCheck) -> Job:
    keep_secrets(definition.target, None)
    trigger = parse_trigger(definition.trigger)
    job = Job(**_owned(definition, trigger), id=id, anchor_at=now, planned_until=now, created_at=now, updated_at=now)
    if not job.enabled:
        job = replace(job, paused_at=now)
    know_trigger(job, trigger)
    check_target(job.target)
    check_keys(job.rate, job.concurrency, job.fair)
    _check_sizes(job)
    _check_window(job)
    _check_approval(job)
    if job.on:
        _check_follows(job)
    first = next_fire(job if job.enabled else replace(job, enabled=True), now)
    if first is None and job.enabled and not is_join(job):
        raise InvalidTrigger(_never(job), field="trigger")
    return replace(job, next_fire_at=first if job.enabled else None)


def with_definition(job: Job, definition: JobDefinition, *, now: Instant, check_target: TargetCheck) -> Job:
    """The stored job with its owner's fields replaced; unchanged content gives an equal job back."""
    with bounded(PLAN_STEPS):
        return _with_definition(job, definition, now, check_target)


def _with_definition(job: Job, definition: JobDefinition, now: Instant, check_target: TargetCheck) -> Job:
    owned = _owned(definition, parse_trigger(definition.trigger))
    if definition.enabled is UNSET:
        owned["enabled"] = job.enabled
    revised = replace(job, **{**owned, "target": keep_secrets(definition.target, job.target)})
    if revised == job:
        return job
    check_target(revised.target)
    check_keys(revised.rate, revised.concurrency, revised.fair)
    _check_sizes(revised)
    _check_window(revised)
    _check_approval(revised)
    _check_follows(revised)
    if (revised.trigger, revised.starts_at, revised.ends_at) != (job.trigger, job.starts_at, job.ends_at):
        anchored = replace(revised, anchor_at=now, enabled=True, planned_until=now)
        is_over = not is_join(anchored) and next_fire(replace(anchored, fires_max=None), now) is None
        if is_over and revised.enabled:
            raise InvalidTrigger(_never(revised), field="trigger")
    return revised


def _owned(definition: JobDefinition, trigger: Trigger) -> dict[str, Any]:
    """The owner's fields of a job, as they are stored."""
    owned = asdict(definition)
    owned["trigger"] = trigger.spec()
    owned["enabled"] = definition.enabled is UNSET or definition.enabled
    for name in MOMENTS:
        if owned[name] is not None:
            owned[name] = instant_of(owned[name], name, InvalidJob)
    owned["on"] = {occasion: follows for occasion, follows in definition.on.items() if follows}
    return owned


def _check_sizes(job: Job) -> None:
    if len(msgspec.json.encode((job.trigger, job.target, job.on))) <= PAYLOAD_BYTES_MAX:
        return
    for field in ("trigger", "target", "on"):
        size = len(msgspec.json.encode(getattr(job, field)))
        if size > PAYLOAD_BYTES_MAX:
            raise InvalidJob(f"{field}: {size:,} bytes; at most {PAYLOAD_BYTES_MAX:,} are kept", field=field)


def _check_approval(job: Job) -> None:
    if job.approval is not None and isinstance(job.target, ExternalTarget):
        raise InvalidJob("approval: work that is done elsewhere begins by itself; it can't wait", field="approval")
    if job.catch_up.policy is CatchUpPolicy.ASK and after_end(job) is not None:
        text = "a job that counts from the end of its last run misses one fire time at most; there is nothing to ask"
        raise InvalidJob(f"catch_up: {text}", field="catch_up.policy")


def _check_window(job: Job) -> None:
    if job.starts_at is not None and job.ends_at is not None and job.starts_at >= job.ends_at:
        raise InvalidJob("ends_at: must be later than starts_at", field="ends_at")


def _check_follows(job: Job) -> None:
    for occasion, follows in job.on.items():
        seen: set[str] = set()
        for index, follow in enumerate(follows):
            field = f"on.{occasion}[{index}]"
            if (follow.notify is None) == (follow.trigger is None):
                raise InvalidJob(f"{field}: give either notify (a channel) or trigger (a job)", field=field)
            if follow.payload is not None and follow.trigger is None:
                raise InvalidJob(f"{field}.payload: only a job that is triggered has one", field=f"{field}.payload")
            _check_seconds(occasion, follow, f"{field}.seconds")
            if follow.action in seen:
                raise InvalidJob(f"{field}: {follow.action} is there already", field=field)
            seen.add(follow.action)


def _check_seconds(occasion: Occasion, follow: Follow, field: str) -> None:
    if (follow.seconds is None) == (occasion in TIMED):
        raise InvalidJob(
            f"{field}: say after how many seconds" if occasion in TIMED else f"{field}: {occasion} is known at once",
            field=field,
        )


def _never(job: Job) -> str:
    window = " within starts_at and ends_at" if job.starts_at is not None or job.ends_at is not None else ""
    return f"trigger: {trigger_of(job).words()!r} has no fire time in the future{window}; give a rule that fires"


def definition_of(job: Job) -> JobDefinition:
    """What its owner would write to get this job (secrets masked)."""
    shown = _definition(job, shown_target(job.target))
    shown.trigger = without_days(shown.trigger)
    return shown


def kept_definition(job: Job) -> JobDefinition:
    """What its owner wrote, secrets included."""
    return _definition(job, job.target)


def _definition(job: Job, target: Target) -> JobDefinition:
    owned: dict[str, Any] = dict(zip(OWNED, _owned_of(job), strict=True))
    owned["target"] = without_defaults(target)
    for name in MOMENTS:
        if owned[name] is not None:
            owned[name] = to_datetime(owned[name])
    return without_defaults(JobDefinition(**owned))


T = TypeVar("T", bound=Struct)


def without_defaults(value: T) -> T:
    """The same value, whose JSON leaves out defaults. (An equal value that is another object, as when it was read from
    a store, would be written out.)"""
    defaults = _DEFAULTS[type(value)]
    same = {
        name: default
        for name, default in defaults.items()
        if (given := getattr(value, name)) is not default and given == default
    }
    return msgspec.structs.replace(value, **same) if same else value


_DEFAULTS = {
    kind: {
        field.name: field.default
        for field in msgspec.structs.fields(kind)
        if field.default is not msgspec.NODEFAULT and field.default is not UNSET
    }
    for kind in (JobDefinition, *get_args(Target))
}
