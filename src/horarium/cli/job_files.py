"""`horarium job import` and `horarium job export`.

Each job of a file is put: a new one is made, a changed one is changed, an unchanged one stays as it is, with its next
fire time. A job that is refused is named, and the others are imported all the same.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from horarium.cli.documents import FORMATS, read_definitions
from horarium.cli.fields import pairs
from horarium.cli.output import print_json
from horarium.cli.shell import FAILED, connect, server_options
from horarium.errors import CallerError, Conflict, InvalidJob, NotFound

if TYPE_CHECKING:
    from horarium.client import Client
    from horarium.definitions import JobView

ERRORS_SHOWN_MAX = 20


@click.command(
    "import",
    help="""Define the jobs of FILE (- is the standard input): YAML, JSON or a crontab. A second import changes nothing.

\b
A line of a crontab becomes a job with a queue target and the payload {"command": ["/bin/sh", "-c", COMMAND]}; its name
follows from the command. CRON_TZ= and TZ= set the time zone, other variables go into the payload's env.
\b
Examples:
  horarium job import jobs.yaml
  crontab -l | horarium job import - --format crontab --queue shell --timezone Europe/Berlin
""",
)
@click.argument("file", metavar="FILE")
@click.option("--format", type=click.Choice(FORMATS), help="What the file is; left out: by its name or content.")
@click.option("--queue", metavar="NAME", default="crontab", show_default=True, help="Crontab: the queue of its jobs.")
@click.option("--timezone", metavar="ZONE", default="UTC", show_default=True, help="Crontab: the time zone.")
@server_options
def import_jobs(
    file: str, format: str | None, queue: str, timezone: str, url: str, api_key: str | None, as_json: bool
) -> None:
    definitions = read_definitions(file, format, queue, timezone)
    with connect(url, api_key) as client, _progress(definitions, as_json) as steps:
        done, errors = _import(client, steps)
    if as_json:
        print_json({**done, "errors": errors})
    else:
        _print_summary(done, errors)
    if errors:
        sys.exit(FAILED)


def _import(client: Client, definitions: Iterable[dict[str, Any]]) -> tuple[dict[str, int], list[dict[str, str]]]:
    counts: Counter[str] = Counter()
    errors: list[dict[str, str]] = []
    for number, definition in enumerate(definitions, 1):
        try:
            counts[_put(client, definition)] += 1
        except (CallerError, Conflict) as error:
            if error.code == "unauthorized":
                raise
            errors.append({"job": str(definition.get("name", f"number {number}")), "error": error.message})
    return {name: counts[name] for name in ("created", "updated", "unchanged")} | {"failed": len(errors)}, errors


def _put(client: Client, definition: dict[str, Any]) -> str:
    """Put one job: `created`, `updated` or `unchanged`."""
    before = _find(client, definition.get("name"))
    if before is None and _has_masked_secret(definition):
        raise InvalidJob("target.signing_secret is masked, as exports are; put the secret in its place")
    after, created = client.put_job(definition)
    if created or before is None:
        return "created"
    return "unchanged" if definition_of_view(before) == definition_of_view(after) else "updated"


def _find(client: Client, name: Any) -> JobView | None:
    try:
        return client.get_job(name) if isinstance(name, str) and name else None
    except NotFound:
        return None


def _has_masked_secret(definition: dict[str, Any]) -> bool:
    from horarium.masking import SECRET_SHOWN

    target = definition.get("target")
    return isinstance(target, dict) and target.get("signing_secret") == SECRET_SHOWN


@contextmanager
def _progress(definitions: Sequence[dict[str, Any]], as_json: bool) -> Iterator[Iterable[dict[str, Any]]]:
    """The definitions, with a progress bar on a terminal."""
    if as_json or not sys.stderr.isatty():
        yield definitions
        return
    with click.progressbar(definitions, label="Importing", file=sys.stderr) as bar:
        yield bar


def _print_summary(done: dict[str, int], errors: list[dict[str, str]]) -> None:
    for error in errors[:ERRORS_SHOWN_MAX]:
        click.echo(f"Error: {error['job']}: {error['error']}", err=True)
    if len(errors) > ERRORS_SHOWN_MAX:
        click.echo(f"... and {len(errors) - ERRORS_SHOWN_MAX} more errors; --json lists them all", err=True)
    click.echo(", ".join(f"{count} {name}" for name, count in done.items()) + ".")


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
