"""`horarium door`: take over from another scheduler, and the commands of the one for scrape jobs."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING

import click

from horarium.cli.fields import pairs
from horarium.cli.output import Column, print_json, say
from horarium.cli.shell import FAILED, Lazy, Server, on_server
from horarium.errors import CallerError, NotFound
from horarium.triggers.words import counted

if TYPE_CHECKING:
    from horarium.client import Client
    from horarium.doors.stored import Found, Pasts
    from horarium.server.config import Settings
    from horarium.wire.definitions import JobDefinition
    from horarium.wire.history import PastRun
    from horarium.wire.views import JobView

COLUMNS = (
    Column("id", whole=True), Column("url"), Column("interval_s", title="interval"),
    Column("next_fire_at", when=True, title="next"),
)  # fmt: skip

RUNS = ("runs", "history")
"""Counts of runs, not of jobs."""
ADD_LEAD = 2_000_000
"""Microseconds after which a job begins that is added by itself."""
HISTORY_DEFAULT = 10_000

door = Lazy(name="door", help="Take over from another scheduler. Its clients come in by `horarium serve --door NAME`.")
scrape_scheduler = Lazy(name="scrape-scheduler", help="The commands of the scheduler for scrape jobs.")
scrape_job = Lazy(name="job", help="Add, import, list and delete scrape jobs.")
scrape_scheduler.add_command(scrape_job)


def _import(server: Server, found: Iterable[Found], system: str = "", pasts: Pasts | None = None) -> None:
    """Put them all, with what `system` has performed of them, and say what became of them."""
    from horarium.doors.stored import as_json as written

    jobs = list(found)
    counts: Counter[str] = Counter(created=0, updated=0, unchanged=0, over=sum(job.over for job in jobs))
    errors = {job.name: job.refused for job in jobs if job.refused}
    owed, runs = {}, 0
    there = _there(server.client)
    wanted = []
    for job in jobs:
        if job.definition is None or job.over:
            continue
        if there.get(job.definition.name) == _identity(job.definition):
            counts["unchanged"] += 1
            continue
        owed[job.definition.name] = job.owed
        wanted.append(written(job.definition))
    waiting = {job.definition.name for job in jobs if job.definition is not None and job.waits}
    for imported in server.client.import_jobs(wanted):
        if imported.error is not None:
            errors[imported.name] = imported.error.message
            continue
        counts[imported.outcome] += 1
        if imported.outcome == "created":
            runs += _make_up(server.client, imported.name, owed[imported.name]) + (imported.name in waiting)
    refused = {job.definition.name if job.definition else job.name for job in jobs if job.name in errors}
    taken = {job.definition.name for job in jobs if job.definition is not None and not job.over} - refused
    ended = {job.definition.name: job.definition for job in jobs if job.definition is not None and job.over}
    history = 0
    for name, past in (pasts or {}).items():
        try:
            if name in taken:
                history += server.client.add_history(name, system, past)["added"]
            elif name not in refused:
                history += _remember(server.client, system, name, ended.get(name), past)
        except CallerError as error:
            say(f"{name}: its history was not taken over: {error}", err=True)
    _say_imported({**counts, "runs": runs, "history": history}, errors, server.as_json)


def _there(client: Client) -> dict[str, object]:
    """The jobs that are here, as they were sent: one that was due gets a new instant at each import, and must not run
    again for that."""
    from horarium.doors import scrape_jobs, simple_jobs

    doors = (simple_jobs, scrape_jobs)
    found = [job for door in doors for job in client.list_jobs(labels={door.LABEL: door.NAME}, finished=None)]
    return {job.name: _identity(job) for job in found}


def _identity(job: JobView | JobDefinition) -> object:
    from horarium.doors.simple_jobs import SENT
    from horarium.wire.views import payload_of

    if SENT in job.labels:
        return job.labels[SENT], bool(job.enabled)
    return payload_of(job.target), job.trigger.get("every_seconds"), job.jitter_seconds


def _remember(client: Client, system: str, name: str, job: JobDefinition | None, past: Sequence[PastRun]) -> int:
    """History of a job that has ended there, or is deleted: as of one that was deleted here. How many runs."""
    from horarium.doors.stored import as_json as written
    from horarium.doors.stored import ended_job

    if next(iter(client.list_runs(job=name, limit=1)), None) is not None:
        return 0
    client.create_job(written(ended_job(system, name, job)))
    try:
        return client.add_history(name, system, past)["added"]
    finally:
        client.delete_job(name)


def _make_up(client: Client, name: str, owed: Iterable[int]) -> int:
    """Runs for what the other system had not come to; how many."""
    from horarium.clock import to_datetime

    starts = map(to_datetime, owed)
    return sum(len(client.backfill_job(name, start, start + timedelta(milliseconds=1))) for start in starts)


def _say_imported(counts: Mapping[str, int], errors: Mapping[str, str], as_json: bool) -> None:
    if as_json:
        failed = [{"job": name, "error": why} for name, why in errors.items()]
        print_json({**counts, "failed": len(errors), "errors": failed})
    else:
        for name, why in errors.items():
            say(f"Error: {name}: {why}", err=True)
        said = ", ".join(f"{count} {outcome}" for outcome, count in counts.items() if outcome not in RUNS)
        past = f", {counts['history']} of history" if counts["history"] else ""
        owed = counted(counts["runs"], "run that was owed", "runs that were owed")
        say(f"{said}, {len(errors)} failed; {owed}{past}.")
    if errors:
        sys.exit(FAILED)


def _settings() -> Settings:
    from horarium.server.sources import load_settings

    return load_settings({}, os.environ, os.environ.get("HORARIUM_CONFIG"))


@door.command(
    "import",
    help="""Take over the jobs that another scheduler has stored, and their finished runs. A second import changes
nothing. Stop the other one first, or its jobs run twice.

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
@click.option(
    "--history",
    type=click.IntRange(0),
    default=HISTORY_DEFAULT,
    show_default=True,
    metavar="N",
    help="How many finished runs to take over, the newest; 0: none.",
)
@on_server
def import_stored(server: Server, system: str, source: str, bus: str, history: int) -> None:
    from horarium.doors import stored

    now = time.time_ns() // 1000
    pasts: Pasts = {}
    if system == "scrape-scheduler":
        found = _listed_jobs(source, now)
    elif system == "rrule-scheduler":
        found = asyncio.run(stored.rrule_schedules_of(source, now))
        pasts = asyncio.run(stored.rrule_events_of(source, history)) if history else {}
    else:
        enforce = _settings().simple_scheduler_enforce_concurrency
        found = asyncio.run(stored.simple_jobs_of(source, bus, enforce, now))
        pasts = asyncio.run(stored.simple_runs_of(source, history)) if history else {}
    if not found and not pasts:
        raise asyncio.run(stored.nothing_of(system, source))
    _import(server, found, system, pasts)


def _listed_jobs(source: str, now: int) -> list[Found]:
    from horarium.doors.stored import scrape_jobs_of

    settings = _settings()
    return scrape_jobs_of(source, settings.scrape_default_interval_seconds, settings.scrape_jitter_seconds, now)


door.add_command(scrape_scheduler)


@scrape_job.command(
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
@partial(on_server, flag="--server")
def add_scrape_job(server: Server, page: str, interval: int | None, meta: tuple[str, ...]) -> None:
    from horarium.doors.scrape_jobs import Listed, definition

    settings, listed = _settings(), Listed(page, interval, pairs("--meta", meta, "="))
    soon = time.time_ns() // 1000 + ADD_LEAD
    job = definition(listed, settings.scrape_default_interval_seconds, settings.scrape_jitter_seconds, soon)
    with suppress(NotFound):
        job["starts_at"] = server.client.get_job(job["name"]).starts_at
    (done,) = server.client.import_jobs([job])
    if done.error is not None:
        raise done.error
    new = done.outcome == "created"
    server.tell({"id": job["name"], "created": new}, f"{job['name']} {'added' if new else 'changed'}.")


@scrape_job.command(
    "import",
    help='Add the URLs of a jobs.json: [{"url", "interval_s", "meta"?}]. First runs are spread.\n\n\b\nExample:\n'
    "  horarium door scrape-scheduler job import --file jobs.json",
)
@click.option("--file", "file", required=True, metavar="FILE", help="The jobs.json.")
@on_server
def import_scrape_jobs(server: Server, file: str) -> None:
    _import(server, _listed_jobs(file, time.time_ns() // 1000))


@scrape_job.command(
    "list", help="List scrape jobs.\n\n\b\nExample:\n  horarium door scrape-scheduler job list --limit 20"
)
@click.option("--limit", type=click.IntRange(1), metavar="N", help="At most this number.")
@on_server
def list_scrape_jobs(server: Server, limit: int | None) -> None:
    from msgspec.structs import asdict

    from horarium.doors.scrape_jobs import LABEL, NAME, handed
    from horarium.wire.views import payload_of

    jobs = list(server.client.list_jobs(labels={LABEL: NAME}, limit=limit))
    found = [(job, given) for job in jobs if (given := handed(payload_of(job.target))) is not None]
    shown = ({**asdict(given), "next_fire_at": job.next_fire_at} for job, given in found)
    server.tell_all([given for _, given in found], COLUMNS, "There are no scrape jobs.", shown)


@scrape_job.command(
    "delete", help="Delete a scrape job.\n\n\b\nExample:\n  horarium door scrape-scheduler job delete 327c3fda87ce"
)
@click.argument("id", metavar="ID")
@on_server
def delete_scrape_job(server: Server, id: str) -> None:
    server.client.delete_job(id)
    server.tell({"id": id, "deleted": True}, f"{id} deleted.")
