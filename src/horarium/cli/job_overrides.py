"""`horarium job skip|move|unskip|overrides`: single fire times of a job."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from horarium.cli.documents import OVERRIDES
from horarium.cli.entry import Entry
from horarium.cli.fields import AHEAD
from horarium.cli.job import NAME
from horarium.cli.output import Column, beside, say
from horarium.cli.shell import Server, on_server
from horarium.errors import Conflict

if TYPE_CHECKING:
    from horarium.client import Client

COLUMNS = (
    Column("fire_at", when=True, whole=True), Column("action", whole=True), Column("to", when=True, whole=True),
    Column("by"), Column("reason"),
)  # fmt: skip
AT = click.option("--at", type=AHEAD, metavar="WHEN", help="The fire time: an instant, a wall time, or 2h from now.")
REASON = click.option("--reason", metavar="TEXT", help="Why; shown wherever the fire time is.")


@click.command(
    help="Skip one fire time of a job. Its run is withdrawn if it is planned ahead.\n\n"
    '\b\nExamples:\n  horarium job skip payroll --next --reason "the bank is closed"\n'
    "  horarium job skip payroll --at 2027-01-15T09:00:00+01:00"
)
@NAME
@AT
@click.option("--next", "is_next", is_flag=True, help="The next one.")
@REASON
@on_server
def skip(server: Server, name: str, at: datetime | None, is_next: bool, reason: str | None) -> None:
    if (at is None) is not is_next:
        raise click.UsageError("give either --next or --at")
    told = server.client.overrides.skip(name, at or _next(server.client, name), reason)
    server.tell(told, f"Job {name} does not run at {beside(told.fire_at)}.")


@click.command(
    help="Move one fire time of a job to another instant. Its run keeps the fire time of the rule.\n\n"
    "\b\nExample:\n  horarium job move payroll --at 2027-01-15T09:00:00+01:00 --to 2027-01-15T11:00:00+01:00"
)
@NAME
@click.option(
    "--at", type=AHEAD, required=True, metavar="WHEN", help="The fire time: an instant, a wall time, or 2h from now."
)
@click.option("--to", type=AHEAD, required=True, metavar="WHEN", help="When its run is due instead.")
@REASON
@on_server
def move(server: Server, name: str, at: datetime, to: datetime, reason: str | None) -> None:
    told = server.client.overrides.move(name, at, to, reason)
    assert told.to is not None, "it was moved"
    server.tell(told, f"Job {name} runs at {beside(told.to)} instead of {beside(told.fire_at)}.")


@click.command(
    help="Take a skip or a move back: the fire time is as its rule has it.\n\n"
    "\b\nExample:\n  horarium job unskip payroll --at 2027-01-15T09:00:00+01:00"
)
@NAME
@click.option(
    "--at", type=AHEAD, required=True, metavar="WHEN", help="The fire time: an instant, a wall time, or 2h from now."
)
@on_server
def unskip(server: Server, name: str, at: datetime) -> None:
    server.client.overrides.remove(name, at)
    server.tell({"job": name, "fire_at": at}, f"Job {name} runs at {beside(at)} again.")


@click.command(
    help="List the fire times of a job that are skipped or moved.\n\n\b\nExample:\n  horarium job overrides payroll"
)
@NAME
@on_server
def overrides(server: Server, name: str) -> None:
    found = list(server.client.overrides.list(name))
    server.tell_all(found, COLUMNS, "No fire time is skipped or moved.")


def _next(client: Client, name: str) -> datetime:
    """The next fire time of the rule: the first instant at which the job runs, or the one that was moved there."""
    found = client.fires(name, 1)
    if not found.fires:
        raise click.ClickException(f"job {name} has no fire time ahead")
    moved = {each.to: each.fire_at for each in found.overrides if each.to is not None}
    return moved.get(found.fires[0], found.fires[0])


# ---- in files of jobs -------------------------------------------------------------------------------------------


def overrides_of(client: Client, name: str) -> list[dict[str, Any]]:
    """Those of a job, for a file."""
    found = []
    for each in client.overrides.list(name):
        when = {"fire_at": each.fire_at.isoformat(), "action": str(each.action), "to": each.to and each.to.isoformat()}
        fields = {**when, "reason": each.reason}
        found.append({field: value for field, value in fields.items() if value is not None})
    return found


def without_overrides(entries: Iterable[Entry]) -> tuple[list[Entry], dict[str, list[dict[str, Any]]]]:
    """The jobs of a file as they are defined, and the overrides that it has, by job."""
    found, overridden = list[Entry](), dict[str, list[dict[str, Any]]]()
    for entry in entries:
        if isinstance(entry.definition, dict) and isinstance(given := entry.definition.get(OVERRIDES), list):
            overridden[entry.name or ""] = given
            entry = entry._replace(definition={k: v for k, v in entry.definition.items() if k != OVERRIDES})
        found.append(entry)
    return found, overridden


def set_overrides(client: Client, overridden: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """Skips and moves these fire times; one that is over, or is none of the job's any more, is warned of."""
    for name, overrides in overridden.items():
        for each in overrides:
            try:
                fire_at, reason = datetime.fromisoformat(str(each.get("fire_at"))), each.get("reason")
                if each.get("to") is None:
                    client.overrides.skip(name, fire_at, reason)
                else:
                    client.overrides.move(name, fire_at, datetime.fromisoformat(str(each["to"])), reason)
            except (ValueError, Conflict) as error:
                say(f"Warning: {name}: the override of {each.get('fire_at')} is not set: {error}", err=True)
