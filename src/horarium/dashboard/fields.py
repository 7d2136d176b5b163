"""The form of a job: from typed text to a definition, and back; and the same as JSON and as a command line.

The form has a field for each thing that most jobs need, and one with all others as JSON. An edit begins with the stored
definition and lays the fields of the form over it.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from horarium.model import Job
from horarium.policies import CatchUpPolicy, Overlap
from horarium.triggers import every
from horarium.triggers.join import JoinOutcome
from horarium.wire.definitions import definition_of
from horarium.wire.faults import Fault

KINDS = (("phrase", "Words"), ("cron", "Cron"), ("rrule", "RRULE"), ("interval", "Interval"), ("once", "Once"),
         ("after", "After jobs"))  # fmt: skip
OTHER = ("json", "JSON")
RULE_FIELD = {"phrase": "text", "cron": "expression", "rrule": "rrule", "interval": "every_seconds", "once": "at",
              "after": "jobs"}  # fmt: skip
ZONED = frozenset({"phrase", "cron", "rrule"})
FLAG = {"phrase": "--when", "cron": "--cron", "rrule": "--rrule", "interval": "--every", "once": "--at",
        "after": "--after"}  # fmt: skip
OUTCOMES = ((JoinOutcome.COMPLETED.value, "Completed"), (JoinOutcome.FINISHED.value, "Ended, however"))
TARGETS = (("queue", "Queue"), ("http", "HTTP"), ("handler", "Handler"), ("bus", "Bus"), ("external", "Elsewhere"))
_FOLDED = re.compile(r"\r?\n[ \t]")
_NEXT_LINE = re.compile(r"\s+(?=(?:DTSTART|RRULE|RDATE|EXDATE|EXRULE)[:;])", re.IGNORECASE)
"""The separator of the lines of a recurrence rule in a field of one line, where browsers allow no line break."""
TARGET_FLAGS = {"http": ("--http", "url"), "queue": ("--queue", "queue"), "handler": ("--handler", "name"),
                "bus": ("--bus", "bus")}  # fmt: skip
PAYLOAD_FIELD = {"queue": "payload", "http": "body", "handler": "args", "bus": "payload"}
OVERLAPS = (
    (Overlap.ALLOW.value, "Let both run"),
    (Overlap.SKIP.value, "Skip the new one"),
    (Overlap.BUFFER_ONE.value, "One waits for it"),
    (Overlap.BUFFER_ALL.value, "All wait for it"),
    (Overlap.CANCEL_OTHER.value, "Ask the earlier one to stop"),
    (Overlap.TERMINATE_OTHER.value, "End the earlier one"),
)
CATCH_UPS = (
    (CatchUpPolicy.LATEST.value, "Run once, for the newest"),
    (CatchUpPolicy.ALL.value, "Run all of them"),
    (CatchUpPolicy.NONE.value, "Run none of them"),
    (CatchUpPolicy.ASK.value, "Ask a person"),
)
UNITS = ((86_400, "d"), (3_600, "h"), (60, "m"))
LENGTHS = {
    "jitter": ("", "jitter_seconds"),
    "start_by": ("timeouts", "start_seconds"),
    "lease": ("timeouts", "heartbeat_seconds"),
}
FOLLOWS = {"tell": ("failed", "notify"), "then_run": ("completed", "trigger")}
"""For follow-ups that are no more than a name; a list with any other is left to the JSON."""
OPTIONAL = ("priority", *LENGTHS, *FOLLOWS)
OPTIONAL_PLACES = {
    "priority": "priority",
    "jitter_seconds": "jitter",
    "timeouts.start_seconds": "start_by",
    "timeouts.heartbeat_seconds": "lease",
}
TWICE = "Stands here and in the JSON below, with another value."
PLACES = {
    "name": "name", "title": "title", "labels": "labels", "trigger": "rule", "timezone": "timezone",
    "target.url": "url",
    "target.method": "method", "target.headers": "headers", "target.name": "handler",
    "target.queue": "queue", "target.bus": "bus", "target.payload": "payload",
    "target.body": "payload", "target.args": "payload", "overlap": "overlap",
    "retry.attempts_max": "attempts", "retry.backoff_seconds": "backoff", "timeouts.execution_seconds": "time_limit",
    "catch_up": "catch_up", "target": "target", **OPTIONAL_PLACES,
}  # fmt: skip
"""Where a fault of the definition is shown in the form."""
IN_TRIGGER = {"timezone": "timezone", "within": "within", "outcome": "outcome", "deadline_seconds": "deadline"}
IN_FIELDS = {
    "retry": ("attempts_max", "backoff_seconds"), "timeouts": ("execution_seconds",), "catch_up": ("policy",),
}  # fmt: skip
"""Fields of groups that the form has."""

SAID_BY_FLAGS: dict[str, frozenset[str]] = {
    "name": frozenset(), "trigger": frozenset(), "labels": frozenset(), "overlap": frozenset(),
    "target": frozenset({"type", "url", "method", "headers", "name", "queue", "bus", "body", "args", "payload"}),
    "retry": frozenset({"attempts_max", "backoff_seconds"}), "timeouts": frozenset({"execution_seconds"}),
    "catch_up": frozenset({"policy"}), "title": frozenset(),
}  # fmt: skip
"""Fields that `as_command` writes as flags; of an object, which of its fields."""

JOIN_FIELDS = ("within", "outcome", "deadline_seconds")
OTHERS = "more"
"""The field with all that the form has no field for, as JSON."""
NEW = {
    "name": "", "title": "", "labels": "", "kind": "phrase", "rule": "", "timezone": "", "target": "queue", "url": "",
    "method": "POST", "headers": "", "handler": "", "queue": "", "bus": "default", "payload": "", "overlap": "allow",
    "within": "day", "outcome": "completed", "deadline": "",
    "attempts": "3", "backoff": "5", "time_limit": "", "catch_up": "latest",
}  # fmt: skip
"""The fields that each form has."""


class Typed(Struct, frozen=True):
    """A definition made of a form, and what could not be read of it."""

    definition: dict[str, Any]
    faults: tuple[Fault, ...] = ()


def form_of(job: Job) -> dict[str, str]:
    """A stored job in the form's fields."""
    shown: dict[str, Any] = json.loads(msgspec.json.encode(definition_of(job)))
    trigger, target = shown["trigger"], shown["target"]
    kind = trigger["type"] if trigger["type"] in RULE_FIELD else "json"
    rule = trigger.get(RULE_FIELD[kind], "") if kind != "json" else json.dumps(trigger)
    if kind == "rrule":
        rule = " ".join(_FOLDED.sub("", rule).split())
    payload = target.get(PAYLOAD_FIELD.get(target["type"], "payload"))
    limit = shown.get("timeouts", {}).get("execution_seconds")
    others = _others(shown)
    optional = taken_from(others)
    return {
        **NEW,
        "name": job.name,
        "title": job.title or "",
        OTHERS: json.dumps(others, ensure_ascii=False, indent=2) if others else "",
        "labels": ", ".join(f"{name}={value}" if value else name for name, value in job.labels.items()),
        "kind": kind,
        "rule": ", ".join(rule) if kind == "after" else f"{rule:.15g}" if isinstance(rule, int | float) else str(rule),
        "timezone": trigger.get("timezone", ""),
        **(_join_form(trigger) if kind == "after" else {}),
        "target": target["type"],
        "url": target.get("url", ""),
        "method": target.get("method", "POST"),
        "headers": "\n".join(
            f"{name}: {text if isinstance(text, str) else json.dumps(text)}"
            for name, text in target.get("headers", {}).items()
        ),
        "handler": target.get("name", ""),
        "queue": target.get("queue", ""),
        "bus": target.get("bus", "default"),
        "payload": ""
        if payload is None or (payload == {} and target["type"] == "handler")
        else json.dumps(payload, ensure_ascii=False, indent=2),
        "overlap": job.overlap.value,
        "attempts": str(job.retry.attempts_max),
        "backoff": f"{job.retry.backoff_seconds:.15g}",
        "time_limit": "" if limit is None else f"{limit:.15g}",
        "catch_up": job.catch_up.policy.value,
        **optional,
    }


def _join_form(trigger: Mapping[str, Any]) -> dict[str, str]:
    within, deadline = trigger["within"], trigger.get("deadline_seconds")
    return {
        "within": within if isinstance(within, str) else length_text(within["seconds"]),
        "outcome": trigger["outcome"],
        "deadline": "" if deadline is None else length_text(deadline),
    }


def _others(shown: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a definition that the form has no fields for."""
    whole = ("name", "title", "labels", "trigger", "target", "overlap", "enabled")
    found = {name: value for name, value in shown.items() if name not in whole}
    for group, names in IN_FIELDS.items():
        left = {name: value for name, value in found.pop(group, {}).items() if name not in names}
        if left:
            found[group] = left
    return found


def typed(form: Mapping[str, str], base: Mapping[str, Any] | None = None) -> Typed:
    """The definition that a form means; `base`: the stored one, whose other fields stay."""
    faults: list[Fault] = []
    made: dict[str, Any] = json.loads(json.dumps(base or {}))
    if OTHERS in form:
        kept = {name: made[name] for name in ("trigger", "target") if name in made}
        made = (_object(form[OTHERS], OTHERS, faults) if form[OTHERS].strip() else {}) | kept
    made["name"] = form["name"].strip()
    made["title"] = form["title"].strip() or None
    made["labels"] = _labels(form["labels"])
    made["trigger"] = _trigger(form, made.get("trigger", {}), faults)
    made["target"] = _target(form, made.get("target", {}), faults)
    made["overlap"] = form["overlap"]
    _number(made, "retry", "attempts_max", form["attempts"], "attempts", faults, whole=True)
    _number(made, "retry", "backoff_seconds", form["backoff"], "backoff", faults)
    _number(made, "timeouts", "execution_seconds", form["time_limit"], "time_limit", faults)
    made["catch_up"] = {**made.get("catch_up", {}), "policy": form["catch_up"]}
    if OTHERS in form:
        lay_over(made, form, faults)
    return Typed({name: value for name, value in made.items() if value not in ({}, None)}, tuple(faults))


def _labels(text: str) -> dict[str, str]:
    pairs = (word.strip().partition("=") for word in text.split(","))
    return {name.strip(): value.strip() for name, _, value in pairs if name.strip()}


def _trigger(form: Mapping[str, str], base: Mapping[str, Any], faults: list[Fault]) -> dict[str, Any]:
    kind, rule, zone = form["kind"], form["rule"].strip(), form["timezone"].strip()
    if kind == "json":
        return _object(rule, "rule", faults)
    if kind == "after":
        return _join(form, rule, zone, faults)
    if kind == "rrule":
        rule = _NEXT_LINE.sub("\n", rule)
    kept = {name: value for name, value in base.items() if name not in ("timezone", "type")}
    made: dict[str, Any] = {
        **(kept if base.get("type") == kind else {}),
        "type": kind,
        RULE_FIELD.get(kind, "text"): rule,
    }
    if kind == "interval":
        made["every_seconds"] = read_length(rule, faults)
    if zone and kind in ZONED:
        made["timezone"] = zone
    return made


def _join(form: Mapping[str, str], rule: str, zone: str, faults: list[Fault]) -> dict[str, Any]:
    """A job that follows from runs of others; windows of a length are in no zone."""
    within, deadline = form.get("within", "").strip() or "day", form.get("deadline", "").strip()
    made: dict[str, Any] = {
        "type": "after",
        "jobs": [name for part in rule.split(",") if (name := part.strip())],
        "outcome": form.get("outcome") or OUTCOMES[0][0],
        "within": within,
    }
    if within[0].isdigit():
        made["within"] = {"seconds": read_length(within, faults, "within")}
    elif zone:
        made["timezone"] = zone
    return made | ({"deadline_seconds": read_length(deadline, faults, "deadline")} if deadline else {})


def _target(form: Mapping[str, str], base: Mapping[str, Any], faults: list[Fault]) -> dict[str, Any]:
    kind = form["target"]
    made: dict[str, Any] = dict(base) if base.get("type") == kind else {"type": kind}
    if kind == "http":
        made |= {"url": form["url"].strip(), "method": form["method"].strip().upper() or "POST"}
        made["headers"] = _headers(form["headers"], faults)
        if not made["headers"]:
            del made["headers"]
    elif kind == "handler":
        made["name"] = form["handler"].strip()
    elif kind in ("queue", "bus"):
        made[kind] = form[kind].strip()
    text, field = form["payload"].strip(), PAYLOAD_FIELD.get(kind)
    if field is not None:
        made.pop(field, None)
        if text:
            try:
                made[field] = json.loads(text)
            except ValueError as error:
                faults.append(Fault("payload", f"is not JSON: {error}"))
    return made


def _headers(text: str, faults: list[Fault]) -> dict[str, Any]:
    """`Name: value`, one a line; the value may be a reference, `{"secret": "env:NAME"}`."""
    found: dict[str, Any] = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        name, colon, value = line.partition(":")
        if not colon:
            faults.append(Fault("headers", f"{line[:50]!r} is no header, such as Accept: text/plain"))
        value = value.strip()
        found[name.strip()] = _object(value, "headers", faults) if value.startswith('{"secret"') else value
    return found


def _object(text: str, field: str, faults: list[Fault]) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        faults.append(Fault(field, f"is not JSON: {error}"))
        return {}
    if isinstance(value, dict):
        return value
    faults.append(Fault(field, "expected an object"))
    return {}


def _number(
    made: dict[str, Any], group: str, name: str, text: str, field: str, faults: list[Fault], *, whole: bool = False
) -> None:
    text = text.strip()
    if not text:
        made.get(group, {}).pop(name, None)
        return
    try:
        value: float = int(text) if whole else float(text)
    except ValueError:
        faults.append(Fault(field, f"{text[:50]!r} is no {'whole ' if whole else ''}number"))
        return
    made[group] = {**made.get(group, {}), name: value}


def place_of(field: str | None) -> str:
    """Under which field of the form a fault of the definition is shown."""
    parts = (field or "").split(".")
    if parts[0] == "trigger":
        return IN_TRIGGER.get(parts[-1], IN_TRIGGER.get(parts[1] if len(parts) > 1 else "", "rule"))
    for length in range(len(parts), 0, -1):
        known = PLACES.get(".".join(parts[:length]))
        if known is not None:
            return known
    return OTHERS if parts[0] else ""


def as_command(definition: Mapping[str, Any]) -> str:
    """The same job as a command line: with flags, or where it has more than these say, as a file."""
    definition = {name: value for name, value in definition.items() if value or (name == "enabled" and value is False)}
    if definition.get("enabled"):
        del definition["enabled"]
    if not _is_said_by_flags(definition):
        return f"horarium job add --file - <<'END'\n{json.dumps(definition, indent=2, ensure_ascii=False)}\nEND"
    trigger, target = definition.get("trigger", {}), definition.get("target", {})
    kind = trigger.get("type", "")
    lines = ["horarium job add " + shlex.quote(definition.get("name") or "NAME")]

    def flag(name: str, value: object) -> None:
        lines.append(f"{name} {shlex.quote(value if isinstance(value, str) else json.dumps(value))}")

    said = {"type", RULE_FIELD.get(kind, ""), "timezone", *(JOIN_FIELDS if kind == "after" else ())}
    if kind in FLAG and trigger.keys() <= said:
        rule = trigger.get(RULE_FIELD[kind], "")
        flag(FLAG[kind], ",".join(rule) if kind == "after" else str(rule))
        _join_flags(trigger, flag)
        if trigger.get("timezone"):
            flag("--timezone", trigger["timezone"])
    else:
        flag("--trigger", json.dumps(trigger))
    if target.get("type") == "external":
        lines.append("--external")
    _target_flags(target, flag)
    if definition.get("title"):
        flag("--title", definition["title"])
    for name, value in definition.get("labels", {}).items():
        flag("--label", f"{name}={value}")
    if definition.get("overlap", "allow") != "allow":
        flag("--overlap", definition["overlap"])
    retry, limit = definition.get("retry", {}), definition.get("timeouts", {}).get("execution_seconds")
    if retry.get("attempts_max", 3) != 3:
        flag("--attempts", retry["attempts_max"])
    if retry.get("backoff_seconds", 5) != 5:
        flag("--backoff", f"{retry['backoff_seconds']:.15g}s")
    if limit is not None:
        flag("--execution-timeout", f"{limit:.15g}s")
    if definition.get("catch_up", {}).get("policy", "latest") != "latest":
        flag("--catch-up", definition["catch_up"]["policy"])
    return " \\\n  ".join(lines)


def _join_flags(trigger: Mapping[str, Any], flag: Any) -> None:
    within, deadline = trigger.get("within", "day"), trigger.get("deadline_seconds")
    if within != "day":
        flag("--within", within if isinstance(within, str) else _said(within["seconds"]))
    if trigger.get("outcome", OUTCOMES[0][0]) != OUTCOMES[0][0]:
        flag("--outcome", trigger["outcome"])
    if deadline is not None:
        flag("--deadline", _said(deadline))


def _said(seconds: Any) -> str:
    """A length, also one that could not be read."""
    return f"{seconds:.15g}s" if isinstance(seconds, int | float) else str(seconds)


def _is_said_by_flags(definition: Mapping[str, Any]) -> bool:
    if not SAID_BY_FLAGS.keys() >= definition.keys():
        return False
    return all(not names or set(definition.get(field, ())) <= names for field, names in SAID_BY_FLAGS.items())


def _target_flags(target: Mapping[str, Any], flag: Any) -> None:
    kind = target.get("type")
    if kind not in TARGET_FLAGS:
        return
    name, field = TARGET_FLAGS[kind]
    flag(name, target.get(field, ""))
    if kind == "http" and target.get("method", "POST") != "POST":
        flag("--method", target["method"])
    for name, text in target.get("headers", {}).items():
        flag("--header", f"{name}: {text if isinstance(text, str) else json.dumps(text)}")
    payload = target.get(PAYLOAD_FIELD[kind])
    if payload is not None:
        flag({"http": "--body", "handler": "--args"}.get(kind, "--payload"), json.dumps(payload))


def taken_from(others: dict[str, Any]) -> dict[str, str]:
    """These fields of a stored job, which are taken out of the rest of its definition."""
    taken = {"priority": str(others.pop("priority", ""))}
    for field, (group, name) in LENGTHS.items():
        seconds = (others.get(group, {}) if group else others).pop(name, None)
        taken[field] = "" if seconds is None else length_text(seconds)
    on = others.get("on", {})
    for field, (occasion, action) in FOLLOWS.items():
        plain = all(set(one) == {action} for one in on.get(occasion, ()))
        taken[field] = ", ".join(one[action] for one in on.pop(occasion, ())) if plain else ""
    for group in ("timeouts", "on"):
        if not others.get(group, True):
            del others[group]
    return taken


def lay_over(made: dict[str, Any], form: Mapping[str, str], faults: list[Fault]) -> None:
    """Lay the typed text over the definition."""

    def put(place: dict[str, Any], name: str, value: float | str, field: str) -> None:
        if place.setdefault(name, value) != value:
            faults.append(Fault(field, TWICE))

    given = {name: text for name in OPTIONAL if (text := form.get(name, "").strip())}
    if number := given.get("priority"):
        if number.removeprefix("-").isdecimal() and len(number) < 10:
            put(made, "priority", int(number), "priority")
        else:
            faults.append(Fault("priority", f"{number[:50]!r} is no whole number"))
    for field, (group, name) in LENGTHS.items():
        if field in given:
            put(made.setdefault(group, {}) if group else made, name, read_length(given[field], faults, field), field)
    for field, (occasion, action) in FOLLOWS.items():
        if names := [name for part in given.get(field, "").split(",") if (name := part.strip())]:
            on = made.setdefault("on", {})
            on[occasion] = [*on.get(occasion, ()), *({action: name} for name in names)]


def length_text(seconds: float) -> str:
    """`90m`, `5d`."""
    unit, letter = next((each for each in UNITS if seconds % each[0] == 0 and seconds), (1, ""))
    return f"{seconds / unit:.15g}{letter}"


def read_length(text: str, faults: list[Fault], field: str = "rule") -> float | str:
    """An interval as people type it: `90`, `90s`, `5m`, `1h30m`. One that can't be read stays as it is."""
    try:
        return float(every(float(text) if text.replace(".", "", 1).isdigit() else text).spec()["every_seconds"])
    except ValueError as error:
        faults.append(Fault(field, str(error)))
        return text
