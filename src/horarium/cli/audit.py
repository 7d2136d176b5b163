"""`horarium audit`: who changed what, when, and what it was before."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import click

from horarium.cli.fields import AGO
from horarium.cli.output import Column, json_text
from horarium.cli.shell import Lazy, Server, on_server

LIST_DEFAULT = 50
COLUMNS = (
    Column("at", when=True, title="when"), Column("actor", whole=True), Column("action", whole=True),
    Column("object", whole=True), Column("outcome"),
    Column("change", of=lambda line: changes_of(line.get("before"), line.get("after"))), Column("address", wide=True),
)  # fmt: skip
PASSING = frozenset({"version", "updated_at", "next_fire_at", "planned_until", "words", "paused_at", "fires_count"})
"""Fields of a job that change with any change: they say nothing of the action."""

audit = Lazy(name="audit", help="Who changed what, when, and what it was before.")


@audit.command(
    "list",
    help="""List changes and their authors, the newest first; with the values before.

\b
Examples:
  horarium audit list --object job/nightly
  horarium audit list --actor ann --since 24h --json
""",
)
@click.option("--actor", metavar="SUBJECT", help="Only what this caller did.")
@click.option("--action", metavar="ACTION", help="Only this action, such as job.pause.")
@click.option("--object", "object_", metavar="OBJECT", help="Only changes of this object, such as job/nightly.")
@click.option("--job", metavar="NAME", help="The same as --object job/NAME.")
@click.option("--since", type=AGO, metavar="WHEN", help="From then on: an instant, or a time ago such as 2h.")
@click.option("--until", type=AGO, metavar="WHEN", help="Before then: an instant, or a time ago such as 30m.")
@click.option("--limit", type=click.IntRange(1), default=LIST_DEFAULT, show_default=True, help="At most this number.")
@on_server
def list_audit(
    server: Server,
    actor: str | None,
    action: str | None,
    object_: str | None,
    job: str | None,
    since: datetime | None,
    until: datetime | None,
    limit: int,
) -> None:
    if job is not None and object_ is not None:
        raise click.UsageError("give --job or --object, not both")
    found = server.client.audit(
        actor=actor,
        action=action,
        object=object_ if job is None else f"job/{job}",
        since=since,
        until=until,
        limit=limit,
    )
    server.tell_all(found, COLUMNS, "There are no such entries.")


def changes_of(before: Any, after: Any) -> str:
    """The differences afterwards, in a few words."""
    if not isinstance(before, dict) or not isinstance(after, dict):
        only = after if isinstance(after, dict) else {}
        shown = {name: value for name, value in only.items() if name in ("run_id", "reason", "roles", "runs", "why")}
        return ", ".join(f"{name} {_short(value)}" for name, value in shown.items())
    names = [name for name in {**before, **after} if before.get(name) != after.get(name) and name not in PASSING]
    return ", ".join(f"{name} {_short(before.get(name))} -> {_short(after.get(name))}" for name in names)


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json_text(value)
    return text if len(text) <= 60 else text[:57] + "..."
