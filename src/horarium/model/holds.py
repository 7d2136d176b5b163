"""The hold: nothing of its scope begins while it is in force. A maintenance window, an open circuit breaker."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from msgspec import Struct

from horarium.clock import Instant


class HeldMissed(StrEnum):
    """What becomes of fire times inside a hold."""

    CATCH_UP = "catch_up"
    SKIP = "skip"


class HeldRunning(StrEnum):
    """What becomes of runs that are under way when it begins."""

    FINISH = "finish"
    CANCEL = "cancel"


class HoldScope(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """What a hold lies over: exactly one of these. `host`: a name, or a name and a port; of HTTP targets. `worker`: a
    worker or a node by its name, which takes no run meanwhile; others do."""

    all: bool = False
    job: str | None = None
    labels: dict[str, str] = {}
    queue: str | None = None
    host: str | None = None
    worker: str | None = None


class HoldRepeat(Struct, frozen=True, forbid_unknown_fields=True):
    """Each fire time of the trigger begins a stretch of this length."""

    trigger: dict[str, Any]
    seconds: float


class Probing(Struct, frozen=True, omit_defaults=True):
    """Of a circuit breaker: when the next run is let through, how long after each, and the claim of the last one."""

    next_at: Instant
    seconds: float
    probe: str | None = None


class Hold(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """In force from `begins_at` until `ends_at` (None: until it is lifted), with `repeat` in its stretches alone.
    `lifted_at`: when it was ended by hand, or by a probe. One that has ended is kept for a while, since fire times
    inside it may still be to account for."""

    id: str
    scope: HoldScope
    begins_at: Instant
    reason: str
    created_at: Instant
    ends_at: Instant | None = None
    repeat: HoldRepeat | None = None
    missed: HeldMissed = HeldMissed.CATCH_UP
    running: HeldRunning = HeldRunning.FINISH
    lifted_at: Instant | None = None
    probing: Probing | None = None
    by: str | None = None
