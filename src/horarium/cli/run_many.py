"""`horarium run cancel` and `horarium run retry`: one run by its id, or all that fit a filter, counted first."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import click
from msgspec import UNSET

from horarium.cli.fields import AGO, JSON
from horarium.cli.output import say
from horarium.cli.run import STATES, find_run
from horarium.cli.shell import Server, on_server, with_options
from horarium.triggers.words import counted

LEFT = {
    "retried_before": ("was retried before", "were retried before"),
    "overlap": ("is held back by its job's overlap policy", "are held back by their job's overlap policy"),
    "job_deleted": ("belongs to a job that was deleted", "belong to a job that was deleted"),
    "forbidden": ("belongs to a job that this key may not touch", "belong to a job that this key may not touch"),
    "key_missing": (
        "has no key of its job's limits: part of it is missing in its payload",
        "have no key of their job's limits: part of it is missing in their payload",
    ),
    "state": ("was over by then", "were over by then"),
}
"""Why a run that matched was left, for people; and for several of them."""

RUN_OR_FILTER = [
    click.argument("run_id", metavar="[ID]", required=False),
    click.option("--job", metavar="NAME", help="Every run of this job."),
    click.option("--state", "states", multiple=True, type=click.Choice(STATES), help="Only these states; repeatable."),
    click.option("--queue", metavar="QUEUE", help="Every run of this queue: http, NAME, pull/NAME, handler/NAME ..."),
    click.option(
        "--since", type=AGO, metavar="WHEN", help="Fire times from then on: an instant, or a time ago such as 2h."
    ),
    click.option(
        "--until", type=AGO, metavar="WHEN", help="Fire times before then: an instant, or a time ago such as 30m."
    ),
    click.option("--error-contains", metavar="TEXT", help="Only runs whose error holds this text."),
    click.option(
        "--per-second", type=click.FloatRange(0.001, 100_000), metavar="N", help="At most this number each second."
    ),
    click.option("--dry-run", is_flag=True, help="Only say how many runs match."),
    click.option("--yes", is_flag=True, help="Do not ask, on a terminal, whether the number is right."),
]


@click.command(
    help="Cancel pending runs at once; ask running ones to stop.\n\nOne run by its ID, or all that fit the flags: "
    "their number is shown first.\n\n"
    '\b\nExamples:\n  horarium run cancel 0196f0c2-... --reason "wrong input"\n'
    "  horarium run cancel --queue images --dry-run\n"
    "  horarium run cancel --job nightly --state pending --per-second 100"
)
@with_options(RUN_OR_FILTER)
@click.option("--reason", metavar="TEXT", help="Why; kept in the run's history.")
@on_server
def cancel(server: Server, run_id: str | None, reason: str | None, **flags: Any) -> None:
    if _one(run_id, flags):
        run = server.client.cancel_run(find_run(server.client, run_id or ""), reason)
        server.tell(run, f"Run {run.id} is {run.state}.")
    else:
        _many(server, server.client.cancel_runs, flags, "cancelled", reason=reason)


@click.command(
    help="Do the work of failed, cancelled or skipped runs again, as new runs.\n\nOne run by its ID, or all that fit "
    "the flags (failed ones, unless --state says otherwise): their number is shown first. A run that was retried so is "
    "not retried again.\n\n"
    "\b\nExamples:\n  horarium run retry 0196f0c2-...\n  horarium run retry 0196f0c2-... --payload '{\"width\": 320}'\n"
    "  horarium run retry --job nightly --state failed --since 2d\n"
    "  horarium run retry --error-contains 'connection refused' --since 1h --per-second 5"
)
@with_options(RUN_OR_FILTER)
@click.option("--payload", type=JSON, metavar="JSON", help="With an ID: in place of the payload that the run had.")
@on_server
def retry(server: Server, run_id: str | None, payload: Any, **flags: Any) -> None:
    if payload is not None and run_id is None:
        raise click.UsageError("--payload goes with the ID of a run")
    if _one(run_id, flags):
        run = server.client.retry_run(find_run(server.client, run_id or ""), UNSET if payload is None else payload)
        server.tell(run, f"Run {run.id} takes over; it is {run.state}.")
    else:
        _many(server, server.client.retry_runs, flags, "retried")


def _one(run_id: str | None, flags: dict[str, Any]) -> bool:
    """Whether one run is meant by its id, and not those of a filter. Raises UsageError for both, and for neither."""
    names = {"states": "state", "error_contains": "error-contains", "per_second": "per-second", "dry_run": "dry-run"}
    given = [names.get(name, name) for name, value in flags.items() if value]
    filters = [name for name in given if name not in ("per-second", "dry-run", "yes")]
    if run_id is not None and given:
        raise click.UsageError(f"give the ID of a run or --{given[0]}, not both")
    if run_id is None and not filters:
        raise click.UsageError("give the ID of a run, or a filter such as --job NAME or --since 2h")
    return run_id is not None


def _many(server: Server, act: Callable[..., Any], flags: dict[str, Any], done: str, **more: Any) -> None:
    """Count, ask on a terminal, and do it, showing how far it is."""
    dry_run, agreed = flags.pop("dry_run"), flags.pop("yes")
    which = {name: value for name, value in {**flags, **more}.items() if value}
    matching = act(dry_run=True, **{name: value for name, value in which.items() if name != "reason"})
    if dry_run:
        _report(server, matching, _matching(matching))
        return
    if not server.as_json:
        say(_matching(matching), err=True)
    if matching.matched and not agreed and not server.as_json and sys.stdin.isatty():
        click.confirm(f"{'Is it' if matching.matched == 1 else 'Are they'} to be {done}?", abort=True, err=True)
    shown = _progress(matching.matched) if sys.stderr.isatty() and not server.as_json else lambda bulk: None
    bulk = act(shown, **which)
    _report(server, bulk, f"{counted(bulk.done, 'run')} {done}.{_left(bulk)}")


def _matching(bulk: Any) -> str:
    return f"{counted(bulk.matched, 'run matches', 'runs match')}.{_left(bulk)}"


def _left(bulk: Any) -> str:
    left = ", ".join(counted(count, *LEFT.get(why, (why, why))) for why, count in bulk.left.items())
    return f" {left}." if left else ""


def _progress(matched: int) -> Callable[[Any], None]:
    def show(bulk: Any) -> None:
        if bulk.matched < matched:
            say(f"{bulk.done:,} done, {matched - bulk.matched:,} to go", err=True)

    return show


def _report(server: Server, bulk: Any, text: str) -> None:
    server.tell({"matched": bulk.matched, "done": bulk.done, "left": bulk.left}, text)
