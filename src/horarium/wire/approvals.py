"""Runs that wait for a decision, as they are shown."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

import msgspec
from msgspec import Struct

from horarium.clock import Instant, to_datetime
from horarium.model import Job, Run
from horarium.rules.approving import approval_of, last_word
from horarium.wire.views import payload_of


class ApprovalView(Struct, kw_only=True):
    """A run that waits for a decision. `id` is that of the run. `then`: what becomes of it at `expires_at` without
    a decision. `asked_by`: who asked for the run; empty: its rule. `why_not`: why the caller may not decide; null: it
    may."""

    id: str
    job: str
    queue: str
    fire_at: datetime
    wanted_at: datetime
    expires_at: datetime
    then: Literal["skip", "run"]
    roles: tuple[str, ...]
    four_eyes: bool
    asked_by: str
    payload: Any
    why_not: str | None


def approval_view(run: Run, job: Job, asked_by: str, why_not: str | None) -> ApprovalView:
    """One of them as it is shown."""
    approval, asked = approval_of(job), last_word(run)
    wanted_at: Instant = run.created_at if asked is None else asked.at
    return ApprovalView(
        id=run.id,
        job=job.name,
        queue=run.queue,
        fire_at=to_datetime(run.fire_at),
        wanted_at=to_datetime(wanted_at),
        expires_at=to_datetime(run.due_at),
        then=approval.then,
        roles=approval.roles,
        four_eyes=approval.four_eyes,
        asked_by=asked_by,
        payload=payload_of(job.target) if run.payload is None else msgspec.Raw(run.payload),
        why_not=why_not,
    )
