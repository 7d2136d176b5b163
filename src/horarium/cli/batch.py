"""`horarium batch`: runs whose common end brings something about."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click
import msgspec

from horarium.cli.output import Column
from horarium.cli.shell import Lazy, Server, on_server
from horarium.triggers.words import counted

batch = Lazy(name="batch", help="Runs whose common end brings something about.")
COLUMNS = (
    Column("id", whole=True),
    Column("name"),
    Column("state", whole=True),
    Column("total"),
    Column("completed"),
    Column("failed"),
    Column("cancelled"),
    Column("created", when=True, of="created_at"),
)
RUNS_AT_ONCE = 1_000
WAIT_SECONDS = 30
ACTIONS = ("notify", "trigger", "handler")
SOME_ID = "01939a00-0000-7000-8000-000000000000"


def _follow(text: str) -> dict[str, str]:
    kind, separator, name = text.partition(":")
    if not separator or kind not in ACTIONS or not name:
        raise click.UsageError(f"{text!r}: give notify:CHANNEL, trigger:JOB or handler:NAME")
    return {kind: name}


def _lines(file: Any) -> Iterator[list[dict[str, Any]]]:
    """The runs of a file, a line each, by the thousand."""
    found: list[dict[str, Any]] = []
    for number, line in enumerate(file, 1):
        if not line.strip():
            continue
        try:
            found.append(msgspec.json.decode(line, type=dict[str, Any]))
        except msgspec.DecodeError as error:
            raise click.UsageError(f"line {number}: {error}") from None
        if len(found) == RUNS_AT_ONCE:
            yield found
            found = []
    if found:
        yield found


@batch.command(
    short_help="Make a batch, or add runs to one.",
    help="Make a batch of the runs in a file (or -): a line of JSON each, as `POST /api/v1/runs` takes it. It is closed"
    " behind them, unless --open says that more are to come; --to adds them to one that is open.\n\n"
    "\b\nExamples:\n"
    "  horarium batch add rows.jsonl --name import --on-finished notify:office\n"
    "  horarium batch add --name import --open --on-failed notify:office --on-finished trigger:report\n"
    f"  horarium batch add more.jsonl --to {SOME_ID}",
)
@click.argument("file", type=click.File("rb"), required=False)
@click.option("--name", metavar="TEXT", help="For people.")
@click.option("--open", "keep_open", is_flag=True, help="More runs are to come.")
@click.option("--to", metavar="ID", help="Add the runs to this batch.")
@click.option("--on-finished", multiple=True, metavar="ACTION", help="Once all its runs have ended; repeatable.")
@click.option("--on-completed", multiple=True, metavar="ACTION", help="Then, if all completed; repeatable.")
@click.option("--on-failed", multiple=True, metavar="ACTION", help="At the first failure; repeatable.")
@on_server
def add(
    server: Server,
    file: Any,
    name: str | None,
    keep_open: bool,
    to: str | None,
    on_finished: tuple[str, ...],
    on_completed: tuple[str, ...],
    on_failed: tuple[str, ...],
) -> None:
    given = {"finished": on_finished, "completed": on_completed, "failed": on_failed}
    on = {when: [_follow(text) for text in texts] for when, texts in given.items() if texts}
    if to is not None and (name or on):
        raise click.UsageError("--to adds to a batch that has its name and its actions")
    batches = server.client.batches
    made = batches.get(to) if to else batches.add({"name": name, "open": True, "on": on})
    for runs in _lines(file or ()):
        batches.add_runs(made["id"], runs)
    keep = keep_open or to is not None or file is None
    _tell(server, batches.get(made["id"]) if keep else batches.close(made["id"]))


@batch.command(help=f"Show a batch.\n\n\b\nExample:\n  horarium batch show {SOME_ID} --wait")
@click.argument("id")
@click.option("--wait", is_flag=True, help="Wait until it has finished; the exit status is 0 if all completed, else 1.")
@on_server
def show(server: Server, id: str, wait: bool) -> int:
    found = server.client.batches.get(id)
    while wait and found["finished_at"] is None:
        found = server.client.batches.get(id, WAIT_SECONDS)
    _tell(server, found)
    return 1 if wait and found["completed"] < found["total"] else 0


@batch.command("list", help="List batches, the newest first.\n\n\b\nExample:\n  horarium batch list --state open")
@click.option("--state", type=click.Choice(["open", "closed", "finished"]), help="Only those in this state.")
@on_server
def list_batches(server: Server, state: str | None) -> None:
    found = list(server.client.batches.list(state))
    server.tell_all(found, COLUMNS, "There are no batches.")


@batch.command(help=f"Let no more runs be added.\n\n\b\nExample:\n  horarium batch close {SOME_ID}")
@click.argument("id")
@on_server
def close(server: Server, id: str) -> None:
    _tell(server, server.client.batches.close(id))


@batch.command(
    help="Close a batch, and cancel its runs that have not ended.\n\n\b\nExample:\n"
    f"  horarium batch cancel {SOME_ID} --reason mistaken"
)
@click.argument("id")
@click.option("--reason", metavar="TEXT", help="Why.")
@on_server
def cancel(server: Server, id: str, reason: str | None) -> None:
    _tell(server, server.client.batches.cancel(id, reason))


@batch.command(
    help="Do the failed runs of a batch again: it is to finish again.\n\n\b\nExample:\n"
    f"  horarium batch retry {SOME_ID}"
)
@click.argument("id")
@on_server
def retry(server: Server, id: str) -> None:
    _tell(server, server.client.batches.retry(id))


def _tell(server: Server, batch: dict[str, Any]) -> None:
    server.tell(
        batch,
        f"Batch {batch['id']} is {batch['state']}: of {counted(batch['total'], 'run')} {batch['completed']} completed, "
        f"{batch['failed']} failed, {batch['cancelled']} cancelled, {batch['unfinished']} unfinished.",
    )
