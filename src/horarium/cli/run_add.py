"""`horarium run add`: a run that belongs to no job, by flags."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import click
from msgspec import UNSET

from horarium.cli.fields import DURATION, INSTANT, duration_seconds, policies_of, target_of
from horarium.cli.job_define import COMMAND_OPTIONS, POLICY_OPTIONS, TARGET_OPTIONS, WithCommand, in_flags, with_command
from horarium.cli.output import beside, json_text, one_line, print_json, say
from horarium.cli.shell import Server, group, on_server, parameters

WHEN_OPTIONS = [
    click.option("--at", type=INSTANT, metavar="INSTANT", help="Due at this instant; left out: now."),
    click.option("--delay", type=DURATION, metavar="DURATION", help="Due after this, such as 5m."),
    click.option("--wait", is_flag=True, help="Wait until it is over; the exit status is 0 if it completed, else 1."),
    click.option("--key", metavar="TEXT", help="Asking again with the same key gives the same run."),
]
UNIQUE_OPTIONS = [
    click.option("--unique", metavar="KEY", help="One run at a time holds this key; see the flags below."),
    click.option("--unique-for", type=DURATION, metavar="DURATION", help="It is held so long from when it was made."),
    click.option(
        "--unique-until", type=click.Choice(["begun", "finished", "forgotten"]), help="It is held until then."
    ),
    click.option("--replace", is_flag=True, help="A run that waits under it gets this payload, due time and priority."),
    click.option("--debounce", metavar="KEY=DURATION", help="Due once no call with this key came for so long."),
    click.option("--debounce-max", type=DURATION, metavar="DURATION", help="At the latest so long after the first."),
]
POLICIES = (
    "attempts", "retries", "backoff", "backoff_factor", "backoff_max", "retry_age", "start_timeout",
    "execution_timeout", "heartbeat_timeout", "label", "priority", "concurrency", "rate", "fair", "keep",
)  # fmt: skip
OPTION_GROUPS = {
    "Target (one of them)": TARGET_OPTIONS[:4],
    "When": WHEN_OPTIONS,
    "Unique": UNIQUE_OPTIONS,
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
    return parameters(option(lambda: None))[0].name or ""


def _rules(flags: dict[str, Any]) -> dict[str, Any]:
    """The fields `unique` and `debounce`."""
    key, seconds, until = flags.pop("unique"), flags.pop("unique_for"), flags.pop("unique_until")
    replaces, debounce, latest = flags.pop("replace"), flags.pop("debounce"), flags.pop("debounce_max")
    if key is None and (seconds is not None or until or replaces):
        raise click.UsageError("--unique-for, --unique-until and --replace go with --unique KEY")
    if debounce is None and latest is not None:
        raise click.UsageError("--debounce-max goes with --debounce KEY=DURATION")
    rules: dict[str, Any] = {}
    if key is not None:
        fields = {"key": key, "for_seconds": seconds, "until": until, "on_conflict": "replace" if replaces else None}
        rules["unique"] = {name: value for name, value in fields.items() if value is not None}
    if debounce is not None:
        name, _, text = debounce.rpartition("=")
        wait = duration_seconds(text)
        if not name or wait is None:
            raise click.UsageError("--debounce: give KEY=DURATION, such as page-7=30s")
        rules["debounce"] = {"key": name, "seconds": wait, **({} if latest is None else {"max_seconds": latest})}
    return rules


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
@on_server
def add(server: Server, at: datetime | None, delay: float | None, wait: bool, key: str | None, **flags: Any) -> int:
    if at is not None and delay is not None:
        raise click.UsageError("give --at or --delay, not both")
    rules = _rules(flags)
    target = target_of(with_command(flags))
    if "type" not in target:
        raise click.UsageError("a target is missing: give one of --http, --queue, --handler and --bus, or -- COMMAND")
    fields: dict[str, Any] = {**policies_of(flags), **rules, "at": at, "delay_seconds": delay, "unique_key": key}
    given = {name: value for name, value in fields.items() if value is not None}
    with in_flags():
        run, new = server.client.add_run(target, **given)
        changed = "debounce" in given or rules.get("unique", {}).get("on_conflict") == "replace"
        if not server.as_json and changed and not new:
            say(f"Run {run.id} holds that key; it is {run.state}, due {beside(run.due_at)}.")
        elif not server.as_json:
            holds = f"is {run.state}, due {beside(run.due_at)}" if new else f"holds that key; it is {run.state}"
            say(f"Run {run.id} {holds}.")
        if wait:
            run = server.client.wait_for(run.id)
            if not server.as_json:
                why = "" if run.error is None else f": {one_line(run.error)}"
                say(f"Run {run.id} is {run.state}{why}.")
                if run.result not in (None, UNSET):
                    say(json_text(run.result))
    if server.as_json:
        print_json(run)
    return 1 if wait and run.state != "completed" else 0
