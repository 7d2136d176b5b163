"""A run that another system performed, as a caller writes it, and how it becomes a `Run` of a job here."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from horarium.clock import INSTANT_MAX, Instant, to_instant
from horarium.errors import InvalidRequest
from horarium.model import ERROR_CHARS_MAX, Disposition, Job, Run, State, prune_instant, run_id
from horarium.wire.definitions import Moment

SYSTEM_CHARS_MAX = 100

PastError = Annotated[str, Meta(max_length=ERROR_CHARS_MAX)]


class PastRun(Struct, kw_only=True, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A run that is over: when it was due, when it began and ended, and how. A job has one run at most for one fire
    time."""

    fire_at: Moment
    finished_at: Moment
    state: Literal["completed", "failed", "cancelled"]
    started_at: Moment | None = None
    error: PastError | None = None


def past_run_of(past: PastRun, job: Job, system: str, now: Instant) -> Run:
    """As if the job had had it here; `system`, which performed it, is its worker. The id follows from job and fire
    time. Raises InvalidRequest."""
    fire_at, finished_at = to_instant(past.fire_at), to_instant(past.finished_at)
    started_at = None if past.started_at is None else to_instant(past.started_at)
    if not 0 <= fire_at <= INSTANT_MAX or not (started_at or 0) <= finished_at <= now:
        raise InvalidRequest(
            f"the run of {past.fire_at.isoformat()} is not over, or ended before it began; only what is over is history"
        )
    return Run(
        id=run_id(job.id, fire_at),
        queue=job.queue,
        fire_at=fire_at,
        due_at=fire_at,
        created_at=min(fire_at, finished_at),
        state=State(past.state),
        job=job.name,
        job_id=job.id,
        token=1,
        attempt=0 if started_at is None else 1,
        worker=system,
        started_at=started_at,
        finished_at=finished_at,
        error=past.error,
        disposition=Disposition.RAN,
        prune_at=prune_instant(finished_at, job.retention),
    )
