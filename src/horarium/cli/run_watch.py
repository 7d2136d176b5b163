"""`horarium run watch`: runs as they change, a line each."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from horarium.cli.output import json_text, moment_text, one_line, say
from horarium.cli.run import STATES, find_run, took, why
from horarium.cli.shell import Server, on_server
from horarium.client.changing import watch_run, watch_runs

if TYPE_CHECKING:
    from horarium.wire.views import RunView

WIDTHS = (20, 36, 24, 10)
"""Columns of time, id, job and state; later columns have their natural width."""


@click.command(
    help="Show runs as they change, a line each, until interrupted.\n\n"
    "With an ID: one run until it is over; the exit status is 0 if it completed, else 1.\n\n"
    "\b\nExamples:\n  horarium run watch --job nightly\n  horarium run watch --state failed --json\n"
    "  horarium run watch 0196f0c2-7633"
)
@click.argument("run_id", metavar="[ID]", required=False)
@click.option("--job", metavar="NAME", help="Only runs of this job.")
@click.option("--state", "states", multiple=True, type=click.Choice(STATES), help="Only these states; repeatable.")
@click.option("--queue", metavar="QUEUE", help="Only this queue: NAME, http, notify, handler/NAME or bus/NAME.")
@on_server
def watch(server: Server, run_id: str | None, job: str | None, states: tuple[str, ...], queue: str | None) -> int:
    if run_id is not None and (job or states or queue):
        raise click.UsageError("give an ID, or what to look for by --job, --state and --queue, not both")
    if run_id is not None:
        last = _print(watch_run(server.client, find_run(server.client, run_id)), server.as_json)
        return 0 if last is not None and last.state == "completed" else 1
    if job is not None:
        server.client.get_job(job)  # says so if there is no such job
    _print(watch_runs(server.client, job=job, queue=queue, states=states), server.as_json)
    return 0


def _print(runs: Iterator[RunView], as_json: bool) -> RunView | None:
    """Each run as it comes: as JSON one object a line. The last one."""
    last = None
    for last in runs:
        say(json_text(last) if as_json else _line(last))
        sys.stdout.flush()
    return last


def _line(run: RunView) -> str:
    at = run.finished_at or run.started_at or run.due_at
    cells = (moment_text(at.replace(microsecond=0)), run.id, run.job or run.queue, run.state)
    padded = (one_line(text).ljust(width) for text, width in zip(cells, WIDTHS, strict=True))
    return f"{'  '.join(padded)}  {_what(run)}".rstrip()


def _what(run: RunView) -> str:
    """Beside its state: which attempt, how long it took, why it ended so."""
    parts = [f"attempt {run.attempt}"] if run.attempt else []
    parts += [f"took {took(run)}"] if took(run) else []
    return ", ".join(parts) + (f": {one_line(why(run))}" if why(run) else "")
