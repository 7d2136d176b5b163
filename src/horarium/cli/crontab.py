"""A crontab as jobs: each line `m h dom mon dow command` becomes a job with a command target.

It starts `["/bin/sh", "-c", COMMAND]`, with `env` where the crontab sets variables, and `stdin` where the command has a
`%`. `SHELL` says which shell, `HOME` in which folder, `CRON_TZ` (or `TZ`) in which zone, `RANDOM_DELAY` up to how many
minutes later. As under cron, a run has one attempt.

The name of a job follows from the command alone, so that importing the same crontab again, or with another hour, or
with lines in another order, changes no other job and makes no second one. A command that is long, or that looks like
another one, is distinguished by a hash of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from typing import Any

from horarium.cli.entry import Entry
from horarium.cli.fields import is_cron

NAME_CHARS_MAX = 60
HASH_BYTES = 4

_SETTING = re.compile(r"([A-Za-z_][A-Za-z0-9_]*|\"[A-Za-z_][A-Za-z0-9_]*\"|'[A-Za-z_][A-Za-z0-9_]*')\s*=\s*(.*)")
_PERCENT = re.compile(r"(?<!\\)%")


class Crontab:
    """Reads one crontab; `queue`, `timezone` and `prefix` (of names) are for all of its jobs. `with_user`: the sixth
    field names a user, as in /etc/crontab; it is kept as the label `crontab-user`. `fields`: of every job, such as
    another number of attempts."""

    def __init__(
        self,
        source: str,
        queue: str,
        timezone: str,
        *,
        with_user: bool = False,
        prefix: str = "",
        fields: Mapping[str, Any] | None = None,
    ) -> None:
        self._source = source
        self._queue = queue
        self._timezone = timezone
        self._with_user = with_user
        self._prefix = prefix
        self._fields = {"retry": {"attempts_max": 1}, **(fields or {})}
        self._env: dict[str, str] = {}
        self._jitter_seconds = 0
        self._command_of: dict[str, str] = {}

    def read(self, text: str) -> Iterator[Entry]:
        """Its jobs, and the lines that are none."""
        for number, raw in enumerate(text.splitlines(), 1):
            line = raw.strip()
            if not line or line.startswith("#"):
                continue
            try:
                definition = self._read_line(line)
            except ValueError as error:
                yield Entry(f"{self._source}:{number}", error=str(error))
            else:
                if definition is not None:
                    yield Entry(f"{self._source}:{number}", definition)

    def _read_line(self, line: str) -> dict[str, Any] | None:
        """The job of a line; None for a setting. Raises ValueError where it is neither."""
        setting = _SETTING.fullmatch(line)
        if setting:
            self._set(_unquoted(setting[1]), _unquoted(setting[2]))
            return None
        count = 1 if line.startswith("@") else 5
        fields = line.split(None, count + self._with_user)
        expression = " ".join(fields[:count])
        if len(fields) <= count + self._with_user or not is_cron(expression):
            user = " user" if self._with_user else ""
            raise ValueError(f"{line!r} is not `minute hour day month weekday{user} command`")
        if expression.lower() == "@reboot":
            raise ValueError("@reboot has no fire time; start that command with the machine")
        return self._job(expression, fields[-1], fields[count] if self._with_user else None)

    def _set(self, name: str, value: str) -> None:
        if name in ("CRON_TZ", "TZ"):
            self._timezone = value
        elif name == "RANDOM_DELAY":
            if not value.isdigit() or len(value) > 4:
                raise ValueError(f"RANDOM_DELAY={value} is no number of minutes")
            self._jitter_seconds = int(value) * 60
        else:
            self._env = {**self._env, name: value}

    def _job(self, expression: str, command: str, user: str | None) -> dict[str, Any]:
        text, *stdin = _PERCENT.split(command)
        shell = self._env.get("SHELL", "/bin/sh")
        target: dict[str, Any] = {
            "type": "command",
            "queue": self._queue,
            "command": [shell, "-c", text.replace("\\%", "%").strip()],
        }
        if stdin:
            target["stdin"] = "\n".join(part.replace("\\%", "%") for part in stdin)
        if self._env:
            target["env"] = self._env
        if "HOME" in self._env:
            target["cwd"] = self._env["HOME"]
        job: dict[str, Any] = {
            "name": self._name(command),
            "trigger": {"type": "cron", "expression": expression, "timezone": self._timezone},
            "target": target,
            **self._fields,
        }
        if user is not None:
            job["labels"] = {"crontab-user": user}
        if self._jitter_seconds:
            job["jitter_seconds"] = self._jitter_seconds
        return job

    def _name(self, command: str) -> str:
        base = re.sub(r"[^A-Za-z0-9]+", "-", command).strip("-").lower() or "command"
        if len(base) > NAME_CHARS_MAX or self._command_of.get(base, command) != command:
            digest = blake2b(command.encode(), digest_size=HASH_BYTES).hexdigest()
            base = f"{base[: NAME_CHARS_MAX - len(digest) - 1].rstrip('-')}-{digest}"
        name, number = base, 1
        while name in self._command_of:
            number += 1
            name = f"{base}-{number}"
        self._command_of[name] = command
        return self._prefix + name


def _unquoted(text: str) -> str:
    text = text.strip()
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'" else text
