"""`horarium feed`: addresses for calendar programs."""

from __future__ import annotations

import click

from horarium.cli.fields import pairs
from horarium.cli.output import Column, labels_text
from horarium.cli.shell import Lazy, Server, on_server

COLUMNS = (
    Column("name", whole=True),
    Column("jobs", of=lambda each: ", ".join(each["jobs"])),
    Column("labels", of=lambda each: labels_text(each["labels"])),
    Column("by", of=lambda each: f"{each['by']} (ended)" if each["ended"] else each["by"]),
    Column("created_at", when=True),
)


feed = Lazy(name="feed", help="Make, list and revoke addresses for calendar programs.")


@feed.command(
    help="""Make an address that Thunderbird, Google or Apple subscribe to. It is shown this once.

\b
Examples:
  horarium feed create billing --label team=billing
  horarium feed create backups --job nightly-backup --job weekly-backup
""",
)
@click.argument("name")
@click.option("--label", "labels", multiple=True, metavar="NAME=VALUE", help="Only jobs with this label; repeatable.")
@click.option("--job", "jobs", multiple=True, metavar="NAME", help="Only this job; repeatable.")
@on_server
def create(server: Server, name: str, labels: tuple[str, ...], jobs: tuple[str, ...]) -> None:
    made = server.client.feeds.create(name, labels=pairs("--label", labels, "="), jobs=jobs)
    server.tell(made, made["url"])


@feed.command("list", help="List feeds, without their addresses.\n\n\b\nExample:\n  horarium feed list")
@on_server
def list_feeds(server: Server) -> None:
    found = list(server.client.feeds.list())
    server.tell_all(found, COLUMNS, "There is no feed.")


@feed.command(help="Revoke a feed: its address is gone.\n\n\b\nExample:\n  horarium feed revoke billing")
@click.argument("name")
@on_server
def revoke(server: Server, name: str) -> None:
    server.client.feeds.revoke(name)
    server.tell({"revoked": name}, f"Feed {name} revoked.")
