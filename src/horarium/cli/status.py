"""`horarium status`: is all well, and if not, the faults; runs under way and the next ones."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import click

from horarium.cli.output import Column, cell, moment_text, print_json, print_table, say
from horarium.cli.shell import FAILED, Server, on_server
from horarium.cli.times import relative
from horarium.clock import SystemClock, to_datetime
from horarium.errors import Forbidden

FAILED_SINCE = timedelta(hours=1)
SHOWN_MAX = 10
SILENT_AFTER = timedelta(seconds=30)
"""A node that has not stopped and gave no sign of life for this long is called silent."""
FAILED_COLUMNS = (
    Column("id", whole=True, id=True), Column("job", whole=True), Column("fire_at", when=True, title="fired"),
    Column("error"),
)  # fmt: skip
NODE_COLUMNS = (
    Column("node", whole=True), Column("state"), Column("roles"), Column("version"), Column("seen", when=True),
)  # fmt: skip
QUEUE_COLUMNS = tuple(Column(name, whole=name == "queue") for name in ("queue", "due", "running", "later", "oldest"))


@click.command(
    help="""Is all well? Nodes, queues, failures of the last hour, the next runs.

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
        "nodes": _nodes_seen(server.client),
        "stats": server.client.stats(),
        "failed": list(server.client.list_runs(states=["failed"], since=now - FAILED_SINCE, limit=SHOWN_MAX)),
    }
    found["undelivered"] = _undelivered(server.client)
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
    for channel in found["undelivered"]:
        said = channel["undelivered"]
        since = moment_text(datetime.fromisoformat(said["since"]))
        say(f"\nchannel {channel['name']} could not be told since {since}: {said['error']} (run {said['run_id']})")
    if found["failed"]:
        say("\nfailed within the last hour:")
        print_table(FAILED_COLUMNS, _failed(found["failed"]), "")


def _nodes_seen(client: Any) -> Any:
    """The nodes; None: they are not for a caller that is bound to queues."""
    try:
        return client.nodes()
    except Forbidden:
        return None


def _undelivered(client: Any) -> list[dict[str, Any]]:
    """The channels that did not take their last message, as far as the caller may know."""
    try:
        return [channel for channel in client.channels.list() if channel.get("undelivered")]
    except Forbidden:
        return []


def _nodes(nodes: list[Any], now: datetime) -> Iterator[tuple[Any, ...]]:
    for node in nodes:
        silent = now - node.beat_at > SILENT_AFTER
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
