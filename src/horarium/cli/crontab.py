"""A crontab as jobs: each line `m h dom mon dow command` becomes a job with a queue target.

Its payload is `{"command": ["/bin/sh", "-c", COMMAND]}` (with `env` where the crontab sets variables, and `stdin` where
the command has a `%`), for a worker that runs commands. The name follows from the command alone, so that importing the
same crontab again, or with another hour, changes the job and makes no second one.
"""

from __future__ import annotations

import re
from typing import Any

from horarium.cli.fields import is_cron
from horarium.errors import InvalidJob

NAME_CHARS_MAX = 60

_SETTING = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)\s*=\s*(.*)")
_PERCENT = re.compile(r"(?<!\\)%")


def jobs_of_crontab(text: str, source: str, queue: str, timezone: str) -> list[dict[str, Any]]:
    """The jobs of a crontab. Raises InvalidJob, which names the line."""
    jobs: list[dict[str, Any]] = []
    env: dict[str, str] = {}
    names: set[str] = set()
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        setting = _SETTING.fullmatch(line)
        if setting and setting[1] in ("CRON_TZ", "TZ"):
            timezone = _unquoted(setting[2])
        elif setting:
            env = {**env, setting[1]: _unquoted(setting[2])}
        else:
            expression, command = _parts(line, f"{source}:{number}")
            name = _free_name(command, names)
            names.add(name)
            jobs.append(_job(name, expression, command, queue, timezone, env))
    return jobs


def _parts(line: str, place: str) -> tuple[str, str]:
    count = 1 if line.startswith("@") else 5
    fields = line.split(None, count)
    expression = " ".join(fields[:count])
    if len(fields) <= count or not is_cron(expression):
        raise InvalidJob(f"{place}: {line!r} is not `minute hour day month weekday command`")
    if expression.lower() == "@reboot":
        raise InvalidJob(f"{place}: @reboot has no fire time; start that command with the machine")
    return expression, fields[count]


def _job(name: str, expression: str, command: str, queue: str, timezone: str, env: dict[str, str]) -> dict[str, Any]:
    text, *stdin = _PERCENT.split(command)
    payload: dict[str, Any] = {"command": ["/bin/sh", "-c", text.replace("\\%", "%").strip()]}
    if stdin:
        payload["stdin"] = "\n".join(part.replace("\\%", "%") for part in stdin)
    if env:
        payload["env"] = env
    trigger = {"type": "cron", "expression": expression, "timezone": timezone}
    return {"name": name, "trigger": trigger, "target": {"type": "queue", "queue": queue, "payload": payload}}


def _free_name(command: str, taken: set[str]) -> str:
    base = re.sub(r"[^A-Za-z0-9]+", "-", command).strip("-").lower()[:NAME_CHARS_MAX].rstrip("-") or "command"
    name, number = base, 1
    while name in taken:
        number += 1
        name = f"{base}-{number}"
    return name


def _unquoted(text: str) -> str:
    text = text.strip()
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'" else text
