"""A crontab as jobs: each line `m h dom mon dow command` becomes a job with a command target.

It starts `["/bin/sh", "-c", COMMAND]`, with `env` where the crontab sets variables, and `stdin` where the command has a
`%`. `SHELL` says which shell, `HOME` in which folder, `CRON_TZ` (or `TZ`) in which zone, `RANDOM_DELAY` up to how many
minutes later, `MAILTO` who gets mail of a failure. A job means what the line meant to cron: one attempt, nothing is
caught up, runs may overlap; but no more than `AT_ONCE_MAX` are at work, and none begins later than `START_SECONDS`.

The name of a job is that of the program and a hash of the command, so that importing the same crontab again, or with
another hour, or with lines in another order, changes no other job and makes no second one, and no argument (a password
may be one) is in a name.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any

from horarium.cli.entry import Entry
from horarium.cli.fields import is_cron

NAME_CHARS_MAX = 40
HASH_BYTES = 4
KEY = "crontab/"
AT_ONCE_MAX = 10
START_SECONDS = 900
AS_UNDER_CRON = {
    "retry": {"attempts_max": 1},
    "catch_up": {"policy": "none"},
    "timeouts": {"start_seconds": START_SECONDS},
}

_SETTING = re.compile(r"([A-Za-z_][A-Za-z0-9_]*|\"[A-Za-z_][A-Za-z0-9_]*\"|'[A-Za-z_][A-Za-z0-9_]*')\s*=\s*(.*)")
_NOT_LOGGED = re.compile(r"-(?=[*\d@])")
"""Before a line of work, to cronie and SUSE's cron: its starts are not logged."""
_PERCENT = re.compile(r"(?<!\\)%")
_USER_COLUMN = re.compile(r"#.*\b(dow|day of week|weekday)\s+user", re.IGNORECASE)
_BEFORE_PROGRAM = re.compile(
    r"\s*(?:\w+=(?:'[^']*'|\"[^\"]*\"|\S*)\s+|(?:cd|test|\[)\s[^;&|]*(?:&&|;|\|\|)\s*"
    r"|(?:sudo|nice|ionice|nohup|exec|env|time|chronic)\s+(?:-[ugnc]\s+\S+\s+|-\S+\s+)*)"
)
_PROGRAM = re.compile(r"[^\s;&|<>()'\"]+")


class Crontab:
    """Reads one crontab; `queue`, `timezone` and `prefix` (of names) are for all of its jobs. `with_user`: the sixth
    field names a user, as in /etc/crontab, who is the target's. `fields`: of every job, such as another number of
    attempts. `mail`: whom `MAILTO` names gets the failures, by the channel of `mail_channel`."""

    def __init__(
        self,
        source: str,
        queue: str,
        timezone: str,
        *,
        with_user: bool = False,
        prefix: str = "",
        fields: Mapping[str, Any] | None = None,
        mail: bool = False,
    ) -> None:
        self._source = source
        self._queue = queue
        self._timezone = timezone
        self._with_user = with_user
        self._prefix = prefix
        self._fields = {**AS_UNDER_CRON, **(fields or {})}
        self._mail = mail
        self._env: dict[str, str] = {}
        self._jitter_seconds = 0
        self._command_of: dict[str, str] = {}

    def read(self, text: str) -> Iterator[Entry]:
        """Its jobs, and the lines that are none."""
        for number, raw in enumerate(text.splitlines(), 1):
            line = without_mark(raw)
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
        name = self._name(command)
        job: dict[str, Any] = {
            "name": name,
            "trigger": {"type": "cron", "expression": expression, "timezone": self._timezone},
            "target": target,
            "concurrency": {"key": KEY + name, "max": AT_ONCE_MAX},
            **self._fields,
        }
        if user is not None:
            target["user"] = user
        addresses = addresses_in(self._env.get("MAILTO", ""))
        if self._mail and addresses:
            job["on"] = {"failed": [{"notify": mail_channel(addresses)}]}
        if self._jitter_seconds:
            job["jitter_seconds"] = self._jitter_seconds
        return job

    def _name(self, command: str) -> str:
        digest = blake2b(command.encode(), digest_size=HASH_BYTES).hexdigest()
        base = f"{self._prefix}{program_of(command)}-{digest}"
        name, number = base, 1
        while name in self._command_of:
            number += 1
            name = f"{base}-{number}"
        self._command_of[name] = command
        return name


def is_of_crontab(job: Mapping[str, Any]) -> bool:
    """Whether a definition was made of a line of a crontab."""
    concurrency = job.get("concurrency")
    return isinstance(concurrency, dict) and str(concurrency.get("key")).startswith(KEY)


def program_of(command: str) -> str:
    """The name of the program that a command starts first, as a part of a name."""
    start = 0
    while (before := _BEFORE_PROGRAM.match(command, start)) is not None:
        start = before.end()
    program = _PROGRAM.search(command, start)
    name = "" if program is None else program[0].rstrip("/").rpartition("/")[2]
    return re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-").lower()[:NAME_CHARS_MAX].rstrip("-") or "command"


# ---- mail


def addresses_in(mailto: str) -> list[str]:
    """Whom `MAILTO` names. A user of the machine has no address that a server could write to."""
    return sorted({each for each in re.split(r"[,\s]+", mailto) if "@" in each})


def mail_channel(addresses: Collection[str]) -> str:
    """The name of the channel that writes to these."""
    digest = blake2b(" ".join(addresses).encode(), digest_size=HASH_BYTES).hexdigest()
    first = re.sub(r"[^A-Za-z0-9]+", "-", min(addresses)).strip("-").lower()[:NAME_CHARS_MAX]
    return f"mailto-{first}-{digest}"


# ---- the machine


def host_zone() -> str | None:
    """The time zone of this machine, as cron goes by it."""
    named = os.environ.get("TZ", "").removeprefix(":")
    if named and not named.startswith("/"):
        return named
    try:
        _, found, name = os.path.realpath("/etc/localtime").partition("/zoneinfo/")
        return name if found else Path("/etc/timezone").read_text(encoding="ascii").strip() or None
    except (OSError, ValueError):
        return None


def without_mark(line: str) -> str:
    """A line without blanks around it, and without the hyphen of a line that cron is not to log."""
    stripped = line.strip()
    return stripped[1:] if _NOT_LOGGED.match(stripped) else stripped


def has_users(text: str) -> bool:
    """Whether the sixth field of each line is a user: a copy of /etc/crontab. Its heading says so, or `root` is one of
    them and each of the others is a user here."""
    lines = [line for line in map(without_mark, text.splitlines()) if line and not _SETTING.fullmatch(line)]
    work = [line for line in lines if not line.startswith("#")]
    users = [fields[at] for line in work if len(fields := line.split()) > (at := 1 if line[0] == "@" else 5) + 1]
    if not users or len(users) < len(work):
        return False
    headed = any(_USER_COLUMN.search(line) for line in lines if line.startswith("#"))
    return headed or ("root" in users and all(map(_is_user, users)))


def _is_user(name: str) -> bool:
    import pwd

    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True


def _unquoted(text: str) -> str:
    text = text.strip()
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'" else text
