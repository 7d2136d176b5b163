"""`horarium approval list|approve|reject`: runs that wait for a person's decision."""

from __future__ import annotations

from typing import Literal

import click

from horarium.cli.output import Column, print_json, print_json_list, print_table, say
from horarium.cli.shell import Lazy, connect, server_options

COLUMNS = (
    Column("id", whole=True), Column("job", whole=True), Column("fire_at", when=True, whole=True),
    Column("expires_at", when=True, whole=True, title="until"), Column("then", whole=True), Column("asked_by"),
)  # fmt: skip
ID = click.argument("id", metavar="ID")
REASON = click.option("--reason", metavar="TEXT", help="Why; kept with the run.")

approval = Lazy(
    name="approval",
    commands={
        "list": "horarium.cli.approval:list_approvals",
        "approve": "horarium.cli.approval:approve",
        "reject": "horarium.cli.approval:reject",
    },
    summaries={
        "list": "List runs that wait for a decision.",
        "approve": "Let a run begin.",
        "reject": "Let a run not begin.",
    },
    help="Decide about runs that wait for it.",
)


@click.command(
    name="list",
    help="List the runs that wait for a decision, the soonest end first.\n\n\b\nExample:\n  horarium approval list",
)
@server_options
def list_approvals(url: str, api_key: str | None, as_json: bool) -> None:
    with connect(url, api_key) as client:
        found = list(client.approvals.list())
    if as_json:
        print_json_list(found)
    else:
        rows = ((each.id, each.job, each.fire_at, each.expires_at, each.then, each.asked_by) for each in found)
        print_table(COLUMNS, rows, "Nothing waits for a decision.")


@click.command(
    help="Let a run begin that waits for a decision.\n\n"
    '\b\nExample:\n  horarium approval approve 0193a5c2-7b00-7f2e-9c41-5d1f0a8b6e37 --reason "figures checked"'
)
@ID
@REASON
@server_options
def approve(id: str, reason: str | None, url: str, api_key: str | None, as_json: bool) -> None:
    _decide(id, "approve", reason, url, api_key, as_json)


@click.command(
    help="Let a run not begin that waits for a decision: it ends as skipped.\n\n"
    '\b\nExample:\n  horarium approval reject 0193a5c2-7b00-7f2e-9c41-5d1f0a8b6e37 --reason "wrong month"'
)
@ID
@REASON
@server_options
def reject(id: str, reason: str | None, url: str, api_key: str | None, as_json: bool) -> None:
    _decide(id, "reject", reason, url, api_key, as_json)


def _decide(
    id: str, decision: Literal["approve", "reject"], reason: str | None, url: str, api_key: str | None, as_json: bool
) -> None:
    with connect(url, api_key) as client:
        run = client.approvals.decide(id, decision, reason)
    if as_json:
        print_json(run)
    else:
        say(f"Run {run.id} is {run.state}: {run.history[-1].message}.")
