"""`horarium preview`: when a trigger would fire, worked out here; on the days of a calendar, by the server."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import click

from horarium.cli.fields import guess_trigger, read_moment, trigger_of
from horarium.cli.output import moment_text, print_json, say
from horarium.cli.shell import Server, on_server, with_options
from horarium.clock import INSTANT_MAX, SystemClock, to_datetime, to_instant
from horarium.rules.calendars import calendars_in
from horarium.triggers import FIRES_MAX, parse_trigger
from horarium.triggers.dialects import DIALECTS, warnings_of

EXAMPLES = """
\b
TRIGGER is a phrase, a cron expression, an RRULE, an instant, a duration or a trigger as JSON; which of them is guessed.
\b
Examples:
  horarium preview "every other tuesday at 9:34am" --timezone Europe/Berlin
  horarium preview "*/15 9-17 * * MON-FRI"
  horarium preview "FREQ=MONTHLY;BYDAY=-1FR" --count 3
  horarium preview --every 90m --after 2026-01-01T00:00:00Z
  horarium preview --cron "0 17 L * *" --calendar target2 --convention preceding
"""


CONVENTIONS = (
    "unadjusted", "skip", "following", "preceding", "modified_following", "modified_preceding", "nearest",
)  # fmt: skip
TRIGGER_OPTIONS = [
    click.option("--rrule", metavar="RULE", help="RFC 5545: FREQ=..., or lines of DTSTART, RRULE, EXDATE, ..."),
    click.option("--cron", metavar="EXPRESSION", help="Cron expression of 5, 6 or 7 fields, or @daily etc."),
    click.option(
        "--dialect",
        type=click.Choice(DIALECTS),
        help="Whose cron it is: Quartz and EventBridge count days from 1 = SUN.",
    ),
    click.option("--every", metavar="DURATION", help="Interval: 250ms, 30s, 5m, 1h30m, 2d."),
    click.option("--from-end", is_flag=True, default=None, help="Interval: counted from the end of the last run."),
    click.option("--at", metavar="INSTANT", help="Once: RFC 3339, or a wall time with --timezone."),
    click.option("--when", metavar="PHRASE", help='Plain English: "every other tuesday at 9:34am".'),
    click.option("--timezone", metavar="ZONE", help="IANA time zone of the trigger, such as Europe/Berlin."),
    click.option("--calendar", metavar="NAME", help="Only on business days of this calendar."),
    click.option(
        "--convention",
        type=click.Choice(CONVENTIONS),
        help="Where a fire time goes whose day is no business day; skip if left out.",
    ),
    click.option("--offset", type=click.IntRange(-366, 366), help="That many business days on, or back."),
]


@click.command(help="Show when a trigger would fire. Needs no server, but for the days of a calendar.\n" + EXAMPLES)
@click.argument("trigger", required=False)
@with_options(TRIGGER_OPTIONS)
@click.option("--count", type=click.IntRange(0, FIRES_MAX), default=10, show_default=True, help="How many fire times.")
@click.option("--after", metavar="INSTANT", help="Fire times strictly after this instant; left out: now.")
@on_server
def preview(server: Server, trigger: str | None, count: int, after: str | None, **flags: Any) -> None:
    spec = _spec(trigger, flags)
    start = to_instant(_after(after)) if after is not None else SystemClock().now()
    rule = parse_trigger(spec).anchored(start)
    if next(calendars_in(spec), None) is not None:
        found = server.client.preview(spec, to_datetime(start), count)
        fires, words = found.fires, found.words
    else:
        fires, words = [to_datetime(fire) for fire in rule.list_fires(start, INSTANT_MAX, count)], rule.words()
    warnings = [] if flags.get("dialect") else warnings_of(spec)
    if server.as_json:
        told = {"fires": fires, "words": words, "trigger": rule.spec()}
        print_json({**told, "warnings": warnings} if warnings else told)
        return
    for warning in warnings:
        click.echo(f"warning: {warning}", err=True)
    say(words)
    for fire in fires:
        say(f"  {moment_text(fire)}{_local(fire, spec.get('timezone'))}")
    if not fires and count:
        follows = spec.get("type") == "after"
        say(f"  {'as these jobs run: nothing is known ahead' if follows else 'never: it has no fire time after that'}")


def _spec(trigger: str | None, flags: dict[str, Any]) -> dict[str, Any]:
    if trigger is not None and flags.get("dialect") and flags.get("cron") is None:
        return _spec(None, {**flags, "cron": trigger})
    if trigger is not None:
        timezone = flags.pop("timezone")
        if any(value is not None for value in flags.values()):
            raise click.UsageError("give TRIGGER or a trigger flag, not both")
        return guess_trigger(trigger, timezone)
    spec = trigger_of(flags)
    if spec is None:
        raise click.UsageError("give TRIGGER, or one of --rrule, --cron, --every, --at and --when")
    return spec


def _after(text: str) -> datetime:
    moment = read_moment(text)
    if moment is None or moment.tzinfo is None:
        raise click.UsageError(f"--after: {text!r} is not an instant; give one such as 2026-12-24T18:00:00Z")
    return moment


def _local(fire: datetime, timezone: Any) -> str:
    """The wall time in the trigger's zone, which is what people compare with."""
    if not isinstance(timezone, str) or timezone == "UTC":
        return ""
    from zoneinfo import ZoneInfo

    return f"   {fire.astimezone(ZoneInfo(timezone)):%a %Y-%m-%d %H:%M:%S %Z}"
