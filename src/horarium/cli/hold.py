"""`horarium hold`: what may not begin."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import click

from horarium.cli.fields import DURATION, guess_trigger, pairs, until_moment
from horarium.cli.output import Column, labels_text
from horarium.cli.shell import Lazy, Server, on_server

hold = Lazy(name="hold", help="Let nothing begin, until a moment.")
COLUMNS = (
    Column("id", whole=True),
    Column("scope", of=lambda each: _scope(each["scope"])),
    Column("state", whole=True, of=lambda each: "in force" if each["active"] else "to come"),
    Column("from", when=True),
    Column("until", when=True),
    Column("reason"),
)


@hold.command(
    help="Let nothing begin of a job, a queue, a host, a worker or everything, until a moment. Waiting runs lose no "
    "attempt.\n\n"
    "\b\nExamples:\n"
    '  horarium hold add --label system=ledger --until 2h --reason "the database is moved"\n'
    '  horarium hold add --all --from 2027-03-06T22:00:00Z --for 4h --reason "maintenance"\n'
    '  horarium hold add --host api.example.com --every "0 2 * * SUN" --for 2h --skip --reason "theirs"'
)
@click.option("--all", "everything", is_flag=True, help="Everything.")
@click.option("--job", metavar="NAME", help="One job.")
@click.option("--label", multiple=True, metavar="NAME=VALUE", help="Jobs with this label; repeatable.")
@click.option("--queue", metavar="NAME", help="One queue.")
@click.option("--host", metavar="HOST", help="HTTP targets of this host, with or without a port.")
@click.option("--worker", metavar="NAME", help="A worker or node, which takes no run meanwhile; others do.")
@click.option("--from", "begins", metavar="WHEN", help="When it begins: an instant, or 2h from now. Left out: now.")
@click.option("--until", metavar="WHEN", help="When it ends. Left out: when it is lifted.")
@click.option("--for", "length", type=DURATION, metavar="DURATION", help="How long it lasts; with --every, each time.")
@click.option("--every", metavar="TRIGGER", help="It begins at each fire time: cron, RRULE, 1h or words.")
@click.option("--timezone", metavar="ZONE", help="Of --every.")
@click.option("--skip", is_flag=True, help="Fire times inside it do not run afterwards either.")
@click.option("--cancel", is_flag=True, help="Cancel runs under way when it begins.")
@click.option("--reason", required=True, metavar="TEXT", help="Why; shown wherever something waits.")
@on_server
def add(
    server: Server,
    everything: bool,
    job: str | None,
    label: tuple[str, ...],
    queue: str | None,
    host: str | None,
    worker: str | None,
    begins: str | None,
    until: str | None,
    length: float | None,
    every: str | None,
    timezone: str | None,
    skip: bool,
    cancel: bool,
    reason: str,
) -> None:
    named = {"all": everything, "job": job, "queue": queue, "host": host, "worker": worker}
    labels = pairs("--label", label, "=")
    scope = {name: value for name, value in {**named, "labels": labels}.items() if value}
    if len(scope) != 1:
        raise click.UsageError("give exactly one of --all, --job, --label, --queue, --host and --worker")
    document: dict[str, Any] = {"scope": scope, "reason": reason}
    document |= _when(begins, until, length, every, timezone)
    if skip:
        document["missed"] = "skip"
    if cancel:
        document["running"] = "cancel"
    made = server.client.holds.add(document)
    server.tell(made, f"Hold {made['id']} added: {_scope(made['scope'])}, {_state(made)}.")


def _when(
    begins: str | None, until: str | None, length: float | None, every: str | None, timezone: str | None
) -> dict[str, Any]:
    now = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=1)  # ends are read by people
    found: dict[str, Any] = {}
    start = None if begins is None else until_moment(begins, now)
    if start is not None:
        found["from"] = start.isoformat()
    if until is not None:
        found["until"] = until_moment(until, now).isoformat()
    if every is not None:
        if length is None:
            raise click.UsageError("--every needs --for: how long it lasts each time")
        found["repeat"] = {"trigger": guess_trigger(every, timezone), "seconds": length}
    elif length is not None:
        if until is not None:
            raise click.UsageError("give --until or --for, not both")
        found["until"] = ((start or now) + timedelta(seconds=length)).isoformat()
    return found


def _scope(scope: dict[str, Any]) -> str:
    if scope.get("all"):
        return "everything"
    if scope.get("labels"):
        return labels_text(scope["labels"], ",")
    return " ".join(f"{name} {value}" for name, value in scope.items())


def _state(shown: dict[str, Any]) -> str:
    if shown["active"]:
        end = shown["active_until"]
        return "in force until it is lifted" if end is None else f"in force until {end}"
    return "lifted" if shown["lifted_at"] else "not in force"


@hold.command("list", help="List holds that have not ended.\n\n\b\nExample:\n  horarium hold list --active")
@click.option("--active", is_flag=True, help="Only those that are in force.")
@on_server
def list_holds(server: Server, active: bool) -> None:
    found = server.client.holds.list(True if active else None)
    server.tell_all(found, COLUMNS, "There are no holds. Nothing waits for any.")


@hold.command(help="Lift a hold: what waited goes on.\n\n\b\nExample:\n  horarium hold lift 0643f1a2b3c4d5e6f708")
@click.argument("id")
@on_server
def lift(server: Server, id: str) -> None:
    server.client.holds.lift(id)
    server.tell({"lifted": id}, f"Hold {id} lifted.")
