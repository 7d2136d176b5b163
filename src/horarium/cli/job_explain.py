"""`horarium job explain`: why a job ran, did not run, will run or will not run."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, tzinfo
from typing import Any
from zoneinfo import ZoneInfo

import click

from horarium.cli.fields import read_moment, since_moment
from horarium.cli.output import Column, print_fields, print_json
from horarium.cli.shell import Server, on_server

COLUMNS = (
    Column("at", when=True, whole=True), Column("fires", whole=True), Column("disposition", whole=True),
    Column("reason"),
)  # fmt: skip


@click.command(
    help="Say why a job ran, did not run, will run or will not run: at an instant, or at each fire time of a span.\n\n"
    "\b\nExamples:\n  horarium job explain nightly --at 2027-03-28T02:30:00+01:00\n"
    "  horarium job explain nightly --since 7d"
)
@click.argument("name", metavar="NAME")
@click.option(
    "--at",
    "at",
    metavar="WHEN",
    help="An instant, a wall time in the job's zone, or a time ago such as 2h; left out: now.",
)
@click.option("--since", metavar="WHEN", help="Each fire time from then on: an instant, or a time ago such as 7d.")
@click.option("--until", metavar="WHEN", help="Each fire time before then; left out: now.")
@on_server
def explain(server: Server, name: str, at: str | None, since: str | None, until: str | None) -> None:
    if at is not None and (since is not None or until is not None):
        raise click.UsageError("give --at, or --since and --until")
    if since is None and until is not None:
        raise click.UsageError("--since is missing: where does the span begin?")
    now = datetime.now(UTC)
    zone = _zone_of(server.client.get_job(name).trigger) if any(map(_is_wall, (at, since, until))) else None

    def moment(text: str | None) -> datetime:
        return now if text is None else since_moment(text, now, zone)

    if since is not None:
        items = server.client.explain_span(name, moment(since), moment(until))
        server.tell_all(items, COLUMNS, "No fire time lies in that span.")
        return
    told = server.client.explain(name, None if at is None else moment(at))
    if server.as_json:
        print_json(told)
        return
    run = told.run.id if told.run else None
    print_fields(
        [
            ("at", told.at), ("fires", told.fires), ("reason", told.reason), ("disposition", told.disposition or None),
            ("run", run), ("missing", ", ".join(told.missing) or None),
            ("previous", told.previous), ("next", told.next),
        ]
    )  # fmt: skip


def _is_wall(text: str | None) -> bool:
    moment = None if text is None else read_moment(text)
    return moment is not None and moment.tzinfo is None


def _zone_of(trigger: Mapping[str, Any]) -> tzinfo | None:
    """The zone that a rule names; None: it names none, or another is not known here."""
    named = trigger.get("timezone")
    for inner in (trigger.get("trigger"), *(trigger.get("triggers") or ())) if named is None else ():
        if isinstance(inner, Mapping) and (found := _zone_of(inner)) is not None:
            return found
    try:
        return None if named is None else ZoneInfo(named)
    except (KeyError, ValueError):
        return None
