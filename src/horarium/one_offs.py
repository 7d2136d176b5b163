"""One-off runs of handlers, from what a caller gives to the runs that are added: pure, nothing is written here."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import msgspec

from horarium.clock import INSTANT_MAX, INSTANT_MIN, Instant, to_instant, to_micros
from horarium.errors import InvalidRequest
from horarium.model import PAYLOAD_BYTES_MAX, PRIORITY_MAX, PRIORITY_MIN, Cause, Name, Run, RunPolicy, State, uuid7s
from horarium.policies import Concurrency, Retention, Retry, Timeouts

DELAY_SECONDS_MAX = 10 * 366 * 86_400
KEY = re.compile(r"[\x21-\x7e]{1,200}")
"""A unique key: as an Idempotency-Key of the API."""


class Wanted(NamedTuple):
    """How one-off runs shall be, beside their args."""

    at: datetime | None = None
    delay: timedelta | float | None = None
    priority: int = 0
    unique_key: str | None = None
    retry: Retry | Mapping[str, Any] | None = None
    timeouts: Timeouts | Mapping[str, Any] | None = None
    retention: Retention | Mapping[str, Any] | None = None
    concurrency: Concurrency | Mapping[str, Any] | None = None


def one_offs(name: str, payloads: Sequence[bytes | None], wanted: Wanted, now: Instant, entropy: bytes) -> list[Run]:
    """A run of the handler `name` for each payload (JSON text), due as wanted. `entropy`: ten bytes of chance. Raises
    InvalidRequest."""
    _check(name, wanted)
    due_at = _due_at(now, wanted.at, wanted.delay)
    policy = _policy(wanted)
    timeouts = policy.timeouts if policy is not None else Timeouts()
    concurrency = _converted("concurrency", wanted.concurrency, Concurrency)
    start_by = None if timeouts.start_seconds is None else max(due_at, now) + to_micros(timeouts.start_seconds)
    ids = uuid7s(due_at, entropy, len(payloads))
    return [
        Run(
            id=run_id,
            queue=f"handler/{name}",
            fire_at=due_at,
            due_at=due_at,
            created_at=now,
            state=State.PENDING,
            priority=wanted.priority,
            cause=Cause.ENQUEUED,
            payload=payload,
            policy=policy,
            unique_key=wanted.unique_key,
            concurrency_key=concurrency.key if concurrency else None,
            concurrency_max=concurrency.max if concurrency else 0,
            lease_seconds=timeouts.heartbeat_seconds,
            execution_seconds=timeouts.execution_seconds,
            start_by=start_by,
        )
        for run_id, payload in zip(ids, payloads, strict=True)
    ]


def encode_args(args: Any) -> bytes | None:
    """The args of a run as JSON text; None stays None. Raises InvalidRequest for what is no mapping from names, what
    JSON can't hold, and what is too large."""
    if args is None:
        return None
    if not isinstance(args, Mapping):
        raise InvalidRequest(f"args: expected a mapping from names to values, not {type(args).__name__}", field="args")
    return encode("args", args if isinstance(args, dict) else dict(args))


def encode(field: str, value: Any) -> bytes:
    """As JSON text. Raises InvalidRequest that names the field."""
    try:
        text = msgspec.json.encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidRequest(f"{field}: can't be written as JSON: {error}", field=field) from None
    if len(text) > PAYLOAD_BYTES_MAX:
        raise InvalidRequest(f"{field}: {len(text):,} bytes; at most {PAYLOAD_BYTES_MAX:,} are kept", field=field)
    return text


def _check(name: str, wanted: Wanted) -> None:
    try:
        msgspec.convert(name, Name)
    except msgspec.ValidationError:
        raise InvalidRequest(
            f"name: {name!r} is no handler's name; letters, digits and ._:@- make one, 200 at the most", field="name"
        ) from None
    priority = wanted.priority
    if type(priority) is not int or not PRIORITY_MIN <= priority <= PRIORITY_MAX:
        raise InvalidRequest(
            f"priority: must be a whole number from {PRIORITY_MIN:,} to {PRIORITY_MAX:,}, not {priority!r}",
            field="priority",
        )
    if wanted.unique_key is not None and not KEY.fullmatch(wanted.unique_key):
        raise InvalidRequest("unique_key: must be 1 to 200 visible ASCII characters without spaces", field="unique_key")


def _policy(wanted: Wanted) -> RunPolicy | None:
    """The policies of one-off runs; None where all are the defaults."""
    retry = _converted("retry", wanted.retry, Retry)
    timeouts = _converted("timeouts", wanted.timeouts, Timeouts)
    retention = _converted("retention", wanted.retention, Retention)
    if retry is timeouts is retention is None:
        return None
    return RunPolicy(retry or Retry(), timeouts or Timeouts(), retention or Retention())


def _converted(field: str, given: Any, kind: Any) -> Any:
    """A policy given as a struct or a mapping. Its limits hold for both."""
    if given is None:
        return None
    try:
        return msgspec.convert(msgspec.to_builtins(given), kind)
    except (msgspec.ValidationError, TypeError) as error:
        raise InvalidRequest(f"{field}: {error}", field=field) from None


def _due_at(now: Instant, at: datetime | None, delay: timedelta | float | None) -> Instant:
    if at is not None and delay is not None:
        raise InvalidRequest("give `at` or `delay`, not both", field="delay")
    if at is not None:
        due_at = to_instant(at)
        if not INSTANT_MIN <= due_at <= INSTANT_MAX:
            raise InvalidRequest(f"at: must be from 1970 to 2200, not {at.isoformat()}", field="at")
        return due_at
    if delay is None:
        return now
    if not isinstance(delay, timedelta | int | float):
        raise InvalidRequest(f"delay: expected a timedelta or seconds, not {delay!r}", field="delay")
    seconds = delay.total_seconds() if isinstance(delay, timedelta) else float(delay)
    if not 0 <= seconds <= DELAY_SECONDS_MAX:
        raise InvalidRequest(f"delay: must be from 0 s to ten years, not {seconds:g} s", field="delay")
    return now + to_micros(seconds)
