"""`horarium run add`: a run that belongs to no job, by flags."""

from __future__ import annotations

from typing import Any

import click
from msgspec import UNSET

from horarium.cli.fields import DURATION, INSTANT, policies_of, target_of
from horarium.cli.grouped import group, parameters
from horarium.cli.job_define import COMMAND_OPTIONS, POLICY_OPTIONS, TARGET_OPTIONS, WithCommand, in_flags, with_command
from horarium.cli.output import beside, json_text, one_line, print_json, say
from horarium.cli.shell import connect, server_options

WHEN_OPTIONS = [
    click.option("--at", type=INSTANT, metavar="INSTANT", help="Due at this instant; left out: now."),
    click.option("--delay", type=DURATION, metavar="DURATION", help="Due after this, such as 5m."),
    click.option("--wait", is_flag=True, help="Wait until it is over; the exit status is 0 if it completed, else 1."),
    click.option("--key", metavar="TEXT", help="Asking again with the same key gives the same run."),
]
POLICIES = (
    "attempts", "retries", "backoff", "backoff_factor", "backoff_max", "retry_age", "start_timeout",
    "execution_timeout", "heartbeat_timeout", "priority", "concurrency", "keep",
)  # fmt: skip
OPTION_GROUPS = {
    "Target (one of them)": TARGET_OPTIONS[:4],
    "When": WHEN_OPTIONS,
    "What is sent": TARGET_OPTIONS[4:],
    "Command (after --)": COMMAND_OPTIONS,
    "Policies": POLICY_OPTIONS,
}


def _run_options(command: Any) -> Any:
    for title, options in reversed(OPTION_GROUPS.items()):
        if title == "Policies":
            options = [option for option in options if _name(option) in POLICIES]
        command = group(title, options)(command)
    return command


def _name(option: Any) -> str:
    """The name of the parameter that an option makes."""

    def nothing() -> None:
        pass

    return parameters(option(nothing))[0].name or ""


@click.command(
    cls=WithCommand,
    help="""Add a run that belongs to no job: now, at an instant, or after a delay.

\b
After -- comes a program with its arguments, which `horarium worker --queue shell --allow-commands` starts.
\b
\b
Examples:
  horarium run add --queue images --payload '{"width": 640}'
  horarium run add --http https://example.com/report --delay 5m --attempts 5
  horarium run add --queue images --payload '{"width": 640}' --wait
  horarium run add --handler report --args '{"month": 3}' --at 2026-12-31T23:59:00Z --key report-3
""",
)
@_run_options
@server_options
def add(
    at: str | None, delay: float | None, wait: bool, key: str | None, url: str, api_key: str | None, as_json: bool,
    **flags: Any,
) -> int:  # fmt: skip
    if at is not None and delay is not None:
        raise click.UsageError("give --at or --delay, not both")
    target = target_of(with_command(flags))
    if "type" not in target:
        raise click.UsageError("a target is missing: give one of --http, --queue, --handler and --bus, or -- COMMAND")
    fields: dict[str, Any] = {**policies_of(flags), "at": at, "delay_seconds": delay, "unique_key": key}
    given = {name: value for name, value in fields.items() if value is not None}
    with connect(url, api_key) as client, in_flags():
        run, new = client.add_run(target, **given)
        if not as_json:
            holds = f"is {run.state}, due {beside(run.due_at)}" if new else f"holds that key; it is {run.state}"
            say(f"Run {run.id} {holds}.")
        if wait:
            run = client.wait_for(run.id)
            if not as_json:
                why = "" if run.error is None else f": {one_line(run.error)}"
                say(f"Run {run.id} is {run.state}{why}.")
                if run.result not in (None, UNSET):
                    say(json_text(run.result))
    if as_json:
        print_json(run)
    return 1 if wait and run.state != "completed" else 0
