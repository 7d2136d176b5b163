"""From flags to a job's fields: durations, instants, labels, triggers and targets as people type them.

Each function gives plain data as the API takes it. What the API will check is not checked here; what only a human can
have meant (`5m`, `k=v`, a wall time with a zone) is read here, and refused in the words of the flag.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    FloatType = click.ParamType[float]
    AnyType = click.ParamType[Any]
    MomentType = click.ParamType[datetime]
else:
    # Older releases of click have no generic types.
    FloatType = AnyType = MomentType = click.ParamType

CATCH_UPS = ("none", "latest", "all", "ask")
OVERLAPS = ("allow", "skip", "buffer_one", "buffer_all", "cancel_other", "terminate_other")
ROLES = ("viewer", "operator", "producer", "editor", "worker", "admin")
TRIGGER_FLAGS = ("rrule", "cron", "every", "at", "when")
TARGET_FLAGS = ("http", "queue", "handler", "bus", "external")
HTTP_FLAGS = (
    "method", "header", "body", "body_file", "http_timeout", "expected_status", "signing_secret", "callback",
)  # fmt: skip

_UNITS = {"w": 604_800.0, "d": 86_400.0, "h": 3_600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
_DURATION = re.compile(r"(\d{1,12}(?:\.\d{1,6})?)(w|d|h|ms|m|s)", re.ASCII)
_NUMBER = re.compile(r"\d{1,12}(?:\.\d{1,6})?", re.ASCII)


class Duration(FloatType):
    """`90`, `90s`, `5m`, `1h30m`, `2d`: seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        seconds = value if isinstance(value, int | float) else duration_seconds(value)
        if seconds is None:
            self.fail(f"{value!r} is not a duration; give one such as 30s, 5m, 1h30m or 2d", param, ctx)
        return seconds


class Instant(MomentType):
    """RFC 3339 with an offset."""

    name = "instant"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        moment = read_moment(str(value))
        if moment is None or moment.tzinfo is None:
            self.fail(f"{value!r} is not an instant; give one such as 2026-12-24T18:00:00+01:00", param, ctx)
        return moment


class Json(AnyType):
    """A JSON value."""

    name = "json"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return json.loads(value)
        except ValueError as error:
            self.fail(f"{value!r} is not JSON: {error}; put texts in double quotes", param, ctx)


class When(MomentType):
    """An instant, a wall time of this machine, or a duration from now, which `read` counts."""

    name = "when"

    def __init__(self, read: Callable[[str, datetime], datetime]) -> None:
        self._read = read

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        return self._read(value, datetime.now(UTC))


DURATION, INSTANT, JSON = Duration(), Instant(), Json()


def _reference(text: str) -> Any:
    """A header's value: a text, or a reference such as `{"secret": "env:NAME"}`."""
    return json_or_text(text) if text.startswith('{"secret"') else text


def duration_seconds(text: str) -> float | None:
    """The seconds of a duration; None if it is none."""
    text = text.strip().lower()
    if _NUMBER.fullmatch(text):
        return float(text)
    parts = _DURATION.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        return None
    return sum(float(number) * _UNITS[unit] for number, unit in parts)


def read_moment(text: str) -> datetime | None:
    """A date and time, aware or not; None if it is none."""
    try:
        return datetime.fromisoformat(text.strip())
    except ValueError:
        return None


def pairs(flag: str, texts: Sequence[str], separator: str) -> dict[str, str]:
    """`name=value` texts (or `name: value`) as a dict."""
    found: dict[str, str] = {}
    for text in texts:
        name, sep, value = text.partition(separator)
        if not sep or not name.strip():
            raise click.UsageError(f"{flag}: {text!r} has no {separator!r}; give NAME{separator}VALUE")
        found[name.strip()] = value.strip()
    return found


# ---- triggers ---------------------------------------------------------------------------------------------------


def trigger_of(flags: Mapping[str, Any]) -> dict[str, Any] | None:
    """The trigger that the flags give; None if they give none. Raises UsageError for more than one."""
    days = {name: flags[name] for name in ("calendar", "convention", "offset") if flags.get(name) is not None}
    trigger = _plain_trigger(flags)
    if not days:
        return trigger
    if trigger is None:
        raise click.UsageError(
            f"--{next(iter(days))} belongs to a trigger; give --cron, --when, --rrule or --every too"
        )
    return {"type": "business_day", "trigger": trigger, **days}


def _plain_trigger(flags: Mapping[str, Any]) -> dict[str, Any] | None:
    given = [name for name in TRIGGER_FLAGS if flags.get(name) is not None]
    timezone = flags.get("timezone")
    if flags.get("from_end") and given != ["every"]:
        raise click.UsageError("--from-end belongs to --every")
    if flags.get("dialect") and given != ["cron"]:
        raise click.UsageError("--dialect belongs to --cron")
    if not given:
        if timezone is not None:
            raise click.UsageError("--timezone belongs to a trigger; give --cron, --when, --rrule or --at too")
        return None
    if len(given) > 1:
        raise click.UsageError(f"give one trigger, not {' and '.join('--' + name for name in given)}")
    (kind,) = given
    text = flags[kind]
    zone = {} if timezone is None else {"timezone": timezone}
    match kind:
        case "cron":
            from horarium.triggers.dialects import from_dialect

            return {"type": "cron", "expression": from_dialect(text, flags.get("dialect") or "cron"), **zone}
        case "when":
            return {"type": "phrase", "text": text, **zone}
        case "rrule":
            return {"type": "rrule", "rrule": text.replace("\\n", "\n").strip(), **zone}
        case "every":
            interval = _interval(text, timezone)
            return {**interval, "from": "end"} if flags.get("from_end") else interval
        case _:
            return {"type": "once", "at": _at(text, timezone)}


def _interval(text: str, timezone: str | None) -> dict[str, Any]:
    seconds = duration_seconds(text)
    if seconds is None:
        raise click.UsageError(f"--every: {text!r} is not a duration; give one such as 30s, 5m or 1h30m")
    if timezone is not None:
        raise click.UsageError("--timezone: an interval has none; use --cron or --when for wall times")
    return {"type": "interval", "every_seconds": int(seconds) if seconds == int(seconds) else seconds}


def _at(text: str, timezone: str | None) -> str:
    moment = read_moment(text)
    if moment is None:
        raise click.UsageError(f"--at: {text!r} is not an instant; give one such as 2026-12-24T18:00:00+01:00")
    if moment.tzinfo is not None:
        return moment.isoformat()
    if timezone is None:
        raise click.UsageError(f"--at: {text!r} has no offset; add one such as Z or +01:00, or give --timezone")
    return moment.replace(tzinfo=_zone(timezone)).isoformat()


def _zone(name: str) -> Any:
    from zoneinfo import ZoneInfo

    try:
        return ZoneInfo(name)
    except (ValueError, OSError, LookupError):
        raise click.UsageError(f"--timezone: there is no zone {name!r}; give one such as Europe/Berlin") from None


_CRON_FIELD = re.compile(r"[\d*?/,\-#LWHlwh()A-Za-z]+", re.ASCII)
_CRON_FIRST = re.compile(r"[\d*?Hh][\d*/,\-Hh()?]*", re.ASCII)
_CRON_NUMBERS = re.compile(r"[\d*?/,\-]+", re.ASCII)
_RULE = re.compile(r"(DTSTART|RRULE|RDATE|EXDATE|EXRULE|FREQ)\b", re.IGNORECASE)


def guess_trigger(text: str, timezone: str | None) -> dict[str, Any]:
    """The trigger that a text means: JSON, an RRULE, a cron expression, an instant, a duration, or a phrase."""
    text = text.strip()
    if text.startswith("{"):
        return trigger_json(text)
    if wrapped := re.fullmatch(r"(cron|rate|at)\((.*)\)", text):
        flag = {"cron": f"--cron {text!r} --dialect eventbridge", "rate": "--every 5m", "at": f"--at {wrapped[2]}"}
        raise click.UsageError(f"{text!r} is of EventBridge; give {flag[wrapped[1]]}")
    if _RULE.match(text) or "FREQ=" in text.upper():
        return trigger_of({"rrule": text, "timezone": timezone}) or {}
    if is_cron(text):
        return trigger_of({"cron": text, "timezone": timezone}) or {}
    if read_moment(text) is not None:
        return trigger_of({"at": text, "timezone": timezone}) or {}
    if duration_seconds(text) is not None and timezone is None:
        return _interval(text, None)
    _check_field_count(text)
    return trigger_of({"when": text, "timezone": timezone}) or {}


def _check_field_count(text: str) -> None:
    """Raises UsageError for text that can only be a cron expression, of too few or too many fields."""
    fields = text.split()
    if len(fields) > 2 and all(_CRON_NUMBERS.fullmatch(field) for field in fields):
        raise click.UsageError(
            f"{text!r} is a cron expression of {len(fields)} fields; give 5 (minute, hour, day of the month, month, "
            "day of the week), 6 (seconds first) or 7 (and the year last)"
        )


def trigger_json(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise click.UsageError(f"the trigger is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise click.UsageError('the trigger is no JSON object; give one such as {"type": "cron", ...}')
    return value


def is_cron(text: str) -> bool:
    """Whether a text looks like a cron expression and not like a phrase."""
    if text.startswith("@") and len(text.split()) == 1:
        return True
    fields = text.split()
    return (
        5 <= len(fields) <= 7
        and all(_CRON_FIRST.fullmatch(field) for field in fields[: len(fields) - 3])
        and all(_CRON_FIELD.fullmatch(field) for field in fields)
    )


# ---- targets ----------------------------------------------------------------------------------------------------


def target_of(flags: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of the target that the flags give, with its type if they say it. Raises UsageError for two."""
    given = [name for name in TARGET_FLAGS if flags.get(name) not in (None, False)]
    if len(given) > 1:
        raise click.UsageError(f"give one target, not {' and '.join('--' + name for name in given)}")
    fields = _http_fields(flags)
    fields |= {name: flags[name] for name in ("payload", "args") if flags.get(name) is not None}
    if not given:
        return fields
    if given[0] != "http" and (strange := [name for name in HTTP_FLAGS if flags.get(name)]):
        raise click.UsageError(f"--{strange[0].replace('_', '-')} belongs to --http; a target of --{given[0]} has none")
    if flags.get("program"):
        return {"type": "command", "queue": flags["queue"], **flags["program"]}
    if given[0] == "external":
        return {"type": "external", **fields}
    key = {"http": "url", "queue": "queue", "handler": "name", "bus": "bus"}[given[0]]
    return {"type": given[0], key: flags[given[0]], **fields}


def _http_fields(flags: Mapping[str, Any]) -> dict[str, Any]:
    headers = pairs("--header", flags.get("header") or (), ":")
    fields = {
        "method": (flags.get("method") or "").upper(),
        "headers": {name: _reference(text) for name, text in headers.items()},
        "timeout_seconds": flags.get("http_timeout"),
        "expected_status": list(flags.get("expected_status") or ()),
        "signing_secret": flags.get("signing_secret"),
        "completion": "callback" if flags.get("callback") else None,
    }
    body = body_of(flags)
    given = {name: value for name, value in fields.items() if value not in (None, "", [], {})}
    return given if body is None else {**given, "body": body}


def body_of(flags: Mapping[str, Any]) -> Any:
    """The body: a JSON value where the text is one, else the text."""
    text, file = flags.get("body"), flags.get("body_file")
    if text is not None and file is not None:
        raise click.UsageError("give --body or --body-file, not both")
    if file is not None:
        text = read_text(file)
    return json_or_text(text)


def json_or_text(text: str | None) -> Any:
    """A JSON value where the text is one, else the text."""
    try:
        return None if text is None else json.loads(text)
    except ValueError:
        return text


def read_text(path: str) -> str:
    """A file's text, without a byte order mark; `-` is the standard input."""
    try:
        if path == "-":
            return sys.stdin.read().removeprefix("\ufeff")
        return Path(path).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise click.UsageError(f"{path} is not UTF-8 text") from None
    except OSError as error:
        raise click.UsageError(f"{path} can't be read: {error.strerror}") from None


# ---- policies ---------------------------------------------------------------------------------------------------

POLICIES: dict[str, tuple[str, ...]] = {
    "catch_up": ("catch_up", "policy"), "catch_up_window": ("catch_up", "window_seconds"),
    "catch_up_within": ("catch_up", "within_seconds"), "catch_up_else": ("catch_up", "then"), "overlap": ("overlap",),
    "attempts": ("retry", "attempts_max"), "backoff": ("retry", "backoff_seconds"),
    "backoff_factor": ("retry", "backoff_factor"), "backoff_max": ("retry", "backoff_max_seconds"),
    "retry_age": ("retry", "age_max_seconds"), "silences": ("retry", "silences_max"),
    "start_timeout": ("timeouts", "start_seconds"), "execution_timeout": ("timeouts", "execution_seconds"),
    "heartbeat_timeout": ("timeouts", "heartbeat_seconds"), "priority": ("priority",), "fair": ("fair",),
    "jitter": ("jitter_seconds",), "starts_at": ("starts_at",), "ends_at": ("ends_at",), "fires_max": ("fires_max",),
    "title": ("title",), "buffer_max": ("buffer_max",), "approve_by": ("approval", "roles"),
    "approve_within": ("approval", "within_seconds"), "approve_else": ("approval", "then"),
    "four_eyes": ("approval", "four_eyes"), "keep": ("retention", "finished_seconds"),
    "keep_runs": ("retention", "runs_max"), "enabled": ("enabled",),
}  # fmt: skip
"""Flag -> where its value is in a job."""


def policies_of(flags: Mapping[str, Any]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    flags = {**flags, "attempts": attempts_of(flags)}
    for flag, path in POLICIES.items():
        if flags.get(flag) is None or flags[flag] == ():
            continue
        place = fields
        for name in path[:-1]:
            place = place.setdefault(name, {})
        place[path[-1]] = flags[flag]
    if flags.get("label"):
        fields["labels"] = pairs("--label", flags["label"], "=")
    if flags.get("concurrency") is not None:
        fields["concurrency"] = concurrency_of(flags["concurrency"])
    if flags.get("rate"):
        fields["rate"] = [rate_of(text) for text in flags["rate"]]
    return fields


_FLAG_OF = {".".join(path): flag for flag, path in POLICIES.items()} | {
    "labels": "label", "concurrency": "concurrency", "rate": "rate", "on": "on",
    "target.url": "http", "target.queue": "queue",
    "target.name": "handler", "target.bus": "bus", "target.headers": "header", "target.body": "body",
    "target.method": "method", "target.timeout_seconds": "http-timeout", "target.expected_status": "expected-status",
    "target.signing_secret": "signing-secret", "target.payload": "payload", "target.args": "args",
    "trigger.expression": "cron", "trigger.timezone": "timezone", "trigger.rrule": "rrule", "trigger.text": "when",
    "trigger.every_seconds": "every", "trigger.at": "at", "trigger.calendar": "calendar",
    "trigger.convention": "convention", "trigger.offset": "offset", "trigger.jobs": "after", "trigger.within": "within",
}  # fmt: skip


def flag_of(field: str | None) -> str | None:
    """The flag that sets a field of a job, for a message about it: `retry.attempts_max` is set by `--attempts`."""
    while field:
        if field in _FLAG_OF:
            return "--" + _FLAG_OF[field].replace("_", "-")
        field = field.rpartition(".")[0]
    return None


def attempts_of(flags: Mapping[str, Any]) -> int | None:
    """`--attempts N`, or `--retries N`, which is one attempt more."""
    attempts, retries = flags.get("attempts"), flags.get("retries")
    if attempts is not None and retries is not None:
        raise click.UsageError("give --attempts or --retries, not both: N retries are N + 1 attempts")
    return attempts if retries is None else retries + 1


def concurrency_of(text: str) -> dict[str, Any]:
    """`KEY=MAX`; a bare KEY means one at a time."""
    key, sep, most = text.rpartition("=")
    if not sep:
        return {"key": text, "max": 1}
    if not key or not most.isdigit():
        raise click.UsageError(f"--concurrency: {text!r} is not KEY=MAX, such as reports=2")
    return {"key": key, "max": int(most)}


def rate_of(text: str) -> dict[str, Any]:
    """`KEY=MAX/TIME`."""
    from horarium.errors import InvalidRequest
    from horarium.wire.rates import read_rate

    try:
        return read_rate(text)
    except InvalidRequest as error:
        raise click.UsageError(f"--{error.message}") from None


def since_moment(text: str, now: datetime, zone: tzinfo | None = None) -> datetime:
    """An instant, a wall time in the zone (None: that of this machine), or a duration that lies before `now`."""
    seconds = duration_seconds(text)
    if seconds is not None:
        return now - timedelta(seconds=seconds)
    moment = read_moment(text)
    if moment is None:
        raise click.UsageError(
            f"{text!r} is no instant such as 2026-12-24T18:00:00Z, no wall time such as 2026-12-24T18:00, and no time "
            "ago such as 30m or 2d"
        )
    if moment.tzinfo is None:
        return moment.astimezone() if zone is None else moment.replace(tzinfo=zone)
    return moment


def until_moment(text: str, now: datetime) -> datetime:
    """An instant, or a duration that lies after `now`."""
    seconds = duration_seconds(text)
    return since_moment(text, now) if seconds is None else now + timedelta(seconds=seconds)


AGO, AHEAD = When(since_moment), When(until_moment)
