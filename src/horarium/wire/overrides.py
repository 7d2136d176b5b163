"""Overrides of fire times, and those that were missed, as they are shown."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Literal

from msgspec import Struct

from horarium.clock import to_datetime
from horarium.model.missed import Missed
from horarium.model.overrides import Override


class OverrideView(Struct):
    """The fire time `fire_at` is skipped, or its run is due at `to`; `by` whom, `at` which instant, and why."""

    fire_at: datetime
    action: Literal["skip", "move"]
    to: datetime | None
    reason: str | None
    by: str
    at: datetime


def override_view(override: Override) -> OverrideView:
    return OverrideView(
        to_datetime(override.fire_at),
        "skip" if override.to is None else "move",
        None if override.to is None else to_datetime(override.to),
        override.reason,
        override.by,
        to_datetime(override.at),
    )


def override_views(overrides: Iterable[Override]) -> list[OverrideView]:
    return [override_view(each) for each in overrides]


class MissedView(Struct):
    """Fire times that a job missed and asks about (`GET /approvals`), and how that was decided."""

    id: str
    fires: int
    fire_at: datetime
    last_fire_at: datetime
    expires_at: datetime
    decision: str | None
    by: str
    reason: str | None


def missed_view(missed: Missed) -> MissedView:
    first, last = to_datetime(missed.stretches[0].first), to_datetime(missed.stretches[-1].last)
    told = (missed.decision, missed.by, missed.reason)
    return MissedView(missed.id, missed.fires, first, last, to_datetime(missed.expires_at), *told)
