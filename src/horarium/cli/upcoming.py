"""`horarium upcoming`: what fires next, of all jobs together."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import click

from horarium.cli.fields import AHEAD
from horarium.cli.output import Column, print_json, print_table, say
from horarium.cli.shell import Server, on_server

COLUMNS = (
    Column("fire_at", when=True, title="fires"),
    Column("job", whole=True),
    Column("held", of=lambda fire: held_words(fire)),
)
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
@click.option(
    "--since", type=AHEAD, metavar="WHEN", help="From then on: an instant, or 2h for in two hours; left out: now."
)
@click.option("--until", type=AHEAD, metavar="WHEN", help="Before then; left out: a day later.")
@click.option("--limit", type=click.IntRange(1, LIMIT_MAX), default=20, show_default=True, help="How many, at most.")
@on_server
def upcoming(server: Server, since: datetime | None, until: datetime | None, limit: int) -> None:
    found = server.client.upcoming(since, until, limit)
    if server.as_json:
        print_json(found)
        return
    print_table(COLUMNS, found["items"], "Nothing fires in that time.")
    if found["truncated"]:
        say("There are more; see --limit and --until.", err=True)


def held_words(fire: dict[str, Any]) -> str:
    """The hold over a fire time, and what becomes of it."""
    if (held := fire.get("held")) is None:
        return ""
    until = "until it is lifted" if held["until"] is None else f"until {held['until']}"
    skipped = ", then skipped" if held["missed"] == "skip" else ""
    return f"{until}{skipped}: {held['reason']}"
