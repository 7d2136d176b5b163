"""Programs as work: a run whose job has the target `{"type": "command", "command": ["pg_dump", "-Fc", "db"]}`.

Owns what a command finds around it, and what its end means for the run. The mechanics of a process group are those of
`processes`. The program is the target's, which who defines the job has written; a run's payload reaches it as standard
input and as HORARIUM_PAYLOAD, and never says what is started. A command is a list of arguments and is never put through
a shell; a job that wants one says so: `["/bin/sh", "-c", "..."]`.

Trust: a caller that may define jobs or runs chooses the programs that run here, as the worker's user. That is why
commands are off by default, and why a worker may be held to a list of programs. Such a list guards against mistakes; it
is no sandbox, for arguments are still the job's own.
"""

from __future__ import annotations

import errno
import os
import pwd
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

import msgspec
from msgspec import UnsetType

from horarium.client.claimed import ClaimedRun, Failure
from horarium.client.lines import Feed
from horarium.client.processes import Captured, ProcessGroup
from horarium.clock import to_instant, to_text
from horarium.delivery.secrets import DIR_DEFAULT, ENV_PREFIX_DEFAULT, MissingSecret, Secrets
from horarium.errors import InvalidSetting
from horarium.model import CommandTarget
from horarium.model.targets import NOT_EXECUTABLE, NOT_FOUND

GRACE_SECONDS = 3.0
"""From SIGTERM to SIGKILL. Shorter than what a stopping worker leaves to what it cancels."""
GRACE_SECONDS_MAX = 600.0
START_SECONDS_MAX = 1.0
"""How long a command that is just being started holds up the end of all."""
PAYLOAD_VARIABLE_BYTES_MAX = 100_000
"""A longer payload is standard input alone: systems bound the length of a variable."""
ERROR_LINES_MAX, ERROR_CHARS_MAX = 20, 2_000
"""How much of the end of the output is kept in a failed run's error."""

KEPT_VARIABLES = ("PATH", "HOME", "LANG", "LC_*", "TZ", "USER", "LOGNAME", "SHELL", "TMPDIR")
"""Variables of the worker that its commands find: others may hold secrets of the worker, or of who started it."""

LOADER_VARIABLES = ("PATH", "LD_*", "DYLD_*", "BASH_ENV", "ENV", "IFS", "PYTHON*", "PERL5*", "RUBY*", "NODE_OPTIONS")
"""Variables that make an allowed program load foreign code. Refused where programs are allowed one by one."""

_PASSING = frozenset({"EAGAIN", "ENOMEM", "EMFILE", "ENFILE", "ETXTBSY", "EIO", "ESTALE"})
"""Why a program can't be started just now; by name, as not every system has all of them."""


class Commands:
    """Performs commands, as the function of a `Worker`; may be called from many threads at once.

    `programs`: patterns of allowed programs, none: anything. One with a slash matches a whole path (`*` goes up to the
    next slash), one without for a name that is found along PATH. `env`: the variables that commands find; left out:
    of the worker's own those in `KEPT_VARIABLES`, and those that `pass_env` names. A `HORARIUM_*` variable never is
    among them: one of them is a key."""

    def __init__(
        self,
        programs: Sequence[str] = (),
        *,
        grace_seconds: float = GRACE_SECONDS,
        env: Mapping[str, str] | None = None,
        pass_env: Sequence[str] = (),
    ) -> None:
        if not 0 <= grace_seconds <= GRACE_SECONDS_MAX:
            raise InvalidSetting(f"grace_seconds: must be from 0 to {GRACE_SECONDS_MAX:g}", field="grace_seconds")
        for pattern in programs:
            if not pattern or ("/" in pattern and not pattern.startswith("/")):
                raise InvalidSetting(
                    f"programs: {pattern!r} is neither a name such as pg_dump nor a path from the root",
                    field="programs",
                )
        self._programs = tuple(programs)
        self._grace_seconds = grace_seconds
        kept = (*KEPT_VARIABLES, *pass_env)
        around = _matching(os.environ, kept) if env is None else env
        self._env = {name: value for name, value in around.items() if not name.startswith("HORARIUM_")}
        self._groups: dict[object, ProcessGroup | None] = {}
        self._killed = False

    def __call__(self, run: ClaimedRun) -> dict[str, Any]:
        """Perform one run. Raises Failure where it did not end well."""
        command = command_of(run)
        payload = None if run.payload is None else msgspec.json.encode(run.payload).decode()
        account = None if command.user is None else _account(command.user)
        env = {**self._env, **_of_account(account), **_given(command), **variables_of(run)}
        if payload is not None and len(payload) <= PAYLOAD_VARIABLE_BYTES_MAX:
            env["HORARIUM_PAYLOAD"] = payload
        program = self._program(command, env)
        begun = time.monotonic()
        key = object()
        self._groups[key] = None  # it is about to start
        try:
            if self._killed:
                raise Failure("its worker is being killed")
            group = self._groups[key] = _start(command, program, env, payload, account)
            with _telling(run, group):
                stopped = group.run(_why_stop(run, command, begun), self._grace_seconds)
        finally:
            del self._groups[key]
        return _judge(command, group, stopped, time.monotonic() - begun)

    def kill_all(self) -> None:
        """SIGKILL for every command that runs, and none starts from now on. May be called in a signal handler; the
        other threads must go on meanwhile, for one that is just starting is waited for."""
        self._killed = True
        until = time.monotonic() + START_SECONDS_MAX
        while None in list(self._groups.values()) and time.monotonic() < until:
            time.sleep(0.01)
        for group in list(self._groups.values()):
            if group is not None:
                group.kill()

    def _program(self, command: CommandTarget, env: Mapping[str, str]) -> str:
        """The path of the program, once it is known to be allowed."""
        name = command.command[0]
        if self._programs:
            for variable in command.env:
                if any(fnmatchcase(variable, pattern) for pattern in LOADER_VARIABLES):
                    raise Failure(
                        f"env: {variable} may not be set where programs are allowed one by one", retryable=False
                    )
        # Where programs are allowed one by one, the job has no say in where they are looked for.
        path = (self._env if self._programs else env).get("PATH", os.defpath)
        if "/" in name:
            found: str | None = os.path.join(os.path.abspath(command.cwd or ""), name)
        else:
            found = shutil.which(name, path=path)
        if self._programs and not any(_fits(pattern, name, found) for pattern in self._programs):
            raise Failure(f"command: {name!r} is none of the programs that this worker may start", retryable=False)
        if found is None:
            raise _not_started(name, "it is not on the PATH", NOT_FOUND, False)
        return found


def command_of(run: ClaimedRun) -> CommandTarget:
    """The program of a run. Raises Failure, not to be tried again, for a run whose target is none."""
    target = run.view.target
    if isinstance(target, UnsetType):
        raise Failure(
            "this run names no program: its target is a queue, whose payload is never started; define its job with the "
            'target {"type": "command", "command": ["PROGRAM", "ARGUMENT", ...]}',
            retryable=False,
        )
    return target


def variables_of(run: ClaimedRun) -> dict[str, str]:
    """What a command learns about its run, as environment variables."""
    return {
        "HORARIUM_RUN": run.id,
        "HORARIUM_JOB": run.job or "",
        "HORARIUM_QUEUE": run.queue,
        "HORARIUM_ATTEMPT": str(run.attempt),
        "HORARIUM_FIRE_AT": to_text(to_instant(run.fire_at)),
        "HORARIUM_IDEMPOTENCY_KEY": run.view.idempotency_key,
    }


# ---- before -----------------------------------------------------------------------------------------------------


def _given(command: CommandTarget) -> dict[str, str]:
    """The command's own variables; secrets are read in this process, by its environment's `HORARIUM_SECRETS_ENV_PREFIX`
    and `HORARIUM_SECRETS_DIR`. Raises Failure for one that is missing."""
    prefix = os.environ.get("HORARIUM_SECRETS_ENV_PREFIX", ENV_PREFIX_DEFAULT)
    secrets = Secrets(prefix, os.environ.get("HORARIUM_SECRETS_DIR", DIR_DEFAULT))
    try:
        return {name: secrets.read(value) for name, value in command.env.items()}
    except MissingSecret as missing:
        raise Failure(str(missing)) from None


def _fits(pattern: str, name: str, found: str | None) -> bool:
    """Whether a program is the one that a pattern means."""
    if "/" not in pattern:
        return "/" not in name and fnmatchcase(name, pattern)
    parts = (found or "").split("/")
    wanted = pattern.split("/")
    return (
        ".." not in parts
        and len(parts) == len(wanted)
        and all(fnmatchcase(part, each) for part, each in zip(parts, wanted, strict=True))
    )


def _start(
    command: CommandTarget,
    program: str,
    env: Mapping[str, str],
    payload: str | None,
    account: pwd.struct_passwd | None,
) -> ProcessGroup:
    if command.cwd is not None and not os.path.isdir(command.cwd):
        raise Failure(f"cwd: there is no folder {command.cwd!r} here", retryable=False)
    stdin = command.stdin if payload is None else payload
    try:
        return ProcessGroup(command.command, program, env=env, cwd=command.cwd, stdin=stdin, account=account)
    except OSError as error:
        passing = errno.errorcode.get(error.errno or 0) in _PASSING
        code = NOT_FOUND if error.errno == errno.ENOENT else NOT_EXECUTABLE
        raise _not_started(program, error.strerror or str(error), code, passing) from None


def _account(name: str) -> pwd.struct_passwd | None:
    """Whom the program is to run as; None: the worker is that user. Raises Failure where it can't be."""
    try:
        account = pwd.getpwnam(name)
    except KeyError:
        raise Failure(f"user: there is no user {name!r} here", retryable=False) from None
    if account.pw_uid == os.geteuid():
        return None
    if os.geteuid() != 0:
        raise Failure(f"user: only a worker of root may start a program as {name!r}", retryable=False)
    return account


def _of_account(account: pwd.struct_passwd | None) -> dict[str, str]:
    """The variables that name the user of a program, in place of those that name the worker's."""
    if account is None:
        return {}
    name = account.pw_name
    return {"HOME": account.pw_dir, "LOGNAME": name, "USER": name, "SHELL": account.pw_shell or "/bin/sh"}


def _matching(env: Mapping[str, str], patterns: Sequence[str]) -> dict[str, str]:
    return {name: text for name, text in env.items() if any(fnmatchcase(name, pattern) for pattern in patterns)}


def _not_started(program: str, why: str, code: int, passing: bool) -> Failure:
    result = {"exit_code": code, "seconds": 0.0, "stdout": "", "stderr": ""}
    return Failure(f"{program} could not be started: {why} (exit code {code})", retryable=passing, result=result)


@contextmanager
def _telling(run: ClaimedRun, group: ProcessGroup) -> Iterator[None]:
    """What the command prints goes to the run's log, line by line."""
    feeds = []
    for name, captured in (("stdout", group.stdout), ("stderr", group.stderr)):
        feed = Feed(partial(run.log, stream=name))
        captured.tell = feed.add
        feeds.append(feed)
    try:
        yield
    finally:
        for feed in feeds:
            feed.close()


def _why_stop(run: ClaimedRun, command: CommandTarget, begun: float) -> Callable[[], str | None]:
    limit = command.timeout_seconds

    def why() -> str | None:
        if run.cancel_requested.is_set():
            return "it was asked to stop"
        if limit is not None and time.monotonic() - begun >= limit:
            return f"timed out: not done within {limit:g} s"
        return None

    return why


# ---- after ------------------------------------------------------------------------------------------------------


def _judge(command: CommandTarget, group: ProcessGroup, stopped: str | None, seconds: float) -> dict[str, Any]:
    """The result of a command that ended well. Raises Failure for any other, with the result besides."""
    result: dict[str, Any] = {"exit_code": group.exit_code, "seconds": round(seconds, 3)}
    if group.ended_by is not None:
        result["signal"] = group.ended_by
    result |= {"stdout": group.stdout.text(), "stderr": group.stderr.text()}
    if stopped is None and group.ended_by is None and group.exit_code in command.success_codes:
        return result
    how = f"ended by {group.ended_by}" if group.ended_by else f"exit code {group.exit_code}"
    error = f"{stopped} ({how})" if stopped else how
    retryable = stopped is not None or group.ended_by is not None or group.exit_code not in command.discard_codes
    raise Failure(error + _last_lines(group.stderr, group.stdout), retryable=retryable, result=result)


def _last_lines(*streams: Captured) -> str:
    """The end of the first of the streams that holds anything but blanks."""
    for stream in streams:
        text = stream.text().strip()
        if text:
            lines = "\n".join(text.splitlines()[-ERROR_LINES_MAX:])[-ERROR_CHARS_MAX:]
            return f": {lines}"
    return ""
