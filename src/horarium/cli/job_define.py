"""`horarium job add` and `horarium job update`: flags, or a file, to a definition or a patch.

The words after `--` are a command target: a program that a worker of its queue starts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import click

from horarium.cli.documents import read_definitions
from horarium.cli.fields import (
    CATCH_UPS,
    DURATION,
    INSTANT,
    JSON,
    OVERLAPS,
    ROLES,
    TARGET_FLAGS,
    TRIGGER_FLAGS,
    duration_seconds,
    flag_of,
    policies_of,
    target_of,
    trigger_json,
    trigger_of,
)
from horarium.cli.follows import follows_of
from horarium.cli.job import NAME, in_full
from horarium.cli.preview import TRIGGER_OPTIONS
from horarium.cli.shell import Grouped, Server, group, on_server
from horarium.errors import AlreadyExists, HorariumError

WINDOWS = ("hour", "day", "week", "month")
BELONGING = ("within", "outcome", "deadline")
AFTER_OPTIONS = [
    click.option("--after", metavar="JOB,JOB", help="Once in each window in which all of these jobs had a run."),
    click.option("--within", metavar="WINDOW", help="With --after: hour, day (left out: day), week, month, or 15m."),
    click.option(
        "--outcome",
        type=click.Choice(["completed", "finished"]),
        help="With --after: runs that completed (if left out), or that ended in any way.",
    ),
    click.option(
        "--deadline",
        type=DURATION,
        metavar="DURATION",
        help="With --after: a window is missed so long after its start.",
    ),
]


def after_of(flags: Mapping[str, Any]) -> dict[str, Any] | None:
    """The trigger that these flags give; None if they give none. Raises UsageError beside those of another one."""
    if flags.get("after") is None:
        alone = next((name for name in BELONGING if flags.get(name) is not None), None)
        if alone is not None:
            raise click.UsageError(f"--{alone} belongs to --after")
        return None
    other = next((name for name in (*TRIGGER_FLAGS, "calendar", "convention", "offset") if flags.get(name)), None)
    if other is not None:
        raise click.UsageError(f"--after stands alone; --{other} belongs to another trigger")
    jobs = [name.strip() for name in flags["after"].split(",") if name.strip()]
    trigger: dict[str, Any] = {"type": "after", "jobs": jobs, "within": _window(flags.get("within") or "day")}
    given = {"outcome": flags.get("outcome"), "timezone": flags.get("timezone")}
    given |= {"deadline_seconds": flags.get("deadline")}
    return trigger | {name: value for name, value in given.items() if value is not None}


def _window(text: str) -> str | dict[str, float]:
    if text in WINDOWS:
        return text
    seconds = duration_seconds(text)
    if seconds is None:
        raise click.UsageError(f"--within: {text!r} is none of {', '.join(WINDOWS)}, and no duration such as 15m")
    return {"seconds": seconds}


TARGET_OPTIONS = [
    click.option("--http", metavar="URL", help="Target: a request to this URL."),
    click.option("--queue", metavar="NAME", help="Target: a queue from which workers pull."),
    click.option("--handler", metavar="NAME", help="Target: a registered Python function."),
    click.option("--bus", metavar="NAME", help="Target: a message bus, by its configured name."),
    click.option("--external", is_flag=True, help="Target: work that is done elsewhere, and heard of by pings."),
    click.option("--method", metavar="METHOD", help="HTTP: the method; POST if left out."),
    click.option("--header", multiple=True, metavar="NAME:VALUE", help="HTTP: a header; repeatable."),
    click.option("--body", metavar="TEXT", help="HTTP: the body; JSON where the text is JSON."),
    click.option("--body-file", metavar="FILE", help="HTTP: the body from a file; - is the standard input."),
    click.option("--http-timeout", type=DURATION, metavar="DURATION", help="HTTP: how long the answer may take."),
    click.option(
        "--expected-status",
        type=click.IntRange(100, 599),
        multiple=True,
        metavar="CODE",
        help="HTTP: a status that means success; repeatable; any 2xx if left out.",
    ),
    click.option("--signing-secret", metavar="SECRET", help="HTTP: signs the request (whsec_...)."),
    click.option("--callback", is_flag=True, help="HTTP: done when the endpoint calls back, not with its answer."),
    click.option("--payload", type=JSON, metavar="JSON", help="Queue and bus: what the run carries."),
    click.option("--args", type=JSON, metavar="JSON", help="Handler: its arguments, an object."),
]


def _silences(_: click.Context, __: click.Parameter, value: str | None) -> int | str | None:
    if value is None or value == "unlimited":
        return value
    if not value.isdecimal():
        raise click.BadParameter(f"{value!r} is neither a number nor `unlimited`")
    return int(value)


POLICY_OPTIONS = [
    click.option("--catch-up", type=click.Choice(CATCH_UPS), help="What becomes of missed fire times."),
    click.option("--catch-up-window", type=DURATION, metavar="DURATION", help="Older missed fire times are dropped."),
    click.option(
        "--catch-up-within", type=DURATION, metavar="DURATION", help="With --catch-up ask: so long it waits (4h)."
    ),
    click.option(
        "--catch-up-else", type=click.Choice(CATCH_UPS[:3]), help="And without a decision it is that (latest)."
    ),
    click.option(
        "--overlap",
        type=click.Choice(OVERLAPS),
        help="What to do when an earlier run is not finished.",
    ),
    click.option("--buffer-max", type=click.IntRange(1), metavar="N", help="Skip while N of its runs are pending."),
    click.option(
        "--approve-by", multiple=True, type=click.Choice(ROLES), help="Each run waits for a decision; repeatable."
    ),
    click.option("--approve-within", type=DURATION, metavar="DURATION", help="How long it waits for that."),
    click.option("--approve-else", type=click.Choice(["skip", "run"]), help="What becomes of it without a decision."),
    click.option("--four-eyes/--any-eyes", "four_eyes", default=None, help="Who asked for it may not decide."),
    click.option("--attempts", type=click.IntRange(1), metavar="N", help="How many attempts a run has."),
    click.option("--retries", type=click.IntRange(0), metavar="N", help="As --attempts N + 1."),
    click.option("--backoff", type=DURATION, metavar="DURATION", help="Delay before the second attempt."),
    click.option("--backoff-factor", type=float, metavar="X", help="How much longer each next delay is."),
    click.option("--backoff-max", type=DURATION, metavar="DURATION", help="The longest delay."),
    click.option("--retry-age", type=DURATION, metavar="DURATION", help="No attempt starts later than this after due."),
    click.option(
        "--silences",
        callback=_silences,
        metavar="N",
        help="Attempts that may be lost by silence, beside --attempts, or `unlimited`.",
    ),
    click.option("--start-timeout", type=DURATION, metavar="DURATION", help="A run not taken within this fails."),
    click.option("--execution-timeout", type=DURATION, metavar="DURATION", help="How long one attempt may take."),
    click.option("--heartbeat-timeout", type=DURATION, metavar="DURATION", help="Silence for longer loses the lease."),
    click.option("--title", metavar="TEXT", help="Any text for people; the name is what the job is known by."),
    click.option("--label", multiple=True, metavar="NAME=VALUE", help="A label; repeatable."),
    click.option("--priority", type=int, metavar="N", help="Higher ones are claimed first."),
    click.option("--concurrency", metavar="KEY=MAX", help="At most MAX runs that share KEY at one time."),
    click.option(
        "--rate",
        "rate",
        multiple=True,
        metavar="KEY=MAX/TIME",
        help="At most MAX begin in TIME: api=100/1m; repeatable.",
    ),
    click.option("--fair", metavar="KEY", help="Keys share the queue in turn: {payload.tenant}."),
    click.option("--jitter", type=DURATION, metavar="DURATION", help="Spread runs over this after the fire time."),
    click.option("--starts-at", type=INSTANT, metavar="INSTANT", help="No fire time before this."),
    click.option("--ends-at", type=INSTANT, metavar="INSTANT", help="No fire time from this on."),
    click.option("--fires-max", type=click.IntRange(1), metavar="N", help="At most this number of fire times."),
    click.option("--keep", type=DURATION, metavar="DURATION", help="How long finished runs are kept."),
    click.option("--keep-runs", type=click.IntRange(0), metavar="N", help="How many finished runs are kept."),
    click.option("--enabled/--disabled", "enabled", default=None, help="Whether it fires."),
    click.option(
        "--on",
        "on",
        multiple=True,
        metavar="EVENT=ACTION:NAME",
        help="What follows: failed=notify:ops, late=notify:ops,seconds=5m, completed=trigger:report; repeatable.",
    ),
]


COMMAND_OPTIONS = [
    click.option("--env", multiple=True, metavar="NAME=VALUE", help="Command: a variable; repeatable."),
    click.option("--cwd", metavar="FOLDER", help="Command: the folder in which it starts."),
    click.option("--user", metavar="NAME", help="Command: whom it runs as; for workers of root."),
    click.option("--stdin", metavar="TEXT", help="Command: its standard input, where a run has no payload."),
]
OPTION_GROUPS = {
    "Trigger (one of them)": [
        *TRIGGER_OPTIONS,
        *AFTER_OPTIONS,
        click.option("--trigger", "trigger_text", metavar="JSON", help="The trigger in full, as JSON."),
    ],
    "Target (one of them)": TARGET_OPTIONS[:5],
    "What is sent": TARGET_OPTIONS[5:],
    "Command (after --)": COMMAND_OPTIONS,
    "Policies": POLICY_OPTIONS,
}
COMMAND_QUEUE = "shell"
"""The queue of commands, where none is named."""


class WithCommand(Grouped):
    """A command line whose words after `--` are another one."""

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        at = args.index("--") if "--" in args else len(args)
        context.meta["command"] = args[at + 1 :]
        return super().parse_args(context, args[:at])

    def collect_usage_pieces(self, context: click.Context) -> list[str]:
        return [*super().collect_usage_pieces(context), "[-- PROGRAM [ARGUMENT]...]"]


def definition_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Every flag that says something of a job."""
    for title, options in reversed(OPTION_GROUPS.items()):
        command = group(title, options)(command)
    return command


@click.command(
    cls=WithCommand,
    help="""Define a job: a trigger, a target and policies, by flags or from a file.

\b
After -- comes a program with its arguments, which `horarium worker --queue shell --allow-commands` starts. It is a
list of words and no shell's line; for one, say: -- /bin/sh -c 'a | b'
\b
\b
Examples:
  horarium job add nightly --cron "0 3 * * *" --timezone Europe/Berlin --http https://example.com/report
  horarium job add poll --every 5m --queue reports --payload '{"kind": "poll"}' --attempts 5 --backoff 10s
  horarium job add party --at 2026-12-31T23:59:00Z --handler fireworks --args '{"size": 3}'
  horarium job add dump --cron "30 2 * * *" --env PGHOST=db1 -- pg_dump -Fc -f /backup/db.dump db
  horarium job add --file job.yaml
""",
)
@click.argument("name", metavar="[NAME]", required=False)
@click.option("--file", metavar="FILE", help="The job as a YAML or JSON file; - is the standard input.")
@click.option("--replace", is_flag=True, help="Bring a job of that name, if there is one, to this content.")
@definition_options
@on_server
def add(server: Server, name: str | None, file: str | None, replace: bool, **flags: Any) -> None:
    definition = {**_from_file(file), **_from_flags(flags)}
    if name is not None:
        definition["name"] = name
    _check_complete(definition)
    with in_flags():
        job = server.client.put_job(definition)[0] if replace else _create(server.client, definition)
    server.tell(in_full(job), f"Job {job.name}: {job.words}.")


@click.command(
    cls=WithCommand,
    help="""Change some fields of a job; the others stay.

\b
A new trigger or target takes the place of the old one. Labels are added to those that are there.
\b
Examples:
  horarium job update nightly --cron "30 3 * * *" --attempts 5
  horarium job update nightly --label team=billing --remove-label owner
  horarium job update nightly --disabled
""",
)
@NAME
@click.option("--file", metavar="FILE", help="A JSON merge patch as a YAML or JSON file; - is the standard input.")
@click.option("--remove-label", multiple=True, metavar="NAME", help="A label to take away; repeatable.")
@definition_options
@on_server
def update(server: Server, name: str, file: str | None, remove_label: tuple[str, ...], **flags: Any) -> None:
    changes = {**_from_file(file), **_from_flags(flags)}
    if remove_label:
        changes["labels"] = {**changes.get("labels", {}), **dict.fromkeys(remove_label)}
    if not changes:
        raise click.UsageError("nothing to change: give at least one flag, or --file")
    with in_flags():
        if "type" in changes.get("trigger", {}) or "type" in changes.get("target", {}):
            changes = _replacing(server.client.get_job(name), changes)
        job = server.client.patch_job(name, changes)
    server.tell(in_full(job), f"Job {job.name}: {job.words}.")


@contextmanager
def in_flags() -> Iterator[None]:
    """What the server says about a field also names the flag that sets it."""
    try:
        yield
    except HorariumError as error:
        flag = flag_of(error.field)
        if flag is not None and flag not in error.message:
            error.message = f"{error.message} ({flag})"
        raise


def _create(client: Any, definition: Mapping[str, Any]) -> Any:
    try:
        return client.create_job(definition)
    except AlreadyExists as error:
        raise AlreadyExists(
            f"job {definition['name']!r} exists already; add --replace to change it, or give another name",
            field=error.field,
        ) from None


def _from_file(file: str | None) -> dict[str, Any]:
    if file is None:
        return {}
    definitions = read_definitions(file)
    if len(definitions) != 1:
        raise click.UsageError(f"--file: {file} holds {len(definitions)} jobs; use `horarium job import` for many")
    return definitions[0]


def _from_flags(flags: dict[str, Any]) -> dict[str, Any]:
    fields = policies_of(flags)
    if flags.get("on"):
        fields["on"] = follows_of(flags["on"])
    text = flags.pop("trigger_text")
    trigger = after_of(flags) or trigger_of(flags)
    if text is not None and trigger is not None:
        raise click.UsageError("give --trigger or one of the other trigger flags, not both")
    if text is not None or trigger is not None:
        fields["trigger"] = trigger if text is None else trigger_json(text)
    target = target_of(with_command(flags))
    if target:
        fields["target"] = target
    return fields


def with_command(flags: dict[str, Any]) -> dict[str, Any]:
    """The flags, with the program and the queue that a command after `--` means."""
    given: list[str] = click.get_current_context().meta["command"]
    more = {name: flags[name] for name in ("env", "cwd", "user", "stdin") if flags.get(name)}
    if not given and not more:
        return flags
    if not given:
        raise click.UsageError(f"--{next(iter(more))} belongs to a command; give it after --, or use --payload")
    if flags.get("payload") is not None:
        raise click.UsageError("give --payload or a command after --, not both")
    if "env" in more:
        for text in more["env"]:
            if "=" not in text:
                raise click.UsageError(f"--env: {text!r} has no '='; give NAME=VALUE")
        more["env"] = dict(text.split("=", 1) for text in more["env"])
    named = any(flags.get(name) not in (None, False) for name in TARGET_FLAGS)
    queue = flags.get("queue") if named else COMMAND_QUEUE
    if queue is None:
        raise click.UsageError("a command after -- is for a queue: give --queue, or no target")
    return {**flags, "queue": queue, "program": {"command": given, **more}}


def _check_complete(definition: Mapping[str, Any]) -> None:
    if "name" not in definition:
        raise click.UsageError("NAME is missing: say how the job is called")
    if "trigger" not in definition:
        raise click.UsageError("a trigger is missing: give one of --cron, --every, --at, --when, --rrule and --trigger")
    if "type" not in definition.get("target", {}):
        raise click.UsageError(
            "a target is missing: give one of --http, --queue, --handler, --bus and --external, or -- COMMAND"
        )


def _replacing(job: Any, changes: dict[str, Any]) -> dict[str, Any]:
    """The patch that puts a trigger or target in the place of the old one: what the old one had besides is nulled."""
    import msgspec

    old = msgspec.to_builtins({"trigger": job.trigger, "target": job.target})
    replaced = {field: _over(old[field], changes[field]) for field in old if "type" in changes.get(field, {})}
    return {**changes, **replaced}


def _over(old: Any, new: Any) -> Any:
    if not isinstance(old, dict) or not isinstance(new, dict):
        return new
    return {**{name: None for name in old if name not in new}, **{k: _over(old.get(k), v) for k, v in new.items()}}
