"""What the calls of a client take and answer."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from msgspec import UNSET, Struct, UnsetType

from horarium.client.transport import Problem, error_from
from horarium.errors import HorariumError
from horarium.wire.overrides import OverrideView
from horarium.wire.views import RunView


class Fires(Struct, omit_defaults=True):
    """Fire times, and the rule in words."""

    fires: list[datetime]
    words: str
    overrides: list[OverrideView] = []


class Pulse(Struct):
    """The answer to a heartbeat: until when the lease now lasts, and whether a cancel was asked."""

    cancel_requested: bool
    expires_at: datetime


class Report(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How one claimed run ended, for `settle`. `outcome`: completed, failed, deferred, released or cancelled."""

    id: str
    token: int
    outcome: str
    result: Any = UNSET
    error: str | UnsetType = UNSET
    retryable: bool = True
    retry_after_seconds: float | UnsetType = UNSET
    until: datetime | UnsetType = UNSET
    reason: str | UnsetType = UNSET


class Imported(Struct, frozen=True):
    """The result for one job of an import. `outcome`: created, updated, unchanged or failed; `error`: why it failed.
    `warning`: it may not do as it was meant to."""

    name: str
    outcome: str
    error: HorariumError | None = None
    warning: str | None = None


class Answered(Struct, frozen=True):
    """One of many that were sent at once: what became of it, or the problem."""

    name: str = ""
    id: str | None = None
    outcome: str = ""
    state: str | None = None
    problem: Problem | None = None
    warning: str | None = None

    def error(self, status: int = 422) -> HorariumError | None:
        """The error that its problem means."""
        return None if self.problem is None else error_from(self.problem, status)


class Runs(Struct):
    runs: list[RunView]


class Backfilled(Struct):
    """The runs that a backfill made, and what it did not get to."""

    runs: list[RunView]
    left: int = 0
    next_start: datetime | None = None


class Readiness(Struct):
    problems: dict[str, str]


def as_text(given: str) -> str:
    """The text without halves of surrogate pairs, which no request can carry: names of files may hold some."""
    return given.encode("utf-8", "replace").decode()
