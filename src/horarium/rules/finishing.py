"""Jobs that may have nothing left to do: a note of each, so that none of the others is ever looked through for them.

A change that leaves a job without a next fire time appends a record that names it and says when to look at it. The
finisher goes by these: once the last run has ended the job is marked as finished, and once its retention has passed and
none of its runs is kept any longer it is deleted. A note too many does no harm; a job without one stays.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct

from horarium.clock import MINUTE, SECOND, Instant
from horarium.errors import TooExpensive
from horarium.model import Job, Run, prune_instant
from horarium.model.records import Record, instant_key, key_instant
from horarium.rules.windows import exhausted, next_in_window
from horarium.triggers.join import After

LOOK = "look/"
"""What the names of these records begin with; then when to look, and at which job."""
AGAIN_MIN, AGAIN_MAX = SECOND, 60 * MINUTE
KEPT_AGAIN = 24 * 60 * MINUTE
"""How long to wait where it can't be said when the last run of a finished job expires."""


class Look(Struct, frozen=True):
    """A note: look at this job then. `since`: when it was first known to fire no more."""

    job_id: str
    at: Instant
    since: Instant

    @property
    def record(self) -> Record:
        body = msgspec.json.encode(self.since)
        return Record(name=f"{LOOK}{instant_key(self.at, self.job_id)}", body=body)

    @staticmethod
    def of(record: Record) -> Look:
        """The note that a record holds."""
        key = record.name.removeprefix(LOOK)
        return Look(key.partition("-")[2], key_instant(key), msgspec.json.decode(record.body, type=int))


def looked_at(job: Job, now: Instant) -> tuple[Record, ...]:
    """The record to append with a job that was just written, if it has no next fire time."""
    follows = job.trigger.get("type") == After.type and job.fires_max is None
    if follows or job.next_fire_at is not None or job.deleted_at is not None:
        return ()
    return (Look(job.id, now, now).record,)


def is_finished(job: Job) -> bool:
    """Whether the job has nothing left to do but unfinished runs: its rule yields no fire time after the cursor (within
    its window and its count, also once it is resumed), and it asks about none that it missed. One whose rule is too
    expensive to ask is not."""
    if job.deleted_at is not None or job.next_fire_at is not None or job.missed is not None:
        return False
    if exhausted(job) or job.trigger.get("type") == After.type:
        return exhausted(job)  # a join may always fire once more
    try:
        return next_in_window(job, job.planned_until) is None
    except TooExpensive:
        return False


def again(look: Look, now: Instant) -> Look:
    """Look again later, since a run goes on: soon at first, later the longer it takes."""
    pause = min(max((now - look.since) // 4, AGAIN_MIN), AGAIN_MAX)
    return Look(look.job_id, now + pause, look.since)


def forgotten_at(job: Job) -> Instant | None:
    """When a finished job expires, if no run of it is kept then; None: never."""
    return None if job.finished_at is None else prune_instant(job.finished_at, job.retention)


def while_kept(look: Look, newest: Run, now: Instant) -> Look:
    """Look again once the newest run of a finished job expires."""
    at = now + KEPT_AGAIN if newest.prune_at is None else newest.prune_at + AGAIN_MIN
    return Look(look.job_id, min(max(at, now + AGAIN_MIN), now + KEPT_AGAIN), look.since)
