"""Runs that wait for a decision, as they are shown."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

import msgspec
from msgspec import UNSET, Struct

from horarium.clock import Instant, to_datetime
from horarium.rules.approving import approval_of, last_word
from horarium.rules.asking import Waiting
from horarium.wire.views import payload_of

Decision = Literal["approve", "reject", "none", "latest", "all"]


class ApprovalView(Struct, kw_only=True):
    """A run that waits for a decision, or (`about` is `catch_up`) the `fires` fire times that a job missed, from
    `fire_at` to `last_fire_at`. `id`: that of the run. `then`: what becomes of it at `expires_at` without a decision.
    `asked_by`: who asked for the run; empty: its rule. `version`: the one of the job that is decided about;
    `changed_at`: when the job was changed after this was asked; null: it was not. `why_not`: why the caller may not
    decide; null: it may."""

    id: str
    about: Literal["run", "catch_up"]
    job: str
    queue: str
    fire_at: datetime
    last_fire_at: datetime | None
    fires: int
    wanted_at: datetime
    expires_at: datetime
    then: Literal["skip", "run", "none", "latest", "all"]
    roles: tuple[str, ...]
    four_eyes: bool
    asked_by: str
    version: int
    changed_at: datetime | None
    payload: Any
    why_not: str | None


def approval_view(waiting: Waiting) -> ApprovalView:
    run, job = waiting.run, waiting.job
    approval, asked, then = approval_of(job), last_word(run), job.catch_up.then
    wanted_at: Instant = run.created_at if asked is None else asked.at
    return ApprovalView(
        id=run.id,
        about="catch_up" if waiting.missed else "run",
        job=job.name,
        queue=run.queue,
        fire_at=to_datetime(run.fire_at),
        last_fire_at=None if run.last_fire_at is None else to_datetime(run.last_fire_at),
        fires=run.fires,
        wanted_at=to_datetime(wanted_at),
        expires_at=to_datetime(run.due_at),
        then=then if waiting.missed and then is not UNSET else approval.then,
        roles=approval.roles,
        four_eyes=approval.four_eyes,
        asked_by=waiting.question.by_name,
        version=waiting.version,
        changed_at=to_datetime(waiting.changed_at) if waiting.changed_at > wanted_at else None,
        payload=payload_of(job.target) if run.payload is None else msgspec.Raw(run.payload),
        why_not=waiting.why_not,
    )
