"""`horarium key`: named keys for programs, and `horarium session`: who is signed in to the dashboard."""

from __future__ import annotations

from datetime import datetime

import click

from horarium.cli.fields import AHEAD, ROLES, pairs
from horarium.cli.output import Column, labels_text, print_json, say
from horarium.cli.shell import Lazy, Server, on_server

SESSION_COLUMNS = (
    Column("id", whole=True), Column("name"), Column("kind"), Column("created_at", when=True, title="began"),
    Column("ends_at", when=True, title="ends"),
)  # fmt: skip


session = Lazy(name="session", help="List and end sign-ins to the dashboard.")


@session.command("list", help="List who is signed in to the dashboard.\n\n\b\nExample:\n  horarium session list")
@on_server
def list_sessions(server: Server) -> None:
    found = list(server.client.sessions.list())
    server.tell_all(found, SESSION_COLUMNS, "No one is signed in to the dashboard.")


@session.command(
    help="End a sign-in, on every node within five seconds.\n\n\b\nExample:\n  horarium session end 3f0c1b9d2a7e4c58"
)
@click.argument("id")
@on_server
def end(server: Server, id: str) -> None:
    server.client.sessions.end(id)
    server.tell({"ended": id}, f"Session {id} ended.")


COLUMNS = (
    Column("name", whole=True), Column("roles", of=lambda key: " ".join(key["roles"])),
    Column("queues", of=lambda key: "all" if key["queues"] is None else " ".join(key["queues"])),
    Column("labels", of=lambda key: labels_text(key.get("labels") or {}, " ")),
    Column("created_at", when=True, title="made"), Column("last_used_at", when=True, title="used"),
    Column("expires_at", when=True, title="ends"),
)  # fmt: skip

key = Lazy(name="key", help="Make, list and revoke named keys.")


@key.command(
    help="""Make a key for a program; it is printed this once.

\b
Examples:
  horarium key create ci --role operator
  horarium key create images-worker --role worker --queue images --expires 90d
  horarium key create agent --role operator --runs-per-day 50 --calls-per-hour 500
  horarium key create billing-ops --role operator --label team=billing
"""
)
@click.argument("name", metavar="NAME")
@click.option(
    "--role", "roles", multiple=True, required=True, type=click.Choice(ROLES), help="What it may do; repeatable."
)
@click.option(
    "--queue", "queues", multiple=True, metavar="QUEUE", help="Bind it to the jobs and runs of this queue; repeatable."
)
@click.option(
    "--label",
    "labels",
    multiple=True,
    metavar="NAME=VALUE",
    help="Bind it to this label; repeatable.",
)
@click.option("--calls-per-hour", type=click.IntRange(1), metavar="N", help="Its budget: further calls are refused.")
@click.option("--runs-per-day", type=click.IntRange(1), metavar="N", help="Its budget of runs that it asks for.")
@click.option("--expires", type=AHEAD, metavar="WHEN", help="When it ends: an instant, or after a time such as 90d.")
@on_server
def create(
    server: Server,
    name: str,
    roles: tuple[str, ...],
    queues: tuple[str, ...],
    labels: tuple[str, ...],
    calls_per_hour: int | None,
    runs_per_day: int | None,
    expires: datetime | None,
) -> None:
    bound = pairs("--label", labels, "=") or None
    made = server.client.create_key(
        name,
        roles,
        queues=queues or None,
        labels=bound,
        calls_per_hour=calls_per_hour,
        runs_per_day=runs_per_day,
        expires_at=expires,
    )
    if server.as_json:
        print_json(made)
        return
    say(made["key"])
    say(f"This is the only time that the key {name} is shown.", err=True)


@key.command("list", help="List keys by name, without their secrets.\n\n\b\nExample:\n  horarium key list")
@on_server
def list_keys(server: Server) -> None:
    found = server.client.keys()
    server.tell_all(found, COLUMNS, "There are no keys; make one with `horarium key create`.")


@key.command(
    help="Let a key open nothing any more, on every node within five seconds.\n\n\b\nExample:\n  horarium key revoke ci"
)
@click.argument("name", metavar="NAME")
@on_server
def revoke(server: Server, name: str) -> None:
    server.client.revoke_key(name)
    server.tell({"revoked": name}, f"Key {name} is revoked.")
