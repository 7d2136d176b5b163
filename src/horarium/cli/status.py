"""`horarium status`: is all well, and if not, the faults; nodes, queues, and the next fire times."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Any

import click

from horarium.cli.output import Column, cell, print_json, print_table, relative, say
from horarium.cli.shell import FAILED, Server, on_server
from horarium.cli.upcoming import held_words
from horarium.clock import SystemClock, to_datetime
from horarium.errors import Forbidden

FAILED_SINCE = timedelta(hours=1)
SHOWN_MAX = 10
NEXT_MAX = 5
SILENT_AFTER = timedelta(seconds=30)
"""A node that has not stopped and gave no sign of life for this long is called silent."""
BEAT_AHEAD_MAX = timedelta(hours=1)
"""A sign of life from further ahead was given by a clock that was wrong."""
FAILED_COLUMNS = (
    Column("id", whole=True, id=True), Column("job", whole=True), Column("fire_at", when=True, title="fired"),
    Column("error"),
)  # fmt: skip
FAULT_COLUMNS = (Column("cause", whole=True), Column("since", when=True), Column("what"))
NEXT_COLUMNS = (Column("fires", when=True), Column("job", whole=True), Column("held"))
NODE_COLUMNS = (
    Column("node", whole=True), Column("state"), Column("roles"), Column("version"), Column("seen", when=True),
)  # fmt: skip
QUEUE_COLUMNS = tuple(Column(name, whole=name == "queue") for name in ("queue", "due", "running", "later", "oldest"))


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
    now = to_datetime(SystemClock().now())
    found = {
        "url": server.client.url,
        "problems": server.client.problems(),
        "nodes": _allowed(server.client.nodes, None),
        "stats": server.client.stats(),
        "failed": list(server.client.list_runs(states=["failed"], since=now - FAILED_SINCE, limit=SHOWN_MAX)),
    }
    found["attention"] = _allowed(server.client.attention.list, [])
    found["upcoming"] = _allowed(lambda: server.client.upcoming(limit=NEXT_MAX)["items"], [])
    found["ready"] = not found["problems"]
    if server.as_json:
        print_json(found)
    else:
        _print(found, now)
    if not found["ready"]:
        sys.exit(FAILED)


def _print(found: dict[str, Any], now: datetime) -> None:
    say(f"{found['url']} is {'ready' if found['ready'] else 'not ready'}")
    for part, why in found["problems"].items():
        say(f"  {part}: {why}")
    stats = found["stats"]
    jobs = f"jobs: {stats['jobs']:,}, {stats['jobs_enabled']:,} enabled; " if "jobs" in stats else ""
    say(f"{jobs}waiting workers: {stats['workers_waiting']}")
    if found["nodes"]:
        say("")
        print_table(NODE_COLUMNS, _nodes(found["nodes"], now), "")
    if stats["queues"]:
        say("")
        print_table(QUEUE_COLUMNS, _queues(stats["queues"], now), "")
    open_ = [fault for fault in found["attention"] if fault["acknowledged"] is None]
    noted = len(found["attention"]) - len(open_)
    known = {fault["cause"] for fault in found["attention"]}
    failed = [run for run in found["failed"] if f"failing/{run.job}" not in known]
    if open_:
        say("\nneeds attention:")
        print_table(FAULT_COLUMNS, _faults(open_), "")
    elif not found["problems"] and not failed:
        say("\nAll is well.")
    if noted:
        say(f"{noted} acknowledged: horarium attention list")
    if failed:
        say("\nfailed within the last hour:")
        print_table(FAILED_COLUMNS, _failed(failed), "")
    if found["upcoming"]:
        say("\nnext:")
        print_table(NEXT_COLUMNS, _next(found["upcoming"]), "")


def _allowed(ask: Callable[[], Any], otherwise: Any) -> Any:
    """The answer; something else where it is not for this caller, such as one that is bound to queues."""
    try:
        return ask()
    except Forbidden:
        return otherwise


def _faults(faults: list[dict[str, Any]]) -> Iterator[tuple[Any, ...]]:
    for fault in faults[:SHOWN_MAX]:
        yield fault["cause"], datetime.fromisoformat(fault["since"]), fault["text"]
    if len(faults) > SHOWN_MAX:
        yield f"{len(faults) - SHOWN_MAX} more", None, "horarium attention list"


def _next(upcoming: list[dict[str, Any]]) -> Iterator[tuple[Any, ...]]:
    for fire in upcoming:
        yield datetime.fromisoformat(fire["fire_at"]), fire["job"], held_words(fire)


def _nodes(nodes: list[Any], now: datetime) -> Iterator[tuple[Any, ...]]:
    for node in nodes:
        silent = not -BEAT_AHEAD_MAX <= now - node.beat_at <= SILENT_AFTER
        state = "stopped" if node.stopped_at is not None else "silent" if silent else "running"
        yield node.name, state, " ".join(node.roles), node.version, node.beat_at


def _queues(queues: list[dict[str, Any]], now: datetime) -> Iterator[tuple[Any, ...]]:
    for queue in queues:
        oldest = queue["oldest_due_at"]
        moment = None if oldest is None else datetime.fromisoformat(oldest)
        age = "" if moment is None else relative(moment, now)
        shown = f"{age} (no worker)" if queue["unserved"] else age
        yield queue["queue"], queue["due"], queue["running"], queue["scheduled"], shown


def _failed(runs: list[Any]) -> Iterator[tuple[Any, ...]]:
    for run in runs:
        yield run.id, run.job or run.queue, run.fire_at, cell(run.error).partition("\n")[0]
