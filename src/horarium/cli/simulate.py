"""`horarium simulate`: definitions carried out in virtual time, before anything is changed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click
import msgspec

from horarium.cli.documents import KINDS, read_folders
from horarium.cli.fields import duration_seconds, pairs, until_moment
from horarium.cli.output import Column, print_table, say
from horarium.cli.shell import Server, on_server
from horarium.clock import Instant, to_instant
from horarium.triggers.words import counted

if TYPE_CHECKING:
    from horarium.testing.rehearsed import Counts, Rehearsed

MEASURED = "measured"
MEASURED_RUNS = 2_000
"""The newest completed runs of the server, of which durations are taken."""
SAMPLES = 10
"""Durations of one job that are drawn from."""
JOBS_SHOWN = 50
UNMEASURED_SECONDS = 1.0
ALSO = ("holds", "overrides")
COLUMNS = (
    Column("job"), Column("runs", whole=True), Column("late", whole=True),
    Column("latest", whole=True, of=lambda row: f"{late:,.0f} s" if (late := row["late_max_seconds"]) else ""),
    Column("caught up", whole=True, of="caught_up"), Column("held", whole=True), Column("waiting", whole=True),
    Column("skipped", of=lambda row: ", ".join(f"{number} {why}" for why, number in sorted(row["skipped"].items()))),
)  # fmt: skip


@click.command(
    help="""Carry out definitions in virtual time: which runs would begin, late, be caught up, skipped or held.

Nothing is written and nothing is delivered: planner, claims and holds are those of a server, on a store in memory.
Files are those of `horarium plan`; beside jobs and calendars they may have `holds` (as in POST /api/v1/holds) and
`overrides` (each with `job`, `fire_at` and perhaps `to`).

\b
Examples:
  horarium simulate schedules/ --since 2027-03-27T00:00:00Z --until 2d
  horarium simulate schedules/ --from-server --since 2027-03-01T00:00:00Z --until 24h --slots pull/reports=4
  horarium simulate --from-server --since 2027-03-01T00:00:00Z --until 24h --durations measured --json
  horarium simulate schedules/ --since 2027-03-01T00:00:00Z --until 24h --down 2027-03-01T02:00Z/2027-03-01T05:00Z
""",
)
@click.argument("paths", metavar="[PATH]...", nargs=-1)
@click.option("--since", required=True, metavar="T", help="The beginning: an instant, or 2h from now.")
@click.option("--until", required=True, metavar="T", help="The end: an instant, or 2d from the beginning.")
@click.option("--down", "downs", multiple=True, metavar="T1/T2", help="The service is down meanwhile; repeatable.")
@click.option(
    "--durations", metavar="measured|SECONDS",
    help="How long runs take: as the server measured, or so long (left out: measured with --from-server, else 1).",
)  # fmt: skip
@click.option("--slots", multiple=True, metavar="QUEUE=N", help="At most N runs of a queue at a time; repeatable.")
@click.option(
    "--from-server", is_flag=True, help="Jobs, calendars, holds and overrides of the server; files go before."
)
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of all random choices.")
@on_server
def simulate(
    server: Server,
    paths: tuple[str, ...],
    since: str,
    until: str,
    downs: tuple[str, ...],
    durations: str | None,
    slots: tuple[str, ...],
    from_server: bool,
    seed: int,
) -> None:
    from horarium.testing.rehearsing import rehearse
    from horarium.testing.scenes import scene_of

    if not paths and not from_server:
        raise click.UsageError("give files or folders of definitions, or --from-server")
    if durations == MEASURED and not from_server:
        raise click.UsageError("--durations measured belongs to --from-server")
    begins = until_moment(since, datetime.now(UTC))
    span = to_instant(begins), to_instant(until_moment(until, begins))
    there, seconds = dict[str, list[dict[str, Any]]](), dict[str, list[float]]()
    if from_server:
        there = _of_server(server.client)
        seconds = _measured(server.client) if durations in (None, MEASURED) else {}
    files = read_folders(paths, (*KINDS, *ALSO)) if paths else {}
    documents = {kind: _together(there.get(kind, []), files.get(kind, [])) for kind in ("jobs", "calendars")}
    documents |= {kind: [*there.get(kind, []), *files.get(kind, [])] for kind in ALSO}
    how = {
        "usual": _usual(durations, seconds),
        "slots": _slots(slots),
        "downs": [_span(down, begins) for down in downs],
    }
    scene = msgspec.structs.replace(scene_of(documents, *span), seconds=seconds, seed=seed, **how)
    found = rehearse(scene)
    server.tell(found, lambda: _say(found))


# ---- what is there


def _of_server(client: Any) -> dict[str, list[dict[str, Any]]]:
    jobs = [msgspec.to_builtins(job) for job in client.list_jobs() if job.finished_at is None]
    return {"jobs": jobs, "calendars": list(client.calendars.list()), "holds": list(client.holds.list())}


def _measured(client: Any) -> dict[str, list[float]]:
    """How long the newest runs of each job took."""
    found: dict[str, list[float]] = {}
    for run in client.list_runs(states=("completed",), limit=MEASURED_RUNS):
        took = found.setdefault(run.job or "", [])
        if run.started_at is not None and run.finished_at is not None and len(took) < SAMPLES:
            took.append((run.finished_at - run.started_at).total_seconds())
    return {job: took for job, took in found.items() if took}


def _usual(durations: str | None, seconds: Mapping[str, list[float]]) -> list[float]:
    if durations in (None, MEASURED):
        return sorted(each for took in seconds.values() for each in took) or [UNMEASURED_SECONDS]
    usual = duration_seconds(durations or "")
    if usual is None or usual < 0:
        raise click.UsageError(f"--durations: {durations!r} is neither `measured` nor a duration such as 30 or 5m")
    return [usual]


def _slots(given: tuple[str, ...]) -> dict[str, int]:
    try:
        slots = {queue: int(number) for queue, number in pairs("--slots", given, "=").items()}
    except ValueError:
        raise click.UsageError("--slots: give QUEUE=N, N a whole number such as 4") from None
    if wrong := [queue for queue, number in slots.items() if number < 1]:
        raise click.UsageError(f"--slots: {wrong[0]} needs 1 or more")
    return slots


def _span(text: str, begins: datetime) -> tuple[Instant, Instant]:
    first, separator, second = text.partition("/")
    if not separator:
        raise click.UsageError(f"--down: {text!r} is not T1/T2, two instants")
    since = until_moment(first, begins)
    span = to_instant(since), to_instant(until_moment(second, since))
    if span[0] >= span[1]:
        raise click.UsageError(f"--down: {text!r} ends before it begins")
    return span


def _together(there: list[dict[str, Any]], files: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those of the server that no file has, and those of the files; what is known of a job stays."""
    by_name = {each["name"]: each for each in there}
    changed = [{**_state(by_name.get(each.get("name", ""), {})), **each} for each in files]
    names = {each.get("name") for each in files}
    return [*(each for each in there if each["name"] not in names), *changed]


def _state(view: Mapping[str, Any]) -> dict[str, Any]:
    return {field: view[field] for field in ("fires_count", "overrides", "paused_until") if field in view}


# ---- what came of it


def _say(found: Rehearsed) -> None:
    totals = found.totals
    runs, jobs = counted(totals.runs, "run"), counted(len(found.jobs), "job")
    say(f"{runs} of {jobs} {'begins' if totals.runs == 1 else 'begin'} from {found.since} to {found.until}.")
    for line in _lines(totals):
        say(f"  {line}")
    eventful = [(name, counts) for name, counts in found.jobs.items() if not counts.uneventful]
    if not eventful:
        return
    eventful.sort(key=lambda pair: -_events(pair[1]))
    print_table(COLUMNS, ({"job": name, **msgspec.structs.asdict(counts)} for name, counts in eventful[:JOBS_SHOWN]))
    if (more := len(eventful) - JOBS_SHOWN) > 0:
        say(f"... and {counted(more, 'more job')}; --json lists {'it' if more == 1 else 'them'}", err=True)


def _lines(counts: Counts) -> Iterable[str]:
    if counts.late:
        yield f"late: {counts.late:,}, {counts.late_max_seconds:,.0f} s at most"
    told = {
        "caught up": counts.caught_up,
        "held": counts.held,
        "ended by their time limit": counts.failed,
        "under way at the end": counts.running,
        "waiting at the end": counts.waiting,
    }
    for what, number in told.items():
        if number:
            yield f"{what}: {number:,}"
    for disposition, number in sorted(counts.skipped.items()):
        yield f"fire times without a run, {disposition}: {number:,}"


def _events(counts: Counts) -> int:
    return counts.late + counts.caught_up + counts.held + counts.waiting + counts.failed + sum(counts.skipped.values())
