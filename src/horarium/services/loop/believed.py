"""Whether the wall clock can be believed where something is deleted because it is old.

A step forward that is seen has to stand for an hour. A process that starts saw nothing of what the clock did before: so
processes that believe their clocks note its time in the store, and one that starts far beyond the last note waits as if
it had seen the step. That is the same after a long downtime, where the hour is of no consequence; it is counted over
restarts, so that processes which never live for an hour forget something in the end. As long as another one goes on to
note a time far behind, one of the two is wrong, and the one that is ahead deletes nothing.
"""

from __future__ import annotations

import msgspec

from horarium.clock import SECOND, Clock, Instant
from horarium.model.records import Record, RecordChange
from horarium.ports import Store

STEP = SECOND
"""How far the two must part between two looks to count as a jump."""


class ClockWatch:
    """Jumps of the wall clock, noticed: from look to look it went on by more or less than the steady scale did.

    A jump forward may be wrong, and is taken back then. So what is deleted because it is old waits until the jump has
    lasted for a while. (Leases do not depend on it: they are on the steady scale.)"""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._offset: float | None = None
        self._forward = 0
        self._forward_at = 0.0

    def look(self, now: Instant) -> int:
        """By how many microseconds the wall clock has jumped since the last look, or 0."""
        before, self._offset = self._offset, now - self._clock.monotonic() * SECOND
        jump = 0 if before is None else round(self._offset - before)
        if abs(jump) < STEP:
            return 0
        if jump > 0:
            self._forward_at = self._clock.monotonic()
        self._forward = max(0, self._forward + jump)
        return jump

    def stood_for(self, seconds: float) -> bool:
        """Whether the last jump forward has lasted for that long, or was taken back, or there was none."""
        if self._clock.monotonic() - self._forward_at >= seconds:
            self._forward = 0
        return self._forward < STEP


CALM_SECONDS = 60.0
"""After a step back nothing is deleted for this long: runs written ahead are brought back first."""
STANDS_SECONDS = 3600.0
"""After a step forward nothing is deleted for this long: the new time may be wrong."""
FAR = 1200 * SECOND
"""How far a clock may be beyond the last note, and be believed at once: notes are not written all the time."""
NOTED = "clock/believed"
NOTED_SECONDS, DOUBT_NOTED_SECONDS = 600.0, 60.0
"""How often a time is noted that is believed, and for how long one has been doubted."""


class Note(msgspec.Struct, frozen=True):
    """The last time that was believed. `since`, `stood`: from when on a clock that was far beyond it has been doubted,
    and for how many seconds altogether."""

    at: Instant
    since: Instant = 0
    stood: float = 0.0


class BelievedClock:
    """One for each node. One service looks and compares in each of its steps; all ask whether the clock `stands`."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._watch = ClockWatch(clock)
        self._looked_at: float | None = None
        self._note: Note | None = None
        self._version = -1
        self._doubted_until = 0.0
        self._calm_at = 0.0

    def look(self) -> None:
        """Notice a step of the wall clock."""
        if self._watch.look(self._clock.now()) < 0:
            self._looked_at, self._version = None, -1
            self._calm_at = self._clock.monotonic() + CALM_SECONDS

    @property
    def is_known(self) -> bool:
        """Whether the note was read."""
        return self._looked_at is not None

    async def compare(self, now: Instant) -> None:
        """Read the note of all now and then, and write it. Raises StoreUnavailable."""
        elapsed = self._clock.monotonic()
        every = NOTED_SECONDS if elapsed >= self._doubted_until else DOUBT_NOTED_SECONDS
        if self._looked_at is None or elapsed - self._looked_at >= every:
            await self._compare(now)
            self._looked_at = elapsed

    def stands(self) -> bool:
        """Whether old things by this clock may be deleted."""
        self.look()
        stood, elapsed = self._watch.stood_for(STANDS_SECONDS), self._clock.monotonic()
        return self._looked_at is not None and elapsed >= max(self._doubted_until, self._calm_at) and stood

    async def _compare(self, now: Instant) -> None:
        """Judge this clock by the notes of others, and write our own."""
        (record,) = await self._store.get_records([NOTED])
        version = 0 if record is None else record.version
        elapsed = self._clock.monotonic()
        if version != self._version:
            self._note = None if record is None else msgspec.json.decode(record.body, type=Note)
            self._doubted_until = elapsed + await self._doubted_seconds(now)
            self._version = version
        doubted = max(0.0, self._doubted_until - elapsed)
        if doubted and self._note is not None:
            since = self._note.since if 0 < self._note.since <= now else now
            await self._write(Note(self._note.at, since, STANDS_SECONDS - doubted))
        elif not doubted and self._watch.stood_for(STANDS_SECONDS):
            await self._write(Note(now))

    async def _doubted_seconds(self, now: Instant) -> float:
        """For how long this clock is to be doubted. Where nothing was noted yet, the last sign of life of a node says
        what the time was."""
        if self._note is None:
            beats = [node.beat_at for node in await self._store.list_nodes(0) if node.beat_at < now - FAR]
            self._note = Note(max(beats)) if beats else None
        note = self._note
        if note is None or now - note.at <= FAR:
            return 0.0
        return STANDS_SECONDS - (note.stood if note.since <= now else 0.0)

    async def _write(self, note: Note) -> None:
        """Where another one was quicker, that is seen at the next look."""
        record = Record(name=NOTED, body=msgspec.json.encode(note), version=self._version + 1)
        if (await self._store.put_records([RecordChange(record, self._version)]))[0]:
            self._note, self._version = note, record.version
