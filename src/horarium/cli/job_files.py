"""`horarium job import` and `horarium job export`.

Each job of a file is put, many in one request: a new one is made, a changed one is changed, an unchanged one stays as
it is, with its next fire time. A job that is refused is named with its place, and the others are imported all the same.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from horarium.cli.documents import FORMATS, read_entries
from horarium.cli.entry import Entry
from horarium.cli.fields import pairs
from horarium.cli.output import print_json
from horarium.cli.shell import FAILED, connect, server_options

if TYPE_CHECKING:
    from horarium.client import Client
    from horarium.definitions import JobView

ERRORS_SHOWN_MAX = 20
HERD_JOBS = 100
"""So many jobs with one and the same cron expression are worth a word."""


@click.command(
    "import",
    help="""Define the jobs of FILE (- is the standard input): YAML, JSON or a crontab. A second import changes nothing.

New jobs with an interval and no anchor begin spread evenly over it, so that they do not all fire as one.

\b
A line of a crontab becomes a job with a queue target and the payload {"command": ["/bin/sh", "-c", COMMAND]}, for
`horarium worker --queue shell --allow-commands`; its name follows from the command. CRON_TZ= and TZ= set the time zone,
SHELL= the shell, HOME= the folder, RANDOM_DELAY= a jitter in minutes; other variables go into the payload's env.
\b
Examples:
  horarium job import jobs.yaml
  horarium job import jobs.json --dry-run
  crontab -l | horarium job import - --format crontab --timezone Europe/Berlin
""",
)
@click.argument("file", metavar="FILE")
@click.option("--format", type=click.Choice(FORMATS), help="What the file is; left out: by its name or content.")
@click.option("--dry-run", is_flag=True, help="Check every job and say what would become of it; write nothing.")
@click.option("--queue", metavar="NAME", default="shell", show_default=True, help="Crontab: the queue of its jobs.")
@click.option("--timezone", metavar="ZONE", default="UTC", show_default=True, help="Crontab: the time zone.")
@click.option("--prefix", metavar="TEXT", default="", help="Crontab: what the names of its jobs begin with.")
@server_options
def import_jobs(
    file: str,
    format: str | None,
    dry_run: bool,
    queue: str,
    timezone: str,
    prefix: str,
    url: str,
    api_key: str | None,
    as_json: bool,
) -> None:
    entries = read_entries(file, format, queue=queue, timezone=timezone, prefix=prefix)
    with connect(url, api_key) as client, _progress(len(entries), as_json) as advance:
        done, errors = _import(client, entries, dry_run, advance)
    found = notes(entries)
    if as_json:
        print_json({**done, "dry_run": dry_run, "errors": errors, "notes": found})
    else:
        _print_summary(done, errors, found, dry_run)
    if errors:
        sys.exit(FAILED)


def _import(
    client: Client, entries: Sequence[Entry], dry_run: bool, advance: Callable[[], None]
) -> tuple[dict[str, int], list[dict[str, str]]]:
    counts: Counter[str] = Counter()
    errors: list[dict[str, str]] = []
    good: list[Entry] = []
    first: dict[str, str] = {}
    for entry in entries:
        why = entry.error
        if entry.name and entry.name in first:
            why = f"there is a job of this name already, at {first[entry.name]}"
        elif entry.name:
            first[entry.name] = entry.place
        if why is None:
            good.append(entry)
        else:
            errors.append(_failed(entry, why))
            advance()
    sent = client.import_jobs((entry.definition or {} for entry in good), dry_run=dry_run)
    for entry, imported in zip(good, sent, strict=True):
        if imported.error is None:
            counts[imported.outcome] += 1
        else:
            errors.append(_failed(entry, imported.error.message))
        advance()
    return {name: counts[name] for name in ("created", "updated", "unchanged")} | {"failed": len(errors)}, errors


def _failed(entry: Entry, why: str) -> dict[str, str]:
    return {"job": entry.name or "", "place": entry.place, "error": why}


def notes(entries: Iterable[Entry]) -> list[str]:
    """What is right, but may not be meant."""
    herds: Counter[tuple[str, str]] = Counter()
    mail = False
    for entry in entries:
        job = entry.definition or {}
        trigger, target = job.get("trigger"), job.get("target")
        if isinstance(trigger, dict) and trigger.get("type") == "cron" and not job.get("jitter_seconds"):
            herds[str(trigger.get("expression")), str(trigger.get("timezone", "UTC"))] += 1
        payload = target.get("payload") if isinstance(target, dict) else None
        env = payload.get("env") if isinstance(payload, dict) else None
        mail = mail or (isinstance(env, dict) and bool(env.get("MAILTO")))
    found = [
        f"{count:,} jobs fire at the same instants ({expression}, {zone}): jitter_seconds in their definitions spreads "
        "them, and so does H in place of a number"
        for (expression, zone), count in herds.most_common()
        if count >= HERD_JOBS and "H" not in expression
    ]
    return [*found, "MAILTO: no mail is sent; what a command wrote is kept with its run"] if mail else found


@contextmanager
def _progress(total: int, as_json: bool) -> Iterator[Callable[[], None]]:
    """What to call for each job; on a terminal, a bar shows how far it is."""
    if as_json or not sys.stderr.isatty():
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("Importing"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("import", total=total)
        yield lambda: bar.advance(task)


def _print_summary(done: dict[str, int], errors: list[dict[str, str]], notes: list[str], dry_run: bool) -> None:
    for error in errors[:ERRORS_SHOWN_MAX]:
        if error["job"]:
            click.echo(f"Error: {error['job']}: {error['error']} ({error['place']})", err=True)
        else:
            click.echo(f"Error: {error['place']}: {error['error']}", err=True)
    if len(errors) > ERRORS_SHOWN_MAX:
        click.echo(f"... and {len(errors) - ERRORS_SHOWN_MAX} more errors; --json lists them all", err=True)
    for note in notes:
        click.echo(f"Note: {note}", err=True)
    said = ", ".join(f"{count} {name}" for name, count in done.items()) + "."
    click.echo(f"Nothing was written. It would be: {said}" if dry_run else said)


@click.command(
    "export",
    help="""Write jobs as YAML (or JSON) that `horarium job import` takes back. Secrets are masked; importing over the
same job keeps the one that is stored.

\b
Examples:
  horarium job export > jobs.yaml
  horarium job export nightly --format json --output nightly.json
""",
)
@click.argument("names", metavar="[NAME]...", nargs=-1)
@click.option("--label", "labels", multiple=True, metavar="NAME=VALUE", help="Only jobs with this label; repeatable.")
@click.option("--format", type=click.Choice(["yaml", "json"]), help="What to write; left out: YAML, or by the output.")
@click.option("--output", metavar="FILE", help="Where to; left out: the standard output.")
@server_options
def export_jobs(
    names: tuple[str, ...],
    labels: tuple[str, ...],
    format: str | None,
    output: str | None,
    url: str,
    api_key: str | None,
    as_json: bool,
) -> None:
    with connect(url, api_key) as client:
        wanted = pairs("--label", labels, "=")
        jobs = [client.get_job(name) for name in names] if names else client.list_jobs(labels=wanted)
        fields = [definition_of_view(job) for job in jobs]
    wants_json = as_json or format == "json" or (format is None and (output or "").endswith(".json"))
    _write(_text(fields, wants_json), output)


def definition_of_view(job: JobView) -> dict[str, Any]:
    """What its owner would write to get this job."""
    import msgspec

    from horarium.definitions import JobDefinition

    shown = {name: getattr(job, name) for name in JobDefinition.__struct_fields__}
    fields: dict[str, Any] = msgspec.to_builtins(JobDefinition(**shown))
    return fields


def _text(fields: list[dict[str, Any]], as_json: bool) -> str:
    if as_json:
        import msgspec

        return msgspec.json.format(msgspec.json.encode(fields), indent=2).decode() + "\n"
    from horarium.documents import write_yaml

    return write_yaml(fields)


def _write(text: str, output: str | None) -> None:
    if output is None or output == "-":
        click.echo(text, nl=False)
        return
    try:
        Path(output).write_text(text, encoding="utf-8")
    except OSError as error:
        raise click.UsageError(f"--output: {output} can't be written: {error.strerror}") from None
