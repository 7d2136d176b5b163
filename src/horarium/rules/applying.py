"""What a change of a job still owes to runs of it that it did not look at, because they are very many.

It is a record, written in the transaction of the change: so what a change asks of a hundred thousand runs is not
waited for, and not forgotten either, if the process ends a moment later. Until it is applied, a claim leaves out what
must not be handed out.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct

from horarium.clock import SECOND, Instant
from horarium.model import Job
from horarium.model.records import Record

PREFIX = "apply/"
HELD = 10 * SECOND
"""How long one node keeps the others from the same work, unless it says again that it goes on."""


class Owed(Struct, frozen=True, omit_defaults=True):
    """Look at the unfinished runs of this job from the fire time `since` on. `holder`: the node that does so, until
    `until`."""

    job_id: str
    since: Instant
    holder: str = ""
    until: Instant = 0

    def held(self, by_others_than: str, now: Instant) -> bool:
        """Whether another node is at it. (A time further ahead than any node writes is that of a wrong clock.)"""
        return self.holder != by_others_than and now < self.until <= now + HELD


_decode = msgspec.json.Decoder(Owed).decode


def owed_by(job: Job, version: int, since: Instant) -> Record:
    """What a change owes that leaves the job under this version."""
    return Record(name=f"{PREFIX}{job.id}/{version:012d}/{since}", body=msgspec.json.encode(Owed(job.id, since)))


def owed_of(record: Record) -> Owed:
    """What the record says."""
    return _decode(record.body)


def held_by(record: Record, holder: str, now: Instant) -> Record:
    """The record, as the node writes it that works on it."""
    body = msgspec.structs.replace(_decode(record.body), holder=holder, until=now + HELD)
    return msgspec.structs.replace(record, body=msgspec.json.encode(body), version=record.version + 1)
