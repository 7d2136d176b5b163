"""Overrides of fire times as they are shown."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Literal

from msgspec import Struct

from horarium.clock import to_datetime
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
    """One override as it is shown."""
    return OverrideView(
        to_datetime(override.fire_at),
        "skip" if override.to is None else "move",
        None if override.to is None else to_datetime(override.to),
        override.reason,
        override.by,
        to_datetime(override.at),
    )


def override_views(overrides: Iterable[Override]) -> list[OverrideView]:
    """Overrides as they are shown."""
    return [override_view(each) for each in overrides]
