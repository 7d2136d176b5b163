"""The keyword arguments of `Scheduler`, written once: their names and types (an editor completes them), and how they
become the plain data of a definition. Faults are named in the words of the REST API.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Literal, TypedDict, get_type_hints

import msgspec

from horarium.delivery.handler import HandlerFunction
from horarium.errors import CallerError, HorariumError, InvalidJob, InvalidSetting, InvalidTrigger, UnknownArgument
from horarium.library.one_offs import RateGiven, encode_args
from horarium.model import Follow
from horarium.model.limits import LABEL_TEXT_MAX, NAMESPACE_PATTERN
from horarium.policies import Approval, CatchUp, CatchUpPolicy, Concurrency, Overlap, Retention, Retry, Timeouts
from horarium.ports import Bus
from horarium.triggers import Trigger
from horarium.triggers.words import quote
from horarium.wire.faults import find_faults, say_faults, unknown_names
from horarium.wire.rates import plain_rates

Role = Literal["api", "planner", "dispatcher", "rescuer", "pruner"]
CatchUpWord = Literal["none", "latest", "all", "ask"]
OverlapWord = Literal["allow", "skip", "buffer_one", "buffer_all", "cancel_other", "terminate_other"]


class SchedulerOptions(TypedDict, total=False):
    """How a scheduler behaves; all of it may be left out. docs/settings.md has what each means."""

    roles: Sequence[Role]
    node_name: str | None
    allow_private_targets: bool
    signing_secret: str | None
    smtp_url: str | None
    public_url: str | None
    certificate: str | None
    secrets_env_prefix: str
    secrets_dir: str
    secrets_allowed: Sequence[str]
    report_url: str | None
    report_secret: str | None
    plan_ahead_seconds: float
    execution_window_seconds: float
    catch_up_per_second: float
    jobs_max: int
    http_concurrency: int
    http_breaker_failures: int
    http_breaker_seconds: float
    handler_concurrency: int
    queues: Sequence[str] | None
    grace_seconds: float
    audit_retention_seconds: float | None
    metrics_jobs_max: int
    run_log_seconds: float
    run_log_bytes_max: int
    capture_logging: bool
    buses: Mapping[str, str | Bus] | None


class JobFields(TypedDict, total=False):
    """Fields of a job beside its name, its trigger and its target. Policies are structs, mappings or (`catch_up`,
    `concurrency`) a bare word; `rate`: one or several limits, each as `"api=100/1m"` too."""

    enabled: bool
    labels: Mapping[str, str]
    catch_up: CatchUp | CatchUpPolicy | CatchUpWord | Mapping[str, Any]
    overlap: Overlap | OverlapWord
    retry: Retry | Mapping[str, Any]
    timeouts: Timeouts | Mapping[str, Any]
    priority: int
    concurrency: Concurrency | str | Mapping[str, Any] | None
    rate: RateGiven | Sequence[RateGiven] | None
    fair: str | None
    jitter_seconds: float
    starts_at: datetime | None
    ends_at: datetime | None
    fires_max: int | None
    retention: Retention | Mapping[str, Any]
    title: str | None
    buffer_max: int | None
    approval: Approval | Mapping[str, Any] | None
    on: Mapping[str, Sequence[Follow | Mapping[str, Any]]]


class TargetFields(TypedDict, total=False):
    """The target of a job's runs: one of `handler` (a name or a registered function; with `args`), `http` (a URL, or
    the fields of an HTTP target), `queue` or `bus` (with `payload`), or `target` in full."""

    handler: str | HandlerFunction | None
    args: Mapping[str, Any] | None
    http: str | Mapping[str, Any] | None
    queue: str | None
    bus: str | None
    payload: Any
    target: Mapping[str, Any] | None


class JobArguments(TargetFields, JobFields, total=False):
    """Everything that `add_job` takes beside the name and the trigger."""


def check_names(given: Iterable[str], known: Sequence[str], error: type[HorariumError]) -> None:
    """Refuse a keyword argument that is not known, with the nearest that is."""
    faults = list(unknown_names(given, known, what="argument"))
    if faults:
        raise error(say_faults(faults), field=faults[0].field)


def check_named(namespace: object, program: object) -> None:
    """Raises InvalidSetting for names that a namespace or a program can't have."""
    if not (isinstance(namespace, str) and re.fullmatch(NAMESPACE_PATTERN, namespace)):
        said = f"namespace: expected 1 to 63 letters, digits, - or _, not {quote(namespace)}"
        raise InvalidSetting(said, field="namespace")
    if program is not None and not (isinstance(program, str) and 0 < len(program) <= LABEL_TEXT_MAX):
        said = f"program: expected a name of 1 to {LABEL_TEXT_MAX} characters, not {quote(program)}"
        raise InvalidSetting(said, field="program")


def check_options(given: Mapping[str, Any]) -> None:
    """Refuse an option that is unknown or of the wrong type. Raises UnknownArgument or InvalidSetting."""
    check_names(given, ["store", "namespace", "program", "clock", *SchedulerOptions.__annotations__], UnknownArgument)
    for name, kind in get_type_hints(SchedulerOptions).items():
        if name in given and name != "buses":
            faults = find_faults(given[name], kind, path=name)
            if faults:
                raise InvalidSetting(say_faults(faults), field=name)


def job_fields(name: str, trigger: object, given: Mapping[str, Any]) -> dict[str, Any]:
    """The plain fields of a job's definition, from what `add_job` was given. Raises InvalidJob or InvalidTrigger."""
    check_names(given, list(JobArguments.__annotations__), InvalidJob)
    target = one_target(given, InvalidJob)
    fields = {field: value for field, value in given.items() if field not in TargetFields.__annotations__}
    return {"name": name, "trigger": trigger_spec(trigger), "target": target, **plain_fields(fields)}


def one_target(given: Mapping[str, Any], error: type[HorariumError]) -> dict[str, Any]:
    """The target that was named. Raises `error` unless it is exactly one."""
    targets = _targets(given)
    if len(targets) != 1:
        raise error("target: give exactly one of handler, http, queue, bus and target", field="target")
    return targets[0]


def _targets(given: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The targets that were named; there should be one."""
    found: list[dict[str, Any]] = []
    payload = given.get("payload")
    if (handler := given.get("handler")) is not None:
        found.append({"type": "handler", "name": handler, "args": _plain_args(given.get("args"))})
    if (http := given.get("http")) is not None:
        found.append({"type": "http", **({"url": http} if isinstance(http, str) else http)})
    if (queue := given.get("queue")) is not None:
        found.append({"type": "queue", "queue": queue, "payload": payload})
    if (bus := given.get("bus")) is not None:
        found.append({"type": "bus", "bus": bus, "payload": payload})
    if (target := given.get("target")) is not None:
        found.append(dict(target))
    return found


def _plain_args(args: Any) -> Any:
    """The args of a job as JSON holds them. Raises InvalidRequest for what it can't hold."""
    encoded = encode_args(args)
    return {} if encoded is None else msgspec.json.decode(encoded)


def plain_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """As JSON holds them; a bare word as the policy that it means."""
    plain: dict[str, Any] = {name: _plain(name, value) for name, value in fields.items()}
    if isinstance(plain.get("catch_up"), str):
        plain["catch_up"] = {"policy": plain["catch_up"]}
    if isinstance(plain.get("concurrency"), str):
        plain["concurrency"] = {"key": plain["concurrency"]}
    if "rate" in plain:
        plain["rate"] = plain_rates(plain["rate"])
    return plain


def _plain(name: str, value: Any) -> Any:
    if isinstance(value, datetime):
        return value
    try:
        return msgspec.to_builtins(value)
    except TypeError:
        raise InvalidJob(f"{name}: {quote(value)} can't be kept in a job", field=name) from None


# ---- triggers ---------------------------------------------------------------------------------------------------


def trigger_spec(trigger: object) -> dict[str, Any]:
    if isinstance(trigger, Trigger):
        return trigger.spec()
    if isinstance(trigger, Mapping):
        return dict(trigger)
    if isinstance(trigger, str):
        raise InvalidTrigger(
            f"trigger: {quote(trigger)} is a bare text; say what kind of rule it is: {_wrapped(trigger)}",
            field="trigger",
        )
    if isinstance(trigger, timedelta):
        raise InvalidTrigger("trigger: a timedelta; wrap it: every(timedelta(...))", field="trigger")
    if isinstance(trigger, datetime):
        raise InvalidTrigger("trigger: a datetime; wrap it: at(datetime(...))", field="trigger")
    raise InvalidTrigger(
        f"trigger: expected cron(...), rrule(...), every(...), at(...) or when(...), not {quote(trigger)}",
        field="trigger",
    )


def _wrapped(text: str) -> str:
    """The text as the first kind of trigger that can read it."""
    from horarium.triggers import at, cron, every, rrule, when

    for make in (cron, rrule, every, at, when):
        try:
            make(text)
        except CallerError:
            continue
        return f"{make.__name__}({quote(text)})"
    return "cron(...), rrule(...), every(...), at(...) or when(...)"
