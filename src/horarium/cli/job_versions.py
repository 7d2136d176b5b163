"""`horarium job versions` and `horarium job revert`: what a job was, and the way back."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import click

from horarium.cli.audit import changes_of
from horarium.cli.job import NAME, in_full
from horarium.cli.output import Column
from horarium.cli.shell import Server, on_server
from horarium.errors import NotFound

COLUMNS = (
    Column("version", whole=True), Column("at", when=True, title="when"), Column("actor"), Column("action"),
    Column("change"),
)  # fmt: skip


@click.command(
    help="What a job was and who changed it, the newest version first.\n\n"
    "\b\nExamples:\n  horarium job versions nightly\n  horarium job versions nightly --json"
)
@NAME
@click.option("--limit", type=click.IntRange(1), help="At most this number; left out: all.")
@on_server
def versions(server: Server, name: str, limit: int | None) -> None:
    found = list(server.client.versions(name, limit))
    changes = [changes_of(older["definition"], newer["definition"]) for newer, older in pairwise(found)] + [""]
    shown = ({**each, "change": change} for each, change in zip(found, changes, strict=True))
    server.tell_all(found, COLUMNS, "There are no versions.", shown)


@click.command(
    help="Bring a job back to what it was at a version; left out: the one before the present. A job that was deleted "
    "is made again, as it was last.\n\n"
    "\b\nExamples:\n  horarium job revert nightly\n  horarium job revert nightly 7"
)
@NAME
@click.argument("at", metavar="[VERSION]", required=False, type=click.IntRange(1))
@click.option("--version", "version", type=click.IntRange(1), metavar="VERSION", help="The same as the argument.")
@on_server
def revert(server: Server, name: str, at: int | None, version: int | None) -> None:
    if at is not None and version is not None and at != version:
        raise click.UsageError("two versions are given")
    job = server.client.revert_job(name, at or version or _before(server.client, name))
    server.tell(in_full(job), f"Job {job.name} is as it was; its version is now {job.version}.")


def _before(client: Any, name: str) -> int:
    """The version before the present; the last one of a job that was deleted."""
    found = list(client.versions(name, 2))
    try:
        client.get_job(name)
    except NotFound:
        return int(found[0]["version"])
    if len(found) < 2:
        raise NotFound(f"job {name!r} has no version before its present one")
    return int(found[1]["version"])
