"""The past of other systems, as history of the jobs that are taken over."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from horarium.doors import rrule_schedules, simple_jobs
from horarium.doors.stored import DATABASES
from horarium.model import ERROR_CHARS_MAX, name_for
from horarium.node.backends import read_collection
from horarium.wire.history import PastRun

FAILED_BEFORE = "Callback failed after max retries: "
"""The prefix of the error of a failed run."""

Pasts = dict[str, list[PastRun]]
"""The runs that are over, by the name of their job here, the newest first."""


async def rrule_events_of(url: str, count: int) -> Pasts:
    """The newest archived events of an rrule-scheduler. Raises StoreUnavailable."""
    found: Pasts = {}
    for event in await read_collection(url, "archived_events", DATABASES[rrule_schedules.NAME], ("run_time", count)):
        past = _event(event)
        if past is not None:
            found.setdefault(str(event.get("schedule_id")), []).append(past)
    return found


def _event(event: Mapping[str, Any]) -> PastRun | None:
    fire_at, steps = _moment(event.get("run_time")), [dict(step) for step in event.get("status") or ()]
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


def _moment(given: Any) -> datetime | None:
    """An instant that is stored; Go's zero time is none."""
    if not isinstance(given, datetime) or given.year <= 1970:
        return None
    return given if given.tzinfo else given.replace(tzinfo=UTC)
