"""`horarium rate`: what the keys of rate limits allow."""

from __future__ import annotations

from datetime import datetime

import click

from horarium.cli.fields import INSTANT
from horarium.cli.output import Column
from horarium.cli.shell import Lazy, Server, on_server
from horarium.triggers.words import counted

rate = Lazy(name="rate", help="How many attempts may begin in a time, by key.")
COLUMNS = (
    Column("key", whole=True),
    Column("allows", whole=True, of=lambda one: one["max"] and f"{one['max']} in {one['per_seconds']:g} s"),
    Column("burst"),
    Column("set", of=lambda one: (one["until"] or "yes") if one["overridden"] else ""),
    Column("opens", of=lambda one: one["opens_at"] or "now"),
)


@rate.command(
    "list",
    help="List the keys of rate limits, and when they open.\n\n\b\nExample:\n  horarium rate list --prefix api:",
)
@click.option("--prefix", metavar="TEXT", default="", help="Only keys that begin with this.")
@on_server
def list_rates(server: Server, prefix: str) -> None:
    found = server.client.rates.list(prefix)
    server.tell_all(found, COLUMNS, "No key of a rate limit is in use. Set one: horarium rate set KEY 100/1m")


@rate.command(
    "set",
    help="Set the limit of a key, instead of what jobs say.\n\n\b\nExamples:\n"
    "  horarium rate set api 100/1m\n  horarium rate set api:acme 10/1m --until 2027-01-01T06:00:00Z",
)
@click.argument("key")
@click.argument("limit", metavar="MAX/TIME")
@click.option("--burst", type=click.IntRange(1), metavar="N", help="How many may begin at once; a tenth if left out.")
@click.option("--until", type=INSTANT, metavar="INSTANT", help="Until then; left out: for good.")
@on_server
def set_rate(server: Server, key: str, limit: str, burst: int | None, until: datetime | None) -> None:
    from horarium.errors import InvalidRequest
    from horarium.wire.rates import read_limit

    try:
        asked = read_limit(limit)
    except InvalidRequest as error:
        raise click.UsageError(error.message) from None
    one = server.client.rates.set(key, asked["max"], asked["per_seconds"], burst, until)
    server.tell(one, f"Under {key}, {counted(one['max'], 'attempt')} may begin in {one['per_seconds']:g} s.")


@rate.command(help="Have what jobs say hold again for a key.\n\n\b\nExample:\n  horarium rate reset api:acme")
@click.argument("key")
@on_server
def reset(server: Server, key: str) -> None:
    server.client.rates.reset(key)
    server.tell({"reset": key}, f"What jobs say holds again under {key}.")
