"""`horarium upcoming`: what fires next, of all jobs together."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import click

from horarium.cli.fields import until_moment
from horarium.cli.output import Column, print_json, print_table, say
from horarium.cli.shell import Server, on_server
from horarium.clock import SystemClock, to_datetime

COLUMNS = (Column("fire_at", when=True, title="fires"), Column("job", whole=True), Column("held"))
LIMIT_MAX = 1_000


@click.command(
    help="""What fires next, of all jobs together: a day from now on, or the span that is given (31 days at most).

\b
Examples:
  horarium upcoming
  horarium upcoming --limit 5 --json
  horarium upcoming --since 2027-01-01T00:00:00+01:00 --until 2027-01-02T00:00:00+01:00
""",
)
@click.option("--since", metavar="WHEN", help="From then on: an instant, or 2h for in two hours; left out: now.")
@click.option("--until", metavar="WHEN", help="Before then; left out: a day later.")
@click.option("--limit", type=click.IntRange(1, LIMIT_MAX), default=20, show_default=True, help="How many, at most.")
@on_server
def upcoming(server: Server, since: str | None, until: str | None, limit: int) -> None:
    now = to_datetime(SystemClock().now())
    span = [None if text is None else until_moment(text, now) for text in (since, until)]
    found = server.client.upcoming(span[0], span[1], limit)
    if server.as_json:
        print_json(found)
        return
    rows = ((datetime.fromisoformat(each["fire_at"]), each["job"], held_words(each)) for each in found["items"])
    print_table(COLUMNS, rows, "Nothing fires in that time.")
    if found["truncated"]:
        say("There are more; see --limit and --until.", err=True)


def held_words(fire: dict[str, Any]) -> str:
    """The hold over a fire time, and what becomes of it."""
    if (held := fire.get("held")) is None:
        return ""
    until = "until it is lifted" if held["until"] is None else f"until {held['until']}"
    skipped = ", then skipped" if held["missed"] == "skip" else ""
    return f"{until}{skipped}: {held['reason']}"
