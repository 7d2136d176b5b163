"""Jobs and runs of simple-scheduler as ours, and back.

Values that can't be read from a job of ours (durations of 0, the next run as it was sent) are in a label. Its names may
be any text: those that are no names here are spelt out (`model.name_for`), and go to the broker as they were.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec
from msgspec import Struct

from horarium.clock import INSTANT_MAX, SECOND, Instant, to_instant, to_micros, to_text
from horarium.doors.web import ZERO_TIME, go_time, short_id
from horarium.model import EventKind, Job, Run, State, has_begun, name_for, shown_state, text_of
from horarium.policies import Overlap
from horarium.wire.definitions import JobDefinition, read_definition

NAME = "simple-scheduler"
LABEL = "door"
SENT = "door-sent"
NO_MANAGER = "0" * 24
LEASE_SECONDS_MIN, LEASE_SECONDS_MAX = 1.0, 24 * 3600.0
SOON = SECOND // 10
"""How far ahead a one-off run is planned that is due already."""
INTERVAL_MIN = 50
STOPPED = ("cancelling", "cancelled")
YEAR_1 = to_instant(datetime.min.replace(tzinfo=UTC))
SERIAL = Overlap.BUFFER_ALL
"""Of jobs whose runs must not be concurrent: each waits for the one before."""
OVERDUE = frozenset({EventKind.LATE_START, EventKind.OVERTIME})


class SimpleJobRefused(Exception):
    """The body of an answer with status 400."""


class Wanted(Struct, rename="camel", omit_defaults=True):
    """A job as clients write it, all of it optional: a new one must have the first three. Milliseconds; 0: none."""

    name: str | None = None
    enabled: bool | None = None
    next_run_at: datetime | None = None
    interval: int | None = None
    run_execution_timeout: int | None = None
    run_start_timeout: int | None = None
    max_queue_count: int | None = None
    allow_concurrent_runs: bool | None = None
    heartbeat_timeout: int | None = None


class Sent(Struct, array_like=True):
    """The label: values that can't be told from the job itself."""

    next_run_at: Instant
    interval: int = 0
    run_execution_timeout: int = 0
    run_start_timeout: int = 0
    max_queue_count: int = 0
    allow_concurrent_runs: bool = False
    heartbeat_timeout: int = 0


class JobShown(Struct, rename="camel"):
    """A job as it is shown, in this order."""

    name: str
    enabled: bool
    next_run_at: str
    interval: int
    run_execution_timeout: int
    run_start_timeout: int
    max_queue_count: int
    allow_concurrent_runs: bool
    heartbeat_timeout: int
    manager_id: str = NO_MANAGER
    heartbeat: str = ZERO_TIME


class RunShown(Struct, rename="camel"):
    """A run as it is shown, in this order."""

    id: str
    job_name: str
    status: str
    created_time: str
    start_time: str
    end_time: str
    heartbeat: str


FIELDS = {field.encode_name.lower(): field.encode_name for field in msgspec.structs.fields(Wanted)}


def read_wanted(content: Mapping[str, Any] | None) -> Wanted:
    """Raises SimpleJobRefused."""
    if content is None:
        raise SimpleJobRefused("json: cannot unmarshal the body into Go value of type types.Job")
    named = {FIELDS[key]: item for key, item in content.items() if key in FIELDS}
    try:
        return msgspec.convert(named, Wanted)
    except msgspec.ValidationError as error:
        raise SimpleJobRefused(f"json: cannot unmarshal: {error}") from None


def check_new(wanted: Wanted) -> None:
    """Raises SimpleJobRefused with one line for each field that is missing."""
    next_run_at = wanted.next_run_at is not None and wanted.next_run_at.year > 1  # Go's lack of an instant is year 1
    required = (("Name", wanted.name), ("Enabled", wanted.enabled is not None), ("NextRunAt", next_run_at))
    failed = "Error:Field validation for '{0}' failed on the 'required' tag"
    missing = [f"Key: 'Job.{name}' {failed.format(name)}" for name, given in required if not given]
    if missing:
        raise SimpleJobRefused("\n".join(missing))


def check_interval(sent: Sent) -> None:
    """Raises SimpleJobRefused."""
    if 0 < sent.interval < INTERVAL_MIN:
        raise SimpleJobRefused(f"interval: {sent.interval}: expected {INTERVAL_MIN} or more, or 0")


def merged(sent: Sent, wanted: Wanted) -> Sent:
    """The stored fields, with the wanted ones in their place."""
    changes = {name: given for name in Sent.__struct_fields__[1:] if (given := getattr(wanted, name)) is not None}
    if wanted.next_run_at is not None:
        changes["next_run_at"] = _moment(wanted.next_run_at) // 1000 * 1000
    return msgspec.structs.replace(sent, **changes)


def _moment(given: datetime) -> Instant:
    if given.tzinfo is None:
        raise SimpleJobRefused(f"parsing time {given.isoformat()!r}: it has no offset")
    return min(max(to_instant(given), YEAR_1), INSTANT_MAX + 1)  # others have no text, and are refused as these are


def definition(name: str, enabled: bool, sent: Sent, bus: str, enforce: bool, now: Instant) -> JobDefinition:
    """The job of ours. `enforce`: runs that must not be concurrent wait for each other."""
    serial = enforce and not sent.allow_concurrent_runs
    timeouts: dict[str, float] = {"heartbeat_seconds": _lease_seconds(sent.heartbeat_timeout)}
    if sent.run_execution_timeout > 0:
        timeouts["execution_seconds"] = sent.run_execution_timeout / 1000
    if sent.run_start_timeout > 0:
        timeouts["start_seconds"] = sent.run_start_timeout / 1000
    fields: dict[str, Any] = {
        "name": name_for(name),
        "title": name[:200],
        "enabled": enabled,
        "trigger": _trigger(sent, now),
        "target": {"type": "bus", "bus": bus},
        "labels": {LABEL: NAME, SENT: msgspec.json.encode(sent).decode()},
        "overlap": SERIAL if serial else Overlap.ALLOW,
        "retry": {"attempts_max": 1, "silences_max": "unlimited"},
        "timeouts": timeouts,
    }
    if sent.max_queue_count > 0:
        fields["buffer_max"] = min(sent.max_queue_count, 1_000)
    return read_definition(fields)


def _trigger(sent: Sent, now: Instant) -> dict[str, Any]:
    if sent.interval > 0:
        anchor = to_text(sent.next_run_at)
        return {"type": "interval", "every_seconds": sent.interval / 1000, "anchor": anchor}
    return {"type": "once", "at": to_text(max(sent.next_run_at, now + SOON))}


def _lease_seconds(milliseconds: int) -> float:
    if milliseconds <= 0:
        return LEASE_SECONDS_MAX
    return min(max(milliseconds / 1000, LEASE_SECONDS_MIN), LEASE_SECONDS_MAX)


# ---- shown ------------------------------------------------------------------------------------------------------


def sent_of(job: Job) -> Sent:
    """The fields sent for this job."""
    return msgspec.json.decode(job.labels[SENT], type=Sent)


def shown(job: Job) -> JobShown:
    """The job as clients read it."""
    sent = sent_of(job)
    fields = msgspec.structs.asdict(sent) | {"next_run_at": go_time(job.next_fire_at or sent.next_run_at)}
    return JobShown(name=text_of(job.name), enabled=job.enabled, **fields)


def run_shown(run: Run) -> RunShown:
    return RunShown(
        id=short_id(run.id),
        job_name=text_of(run.job or ""),
        status=status_of(run),
        created_time=go_time(run.fire_at),
        start_time=go_time(began_at(run)),
        end_time=go_time(run.finished_at),
        heartbeat=go_time(heard_at(run)),
    )


def status_of(run: Run) -> str:
    """Its state in the words of clients: a run that was over its time and stopped was cancelled."""
    if run.state is State.FAILED and any(event.kind in OVERDUE for event in run.history):
        return "cancelled"
    return str(shown_state(run))


def began_at(run: Run) -> Instant | None:
    """When its worker began: a published run waits for that, and one that was asked to stop before never did."""
    asked = any(event.state is State.CANCELLING for event in run.history) and status_of(run) in STOPPED
    return None if shown_state(run) is State.PENDING or (asked and not has_begun(run)) else run.started_at


def heard_at(run: Run) -> Instant:
    """The last report of its worker, as far as is known; before that, when it was due."""
    if run.state is State.RUNNING and shown_state(run) is State.RUNNING and run.lease_expires_at is not None:
        return run.lease_expires_at - to_micros(run.lease_seconds)
    return run.finished_at or run.fire_at
