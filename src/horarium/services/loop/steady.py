"""The steady scale: one time for the leases of a store, which no jump of a wall clock touches.

The first node begins it at its wall time; from then on it goes with the clock that counts since a machine was started,
which is one for all its processes. Each node writes its reading into one record of the store, and goes on from what it
finds there if that is ahead (Lamport, "Time, clocks, and the ordering of events in a distributed system", 1978). That
is exact on one machine. On another one the age of a reading is known by wall time: if that is wrong, then by `AGE_MAX`
at most, and the next readings put it right. A node that has just come to the scale, or was moved on it, takes no lease
that it has not watched for a while (`is_settled`).
"""

from __future__ import annotations

from contextlib import suppress

import msgspec

from horarium.clock import SECOND, Clock, Instant
from horarium.errors import StoreUnavailable
from horarium.model.records import Record, put_over
from horarium.ports import Store

NAME = "clock/steady"
AGE_MAX = 20 * SECOND
"""Nodes write their readings twice in this time."""
MOVED = SECOND // 2
"""By how much a reading must differ for leases of others to be in doubt."""
SETTLED_SECONDS = 20.0


class Reading(msgspec.Struct, frozen=True):
    """The present on the steady scale, the wall time at which it was written, and by whose clock it is that."""

    steady: Instant
    wall: Instant
    machine: str
    offset: int


class SteadyScale:
    """The scale as one node knows it: its clock tells it."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self.is_known = False
        self._moved_at = clock.monotonic()

    @property
    def is_settled(self) -> bool:
        """Whether this node has kept to the scale for a while, and the others have had the time to follow it."""
        return self._clock.monotonic() - self._moved_at >= SETTLED_SECONDS

    async def follow(self) -> None:
        """Go on from the reading in the store, if it is ahead of ours, and write ours. Raises StoreUnavailable."""
        (record,) = await self._store.get_records([NAME])
        now, clock = self._clock.now(), self._clock
        if record is not None:
            theirs = self._offset_of(_decode(record), now)
            if theirs > clock.steady_offset or not self.is_known:
                if abs(theirs - clock.steady_offset) > MOVED:
                    self._moved_at = clock.monotonic()
                clock.steady_offset = theirs
        self.is_known = True
        body = msgspec.json.encode(Reading(clock.steady(), now, clock.machine, clock.steady_offset))
        # Where another one was quicker, its reading is found next time. A store that is full can still be read.
        with suppress(StoreUnavailable):
            await self._store.put_records([put_over(record, NAME, body)])

    def _offset_of(self, read: Reading, now: Instant) -> int:
        if read.machine == self._clock.machine:
            return read.offset
        age = min(max(now - read.wall, 0), AGE_MAX)
        return self._clock.steady_offset + read.steady + age - self._clock.steady()


async def carry_over(source: Store, target: Store) -> None:
    """Have the scale of a copy go on from that of its original, so that leases end there in their time."""
    (theirs,), (ours,) = await source.get_records([NAME]), await target.get_records([NAME])
    if theirs is not None and (ours is None or _decode(ours).steady < _decode(theirs).steady):
        await target.put_records([put_over(ours, NAME, theirs.body)])


def _decode(record: Record) -> Reading:
    return msgspec.json.decode(record.body, type=Reading)
