"""Deferred edits: the rest of a change of a job, for runs that it did not look at because they are very many.

It is a record, written in the transaction of the change: so what a change asks of a hundred thousand runs is not waited
for, and not forgotten either, if the process ends a moment later. Until it is applied, a claim leaves out runs that
must not be handed out.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import Struct

from horarium.clock import SECOND, Instant
from horarium.model import Job, Run, State
from horarium.model.records import Record
from horarium.policies import Overlap

PREFIX = "apply/"
HELD = 10 * SECOND
"""How long one node keeps the others from the same work, unless it says again that it goes on."""


class Newest(Struct, frozen=True, array_like=True):
    """The run that took the place of all that were made before it, under the overlap policy of then."""

    created_at: Instant
    fire_at: Instant
    id: str
    overlap: Overlap

    def ends(self, run: Run) -> bool:
        """Whether this run has to end."""
        return (run.created_at, run.fire_at, run.id) < (self.created_at, self.fire_at, self.id)


def newest_of(job: Job, runs: Sequence[Run]) -> Newest | None:
    """The one of these new runs that is to go on in place of all other runs of this job."""
    going_on = [run for run in runs if run.job_id == job.id and run.state is State.PENDING]
    run = max(going_on, key=lambda run: (run.created_at, run.fire_at, run.id), default=None)
    return None if run is None else Newest(run.created_at, run.fire_at, run.id, job.overlap)


class Owed(Struct, frozen=True, omit_defaults=True):
    """Look at the unfinished runs of this job from the fire time `since` on. `holder`: the node that does so, until
    `until`. `newest`: runs older than that one end, also if the job's policy is another one by then."""

    job_id: str
    since: Instant
    holder: str = ""
    until: Instant = 0
    newest: Newest | None = None

    def held(self, by_others_than: str, now: Instant) -> bool:
        """Whether another node is at it. (A time further ahead than any node writes is that of a wrong clock.)"""
        return self.holder != by_others_than and now < self.until <= now + HELD


_decode = msgspec.json.Decoder(Owed).decode


def owed_by(job: Job, version: int, since: Instant, newest: Newest | None = None) -> Record:
    """The rest of a change that leaves the job under this version."""
    owed = Owed(job.id, since, newest=newest)
    return Record(name=f"{PREFIX}{job.id}/{version:012d}/{since}", body=msgspec.json.encode(owed))


def owed_of(record: Record) -> Owed:
    """The content of the record."""
    return _decode(record.body)


def held_by(record: Record, holder: str, now: Instant) -> Record:
    """The record, as the node writes it that works on it."""
    body = msgspec.structs.replace(_decode(record.body), holder=holder, until=now + HELD)
    return msgspec.structs.replace(record, body=msgspec.json.encode(body), version=record.version + 1)
