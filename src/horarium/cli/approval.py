"""`horarium approval list|approve|reject`: pending decisions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import click

from horarium.cli.output import Column
from horarium.cli.shell import Lazy, Server, on_server

if TYPE_CHECKING:
    from horarium.wire.approvals import Decision

COLUMNS = (
    Column("id", whole=True), Column("job", whole=True), Column("fire_at", when=True, whole=True),
    Column("missed", of=lambda each: each.fires if each.about == "catch_up" else None),
    Column("expires_at", when=True, whole=True, title="until"), Column("then", whole=True),
    Column("asked_by"), Column("version"), Column("changed_at", when=True, title="changed since"),
)  # fmt: skip
ID = click.argument("id", metavar="ID")
REASON = click.option("--reason", metavar="TEXT", help="Why; kept with the run.")

approval = Lazy(name="approval", help="Decide about runs that wait for it, and about fire times that were missed.")


@approval.command(
    name="list",
    help="List the runs that wait for a decision, and the jobs that ask what becomes of fire times which they missed; "
    "the soonest end first.\n\n\b\nExample:\n  horarium approval list",
)
@on_server
def list_approvals(server: Server) -> None:
    found = list(server.client.approvals.list())
    server.tell_all(found, COLUMNS, "Nothing waits for a decision.")


@approval.command(
    help="Let a run begin that waits for a decision; of the fire times that a job missed, the latest or all.\n\n"
    '\b\nExamples:\n  horarium approval approve 0193a5c2-7b00-7f2e-9c41-5d1f0a8b6e37 --reason "figures checked"\n'
    "  horarium approval approve 0193a5c2-7b00-7f2e-9c41-5d1f0a8b6e37 --missed latest"
)
@ID
@REASON
@click.option("--missed", type=click.Choice(("latest", "all")), help="Which of the fire times run that were missed.")
@on_server
def approve(server: Server, id: str, reason: str | None, missed: Literal["latest", "all"] | None) -> None:
    _decide(server, id, missed or "approve", reason)


@approval.command(
    help="Let a run not begin that waits for a decision: it ends as skipped. Of fire times that a job missed, none "
    'runs.\n\n\b\nExample:\n  horarium approval reject 0193a5c2-7b00-7f2e-9c41-5d1f0a8b6e37 --reason "wrong month"'
)
@ID
@REASON
@on_server
def reject(server: Server, id: str, reason: str | None) -> None:
    _decide(server, id, "reject", reason)


def _decide(server: Server, id: str, decision: Decision, reason: str | None) -> None:
    run = server.client.approvals.decide(id, decision, reason)
    server.tell(run, f"Run {run.id} is {run.state}: {run.history[-1].message}.")
