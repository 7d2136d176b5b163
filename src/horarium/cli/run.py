"""`horarium run`: runs and their outcomes, and stopping or repeating them."""

from __future__ import annotations

import re
import sys
from datetime import datetime
from itertools import chain
from typing import TYPE_CHECKING, Any

import click
from msgspec import UNSET

from horarium.cli.fields import AGO
from horarium.cli.output import (
    Column,
    duration,
    moment_text,
    one_line,
    print_fields,
    print_json_list,
    printable,
    say,
)
from horarium.cli.shell import Lazy, Server, on_server
from horarium.errors import NotFound

if TYPE_CHECKING:
    from horarium.wire.views import RunView

LIST_DEFAULT = 50
ID_CHARS, FOUND_MAX = 36, 5
_PREFIX = re.compile("[0-9a-f-]{4,35}")
COLUMNS = (
    Column("id", whole=True, id=True), Column("job", whole=True, of=lambda run: run.job or run.queue),
    Column("fire_at", when=True, title="fired"), Column("state", whole=True), Column("took", of=lambda run: took(run)),
    Column("attempt", title="try"), Column("worker", wide=True), Column("error", of=lambda run: why(run)),
)  # fmt: skip
STATES = ("pending", "running", "cancelling", "completed", "failed", "cancelled", "skipped")

run = Lazy(
    name="run",
    commands={
        "add": ("horarium.cli.run_add:add", "Add a run that belongs to no job."),
        "list": ("horarium.cli.run:list_runs", "List runs, newest fire time first."),
        "show": ("horarium.cli.run:show", "Show a run and its history."),
        "logs": ("horarium.cli.run:logs", "Show what a run has said; -f: while it says it."),
        "watch": ("horarium.cli.run_watch:watch", "Show runs as they change, or one until it is over."),
        "cancel": ("horarium.cli.run_many:cancel", "Cancel one run or many; running ones are asked to stop."),
        "retry": ("horarium.cli.run_many:retry", "Do the work of failed or cancelled runs again."),
    },
    help="Add, list, show, follow, cancel and retry runs.",
)


@click.command(
    "list",
    help="List runs, newest fire time first.\n\n\b\nExamples:\n  horarium run list --job nightly --state failed\n"
    "  horarium run list --since 2h --json",
)
@click.option("--job", metavar="NAME", help="Only runs of this job.")
@click.option("--state", "states", multiple=True, type=click.Choice(STATES), help="Only these states; repeatable.")
@click.option("--queue", metavar="QUEUE", help="Only this queue: NAME, http, notify, handler/NAME or bus/NAME.")
@click.option(
    "--since", type=AGO, metavar="WHEN", help="Fire times from then on: an instant, or a time ago such as 2h."
)
@click.option(
    "--until", type=AGO, metavar="WHEN", help="Fire times before then: an instant, or a time ago such as 30m."
)
@click.option("--limit", type=click.IntRange(1), default=LIST_DEFAULT, show_default=True, help="At most this number.")
@on_server
def list_runs(
    server: Server,
    job: str | None,
    states: tuple[str, ...],
    queue: str | None,
    since: datetime | None,
    until: datetime | None,
    limit: int,
) -> None:
    runs = server.client.list_runs(job=job, states=states, queue=queue, since=since, until=until, limit=limit)
    first = next(runs, None)
    if first is None and job is not None and not server.as_json:
        server.client.get_job(job)  # says so if there is no such job
    server.tell_all(runs if first is None else chain([first], runs), COLUMNS, "There are no such runs.")


def why(run: RunView) -> str:
    """The first line of its error, or why it was skipped."""
    return (run.error or (run.disposition if run.state == "skipped" else None) or "").partition("\n")[0]


def took(run: RunView) -> str:
    """How long its last attempt took."""
    if run.started_at is None or run.finished_at is None:
        return ""
    return duration((run.finished_at - run.started_at).total_seconds())


def find_run(client: Any, text: str) -> str:
    """The id of the run that is meant: an id, or the beginning of one. Raises NotFound, or UsageError where more than
    one run begins so."""
    text = text.strip().rstrip(".").lower()
    if len(text) >= ID_CHARS or not _PREFIX.fullmatch(text):
        return text
    found = list(client.list_runs(id_prefix=text, limit=FOUND_MAX))
    if not found:
        raise NotFound(f"there is no run whose id begins with {text!r}")
    if len(found) > 1:
        ids = ", ".join(run.id for run in found)
        raise click.UsageError(f"more than one run begins with {text!r}: {ids}; give more of the id")
    return str(found[0].id)


@click.command(help="Show a run and its history.\n\n\b\nExample:\n  horarium run show 0196f0c2-7633")
@click.argument("run_id", metavar="ID")
@on_server
def show(server: Server, run_id: str) -> None:
    run = server.client.get_run(find_run(server.client, run_id))
    server.tell(run, lambda: _print_run(run))


@click.command(
    help="Show what a run has said: what a command prints, a handler logs, a worker reports.\n\n"
    "\b\nExamples:\n  horarium run logs 0196f0c2-7633 -f\n  horarium run logs 0196f0c2-7633 --stream stderr"
)
@click.argument("run_id", metavar="ID")
@click.option("-f", "--follow", is_flag=True, help="Go on until the run is over.")
@click.option("--stream", metavar="NAME", help="Only lines of this stream: stdout, stderr, log.")
@click.option("--times", is_flag=True, help="Say when each line was said, and on which stream.")
@on_server
def logs(server: Server, run_id: str, follow: bool, stream: str | None, times: bool) -> None:
    id = find_run(server.client, run_id)
    lines = (line for line in server.client.follow_log(id, follow=follow) if stream in (None, line.stream))
    if server.as_json:
        print_json_list(lines)
        return
    for line in lines:
        said = f"{moment_text(line.at)}  {line.stream:<7} " if times else ""
        say(said + printable(line.text))
        sys.stdout.flush()


def _print_run(run: RunView) -> None:
    names = (
        "id", "job", "queue", "state", "disposition", "cause", "fire_at", "due_at", "attempt", "started_at",
        "finished_at", "worker", "error", "payload", "progress", "result",
    )  # fmt: skip
    print_fields((name, getattr(run, name)) for name in names)
    if run.history:
        say("history")
    for event in run.history:
        say(f"  {moment_text(event.at)}  {event.state:<10}  {one_line(event.message)}")
        for line in ("" if event.detail is UNSET else event.detail).splitlines():
            say(f"      {printable(line)}")
