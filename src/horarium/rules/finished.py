"""Whether a job has nothing left to do."""

from __future__ import annotations

from collections.abc import Sequence

from horarium.errors import TooExpensive
from horarium.model import Job, Run
from horarium.rules.windows import exhausted, next_in_window
from horarium.triggers.join import After


def is_finished(job: Job, unfinished: Sequence[Run] = ()) -> bool:
    """Whether the job has nothing left to do: its rule yields no fire time after the cursor (within its window and its
    count, also once it is resumed), none of its runs is unfinished, and it asks about none that it missed. One whose
    rule is too expensive to ask is not."""
    if unfinished or job.deleted_at is not None or job.next_fire_at is not None or job.missed is not None:
        return False
    if exhausted(job) or job.trigger.get("type") == After.type:
        return exhausted(job)  # a join may always fire once more
    try:
        return next_in_window(job, job.planned_until) is None
    except TooExpensive:
        return False
