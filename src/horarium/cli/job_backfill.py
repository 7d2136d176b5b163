"""`horarium job backfill`: the runs of a time that has passed. The server makes up to 1,000 a request and says where to
go on; this goes on until nothing is left, at the pace that is asked for."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING

import click

from horarium.cli.fields import INSTANT
from horarium.cli.job import NAME
from horarium.cli.output import moment_text, print_json_list, say
from horarium.cli.shell import Server, on_server
from horarium.triggers.words import counted

if TYPE_CHECKING:
    from horarium.client import Client
    from horarium.wire.views import RunView


@click.command(
    help="""Make runs for the fire times from START (included) to END (excluded).

Fire times that have a run keep theirs, so it may be asked again. The runs are made in groups of up to 1,000, until
nothing is left; --per-second leaves time between the groups.

\b
Examples:
  horarium job backfill nightly 2026-11-01T00:00:00Z 2026-11-08T00:00:00Z
  horarium job backfill minutely 2026-01-01T00:00:00Z 2026-11-01T00:00:00Z --per-second 50
""",
)
@NAME
@click.argument("start", type=INSTANT)
@click.argument("end", type=INSTANT)
@click.option("--per-second", type=click.FloatRange(0.001), metavar="N", help="At most this number of runs a second.")
@on_server
def backfill(server: Server, name: str, start: datetime, end: datetime, per_second: float | None) -> None:
    runs = _made(server.client, name, start, end, per_second)
    if server.as_json:
        print_json_list(runs)
    else:
        say(f"{counted(sum(1 for _ in runs), 'run')} made.")


def _made(client: Client, name: str, start: datetime, end: datetime, per_second: float | None) -> Iterator[RunView]:
    """The runs as they are made. If it ends early, it says which runs were not made."""
    count, pause = 0, 0.0
    next_start: datetime | None = start
    try:
        while next_start is not None:
            time.sleep(pause)
            made = client.backfill(name, next_start, end)
            next_start = made.next_start
            count += len(made.runs)
            pause = len(made.runs) / per_second if per_second else 0.0
            _show(count, made.left)
            yield from made.runs
    except BaseException:
        if next_start not in (None, start):
            again = f"horarium job backfill {name} {moment_text(next_start)} {moment_text(end)}"
            say(f"{counted(count, 'run was', 'runs were')} made; go on with: {again}", err=True)
        raise


def _show(count: int, left: int) -> None:
    """How far it is, on a terminal."""
    if left and sys.stderr.isatty():
        say(f"{counted(count, 'run')} made, {left:,} or more fire times left", err=True)
