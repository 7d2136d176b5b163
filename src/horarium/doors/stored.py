"""Jobs stored by other systems as definitions, and their past as history of these."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence, Set
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from horarium.clock import SECOND, Instant, to_instant
from horarium.doors import rrule_schedules, scrape_jobs, simple_jobs
from horarium.errors import CallerError, InvalidRequest, InvalidTrigger
from horarium.model import ERROR_CHARS_MAX, name_for
from horarium.node.backends import contents, read_collection, read_jobs
from horarium.wire.definitions import JobDefinition, job_from, read_definition
from horarium.wire.history import PastRun
from horarium.wire.masking import shown_url

RUNS_MAX = 10_000
"""How many runs of simple-scheduler are looked at to see which one-off jobs have run."""
LEAD = 30 * SECOND
"""When a job runs that was due and can't be given its past instant: the import has brought it here by then."""
NAMES_MAX = 10
"""How many names are said of a place that has no jobs."""
DATABASES = {rrule_schedules.NAME: "scheduler", simple_jobs.NAME: "simple-scheduler"}
"""What is read where a URL names no database."""

FAILED_BEFORE = "Callback failed after max retries: "
"""The prefix of the error of a failed run."""

Pasts = dict[str, list[PastRun]]
"""The runs that are over, by the name of their job here, the newest first."""


class Found(Struct):
    """A job of another system: its definition, or why it can't be taken over. `over`: it never runs again. `owed`: the
    fire times that it has not come to. `waits`: it was due, and its definition has it run at once."""

    name: str
    definition: JobDefinition | None = None
    refused: str = ""
    over: bool = False
    owed: Sequence[Instant] = ()
    waits: bool = False


def _plain(document: Mapping[str, Any]) -> dict[str, Any]:
    """Keys without regard to case and underscores, instants with their zone."""
    return {
        key.lower().replace("_", ""): item.replace(tzinfo=UTC) if isinstance(item, datetime) else item
        for key, item in document.items()
    }


async def rrule_schedules_of(url: str, now: Instant) -> list[Found]:
    """The schedules of an rrule-scheduler. Raises StoreUnavailable."""
    owed: dict[str, list[Instant]] = {}
    for event in await read_collection(url, "events", DATABASES[rrule_schedules.NAME]):
        if (at := _instant(event.get("run_time"))) is not None and at <= now:
            owed.setdefault(str(event.get("schedule_id")), []).append(at)
    found = [_schedule(each, now) for each in await read_collection(url, "schedules", DATABASES[rrule_schedules.NAME])]
    for each in found:
        each.owed = sorted(owed.get(each.name, ()))
    return found


def _schedule(document: Mapping[str, Any], now: Instant) -> Found:
    content = _plain(document)
    id = document.get("_id")
    # It stores no instant of creation by itself; the id that MongoDB gave has one.
    made = _moment(content.get("createdat")) or getattr(id, "generation_time", None)
    sent = {name: content.get(name.replace("_", "")) for name in rrule_schedules.FIELDS}
    try:
        fields = rrule_schedules.read_fields(sent, "a field is of the wrong type")
        start = rrule_schedules.start_at(_instant(made) or now, fields.get("rrule"))
        definition = rrule_schedules.definition(str(id), fields, start)
    except rrule_schedules.ScheduleRefused as error:
        return Found(str(id), refused=error.message)
    try:
        job_from(definition, id="", now=now, check_target=lambda target: None)
    except InvalidTrigger:
        return Found(str(id), rrule_schedules.over(definition))
    except CallerError as error:
        return Found(str(id), refused=error.message)
    return Found(str(id), definition)


async def simple_jobs_of(url: str, bus: str, enforce: bool, now: Instant) -> list[Found]:
    """The jobs of a simple-scheduler. A one-off job that has run is over: it stays in its list as it was. Raises
    StoreUnavailable."""
    newest = await read_collection(url, "runs", DATABASES[simple_jobs.NAME], ("createdTime", RUNS_MAX))
    begun = {str(run.get("jobName")) for run in newest}
    jobs = await read_collection(url, "jobs", DATABASES[simple_jobs.NAME])
    return [_simple_job(each, bus, enforce, now, begun) for each in jobs]


def _simple_job(document: Mapping[str, Any], bus: str, enforce: bool, now: Instant, begun: Set[str]) -> Found:
    content = _plain(document)
    name = str(content.get("name") or document.get("_id"))
    try:
        wanted = simple_jobs.read_wanted({**content, "name": name})
        simple_jobs.check_new(wanted)
        sent = simple_jobs.merged(simple_jobs.Sent(0), wanted)
        definition = simple_jobs.definition(name, bool(wanted.enabled), sent, bus, enforce, now + LEAD)
    except (simple_jobs.SimpleJobRefused, ValueError) as error:
        return Found(name, refused=str(error))
    if sent.interval <= 0 and name in begun:
        return Found(name, definition, over=True)
    is_owed = bool(wanted.enabled) and sent.interval > 0 and sent.next_run_at <= now
    return Found(name, definition, owed=[sent.next_run_at] if is_owed else [])


def _instant(given: Any) -> Instant | None:
    moment = _moment(given)
    return None if moment is None else to_instant(moment)


def _moment(given: Any) -> datetime | None:
    """An instant that is stored; Go's zero time is none."""
    if not isinstance(given, datetime) or given.year <= 1970:
        return None
    return given if given.tzinfo else given.replace(tzinfo=UTC)


def scrape_jobs_of(source: str, default_interval: float, jitter: float, now: Instant) -> list[Found]:
    """The jobs of a jobs.json, or of the Redis of a scheduler for scrape jobs, those that wait there included. Raises
    InvalidRequest or StoreUnavailable."""
    if "://" not in source:
        try:
            listed = scrape_jobs.read_listed(Path(source).read_bytes())
        except OSError as error:
            raise InvalidRequest(f"{source} can't be read: {error.strerror}") from None
        return [_scrape_job(each, default_interval, jitter) for each in listed]
    values, scores, ready = asyncio.run(read_jobs(source, "scraper:jobs", "scraper:schedule", "scraper:ready"))
    found = []
    for value in values:
        try:
            (listed_job,) = scrape_jobs.read_listed(b"[" + value + b"]")
        except CallerError as error:
            found.append(Found(value[:60].decode(errors="replace"), refused=error.message))
            continue
        id = scrape_jobs.job_id(listed_job.url)
        at = round(scores[id] * SECOND) if id in scores else None
        waits = id in ready or (at is not None and at <= now)
        job = _scrape_job(listed_job, default_interval, jitter, now + LEAD if waits else at)
        job.waits = waits and job.definition is not None
        found.append(job)
    return found


def _scrape_job(listed: scrape_jobs.Listed, interval: float, jitter: float, begins: Instant | None = None) -> Found:
    try:
        definition = read_definition(scrape_jobs.definition(listed, interval, jitter, begins))
    except CallerError as error:
        return Found(listed.url[:60], refused=error.message)
    return Found(definition.name, definition)


async def nothing_of(system: str, source: str) -> InvalidRequest:
    """The refusal of a place without jobs and history: a wrong address must not pass for an import that is done."""
    said = f"{shown_url(source)} has no jobs of {system}"
    if "://" in source:
        read, found = await contents(source, DATABASES.get(system, ""), NAMES_MAX)
        others = (f"{name} ({', '.join(names)})" if names else name for name, names in found.items() if name != read)
        said += f"; in {read}: {', '.join(found.get(read, ())) or 'nothing'}"
        said += f"; other databases there: {', '.join(others) or 'none'}"
    return InvalidRequest(said, field="source")


def ended_job(system: str, name: str, known: JobDefinition | None) -> JobDefinition:
    """A job that does not run, to hang its history on; `known`: as it was, where that is still stored."""
    bus = system == simple_jobs.NAME
    fields: dict[str, Any] = {
        "name": name,
        "title": f"ended in {system}" if known is None else known.title,
        "target": {"type": "bus"} if bus else {"type": "external"},
    }
    fields = fields if known is None else as_json(known)
    return read_definition({**fields, "enabled": False, "trigger": {"type": "once", "at": "2199-01-01T00:00:00Z"}})


def as_json(definition: JobDefinition) -> dict[str, Any]:
    """The definition as the API takes it."""
    fields: dict[str, Any] = msgspec.to_builtins(definition)
    return fields


# ---- the past ----------------------------------------------------------------------------------------------------


async def rrule_events_of(url: str, count: int) -> Pasts:
    """The newest archived events of an rrule-scheduler. Raises StoreUnavailable."""
    found: Pasts = {}
    for event in await read_collection(url, "archived_events", DATABASES[rrule_schedules.NAME], ("run_time", count)):
        past = _event(event)
        if past is not None:
            found.setdefault(str(event.get("schedule_id")), []).append(past)
    return found


def _event(event: Mapping[str, Any]) -> PastRun | None:
    fire_at, given = _moment(event.get("run_time")), event.get("status")
    steps = [step for step in given if isinstance(step, Mapping)] if isinstance(given, list) else []
    ends = [step for step in steps if step.get("status") in ("completed", "error")]
    ended_at = _moment(ends[-1].get("time")) if ends else None
    if fire_at is None or ended_at is None:
        return None
    begun = [at for step in steps if step.get("status") == "worker_queue" and (at := _moment(step.get("time")))]
    failed = ends[-1]["status"] == "error"
    return PastRun(
        fire_at=fire_at,
        started_at=min(begun[-1], ended_at) if begun else None,
        finished_at=ended_at,
        state="failed" if failed else "completed",
        error=str(ends[-1].get("message") or "").removeprefix(FAILED_BEFORE)[:ERROR_CHARS_MAX] if failed else None,
    )


async def simple_runs_of(url: str, count: int) -> Pasts:
    """The newest runs of a simple-scheduler that are over. Raises StoreUnavailable."""
    found: Pasts = {}
    for run in await read_collection(url, "runs", DATABASES[simple_jobs.NAME], ("createdTime", count)):
        past = _run(run)
        if past is not None:
            found.setdefault(name_for(str(run.get("jobName"))), []).append(past)
    return found


def _run(run: Mapping[str, Any]) -> PastRun | None:
    fire_at, state = _moment(run.get("createdTime")), run.get("status")
    if fire_at is None or state not in ("completed", "failed", "cancelled"):
        return None
    began = _moment(run.get("startTime"))
    ended = _moment(run.get("endTime")) or began or fire_at
    return PastRun(
        fire_at=fire_at, started_at=None if began is None else min(began, ended), finished_at=ended, state=state
    )
