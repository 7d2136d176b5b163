"""`horarium door`: take over from another scheduler, and the commands of the one for scrape jobs."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

from horarium.cli.fields import pairs
from horarium.cli.output import Column, print_json, print_json_list, print_table, say
from horarium.cli.shell import FAILED, Lazy, connect, server_options

if TYPE_CHECKING:
    from horarium.doors.scrape_jobs import Listed

COLUMNS = (
    Column("id", whole=True), Column("url"), Column("interval_s", title="interval"),
    Column("next_fire_at", when=True, title="next"),
)  # fmt: skip

door = Lazy(
    name="door",
    commands={
        "import": "horarium.cli.door:import_stored",
        "scrape-scheduler": "horarium.cli.door:scrape_scheduler",
    },
    summaries={
        "import": "Take over the jobs that another scheduler has stored.",
        "scrape-scheduler": "The commands of the scheduler for scrape jobs.",
    },
    help="Take over from another scheduler. Its clients come in by `horarium serve --door NAME`.",
)
scrape_scheduler = Lazy(
    name="scrape-scheduler",
    commands={"job": "horarium.cli.door:scrape_job"},
    summaries={"job": "Add, import, list and delete scrape jobs."},
    help="The commands of the scheduler for scrape jobs.",
)
scrape_job = Lazy(
    name="job",
    commands={
        "add": "horarium.cli.door:add_scrape_job",
        "import": "horarium.cli.door:import_scrape_jobs",
        "list": "horarium.cli.door:list_scrape_jobs",
        "delete": "horarium.cli.door:delete_scrape_job",
    },
    summaries={
        "add": "Add a URL to scrape.",
        "import": "Add the URLs of a jobs.json.",
        "list": "List scrape jobs.",
        "delete": "Delete a scrape job.",
    },
    help="Add, import, list and delete scrape jobs.",
)


def _import(url: str, api_key: str | None, definitions: Iterable[Any], refused: dict[str, str], as_json: bool) -> None:
    """Put them all, and say what became of them."""
    counts: Counter[str] = Counter(created=0, updated=0, unchanged=0)
    errors = dict(refused)
    with connect(url, api_key) as client:
        for imported in client.import_jobs(definitions):
            if imported.error is None:
                counts[imported.outcome] += 1
            else:
                errors[imported.name] = imported.error.message
    if as_json:
        failed = [{"job": name, "error": why} for name, why in errors.items()]
        print_json({**counts, "failed": len(errors), "errors": failed})
    else:
        for name, why in errors.items():
            say(f"Error: {name}: {why}", err=True)
        said = ", ".join(f"{count} {outcome}" for outcome, count in counts.items())
        say(f"{said}, {len(errors)} failed.")
    if errors:
        sys.exit(FAILED)


def _definitions(listed: Iterable[Listed]) -> list[dict[str, Any]]:
    """As the settings of the caller's environment say."""
    from horarium.doors.scrape_jobs import definition
    from horarium.server.sources import load_settings

    settings = load_settings({}, os.environ, os.environ.get("HORARIUM_CONFIG"))
    interval, jitter = settings.scrape_default_interval_seconds, settings.scrape_jitter_seconds
    return [definition(each, interval, jitter) for each in listed]


@click.command(
    "import",
    help="""Take over the jobs that another scheduler has stored. A second import changes nothing. Stop the other one
first, or its jobs run twice.

\b
SOURCE is the MongoDB of rrule-scheduler or simple-scheduler, the Redis of the scheduler for scrape jobs, or its
jobs.json.

\b
Examples:
  horarium door import rrule-scheduler mongodb://mongo/schedulerdb
  horarium door import simple-scheduler mongodb://mongo/simple-scheduler
  horarium door import scrape-scheduler redis://redis/0
  horarium door import scrape-scheduler jobs.json
""",
)
@click.argument("system", type=click.Choice(["rrule-scheduler", "simple-scheduler", "scrape-scheduler"]))
@click.argument("source", metavar="SOURCE")
@click.option(
    "--bus", default="default", show_default=True, metavar="NAME", help="simple-scheduler: the bus of its jobs."
)
@server_options
def import_stored(system: str, source: str, bus: str, url: str, api_key: str | None, as_json: bool) -> None:
    from horarium.doors import stored

    now = time.time_ns() // 1000
    if system == "scrape-scheduler":
        listed = stored.scrape_jobs_of(source)
        _import(url, api_key, _definitions(listed), {}, as_json)
        return
    reading = (
        stored.rrule_schedules_of(source, now)
        if system == "rrule-scheduler"
        else stored.simple_jobs_of(source, bus, now)
    )
    found = asyncio.run(reading)
    good = [stored.as_json(job) for _, job in found if not isinstance(job, str)]
    _import(url, api_key, good, {name: why for name, why in found if isinstance(why, str)}, as_json)


@click.command(
    "add",
    help="Add a URL to scrape. Adding it again changes its interval and meta.\n\n\b\nExample:\n"
    "  horarium door scrape-scheduler job add --url https://example.com/a --interval 600 --meta site=a",
)
@click.option("--url", "page", required=True, metavar="URL", help="The URL to scrape.")
@click.option(
    "--interval",
    type=click.IntRange(1),
    metavar="SECONDS",
    help="How often; left out: scrape_default_interval_seconds.",
)
@click.option("--meta", multiple=True, metavar="K=V", help="What its worker gets beside; repeatable.")
@click.option(
    "--server",
    "url",
    envvar="HORARIUM_URL",
    default="http://127.0.0.1:8080",
    show_default=True,
    metavar="URL",
    help="The server (HORARIUM_URL).",
)
@click.option("--api-key", envvar="HORARIUM_API_KEY", metavar="KEY", help="Key of the API (HORARIUM_API_KEY).")
@click.option("--json", "as_json", is_flag=True, help="Print JSON; errors too, on stderr.")
def add_scrape_job(
    page: str, interval: int | None, meta: tuple[str, ...], url: str, api_key: str | None, as_json: bool
) -> None:
    from horarium.doors.scrape_jobs import Listed

    (job,) = _definitions([Listed(page, interval, pairs("--meta", meta, "="))])
    with connect(url, api_key) as client:
        _, new = client.put_job(job)
    if as_json:
        print_json({"id": job["name"], "created": new})
    else:
        say(f"{job['name']} {'added' if new else 'changed'}.")


@click.command(
    "import",
    help='Add the URLs of a jobs.json: [{"url", "interval_s", "meta"?}]. First runs are spread.\n\n\b\nExample:\n'
    "  horarium door scrape-scheduler job import --file jobs.json",
)
@click.option("--file", "file", required=True, metavar="FILE", help="The jobs.json.")
@server_options
def import_scrape_jobs(file: str, url: str, api_key: str | None, as_json: bool) -> None:
    from horarium.doors import stored

    listed = stored.scrape_jobs_of(file)
    _import(url, api_key, _definitions(listed), {}, as_json)


@click.command("list", help="List scrape jobs.\n\n\b\nExample:\n  horarium door scrape-scheduler job list --limit 20")
@click.option("--limit", type=click.IntRange(1), metavar="N", help="At most this number.")
@server_options
def list_scrape_jobs(limit: int | None, url: str, api_key: str | None, as_json: bool) -> None:
    from horarium.doors.scrape_jobs import LABEL, NAME, of_payload
    from horarium.wire.views import payload_of

    with connect(url, api_key) as client:
        jobs = list(client.list_jobs(labels={LABEL: NAME}, limit=limit))
    handed = [(job, given) for job in jobs if (given := of_payload(payload_of(job.target))) is not None]
    if as_json:
        print_json_list([{"id": g.id, "url": g.url, "interval_s": g.interval_s, "meta": g.meta} for _, g in handed])
        return
    rows = [(given.id, given.url, given.interval_s, job.next_fire_at) for job, given in handed]
    print_table(COLUMNS, rows, "There are no scrape jobs.")


@click.command(
    "delete", help="Delete a scrape job.\n\n\b\nExample:\n  horarium door scrape-scheduler job delete 327c3fda87ce"
)
@click.argument("id", metavar="ID")
@server_options
def delete_scrape_job(id: str, url: str, api_key: str | None, as_json: bool) -> None:
    with connect(url, api_key) as client:
        client.delete_job(id)
    if as_json:
        print_json({"id": id, "deleted": True})
    else:
        say(f"{id} deleted.")
