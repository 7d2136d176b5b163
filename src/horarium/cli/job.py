"""`horarium job`: the group, and actions on jobs that exist."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

import click
import msgspec

from horarium.cli.fields import JSON, body_of, pairs, until_moment
from horarium.cli.follows import follows_text
from horarium.cli.output import (
    WIDTHS_FROM_ROWS,
    Column,
    beside,
    print_fields,
    print_json,
    print_json_list,
    print_table,
    say,
)
from horarium.cli.shell import Lazy, connect, server_options

if TYPE_CHECKING:
    from horarium.wire.overrides import OverrideView
    from horarium.wire.views import JobView

job = Lazy(
    name="job",
    commands={
        "add": "horarium.cli.job_define:add",
        "list": "horarium.cli.job:list_jobs",
        "show": "horarium.cli.job:show",
        "update": "horarium.cli.job_define:update",
        "delete": "horarium.cli.job:delete",
        "pause": "horarium.cli.job:pause",
        "resume": "horarium.cli.job:resume",
        "trigger": "horarium.cli.job:trigger",
        "backfill": "horarium.cli.job_backfill:backfill",
        "preview": "horarium.cli.job:preview",
        "versions": "horarium.cli.job_versions:versions",
        "revert": "horarium.cli.job_versions:revert",
        "skip": "horarium.cli.job_overrides:skip",
        "move": "horarium.cli.job_overrides:move",
        "unskip": "horarium.cli.job_overrides:unskip",
        "overrides": "horarium.cli.job_overrides:overrides",
        "explain": "horarium.cli.job_explain:explain",
        "import": "horarium.cli.job_files:import_jobs",
        "export": "horarium.cli.job_files:export_jobs",
    },
    summaries={
        "add": "Define a job.",
        "list": "List jobs.",
        "show": "Show a job.",
        "update": "Change some fields of a job.",
        "delete": "Delete a job.",
        "pause": "Let no fire time run until the job is resumed.",
        "resume": "Go on with the fire times from now on.",
        "trigger": "Make a run now.",
        "backfill": "Make the runs of a time that has passed.",
        "preview": "Show the next fire times of a job.",
        "versions": "What a job was, and who changed it.",
        "revert": "Bring a job back to what it was.",
        "skip": "Skip one fire time.",
        "move": "Move one fire time to another instant.",
        "unskip": "Take a skip or a move back.",
        "overrides": "List fire times that are skipped or moved.",
        "explain": "Say why a job ran or did not run, will run or will not.",
        "import": "Define jobs from a file, also of other schedulers.",
        "export": "Write jobs as YAML or JSON that import takes back.",
    },
    help="Define, show, pause, trigger, import and export jobs.",
)

COLUMNS = (
    Column("name", whole=True), Column("state", whole=True), Column("last"),
    Column("next_fire_at", when=True, title="next"), Column("trigger"), Column("target"),
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
@server_options
def list_jobs(
    labels: tuple[str, ...],
    prefix: str | None,
    enabled: bool | None,
    finished: bool,
    every: bool,
    limit: int | None,
    url: str,
    api_key: str | None,
    as_json: bool,
) -> None:
    with connect(url, api_key) as client:
        wanted = pairs("--label", labels, "=")
        which = None if every else finished
        jobs = client.list_jobs(labels=wanted, enabled=enabled, prefix=prefix, finished=which, limit=limit)
        if as_json:
            print_json_list(map(in_full, jobs))
        else:
            first = list(islice(jobs, WIDTHS_FROM_ROWS))
            columns = (*COLUMNS, TITLE) if any(job.title for job in first) else COLUMNS
            rows = (row[: len(columns)] for row in _rows(chain(first, jobs)))
            print_table(columns, rows, "There are no such jobs; define one with `horarium job add`.")


def _chosen(client: Any, name: str | None, labels: tuple[str, ...]) -> list[str]:
    """The names of the jobs that are meant: one by its name, or those with all of these labels."""
    if (name is None) == (not labels):
        raise click.UsageError("give the NAME of a job, or --label for every job that has it")
    if name is not None:
        return [name]
    return [job.name for job in client.list_jobs(labels=pairs("--label", labels, "="), finished=None)]


def _rows(jobs: Iterable[JobView]) -> Iterator[tuple[Any, ...]]:
    for job in jobs:
        failures = job.failures_in_a_row or 0
        last = f"failed {failures} in a row" if failures > 1 else job.last_run.state if job.last_run else None
        yield job.name, job.state, last, job.next_fire_at, job.words, target_text(job), job.title


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
@server_options
def show(name: str, url: str, api_key: str | None, as_json: bool) -> None:
    with connect(url, api_key) as client:
        print_job(client.get_job(name), as_json)


def in_full(job: JobView) -> JobView:
    """The job as the API shows it: every default spelt out."""
    from horarium.wire.views import in_full as written_out

    return written_out(job)


def print_job(job: JobView, as_json: bool) -> None:
    """A job, for programs or for people."""
    job = in_full(job)
    if as_json:
        print_json(job)
        return
    state = f"paused {job.pause_reason}" if job.state == "paused" and job.pause_reason else str(job.state)
    shown = ("labels", "next_fire_at", "fires_count", "starts_at", "ends_at", "fires_max", "priority")
    policies = ("catch_up", "overlap", "buffer_max", "approval", "retry", "timeouts", "concurrency", "rate")
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
@server_options
def delete(name: str | None, labels: tuple[str, ...], url: str, api_key: str | None, as_json: bool) -> None:
    with connect(url, api_key) as client:
        for chosen in (names := _chosen(client, name, labels)):
            client.delete_job(chosen)
    if as_json:
        print_json({"deleted": name if name is not None else names})
    else:
        _tell([f"Job {chosen} is deleted." for chosen in names])


@click.command(
    help="Let no later fire time run until the job is resumed.\n\n"
    '\b\nExample:\n  horarium job pause nightly --reason "database is moving"'
)
@NAME_OR_LABELS
@LABELS
@click.option("--reason", metavar="TEXT", help="Why; shown with the job.")
@click.option("--until", metavar="WHEN", help="It goes on by itself then: an instant, a wall time, or 2h from now.")
@server_options
def pause(
    name: str | None,
    labels: tuple[str, ...],
    reason: str | None,
    until: str | None,
    url: str,
    api_key: str | None,
    as_json: bool,
) -> None:
    end = None if until is None else until_moment(until, datetime.now(UTC))
    with connect(url, api_key) as client:
        jobs = [client.pause_job(chosen, reason, end) for chosen in _chosen(client, name, labels)]
    if as_json:
        _print_jobs(jobs, name)
    else:
        _tell([f"Job {job.name} is paused{_until(job)}." for job in jobs])


def _until(job: JobView) -> str:
    return "" if job.paused_until is None else f" until {beside(job.paused_until)}"


@click.command(help="Go on with the fire times from now on.\n\n\b\nExample:\n  horarium job resume nightly")
@NAME_OR_LABELS
@LABELS
@server_options
def resume(name: str | None, labels: tuple[str, ...], url: str, api_key: str | None, as_json: bool) -> None:
    with connect(url, api_key) as client:
        jobs = [client.resume_job(chosen) for chosen in _chosen(client, name, labels)]
    if as_json:
        _print_jobs(jobs, name)
    else:
        _tell([f"Job {job.name} is enabled; it fires next at {_when(job)}." for job in jobs])


def _overridden(override: OverrideView) -> str:
    what = "skipped" if override.to is None else f"moved from {beside(override.fire_at)}"
    return f"{what} by {override.by}" + (f": {override.reason}" if override.reason else "")


def _print_jobs(jobs: list[JobView], name: str | None) -> None:
    """The one that was named, or the list of those with the labels."""
    if name is not None:
        print_json(in_full(jobs[0]))
    else:
        print_json_list(map(in_full, jobs))


def _tell(lines: list[str]) -> None:
    say("\n".join(lines) if lines else "There are no such jobs.")


def _when(job: JobView) -> str:
    return "no time" if job.next_fire_at is None else beside(job.next_fire_at)


@click.command(
    help="Make a run now, under the job's overlap policy.\n\n"
    '\b\nExample:\n  horarium job trigger nightly --payload \'{"day": "2026-12-24"}\''
)
@NAME
@click.option("--payload", type=JSON, metavar="JSON", help="Replaces the payload, args or body of the target.")
@click.option("--body-file", metavar="FILE", help="The payload from a file; - is the standard input.")
@click.option("--key", metavar="TEXT", help="Asking again with the same key gives the same run.")
@server_options
def trigger(
    name: str, payload: Any, body_file: str | None, key: str | None, url: str, api_key: str | None, as_json: bool
) -> None:
    from msgspec import UNSET

    given = body_of({"body_file": body_file}) if payload is None else payload
    with connect(url, api_key) as client:
        run = client.trigger_job(name, UNSET if given is None else given, unique_key=key)
    if as_json:
        print_json(run)
    else:
        say(f"Run {run.id} is {run.state}.")


@click.command(help="Show the next fire times of a job.\n\n\b\nExample:\n  horarium job preview nightly --count 5")
@NAME
@click.option("--count", type=click.IntRange(1, 1_000), default=10, show_default=True, help="How many fire times.")
@server_options
def preview(name: str, count: int, url: str, api_key: str | None, as_json: bool) -> None:
    with connect(url, api_key) as client:
        found = client.fires(name, count)
    if as_json:
        print_json(found)
        return
    say(found.words)
    moved = {each.to: each for each in found.overrides if each.to is not None}
    for fire in found.fires:
        say(f"  {beside(fire)}" + (f"  {_overridden(moved[fire])}" if fire in moved else ""))
    for each in found.overrides:
        if each.to is None:
            say(f"  {beside(each.fire_at)}  {_overridden(each)}")
    if not found.fires:
        say("  never: it is paused, or has no fire time left")
