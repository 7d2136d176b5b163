"""A one-off run as a caller writes it (JSON, keyword arguments), and how it becomes a `Run`. Nothing here is stored.

A run that belongs to no job carries everything itself: its payload, its policies, and the whole of an HTTP target.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from horarium.clock import INSTANT_MAX, Instant, to_micros
from horarium.errors import InvalidRequest
from horarium.model import (
    DEFAULT_RUN_POLICY,
    KEY_BYTES_MAX,
    PAYLOAD_BYTES_MAX,
    BusTarget,
    CommandTarget,
    ExternalTarget,
    HandlerTarget,
    HttpTarget,
    QueueTarget,
    Run,
    RunPolicy,
    Target,
    callers_key,
    encode_payload,
    one_off_run,
    own_labels,
    queue_of,
)
from horarium.model.labels import Labels
from horarium.model.limits import DELAY_SECONDS_MAX
from horarium.policies import (
    DEFAULT_RETENTION,
    DEFAULT_RETRY,
    DEFAULT_TIMEOUTS,
    Concurrency,
    Debounce,
    FairKey,
    Rate,
    Rates,
    Retention,
    Retry,
    Timeouts,
    Unique,
)
from horarium.rules.keys import Source, check_keys, with_keys
from horarium.wire.definitions import Moment, Priority, TargetCheck
from horarium.wire.faults import check_size, converted, instant_of
from horarium.wire.masking import keep_secrets

UniqueKey = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=KEY_BYTES_MAX,
        description=f"Any text of up to {KEY_BYTES_MAX} bytes. Of runs with the same key only the first is made, "
        "for as long as it is kept.",
    ),
]
DelaySeconds = Annotated[float, Meta(ge=0, le=DELAY_SECONDS_MAX, description="Due so long from now.")]


class RunDefinition(Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A run that belongs to no job. `payload` replaces the payload, args or body of the target. It is due now, `at` an
    instant, or after `delay_seconds`."""

    target: Target
    payload: Any = None
    at: Moment | None = None
    delay_seconds: DelaySeconds | None = None
    priority: Priority = 0
    unique_key: UniqueKey | None = None
    retry: Retry = DEFAULT_RETRY
    timeouts: Timeouts = DEFAULT_TIMEOUTS
    retention: Retention = DEFAULT_RETENTION
    concurrency: Concurrency | None = None
    unique: Unique | None = None
    debounce: Debounce | None = None
    rate: Rates = ()
    labels: Labels = {}
    fair: FairKey | None = None


def read_run(fields: Mapping[str, Any]) -> RunDefinition:
    """A definition from plain data. Raises InvalidRequest that names each field that is wrong."""
    definition: RunDefinition = converted(fields, RunDefinition)
    return definition


def run_of(definition: RunDefinition, *, id: str, now: Instant, check_target: TargetCheck) -> Run:
    """The pending run of a definition. Raises InvalidRequest, or InvalidJob for a target that may not be used."""
    if isinstance(definition.target, ExternalTarget):
        raise InvalidRequest(
            "target: work that is done elsewhere pings the address of a job; define one", field="target"
        )
    target = keep_secrets(definition.target, None)
    check_target(target)
    policy = _policy_of(definition)
    if isinstance(target, HttpTarget | CommandTarget):
        check_size("target", msgspec.json.encode(target), PAYLOAD_BYTES_MAX)
        policy = replace(policy or DEFAULT_RUN_POLICY, target=target)
    queue, payload = queue_of(target), _payload(target, definition.payload)
    run = one_off_run(
        id=id,
        queue=queue,
        due_at=_due_at(definition, now),
        now=now,
        priority=definition.priority,
        payload=payload,
        policy=policy,
        unique_key=None if definition.unique_key is None else callers_key(definition.unique_key),
    )
    return with_own_keys(run, target, definition.rate, definition.concurrency, definition.fair)


def with_own_keys(
    run: Run, target: Target, rates: tuple[Rate, ...], concurrency: Concurrency | None, fair: str | None
) -> Run:
    """A new run that belongs to no job, with its keys. Raises InvalidRequest, or InvalidJob for an unknown part."""
    if not rates and concurrency is None and fair is None:
        return run
    check_keys(rates, concurrency, fair)
    return with_keys(run, Source(None, run.queue, own_labels(run), target, run.payload), rates, concurrency, fair)


def _policy_of(definition: RunDefinition) -> RunPolicy | None:
    """None: all is as by default."""
    retry, timeouts, retention = definition.retry, definition.timeouts, definition.retention
    if (
        retry is DEFAULT_RETRY
        and timeouts is DEFAULT_TIMEOUTS
        and retention is DEFAULT_RETENTION
        and not definition.labels
    ):
        return None
    policy = RunPolicy(retry, timeouts, retention, labels=definition.labels)
    return None if policy == DEFAULT_RUN_POLICY else policy


def _payload(target: Target, given: Any) -> bytes | None:
    """What the run carries. That of an HTTP target without a payload is in its target."""
    match target:
        case HandlerTarget(args=args):
            value = args if given is None else given
            if not isinstance(value, dict):
                raise InvalidRequest("payload: a handler's arguments are an object", field="payload")
        case QueueTarget(payload=own) | BusTarget(payload=own):
            value = own if given is None else given
        case _:
            value = given
    payload = encode_payload(value)
    check_size("payload", payload, PAYLOAD_BYTES_MAX)
    return payload


def _due_at(definition: RunDefinition, now: Instant) -> Instant:
    if definition.at is not None and definition.delay_seconds is not None:
        raise InvalidRequest("delay_seconds: give `at` or `delay_seconds`, not both", field="delay_seconds")
    if definition.at is not None:
        return instant_of(definition.at, "at")
    return min(now + (to_micros(definition.delay_seconds) if definition.delay_seconds else 0), INSTANT_MAX)
