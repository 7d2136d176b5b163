"""`horarium session`: who is signed in to the dashboard."""

from __future__ import annotations

import click

from horarium.cli.output import Column
from horarium.cli.shell import Lazy, Server, on_server

COLUMNS = (
    Column("id", whole=True), Column("name"), Column("kind"), Column("created_at", when=True, title="began"),
    Column("ends_at", when=True, title="ends"),
)  # fmt: skip


session = Lazy(name="session", help="List and end sign-ins to the dashboard.")


@session.command("list", help="List who is signed in to the dashboard.\n\n\b\nExample:\n  horarium session list")
@on_server
def list_sessions(server: Server) -> None:
    found = list(server.client.sessions.list())
    server.tell_all(found, COLUMNS, "No one is signed in to the dashboard.")


@session.command(
    help="End a sign-in, on every node within five seconds.\n\n\b\nExample:\n  horarium session end 3f0c1b9d2a7e4c58"
)
@click.argument("id")
@on_server
def end(server: Server, id: str) -> None:
    server.client.sessions.end(id)
    server.tell({"ended": id}, f"Session {id} ended.")
