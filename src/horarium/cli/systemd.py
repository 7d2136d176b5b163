"""A systemd timer and its service as a job: what `systemctl cat NAME.timer NAME.service` prints, read as one file.

`OnCalendar=` becomes a cron trigger with seconds (systemd.time(7)), in which day of the week and date must both match.
What cannot be said so (days from the end of a month, specifiers, several commands) is an error.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from horarium.errors import InvalidJob

SHORTHANDS = {
    "minutely": "*-*-* *:*:00", "hourly": "*-*-* *:00:00", "daily": "*-*-* 00:00:00", "monthly": "*-*-01 00:00:00",
    "weekly": "Mon *-*-* 00:00:00", "yearly": "*-01-01 00:00:00", "annually": "*-01-01 00:00:00",
    "quarterly": "*-01,04,07,10-01 00:00:00", "semiannually": "*-01,07-01 00:00:00",
}  # fmt: skip
CALENDAR = re.compile(
    r"(?:(?P<days>[A-Za-z][A-Za-z.,]*)(?:\s+|$))?(?:(?P<date>[\d*/.,]+(?:-[\d*/.,~]+){1,2})(?:\s+|$))?"
    r"(?P<time>[\d*/.,]+(?::[\d*/.,]+){1,2})?(?:\s+(?P<zone>[A-Za-z_]+(?:/[\w+-]+)*))?"
)
UNITS = {
    "s": 1, "sec": 1, "second": 1, "seconds": 1, "m": 60, "min": 60, "minute": 60, "minutes": 60, "h": 3600, "hr": 3600,
    "hour": 3600, "hours": 3600, "d": 86400, "day": 86400, "days": 86400, "w": 604800, "week": 604800, "weeks": 604800,
}  # fmt: skip


def systemd_job(text: str, path: str, queue: str, timezone: str) -> dict[str, Any]:
    """The job of a timer and its service. Raises InvalidJob."""
    unit = _sections(text)
    timer, service = unit.get("Timer"), unit.get("Service")
    if timer is None or service is None:
        raise InvalidJob("a [Timer] and its [Service] are needed: systemctl cat NAME.timer NAME.service")
    definition: dict[str, Any] = {
        "name": _name(text, path),
        "trigger": _trigger(timer, timezone),
        "target": _target(service, queue),
        "overlap": "skip",
        "catch_up": {"policy": "latest" if _last(timer, "Persistent") in {"true", "yes", "1", "on"} else "none"},
        "retry": {"attempts_max": 1},
    }
    if delay := _last(timer, "RandomizedDelaySec"):
        definition["jitter_seconds"] = span_seconds(delay)
    limit = _last(service, "RuntimeMaxSec") or _last(service, "TimeoutStartSec")
    if limit and limit != "infinity":
        definition["timeouts"] = {"execution_seconds": span_seconds(limit)}
    if description := _last(unit.get("Unit", {}), "Description"):
        definition["title"] = description
    return definition


def _sections(text: str) -> dict[str, dict[str, list[str]]]:
    """Every assignment, by section; a later file's sections join those before."""
    found: dict[str, dict[str, list[str]]] = {}
    section: dict[str, list[str]] = {}
    for raw in text.replace("\\\n", " ").splitlines():
        line = raw.strip()
        if line.startswith("["):
            section = found.setdefault(line.strip("[]"), {})
        elif line and line[0] not in "#;" and "=" in line:
            name, _, value = line.partition("=")
            if not value.strip():
                section[name.strip()] = []  # an empty assignment clears those before
            else:
                section.setdefault(name.strip(), []).append(value.strip())
    return found


def _last(section: Mapping[str, list[str]], name: str) -> str | None:
    values = section.get(name)
    return values[-1] if values else None


def _name(text: str, path: str) -> str:
    """That of the timer, as `systemctl cat` writes it above, or of the file."""
    found = re.search(r"^#\s*\S*/([^/\s]+)\.timer\s*$", text, re.MULTILINE)
    return found[1] if found else PurePath(path).stem


def _trigger(timer: Mapping[str, list[str]], timezone: str) -> dict[str, Any]:
    rules = [calendar_trigger(text, timezone) for text in timer.get("OnCalendar", ())]
    if every := _last(timer, "OnUnitActiveSec"):
        rules.append({"type": "interval", "every_seconds": span_seconds(every)})
    if not rules:
        raise InvalidJob("no OnCalendar= and no OnUnitActiveSec=: nothing says when it fires again")
    return rules[0] if len(rules) == 1 else {"type": "any_of", "triggers": rules}


def calendar_trigger(text: str, timezone: str) -> dict[str, Any]:
    """An `OnCalendar=` as a cron trigger. Raises InvalidJob."""
    first, *zone = text.split()
    whole = " ".join([SHORTHANDS.get(first.lower(), first), *zone])
    found = CALENDAR.fullmatch(whole)
    if found is None or "~" in whole or not (found["days"] or found["date"] or found["time"]):
        raise InvalidJob(f"OnCalendar={text}: this form is not translated; write a trigger of its own for it")
    year, month, day = _date(found["date"])
    hour, minute, second = [*(found["time"] or "00:00:00").split(":"), "00"][:3]
    days = (found["days"] or "*").rstrip(",").replace("..", "-").upper()
    parts = [_field(each) for each in (second, minute, hour, day, month)]
    trigger = {"type": "cron", "expression": " ".join([*parts, _short(days)]), "timezone": found["zone"] or timezone}
    if year != "*":
        trigger["expression"] += f" {_field(year)}"
    return {**trigger, "day_match": "all"} if days != "*" and day != "*" else trigger


def _date(text: str | None) -> tuple[str, str, str]:
    parts = (text or "*-*-*").split("-")
    year, month, day = ["*", *parts][-3:]
    return year, month, day


def _field(text: str) -> str:
    """`02`, `1..5`, `0/15` and lists of them, as cron has them."""
    return ",".join(_part(part) for part in text.split(","))


def _part(text: str) -> str:
    base, slash, step = text.partition("/")
    plain = "-".join(str(int(each)) if each.isdigit() else each for each in base.split(".."))
    if not slash:
        return plain
    return f"*/{step}" if plain in {"0", "*"} else f"{plain}/{step}"


def _short(days: str) -> str:
    """Names of days by their first three letters."""
    return re.sub(r"[A-Z]+", lambda match: match[0][:3], days)


def _target(service: Mapping[str, list[str]], queue: str) -> dict[str, Any]:
    commands = service.get("ExecStart", [])
    if len(commands) != 1:
        raise InvalidJob(f"{len(commands)} lines ExecStart=; a command target starts one program")
    line = commands[0].lstrip("-@:+!")
    if "%" in line.replace("%%", "") or "$" in line:
        raise InvalidJob(
            f"ExecStart={line}: specifiers (%) and variables ($) are not translated; write their values there"
        )
    target: dict[str, Any] = {"type": "command", "queue": queue, "command": shlex.split(line.replace("%%", "%"))}
    pairs = [pair for value in service.get("Environment", ()) for pair in shlex.split(value)]
    if pairs:
        target["env"] = dict(pair.split("=", 1) for pair in pairs)
    if service.get("EnvironmentFile"):
        raise InvalidJob("EnvironmentFile= is not read; give its variables to the worker (--pass-env NAME)")
    if folder := _last(service, "WorkingDirectory"):
        target["cwd"] = folder
    if user := _last(service, "User"):
        target["user"] = user
    return target


def span_seconds(text: str) -> float:
    """A time span: `5min`, `1h 30min`, `90`. Raises InvalidJob."""
    parts = re.findall(r"(\d+(?:\.\d+)?)\s*([a-z]*)", text)
    if (
        not parts
        or re.sub(r"\d+(\.\d+)?\s*[a-z]*\s*", "", text)
        or any(unit and unit not in UNITS for _, unit in parts)
    ):
        raise InvalidJob(f"{text!r} is no time span such as 5min or 1h 30min")
    return sum(float(number) * UNITS.get(unit, 1) for number, unit in parts)
