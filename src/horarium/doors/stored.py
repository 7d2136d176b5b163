"""What the other systems have stored, as definitions of jobs."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from horarium.clock import Instant, to_instant
from horarium.doors import rrule_schedules, scrape_jobs, simple_jobs
from horarium.errors import InvalidRequest
from horarium.node.backends import read_collection, read_hash
from horarium.wire.definitions import JobDefinition

Found = tuple[str, JobDefinition | str]
"""What a job is called there, and its definition, or why it can't be taken over."""


def _plain(document: Mapping[str, Any]) -> dict[str, Any]:
    """Keys without regard to case and underscores, instants with their zone."""
    return {
        key.lower().replace("_", ""): item.replace(tzinfo=UTC) if isinstance(item, datetime) else item
        for key, item in document.items()
    }


async def rrule_schedules_of(url: str, now: Instant) -> list[Found]:
    """The schedules of an rrule-scheduler. Raises StoreUnavailable."""
    return [_schedule(each, now) for each in await read_collection(url, "schedules", "scheduler")]


def _schedule(document: Mapping[str, Any], now: Instant) -> Found:
    content = _plain(document)
    id, made = str(document.get("_id")), content.get("createdat")
    sent = {name: content.get(name.replace("_", "")) for name in rrule_schedules.FIELDS}
    began = to_instant(made) if isinstance(made, datetime) and made.year > 1970 else now
    try:
        fields = rrule_schedules.read_fields(sent, "a field is of the wrong type")
        return id, rrule_schedules.definition(id, fields, rrule_schedules.start_at(began, fields.get("rrule")))
    except rrule_schedules.Refused as error:
        return id, error.message


async def simple_jobs_of(url: str, bus: str, now: Instant) -> list[Found]:
    """The jobs of a simple-scheduler. Raises StoreUnavailable."""
    return [_simple_job(each, bus, now) for each in await read_collection(url, "jobs", "simple-scheduler")]


def _simple_job(document: Mapping[str, Any], bus: str, now: Instant) -> Found:
    content = _plain(document)
    name = str(content.get("name") or document.get("_id"))
    try:
        wanted = simple_jobs.read_wanted({**content, "name": name})
        simple_jobs.check_new(wanted)
        sent = simple_jobs.merged(simple_jobs.Sent(0), wanted)
        return name, simple_jobs.definition(name, bool(wanted.enabled), sent, bus, False, now)
    except (simple_jobs.Refused, ValueError) as error:
        return name, str(error)


def scrape_jobs_of(source: str) -> list[scrape_jobs.Listed]:
    """The jobs of a jobs.json, or of the Redis of a scheduler for scrape jobs. Raises InvalidRequest or
    StoreUnavailable."""
    if "://" in source:
        values = asyncio.run(read_hash(source, "scraper:jobs"))
        return scrape_jobs.read_listed(b"[" + b",".join(values) + b"]")
    try:
        return scrape_jobs.read_listed(Path(source).read_bytes())
    except OSError as error:
        raise InvalidRequest(f"{source} can't be read: {error.strerror}") from None


def as_json(definition: JobDefinition) -> dict[str, Any]:
    """The definition as the API takes it."""
    fields: dict[str, Any] = msgspec.to_builtins(definition)
    return fields
