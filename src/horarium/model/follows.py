"""The follow-ups of a job's runs, as its owner wants them: notifications, and runs of other jobs."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

from msgspec import Meta, Struct

from horarium.model.targets import Name
from horarium.policies import PositiveSeconds

AFTER_MAX = 100
"""How many in a row are counted at most."""
FOLLOWS_MAX = 10
"""The follow-ups of one occasion."""


class Occasion(StrEnum):
    """Events of a run of a job that follow-ups are for."""

    COMPLETED = "completed"
    FAILED = "failed"
    ATTEMPT_FAILED = "attempt_failed"
    CANCELLED = "cancelled"
    MISSED = "missed"
    NOT_STARTED = "not_started"
    LATE = "late"
    OVERDUE = "overdue"
    RECOVERED = "recovered"
    APPROVAL_WANTED = "approval_wanted"
    APPROVAL_EXPIRED = "approval_expired"


TIMED = frozenset({Occasion.LATE, Occasion.OVERDUE})
"""Those that are judged by `seconds`."""


class Follow(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A follow-up: a notification to the channel `notify`, or a run of the job `trigger`, with its own payload or with
    the one given here (`result`: what the run returned). `after`: from the n-th in a row on. `seconds`: of `late` and
    `overdue`, how long after its time a run begins, or ends."""

    notify: Name | None = None
    trigger: Name | None = None
    payload: Any = None
    after: Annotated[int, Meta(ge=1, le=AFTER_MAX)] = 1
    seconds: PositiveSeconds | None = None

    @property
    def action(self) -> str:
        """What it does, in one word: no occasion has two of one."""
        return f"trigger:{self.trigger}" if self.notify is None else f"notify:{self.notify}"
