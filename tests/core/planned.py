"""A job that fires every ten seconds, and what a plan for it holds."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from horarium.clock import DAY, MINUTE, SECOND, Instant, to_text
from horarium.model import Cause, Disposition, Job, Plan, QueueTarget, Run, State
from horarium.rules.planning import (
    next_fire,
    owed_run,
)

NOW = 1_767_571_200 * SECOND
EACH = 10 * SECOND


def a_job(**changes: Any) -> Job:
    """Fires every ten seconds on the tens; all before NOW is accounted for."""
    fields: dict[str, Any] = {
        "name": "job",
        "id": "id",
        "trigger": {"type": "interval", "every_seconds": EACH // SECOND, "anchor": to_text(NOW - 100 * EACH)},
        "target": QueueTarget(queue="q"),
        "planned_until": NOW,
        "created_at": NOW - DAY,
        "anchor_at": NOW - DAY,
        **changes,
    }
    job = Job(**fields)
    return replace(job, next_fire_at=next_fire(job, job.planned_until))


def a_run(job: Job, fire_at: Instant, state: State = State.PENDING, **changes: Any) -> Run:
    claimed = state in (State.RUNNING, State.CANCELLING)
    held = {"token": 1, "attempt": 1, "started_at": fire_at, "lease_expires_at": fire_at + MINUTE} if claimed else {}
    return replace(owed_run(job, fire_at, fire_at, Cause.SCHEDULE), state=state, **{**held, **changes})


def pending(planned: Plan) -> list[Instant]:
    return [run.fire_at for run in planned.runs if run.state is State.PENDING]


def skipped(planned: Plan) -> list[tuple[Disposition | None, Instant, int]]:
    return [(run.disposition, run.fire_at, run.fires) for run in planned.runs if run.state is State.SKIPPED]
