"""`horarium feed`: addresses for calendar programs."""

from __future__ import annotations

from datetime import datetime

import click

from horarium.cli.fields import pairs
from horarium.cli.output import Column, print_json, print_json_list, print_table, say
from horarium.cli.shell import connect, server_options

COLUMNS = (Column("name", whole=True), Column("jobs"), Column("labels"), Column("created_at", when=True))


@click.group(help="Make, list and revoke addresses for calendar programs.")
def feed() -> None:
    """The group."""


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
@server_options
def create(
    name: str, labels: tuple[str, ...], jobs: tuple[str, ...], url: str, api_key: str | None, as_json: bool
) -> None:
    with connect(url, api_key) as client:
        made = client.feeds.create(name, labels=pairs("--label", labels, "="), jobs=jobs)
    if as_json:
        print_json(made)
    else:
        say(made["url"])


@feed.command("list", help="List feeds, without their addresses.\n\n\b\nExample:\n  horarium feed list")
@server_options
def list_feeds(url: str, api_key: str | None, as_json: bool) -> None:
    with connect(url, api_key) as client:
        if as_json:
            print_json_list(client.feeds.list())
            return
        rows = [
            (
                each["name"],
                ", ".join(each["jobs"]),
                ", ".join(f"{key}={value}" for key, value in each["labels"].items()),
                datetime.fromisoformat(each["created_at"]),
            )
            for each in client.feeds.list()
        ]
    print_table(COLUMNS, rows, "There is no feed.")


@feed.command(help="Revoke a feed: its address is gone.\n\n\b\nExample:\n  horarium feed revoke billing")
@click.argument("name")
@server_options
def revoke(name: str, url: str, api_key: str | None, as_json: bool) -> None:
    with connect(url, api_key) as client:
        client.feeds.revoke(name)
    if as_json:
        print_json({"revoked": name})
    else:
        say(f"Feed {name} revoked.")
