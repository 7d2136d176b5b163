"""`horarium queue`: how the keys of a queue share it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from horarium.cli.output import Column, labels_text
from horarium.cli.shell import Lazy, Server, on_server

queue = Lazy(name="queue", help="How fairness keys share a queue.")
COLUMNS = (
    Column("queue", whole=True),
    Column("hold", of=lambda one: "held" if one["hold"] else ""),
    Column("weights", whole=True, of=lambda one: _words(one["fair_weights"])),
)


@queue.command(
    "list",
    help="List queues: waiting runs, holds and weights.\n\n\b\nExample:\n  horarium queue list",
)
@on_server
def list_queues(server: Server) -> None:
    found = server.client.queues.list()
    none = "No run waits, and no weights are set. Set some: horarium queue set NAME --weight gold=3"
    server.tell_all(found, COLUMNS, none)


@queue.command(help="Show the weights of a queue's fairness keys.\n\n\b\nExample:\n  horarium queue show reports")
@click.argument("name")
@on_server
def show(server: Server, name: str) -> None:
    _tell(server, server.client.queues.get(name))


@queue.command(
    "set",
    short_help="Set the weights of a queue's fairness keys.",
    help="Set the weights of a queue's fairness keys, in place of those before: a key that is not named has the "
    "weight 1.\n\n\b\nExamples:\n"
    "  horarium queue set reports --weight gold=3 --weight silver=2\n  horarium queue set handler/render",
)
@click.argument("name")
@click.option("--weight", "weights", multiple=True, metavar="KEY=N", help="N turns for each one of others; repeatable.")
@on_server
def set_weights(server: Server, name: str, weights: tuple[str, ...]) -> None:
    _tell(server, server.client.queues.set(name, dict(_weight(text) for text in weights)))


def _weight(text: str) -> tuple[str, int]:
    key, _, number = text.rpartition("=")
    if not key or not number.isdecimal():
        raise click.UsageError(f"--weight: {text!r} is not KEY=N, such as gold=3")
    return key, int(number)


def _tell(server: Server, one: Mapping[str, Any]) -> None:
    words = _words(one["fair_weights"])
    server.tell(one, f"In {one['queue']}, {words or 'all fairness keys'} take turns{', others once' if words else ''}.")


def _words(weights: Mapping[str, int]) -> str:
    return labels_text(dict(sorted(weights.items())))
