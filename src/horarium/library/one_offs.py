"""One-off runs of handlers, from what a caller gives to the runs that are added: pure, nothing is written here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple, TypedDict, TypeVar, cast

import msgspec
from msgspec.structs import replace

from horarium.clock import INSTANT_MAX, INSTANT_MIN, SECOND, Instant, to_instant, to_micros
from horarium.delivery.arguments import json_of
from horarium.errors import InvalidRequest, InvalidTrigger, UnknownArgument
from horarium.model import (
    PAYLOAD_BYTES_MAX,
    PRIORITY_MAX,
    PRIORITY_MIN,
    HandlerTarget,
    Run,
    RunFollow,
    RunPolicy,
    callers_key,
    is_name,
    one_off_run,
    uuid7s,
)
from horarium.model.labels import Labels
from horarium.model.limits import DELAY_SECONDS_MAX
from horarium.policies import Concurrency, Debounce, FairKey, Rate, Rates, Retention, Retry, Timeouts, Unique
from horarium.rules.keys import Source, check_keys, resolve
from horarium.rules.uniqueness import field_of, rule_of
from horarium.triggers import every
from horarium.triggers.words import quote
from horarium.wire.faults import fault_of, find_faults, say_faults, unknown_names
from horarium.wire.rates import plain_rates

RateGiven = Rate | str | Mapping[str, Any]
Rule = TypeVar("Rule", bound=Unique | Debounce)


class RunFields(TypedDict, total=False):
    """How one-off runs are made, beside their args: at an instant, or after a delay (a timedelta, seconds, or a text
    such as `5m`); policies are structs or mappings, `concurrency` may be a bare key, `rate` one limit or
    several, each as `"api=100/1m"` too."""

    at: datetime | None
    delay: timedelta | str | float | None
    priority: int
    retry: Retry | Mapping[str, Any] | None
    timeouts: Timeouts | Mapping[str, Any] | None
    retention: Retention | Mapping[str, Any] | None
    concurrency: Concurrency | str | Mapping[str, Any] | None
    rate: RateGiven | Sequence[RateGiven] | None
    labels: Mapping[str, str]
    fair: str | None


class TaskCall(NamedTuple):
    """A task with its args and options, to be enqueued later (`Task.with_args`)."""

    handler: str | Callable[..., Any]
    args: Mapping[str, Any] | None
    options: Mapping[str, Any]


Then = str | Callable[..., Any] | TaskCall | Mapping[str, Any]
"""A successor: a handler (its function or name), a task with options, perhaps with args (`with_args`), or
`{"handler": NAME, "args": {...}}` and fields of a run beside."""


class EnqueueFields(RunFields, total=False):
    """The same, and the successors of the run, once it completes. One without args of its own gets the result of the
    run as its args: an object by its fields, another value as the argument `result`."""

    then: Then | Sequence[Then] | None


class Wanted(EnqueueFields, total=False):
    """The same, with the key of the caller's, if it gave one."""

    unique_key: str | None


TIMES = ("at", "delay")
"""Arguments that say when a run is due."""
OF_ONE_RUN = ("unique_key", "unique", "debounce", "connection", "actor")
"""Arguments of `enqueue` that are none of many runs alike."""
_OF_MANY = EnqueueFields.__annotations__.keys()


def wanted(given: Mapping[str, Any], unique_key: str | None = None) -> Wanted:
    """The run that keyword arguments ask for. Raises UnknownArgument, which names the nearest."""
    if given.keys() <= _OF_MANY:
        return cast(Wanted, {**given, "unique_key": unique_key})
    faults = list(unknown_names(given, [*EnqueueFields.__annotations__, *OF_ONE_RUN], what="argument"))
    if faults:
        raise UnknownArgument(say_faults(faults), field=faults[0].field)
    alone = next(name for name in OF_ONE_RUN if name in given)
    raise UnknownArgument(f"{alone}: it is for one run; give it to `enqueue`", field=alone)


def unique_rule(
    unique_key: str | None,
    unique: Unique | Mapping[str, Any] | None,
    debounce: Debounce | Mapping[str, Any] | None,
    connection: Any,
) -> Unique | Debounce | None:
    """The rule of a unique run, if there is one. Raises InvalidRequest."""
    rule = rule_of(unique_key, _converted("unique", unique, Unique), _converted("debounce", debounce, Debounce))
    if rule is not None and connection is not None:
        message = "`unique`, that of its handler too, and `debounce` can't hold in your transaction; a unique_key can"
        raise InvalidRequest(f"connection: {message}", field="connection")
    return rule


def with_key(rule: Rule, queue: str, labels: Mapping[str, str], payload: bytes | None) -> Rule:
    """The rule of a handler's run, the parts of its key filled in. Raises InvalidRequest for one that is missing."""
    source = Source(None, queue, labels, HandlerTarget(queue.removeprefix("handler/")), payload)
    return replace(rule, key=resolve(rule.key, source, field_of(rule)))


def follow_of(call: TaskCall, run: Run, how: Wanted) -> RunFollow:
    """This run, as one that follows. Raises InvalidRequest."""
    if how.get("at") is not None:
        raise InvalidRequest("then.at: it is due once the run before it has ended; give a delay", field="then.at")
    return RunFollow(
        queue=run.queue,
        payload=None if call.args is None or run.payload is None else msgspec.json.decode(run.payload),
        delay=run.due_at - run.created_at,
        priority=run.priority,
        policy=run.policy,
        concurrency_key=run.concurrency_key,
        concurrency_max=run.concurrency_max,
        rates=run.rates,
        fair=run.fair,
    )


def one_offs(
    name: str,
    payloads: Sequence[bytes | None],
    how: Wanted,
    now: Instant,
    entropy: bytes,
    then: tuple[RunFollow, ...] = (),
    *,
    follows: bool = False,
) -> list[Run]:
    """A run of the handler `name` for each payload (JSON text), due as how. `entropy`: ten bytes of chance. `then`:
    what follows from each. `follows`: they wait for a result as their payload, with which their keys are filled in.
    Raises InvalidRequest."""
    _check(name, how)
    due_at = _due_at(now, how.get("at"), how.get("delay"))
    policy = _policy(how, then)
    ids = uuid7s(due_at, entropy, len(payloads))
    unique_key, priority = how.get("unique_key"), how.get("priority", 0)
    runs = [
        one_off_run(
            id=run_id,
            queue=f"handler/{name}",
            due_at=due_at,
            now=now,
            priority=priority,
            payload=payload,
            policy=policy,
            unique_key=None if unique_key is None else callers_key(unique_key),
        )
        for run_id, payload in zip(ids, payloads, strict=True)
    ]
    if how.get("concurrency") is how.get("rate") is how.get("fair") is None:
        return runs
    concurrency, rates = _concurrency(how.get("concurrency")), _rates(how.get("rate"))
    fair: str | None = _converted("fair", how.get("fair"), FairKey)
    check_keys(rates, concurrency, fair)
    if follows:
        key, most = (None, 0) if concurrency is None else (concurrency.key, concurrency.max)
        return [replace(run, rates=rates, concurrency_key=key, concurrency_max=most, fair=fair) for run in runs]
    from horarium.wire.one_offs import with_own_keys

    return [with_own_keys(run, HandlerTarget(name), rates, concurrency, fair) for run in runs]


def encode_args(args: Any) -> bytes | None:
    """The args of a run as JSON text; None stays None. Raises InvalidRequest unless it is a mapping from names, JSON,
    and small enough."""
    if args is None:
        return None
    if not isinstance(args, dict):
        if not isinstance(args, Mapping):
            raise InvalidRequest(
                f"args: expected a mapping from names to values, not {type(args).__name__}", field="args"
            )
        args = dict(args)
    return encode("args", args)


def encode(field: str, value: Any) -> bytes:
    """As JSON text. Raises InvalidRequest that names the field."""
    try:
        text = json_of(value, field)
    except ValueError as error:
        raise InvalidRequest(f"{field}: {error}", field=field) from None
    if len(text) > PAYLOAD_BYTES_MAX:
        raise InvalidRequest(f"{field}: {len(text):,} bytes; at most {PAYLOAD_BYTES_MAX:,} are kept", field=field)
    return text


def _check(name: str, how: Wanted) -> None:
    if not is_name(name):
        raise InvalidRequest(
            f"name: {name!r} is no handler's name; letters, digits and ._:@- make one, at most 200", field="name"
        )
    priority, unique_key = how.get("priority", 0), how.get("unique_key")
    if type(priority) is not int or not PRIORITY_MIN <= priority <= PRIORITY_MAX:
        raise InvalidRequest(
            f"priority: must be a whole number from {PRIORITY_MIN:,} to {PRIORITY_MAX:,}, not {priority!r}",
            field="priority",
        )
    if unique_key is not None and not isinstance(unique_key, str):
        raise InvalidRequest(f"unique_key: expected a text, not {quote(unique_key)}", field="unique_key")


def _policy(how: Wanted, then: tuple[RunFollow, ...]) -> RunPolicy | None:
    """The policies of one-off runs; None where all are the defaults."""
    given = how.get("retry"), how.get("timeouts"), how.get("retention"), how.get("labels") or None
    if given == (None, None, None, None) and not then:
        return None
    retry = _converted("retry", given[0], Retry)
    timeouts = _converted("timeouts", given[1], Timeouts)
    retention = _converted("retention", given[2], Retention)
    labels: dict[str, str] = _converted("labels", given[3], Labels) or {}
    return RunPolicy(retry or Retry(), timeouts or Timeouts(), retention or Retention(), labels=labels, then=then)


def _concurrency(given: Concurrency | str | Mapping[str, Any] | None) -> Concurrency | None:
    policy: Concurrency | None = _converted(
        "concurrency", {"key": given} if isinstance(given, str) else given, Concurrency
    )
    return policy


def _rates(given: RateGiven | Sequence[RateGiven] | None) -> tuple[Rate, ...]:
    rates: tuple[Rate, ...] = () if given is None else _converted("rate", plain_rates(given), Rates)
    return rates


def _converted(field: str, given: Any, kind: Any) -> Any:
    """A policy given as a struct or a mapping. Its limits hold for both."""
    if given is None:
        return None
    try:
        plain = msgspec.to_builtins(given)
    except TypeError:
        raise InvalidRequest(f"{field}: {quote(given)} can't be kept in a run", field=field) from None
    try:
        return msgspec.convert(plain, kind)
    except msgspec.ValidationError as error:
        faults = find_faults(plain, kind, path=field) or [fault_of(error)]
        raise InvalidRequest(say_faults(faults), field=field) from None


def _due_at(now: Instant, at: datetime | None, delay: timedelta | str | float | None) -> Instant:
    if at is not None and delay is not None:
        raise InvalidRequest("give `at` or `delay`, not both", field="delay")
    if at is not None:
        due_at = to_instant(at)
        if not INSTANT_MIN <= due_at <= INSTANT_MAX:
            raise InvalidRequest(f"at: must be from 1970 to 2200, not {at.isoformat()}", field="at")
        return due_at
    if delay is None:
        return now
    seconds = delay_seconds(delay)
    if not 0 <= seconds <= DELAY_SECONDS_MAX:
        raise InvalidRequest(f"delay: must be from 0 s to ten years, not {seconds:g} s", field="delay")
    return now + to_micros(seconds)


def delay_seconds(delay: timedelta | str | float, field: str = "delay") -> float:
    """A delay in seconds. Raises InvalidRequest for any other value."""
    if isinstance(delay, timedelta):
        return delay.total_seconds()
    if isinstance(delay, str):
        try:
            return every(delay).every / SECOND
        except InvalidTrigger as error:
            message = error.message.removeprefix("every_seconds: ")
            raise InvalidRequest(f"{field}: {message}", field=field) from None
    if isinstance(delay, int | float) and not isinstance(delay, bool):
        return float(delay)
    raise InvalidRequest(
        f"{field}: expected a timedelta, seconds or a text such as '5m', not {quote(delay)}", field=field
    )
