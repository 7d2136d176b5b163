"""`horarium plan` and `horarium apply`: what a folder of definitions would change, and the change itself."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from horarium.cli.documents import read_folders
from horarium.cli.fields import pairs, read_text
from horarium.cli.output import Column, say
from horarium.cli.shell import FAILED, Server, on_server
from horarium.errors import CallerError, HorariumError
from horarium.model.plans import PLAN_ID
from horarium.triggers.words import counted

CHANGES = 2
"""The exit status where something would change."""
MARKS = {"create": "+", "update": "~", "delete": "-", "invalid": "!"}
DONE = {"create": "to create", "update": "to change", "delete": "to delete", "invalid": "invalid"}
FIRES_SHOWN = 3
WARNINGS_SHOWN = 20
TEXT_MAX = 60
COLUMNS = (
    Column("ref", whole=True), Column("changes", of=lambda each: _done(each["changes"])), Column("applied"),
    Column("by"), Column("expires_at", when=True),
)  # fmt: skip
ALLOW_EMPTY = click.option(
    "--allow-empty", is_flag=True, help="Prune although the files have no job: all jobs with these labels go."
)
PRUNE = click.option(
    "--prune", "labels", multiple=True, metavar="NAME=VALUE",
    help="Delete the jobs with this label that the files no longer have; repeatable.",
)  # fmt: skip


class Planned(click.Command):
    """`plan`: its status 2 says that something would change, so a wrong use of it ends as any other error."""

    def make_context(self, *given: Any, **how: Any) -> click.Context:
        with _no_usage():
            return super().make_context(*given, **how)

    def invoke(self, context: click.Context) -> Any:
        with _no_usage():
            return super().invoke(context)


@contextmanager
def _no_usage() -> Iterator[None]:
    try:
        yield
    except click.UsageError as error:
        hint = "" if error.ctx is None else f". Try: {error.ctx.command_path} --help"
        raise HorariumError(error.format_message().rstrip(".") + hint) from None


@click.command(
    cls=Planned,
    help="""Show what the definitions in files or folders would change: jobs, their fire times, calendars, channels.

Writes nothing. The exit status is 0 where nothing would change, 2 where something would, 1 for an error.

\b
Examples:
  horarium plan schedules/
  horarium plan schedules/ --prune team=billing --out plan.json
  horarium apply plan.json
  horarium plan --list
""",
)
@click.argument("paths", metavar="PATH...", nargs=-1)
@PRUNE
@click.option("--out", metavar="FILE", help="Keep the plan for `horarium apply FILE`.")
@click.option("--days", type=click.IntRange(1, 400), default=14, show_default=True, help="How far ahead to compare.")
@click.option("--list", "listed", is_flag=True, help="List the plans of the last seven days instead.")
@ALLOW_EMPTY
@on_server
def plan(
    server: Server,
    paths: tuple[str, ...],
    labels: tuple[str, ...],
    out: str | None,
    days: int,
    listed: bool,
    allow_empty: bool,
) -> None:
    if listed == bool(paths):
        raise click.UsageError("give the files or folders of definitions, or --list alone")
    if listed:
        _list(server)
        return
    made = _make(server, paths, labels, days, allow_empty)
    if out is not None:
        Path(out).write_text(json.dumps(made, indent=2) + "\n", encoding="utf-8")
    server.tell(made, lambda: _say_plan(made))
    raise click.exceptions.Exit(_status(made))


@click.command(
    help="""Carry out a plan that was kept, or plan files or folders and carry that out: as a whole, or not at all.

Where a definition is no longer as the plan read it, nothing is written. Of more than 1,000 changes, each 1,000 are one
transaction; after a failure, the same command goes on.

\b
Examples:
  horarium apply plan.json
  horarium apply schedules/ --prune team=billing --yes
  horarium apply 0193a5c2-7b00-7f2e-9c41-5d1f0a8b6e37-4a1f6bd0c88e4f7a9b1e2d3c4f5a6b7c --approve
""",
)
@click.argument("paths", metavar="PATH...", nargs=-1, required=True)
@PRUNE
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--approve", is_flag=True, help="Of a plan by its id or file: let an operator or an agent apply it.")
@ALLOW_EMPTY
@on_server
def apply(
    server: Server, paths: tuple[str, ...], labels: tuple[str, ...], yes: bool, approve: bool, allow_empty: bool
) -> None:
    if approve:
        _approve(server, paths)
        return
    made = _kept(paths) if len(paths) == 1 and not labels else None
    if made is None:
        made = _make(server, paths, labels, 14, allow_empty)
        if not server.as_json:
            _say_plan(made)
    if _status(made) == FAILED:
        raise click.exceptions.Exit(FAILED)
    changes = _status(made) == CHANGES
    if changes and not yes and not server.as_json:
        click.confirm("Apply it?", abort=True)
    applied = 0
    if changes:
        applied = server.client.plans.apply(made["id"], lambda done, left: _advance(left))
    before = ": all of it was made before. Whether it still holds: horarium plan" if changes and not applied else ""
    said = f"{counted(applied, 'change was', 'changes were')} made{before or '.'}"
    server.tell({"id": made["id"], "applied": applied}, said)


def _approve(server: Server, paths: tuple[str, ...]) -> None:
    """A plan that another caller made, and will apply."""
    if len(paths) != 1:
        raise click.UsageError("give the id of one plan, or the file of `horarium plan --out`")
    made = None if PLAN_ID.fullmatch(paths[0]) else _kept(paths)
    if made is None and not PLAN_ID.fullmatch(paths[0]):
        raise click.UsageError(f"{paths[0]} is no plan's id, and no file of `horarium plan --out`")
    id = paths[0] if made is None else str(made["id"])
    left = server.client.plans.approve(id)
    said = f"Approved: an operator may apply it now ({counted(left, 'change')})."
    server.tell({"id": id, "changes": left}, said)


def _advance(left: int) -> None:
    if left:
        say(f"{counted(left, 'change is', 'changes are')} left.", err=True)


def _list(server: Server) -> None:
    found = list(server.client.plans.list())
    server.tell_all(found, COLUMNS, "There is no plan.")


def _done(changes: dict[str, int]) -> str:
    return ", ".join(f"{count} {DONE[action]}" for action, count in changes.items() if action in DONE)


def _make(
    server: Server, paths: tuple[str, ...], labels: tuple[str, ...], days: int, allow_empty: bool
) -> dict[str, Any]:
    """The plan of these files. What is wrong with them is no wrong use of the command, whose status 2 has a meaning."""
    try:
        prune = pairs("--prune", labels, "=") or None
        documents = read_folders(paths)
        if prune and not documents["jobs"] and not allow_empty:
            said = ", ".join(labels)
            raise click.UsageError(
                f"there is no job in {', '.join(paths)}: every job with {said} would be deleted; say --allow-empty if "
                "that is meant"
            )
        made: dict[str, Any] = server.client.plans.make(documents, prune=prune, horizon_seconds=days * 86_400)
    except click.UsageError as error:
        raise HorariumError(error.message) from None
    except CallerError as error:
        failed = HorariumError(error.message, field=error.field)
        failed.code = error.code
        raise failed from None
    return made


def _kept(paths: tuple[str, ...]) -> dict[str, Any] | None:
    """The plan in a file that `horarium plan --out` wrote; None: it is something else."""
    if paths[0] == "-" or Path(paths[0]).is_dir():
        return None
    try:
        found = json.loads(read_text(paths[0]))
    except ValueError:
        return None
    return found if isinstance(found, dict) and {"id", "changes", "expires_at"} <= found.keys() else None


def _status(made: dict[str, Any]) -> int:
    actions = {change["action"] for change in made["changes"]}
    if "invalid" in actions:
        return FAILED
    return CHANGES if actions - {"unchanged"} else 0


def _say_plan(made: dict[str, Any]) -> None:
    for change in made["changes"]:
        if change["action"] != "unchanged":
            _say_change(change)
    for warning in made["warnings"][:WARNINGS_SHOWN]:
        about = f"{warning['job']}: " if warning["job"] else ""
        say(f"Warning: {about}{warning['text']}", err=True)
    if (more := len(made["warnings"]) - WARNINGS_SHOWN) > 0:
        say(f"... and {counted(more, 'more warning')}; --json lists {'it' if more == 1 else 'them'}", err=True)
    if at_once := made["fires_at_once"]:
        rest = f" and {len(at_once) - WARNINGS_SHOWN} more" if len(at_once) > WARNINGS_SHOWN else ""
        say(f"Fires at once: {', '.join(at_once[:WARNINGS_SHOWN])}{rest}")
    before, after = made["peak"]["before"], made["peak"]["after"]
    if after is not None and before != after:
        was = "none" if before is None else f"{before['starts']} at {before['at']}"
        say(f"Busiest minute: {counted(after['starts'], 'start')} at {after['at']} (now: {was})")
    counts = Counter(change["action"] for change in made["changes"])
    said = [f"{counts[action]} {DONE[action]}" for action in DONE if counts[action]]
    say(f"{', '.join(said) or 'Nothing to change'}; {counts['unchanged']} unchanged.")


def _say_change(change: dict[str, Any]) -> None:
    say(f"{MARKS[change['action']]} {change['kind']} {change['name']}")
    if "problem" in change:
        say(f"    {change['problem']['detail']}")
    if change["action"] == "update":
        for field in change.get("fields", ()):
            say(f"    {field['field']}: {_text(field['before'])} -> {_text(field['after'])}")
    _say_fires(change.get("fires", {}), "    ")
    for job in change.get("jobs", ()):
        say(f"    {job['job']}")
        _say_fires(job, "      ")


def _say_fires(fires: dict[str, Any], indent: str) -> None:
    for mark, name in (("+", "added"), ("-", "removed")):
        listed = fires.get(name, ())
        if listed:
            more = f" and {len(listed) - FIRES_SHOWN} more" if len(listed) > FIRES_SHOWN else ""
            say(f"{indent}fires {mark} {', '.join(listed[:FIRES_SHOWN])}{more}")
    moved = fires.get("moved", ())
    for each in moved[:FIRES_SHOWN]:
        say(f"{indent}fires {each['from']} -> {each['to']}")
    if len(moved) > FIRES_SHOWN:
        say(f"{indent}and {counted(len(moved) - FIRES_SHOWN, 'more is', 'more are')} moved")


def _text(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= TEXT_MAX else f"{text[:TEXT_MAX]}..."
