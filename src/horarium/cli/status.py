"""`horarium status`: is all well, and if not, the faults; nodes, queues, and the next fire times."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import click

from horarium.cli.output import Column, print_table, relative, say
from horarium.cli.run import COLUMNS as RUN_COLUMNS
from horarium.cli.shell import FAILED, Server, on_server
from horarium.cli.upcoming import held_words
from horarium.errors import Forbidden

FAILED_SINCE = timedelta(hours=1)
SHOWN_MAX = 10
NEXT_MAX = 5
SILENT_AFTER = timedelta(seconds=30)
"""A node that has not stopped and gave no sign of life for this long is called silent."""
BEAT_AHEAD_MAX = timedelta(hours=1)
"""A sign of life from further ahead was given by a clock that was wrong."""
FAILED_COLUMNS = tuple(column for column in RUN_COLUMNS if column.name in ("id", "job", "fire_at", "error"))
FAULT_COLUMNS = (Column("cause", whole=True), Column("since", when=True), Column("what", of="text"))
NEXT_COLUMNS = (Column("fires", when=True, of="fire_at"), Column("job", whole=True), Column("held", of=held_words))
NODE_COLUMNS = (
    Column("node", whole=True, of="name"), Column("state", of=lambda node: _state(node)),
    Column("roles", of=lambda node: " ".join(node.roles)), Column("version"), Column("seen", when=True, of="beat_at"),
)  # fmt: skip
QUEUE_COLUMNS = (
    Column("queue", whole=True), Column("due"), Column("running"), Column("later", of="scheduled"),
    Column("oldest", of=lambda queue: _oldest(queue)),
)  # fmt: skip


@click.command(
    help="""Is all well? What needs attention, nodes, queues, runs that failed lately, the next fire times.

Exit status 0: the server is ready; 1: it is not, or can't be reached.

\b
Examples:
  horarium status
  horarium status --json
  watch horarium status
""",
)
@on_server
def status(server: Server) -> None:
    found = {
        "url": server.client.url,
        "problems": server.client.problems(),
        "nodes": _allowed(server.client.nodes, None),
        "stats": server.client.stats(),
        "failed": list(
            server.client.list_runs(states=["failed"], since=datetime.now(UTC) - FAILED_SINCE, limit=SHOWN_MAX)
        ),
    }
    found["attention"] = _allowed(server.client.attention.list, [])
    found["upcoming"] = _allowed(lambda: server.client.upcoming(limit=NEXT_MAX)["items"], [])
    found["ready"] = not found["problems"]
    server.tell(found, lambda: _print(found))
    if not found["ready"]:
        sys.exit(FAILED)


def _print(found: dict[str, Any]) -> None:
    say(f"{found['url']} is {'ready' if found['ready'] else 'not ready'}")
    for part, why in found["problems"].items():
        say(f"  {part}: {why}")
    stats = found["stats"]
    jobs = f"jobs: {stats['jobs']:,}, {stats['jobs_enabled']:,} enabled; " if "jobs" in stats else ""
    say(f"{jobs}waiting workers: {stats['workers_waiting']}")
    if found["nodes"]:
        say("")
        print_table(NODE_COLUMNS, found["nodes"])
    if stats["queues"]:
        say("")
        print_table(QUEUE_COLUMNS, stats["queues"])
    open_ = [fault for fault in found["attention"] if fault["acknowledged"] is None]
    noted = len(found["attention"]) - len(open_)
    known = {fault["cause"] for fault in found["attention"]}
    failed = [run for run in found["failed"] if f"failing/{run.job}" not in known]
    if open_:
        say("\nneeds attention:")
        more = {"cause": f"{len(open_) - SHOWN_MAX} more", "since": None, "text": "horarium attention list"}
        print_table(FAULT_COLUMNS, open_ if len(open_) <= SHOWN_MAX else [*open_[:SHOWN_MAX], more])
    elif not found["problems"] and not failed:
        say("\nAll is well.")
    if noted:
        say(f"{noted} acknowledged: horarium attention list")
    if failed:
        say("\nfailed within the last hour:")
        print_table(FAILED_COLUMNS, failed)
    if found["upcoming"]:
        say("\nnext:")
        print_table(NEXT_COLUMNS, found["upcoming"])


def _allowed(ask: Callable[[], Any], otherwise: Any) -> Any:
    """The answer; something else where it is not for this caller, such as one that is bound to queues."""
    try:
        return ask()
    except Forbidden:
        return otherwise


def _state(node: Any) -> str:
    silent = not -BEAT_AHEAD_MAX <= datetime.now(UTC) - node.beat_at <= SILENT_AFTER
    return "stopped" if node.stopped_at is not None else "silent" if silent else "running"


def _oldest(queue: dict[str, Any]) -> str:
    """How long its oldest due run has waited, and whether for a worker."""
    due_at = queue["oldest_due_at"]
    age = "" if due_at is None else relative(datetime.fromisoformat(due_at), datetime.now(UTC))
    return f"{age} (no worker)" if queue["unserved"] else age
