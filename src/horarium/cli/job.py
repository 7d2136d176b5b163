"""`horarium job`: the group, and actions on jobs that exist."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

import click
import msgspec

from horarium.cli.fields import AHEAD, JSON, body_of, pairs
from horarium.cli.follows import follows_text
from horarium.cli.output import (
    WIDTHS_FROM_ROWS,
    Column,
    beside,
    print_fields,
    print_json_list,
    print_table,
    say,
)
from horarium.cli.shell import Lazy, Server, on_server

if TYPE_CHECKING:
    from horarium.client.answers import Fires
    from horarium.wire.overrides import OverrideView
    from horarium.wire.views import JobView

job = Lazy(
    name="job",
    commands={
        "add": ("horarium.cli.job_define:add", "Define a job."),
        "list": ("horarium.cli.job:list_jobs", "List jobs."),
        "show": ("horarium.cli.job:show", "Show a job."),
        "update": ("horarium.cli.job_define:update", "Change some fields of a job."),
        "delete": ("horarium.cli.job:delete", "Delete a job."),
        "pause": ("horarium.cli.job:pause", "Let no fire time run until the job is resumed."),
        "resume": ("horarium.cli.job:resume", "Go on with the fire times from now on."),
        "trigger": ("horarium.cli.job:trigger", "Make a run now."),
        "backfill": ("horarium.cli.job_backfill:backfill", "Make the runs of a time that has passed."),
        "preview": ("horarium.cli.job:preview", "Show the next fire times of a job."),
        "versions": ("horarium.cli.job_versions:versions", "What a job was, and who changed it."),
        "revert": ("horarium.cli.job_versions:revert", "Bring a job back to what it was."),
        "skip": ("horarium.cli.job_overrides:skip", "Skip one fire time."),
        "move": ("horarium.cli.job_overrides:move", "Move one fire time to another instant."),
        "unskip": ("horarium.cli.job_overrides:unskip", "Take a skip or a move back."),
        "overrides": ("horarium.cli.job_overrides:overrides", "List fire times that are skipped or moved."),
        "explain": ("horarium.cli.job_explain:explain", "Say why a job ran or did not run, will run or will not."),
        "import": ("horarium.cli.job_files:import_jobs", "Define jobs from a file, also of other schedulers."),
        "export": ("horarium.cli.job_files:export_jobs", "Write jobs as YAML or JSON that import takes back."),
    },
    help="Define, show, pause, trigger, import and export jobs.",
)

COLUMNS = (
    Column("name", whole=True), Column("state", whole=True), Column("last", of=lambda job: _last(job)),
    Column("next_fire_at", when=True, title="next"), Column("trigger", of="words"),
    Column("target", of=lambda job: target_text(job)),
)  # fmt: skip
TITLE = Column("title", wide=True)
"""Where any of the jobs has one."""
NAME = click.argument("name", metavar="NAME")
NAME_OR_LABELS = click.argument("name", metavar="[NAME]", required=False)
LABELS = click.option(
    "--label", "labels", multiple=True, metavar="NAME=VALUE", help="Every job with this label; repeatable: with all."
)


@click.command("list", help="List jobs by name.\n\n\b\nExample:\n  horarium job list --label team=billing --enabled")
@click.option("--label", "labels", multiple=True, metavar="NAME=VALUE", help="Only jobs with this label; repeatable.")
@click.option("--prefix", metavar="TEXT", help="Only jobs whose name begins so.")
@click.option("--enabled/--paused", "enabled", default=None, help="Only jobs that are (not) enabled.")
@click.option("--finished", is_flag=True, help="Only jobs that can never fire again; left out otherwise.")
@click.option("--all", "every", is_flag=True, help="Those that can never fire again too.")
@click.option("--limit", type=click.IntRange(1), help="At most this number; left out: all.")
@on_server
def list_jobs(
    server: Server,
    labels: tuple[str, ...],
    prefix: str | None,
    enabled: bool | None,
    finished: bool,
    every: bool,
    limit: int | None,
) -> None:
    wanted = pairs("--label", labels, "=")
    which = None if every else finished
    jobs = server.client.list_jobs(labels=wanted, enabled=enabled, prefix=prefix, finished=which, limit=limit)
    if server.as_json:
        print_json_list(map(in_full, jobs))
    else:
        first = list(islice(jobs, WIDTHS_FROM_ROWS))
        columns = (*COLUMNS, TITLE) if any(job.title for job in first) else COLUMNS
        print_table(columns, chain(first, jobs), "There are no such jobs; define one with `horarium job add`.")


def _chosen(client: Any, name: str | None, labels: tuple[str, ...]) -> list[str]:
    """The names of the jobs that are meant: one by its name, or those with all of these labels."""
    if (name is None) == (not labels):
        raise click.UsageError("give the NAME of a job, or --label for every job that has it")
    if name is not None:
        return [name]
    return [job.name for job in client.list_jobs(labels=pairs("--label", labels, "="), finished=None)]


def _last(job: JobView) -> str | None:
    failures = job.failures_in_a_row or 0
    return f"failed {failures} in a row" if failures > 1 else job.last_run.state if job.last_run else None


def _last_run(job: JobView) -> str | None:
    """How and when the last run ended, and why."""
    last = job.last_run
    return f"{last.state} {beside(last.finished_at)} {last.error or ''}".rstrip() if last else None


def target_text(job: JobView) -> str:
    """A target in a few words."""
    from horarium.model import HttpTarget, queue_of

    target = job.target
    return f"{target.method} {target.url}" if isinstance(target, HttpTarget) else queue_of(target)


def target_details(job: JobView) -> list[tuple[str, Any]]:
    """What a target sends or starts: the command as one would type it, headers, body or payload."""
    from shlex import join

    from horarium.model import CommandTarget

    target = job.target
    names = ("headers", "body", "cancel_url", "args", "payload", "env", "cwd", "user", "stdin")
    found = {name: value for name in names if (value := getattr(target, name, None)) not in (None, {}, msgspec.UNSET)}
    if isinstance(target, CommandTarget):
        found = {"command": join(target.command), **found}
    return list(found.items())


@click.command(help="Show a job.\n\n\b\nExample:\n  horarium job show nightly --json")
@NAME
@on_server
def show(server: Server, name: str) -> None:
    job = in_full(server.client.get_job(name))
    server.tell(job, lambda: _print_job(job))


def in_full(job: JobView) -> JobView:
    """The job as the API shows it: every default spelt out."""
    from horarium.wire.views import in_full as written_out

    return written_out(job)


def _print_job(job: JobView) -> None:
    state = f"paused {job.pause_reason}" if job.state == "paused" and job.pause_reason else str(job.state)
    shown = ("labels", "next_fire_at", "fires_count", "starts_at", "ends_at", "fires_max", "priority")
    policies = ("catch_up", "overlap", "buffer_max", "approval", "retry", "timeouts", "concurrency", "rate", "fair")
    print_fields(
        [
            ("name", job.name),
            ("title", job.title),
            ("state", state),
            ("fires", job.words),
            ("trigger", job.trigger),
            ("target", target_text(job)),
            *target_details(job),
            ("ping_url", job.ping_url or None),
            *((name, getattr(job, name)) for name in (*shown, *policies, "jitter_seconds", "retention")),
            ("on", follows_text(job.on)),
            ("created_at", job.created_at),
            ("updated_at", job.updated_at),
            ("finished_at", job.finished_at),
            ("last_run", _last_run(job)),
            ("last_success_at", job.last_success_at or None),
            ("failures_in_a_row", job.failures_in_a_row or None),
            ("failing_since", job.failing_since or None),
        ]
    )


@click.command(
    help="Delete a job: its pending runs are cancelled, running ones asked to stop.\n\n"
    "\b\nExamples:\n  horarium job delete nightly\n  horarium job delete --label team=billing"
)
@NAME_OR_LABELS
@LABELS
@on_server
def delete(server: Server, name: str | None, labels: tuple[str, ...]) -> None:
    for chosen in (names := _chosen(server.client, name, labels)):
        server.client.delete_job(chosen)
    server.tell({"deleted": names if name is None else name}, _lines(f"Job {chosen} is deleted." for chosen in names))


@click.command(
    help="Let no later fire time run until the job is resumed.\n\n"
    '\b\nExample:\n  horarium job pause nightly --reason "database is moving"'
)
@NAME_OR_LABELS
@LABELS
@click.option("--reason", metavar="TEXT", help="Why; shown with the job.")
@click.option(
    "--until", type=AHEAD, metavar="WHEN", help="It goes on by itself then: an instant, a wall time, or 2h from now."
)
@on_server
def pause(
    server: Server, name: str | None, labels: tuple[str, ...], reason: str | None, until: datetime | None
) -> None:
    jobs = [server.client.pause_job(chosen, reason, until) for chosen in _chosen(server.client, name, labels)]
    server.tell(_shown(jobs, name), _lines(f"Job {job.name} is paused{_until(job)}." for job in jobs))


def _until(job: JobView) -> str:
    return "" if job.paused_until is None else f" until {beside(job.paused_until)}"


@click.command(help="Go on with the fire times from now on.\n\n\b\nExample:\n  horarium job resume nightly")
@NAME_OR_LABELS
@LABELS
@on_server
def resume(server: Server, name: str | None, labels: tuple[str, ...]) -> None:
    jobs = [server.client.resume_job(chosen) for chosen in _chosen(server.client, name, labels)]
    said = _lines(f"Job {job.name} is enabled; it fires next at {_when(job)}." for job in jobs)
    server.tell(_shown(jobs, name), said)


def _overridden(override: OverrideView) -> str:
    what = "skipped" if override.to is None else f"moved from {beside(override.fire_at)}"
    return f"{what} by {override.by}" + (f": {override.reason}" if override.reason else "")


def _shown(jobs: list[JobView], name: str | None) -> JobView | list[JobView]:
    """The one that was named, or the list of those with the labels."""
    shown = [in_full(job) for job in jobs]
    return shown if name is None else shown[0]


def _lines(texts: Iterable[str]) -> str:
    return "\n".join(texts) or "There are no such jobs."


def _when(job: JobView) -> str:
    return "no time" if job.next_fire_at is None else beside(job.next_fire_at)


@click.command(
    help="Make a run now, under the job's overlap policy.\n\n"
    '\b\nExample:\n  horarium job trigger nightly --payload \'{"day": "2026-12-24"}\''
)
@NAME
@click.option("--payload", type=JSON, metavar="JSON", help="Replaces the payload, args or body of the target.")
@click.option("--body-file", metavar="FILE", help="The payload from a file; - is the standard input.")
@click.option("--key", metavar="TEXT", help="Asking again with the same key and payload gives the same run.")
@on_server
def trigger(server: Server, name: str, payload: Any, body_file: str | None, key: str | None) -> None:
    from msgspec import UNSET

    given = body_of({"body_file": body_file}) if payload is None else payload
    run = server.client.trigger_job(name, UNSET if given is None else given, unique_key=key)
    last = run.history[-1].message if run.history else ""
    why = "" if last.startswith("planned") else f": {last}"  # a hold, a decision, its overlap policy
    server.tell(run, f"Run {run.id} is {run.state}{why}.")


@click.command(help="Show the next fire times of a job.\n\n\b\nExample:\n  horarium job preview nightly --count 5")
@NAME
@click.option("--count", type=click.IntRange(1, 1_000), default=10, show_default=True, help="How many fire times.")
@on_server
def preview(server: Server, name: str, count: int) -> None:
    found = server.client.fires(name, count)
    server.tell(found, lambda: _print_fires(found))


def _print_fires(found: Fires) -> None:
    say(found.words)
    moved = [each for each in found.overrides if each.to is not None]
    for fire in found.fires:
        own = next((each for each in moved if each.to == fire), None)
        if own is not None:
            moved.remove(own)
        say(f"  {beside(fire)}" + ("" if own is None else f"  {_overridden(own)}"))
    for each in found.overrides:
        if each.to is None:
            say(f"  {beside(each.fire_at)}  {_overridden(each)}")
    if not found.fires:
        say("  never: it is paused, or has no fire time left")
