"""`horarium attention`: faults and their acknowledgements."""

from __future__ import annotations

from datetime import datetime

import click

from horarium.cli.fields import AHEAD
from horarium.cli.output import Column
from horarium.cli.shell import Lazy, Server, on_server

attention = Lazy(name="attention", help="Faults and their acknowledgements.")
COLUMNS = (
    Column("cause", whole=True),
    Column("since", when=True),
    Column("acknowledged", of=lambda one: (ack := one["acknowledged"]) and f"{ack['by']}: {ack['reason']}"),
    Column("what", of="text"),
)
CAUSE = click.argument("cause")


@attention.command("list", help="List faults, worst first.\n\n\b\nExample:\n  horarium attention list")
@on_server
def list_faults(server: Server) -> None:
    found = server.client.attention.list()
    server.tell_all(found, COLUMNS, "All is well.")


@attention.command(
    help="Take note of a cause: it no longer leads the verdict, until it is another or the time is over.\n\n\b\n"
    "Examples:\n  horarium attention acknowledge failing/nightly --reason 'the disk comes on Monday'\n"
    "  horarium attention acknowledge unserved/pull/gpu --reason 'no machine' --until 7d",
)
@CAUSE
@click.option("--reason", required=True, metavar="TEXT", help="Why.")
@click.option("--until", type=AHEAD, metavar="WHEN", help="An instant, or after a time such as 7d; a day if left out.")
@on_server
def acknowledge(server: Server, cause: str, reason: str, until: datetime | None) -> None:
    one = server.client.attention.acknowledge(cause, reason, until)
    server.tell(one, f"{cause} is acknowledged until {one['acknowledged']['until']}.")


@attention.command(help="Take that back.\n\n\b\nExample:\n  horarium attention reopen failing/nightly")
@CAUSE
@on_server
def reopen(server: Server, cause: str) -> None:
    server.client.attention.reopen(cause)
    server.tell({"reopened": cause}, f"{cause} is open again.")
