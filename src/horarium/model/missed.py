"""Fire times that were missed and about which a person is asked (`catch_up: ask`)."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from horarium.clock import Instant
from horarium.policies import CatchUpPolicy

STRETCHES_MAX = 50
"""Stretches that one question is about at most: beyond that the oldest are given up."""


class Rule(Struct, frozen=True, omit_defaults=True, gc=False):
    """The rule of a job, as it was when it owed these fire times."""

    trigger: dict[str, Any]
    anchor_at: Instant = 0
    starts_at: Instant | None = None
    ends_at: Instant | None = None


class Stretch(Struct, frozen=True, omit_defaults=True, gc=False):
    """All `fires` fire times from `first` to `last`; none of them has a row. `rule`: None while it is that of the
    job."""

    first: Instant
    last: Instant
    fires: int = 1
    rule: Rule | None = None


class Missed(Struct, frozen=True, omit_defaults=True, gc=False):
    """The question about them, one of a job at a time; later ones are added to it. `id`: that of the run
    of the first of them, if it runs. `decision`: as which policy they are dealt with, `by` whom, at `decided_at`."""

    id: str
    asked_at: Instant
    expires_at: Instant
    stretches: tuple[Stretch, ...]
    decision: CatchUpPolicy | None = None
    by: str = ""
    reason: str | None = None
    decided_at: Instant = 0

    @property
    def fires(self) -> int:
        """How many they are."""
        return sum(each.fires for each in self.stretches)
