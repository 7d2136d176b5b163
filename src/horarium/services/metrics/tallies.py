"""How many runs ended, and how late they began, minute by minute: for pages that show the last hours.

Counting finished runs in a store takes as long as there are many. So each node counts what it does itself, and writes a
small record for each minute in which it did something; readers add up the records of all nodes. A process that is
killed loses what it counted within the last minute; nothing is decided by these figures. Nodes with the role to prune
delete old records of minutes too, by a clock that is believed (`services.believed`).
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import Struct

from horarium.clock import DAY, HOUR, MINUTE, SECOND, Clock, Instant
from horarium.model import Disposition, Run, State
from horarium.model.records import Record, RecordChange, instant_key
from horarium.ports import Store
from horarium.services.loop.believed import BelievedClock
from horarium.services.loop.service import Service, Wake
from horarium.services.metrics.ends import End
from horarium.services.metrics.lateness import classes

PREFIX = "tally/"
KEPT = 2 * DAY
SETTLES = 5 * SECOND
"""A minute is written this long after its end: outcomes are handed over in batches."""
MINUTES_HELD_MAX = 2_000
"""Minutes that wait for a store that is down. The oldest are given up."""
PRUNED_EVERY = HOUR
PRUNED_MAX = 1_000
LATENESS_STEPS = (1, 1.6, 2.5, 4, 6.3)
LATENESS_EDGES: tuple[int, ...] = tuple(
    round(step * 10**power * 1_000) for power in range(6) for step in LATENESS_STEPS
)
"""Upper edges of the classes of lateness, in microseconds: five for each power of ten, from 1 ms to 630 s."""
_MISSED = frozenset({Disposition.MISSED, Disposition.NOT_STARTED})


class Minute(Struct, omit_defaults=True):
    """The work of one node within a minute. `lateness`: class -> how many attempts began with that much delay."""

    completed: int = 0
    failed: int = 0
    cancelled: int = 0
    missed: int = 0
    skipped: int = 0
    lateness: dict[int, int] = {}

    def add(self, other: Minute) -> None:
        """Count what another node did too."""
        for name in ("completed", "failed", "cancelled", "missed", "skipped"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for place, count in other.lateness.items():
            self.lateness[place] = self.lateness.get(place, 0) + count


decode_minute = msgspec.json.Decoder(Minute).decode


class Tally:
    """What this process counted and has not written yet. `seen` grows with everything that is counted."""

    def __init__(self) -> None:
        self.minutes: dict[Instant, Minute] = {}
        self.seen = 0

    def skipped(self, run: Run) -> None:
        """Fire times were passed over."""
        minute = self._at(run.finished_at or run.created_at)
        if run.disposition is Disposition.MISSED:
            minute.missed += run.fires
        else:
            minute.skipped += run.fires

    def claimed(self, started_at: Instant, lates: Sequence[int]) -> None:
        """First attempts begin, this late: microseconds in ascending order."""
        counts = self._at(started_at).lateness
        for place, count in classes(LATENESS_EDGES, lates):
            counts[place] = counts.get(place, 0) + count

    def settled(self, end: End, count: int) -> None:
        """This number of attempts ended; their runs may go on."""
        if end.finished_at is None:
            self.seen += 1
            return
        minute = self._at(end.finished_at)
        if end.disposition in _MISSED:
            minute.missed += count
        elif end.state is State.COMPLETED:
            minute.completed += count
        elif end.state is State.FAILED:
            minute.failed += count
        else:
            minute.cancelled += count

    def _at(self, instant: Instant) -> Minute:
        self.seen += 1
        minute = instant - instant % MINUTE
        found = self.minutes.get(minute)
        if found is None:
            found = self.minutes[minute] = Minute()
            if len(self.minutes) > MINUTES_HELD_MAX:
                del self.minutes[min(self.minutes)]
        return found


class Tallies(Service):
    """Writes the counts, a record for each minute that is over."""

    name = "tallies"
    sleeps = True

    def __init__(
        self, store: Store, tally: Tally, node: str, clock: Clock, believed: BelievedClock | None = None
    ) -> None:
        """`believed`: of a node that prunes; None: this one does not."""
        self.wake = Wake()
        self._store = store
        self._tally = tally
        self._node = node
        self._believed = believed
        self._written = clock.now()  # of a node that starts again none has a name that was there
        self._tried: Record | None = None
        """The store may have it, in an outage: it is given to it again as it was."""
        self._pruned_at: Instant | None = None

    async def step(self, now: Instant) -> Instant | None:
        await self.write(now - SETTLES)
        if self._may_prune(now):
            await self._store.prune_records(PREFIX, instant_key(max(now - KEPT, 0)), PRUNED_MAX)
            self._pruned_at = now
        return now - now % MINUTE + MINUTE + SETTLES

    def _may_prune(self, now: Instant) -> bool:
        if self._pruned_at is not None and self._pruned_at <= now < self._pruned_at + PRUNED_EVERY:
            return False
        return self._believed is not None and self._believed.stands()

    async def write(self, until: Instant) -> None:
        """Write the minutes that ended by `until`."""
        while True:
            over = min((minute for minute in self._tally.minutes if minute + MINUTE <= until), default=None)
            if self._tried is None and over is not None:
                self._tried = self._record(over, self._tally.minutes.pop(over))
            if self._tried is None:
                return
            await self._store.put_records([RecordChange(self._tried)])
            self._tried = None

    def _record(self, minute: Instant, counted: Minute) -> Record:
        self._written += 1
        name = PREFIX + instant_key(minute, f"{self._node}/{self._written}")
        return Record(name=name, body=msgspec.json.encode(counted))


def lateness_at(share: float, counts: Sequence[int]) -> int | None:
    """The lateness in microseconds that this share of all stays within; `counts`: by class. None: there were none."""
    total = sum(counts)
    if not total:
        return None
    passed = 0
    for place, count in enumerate(counts):
        passed += count
        if passed >= share * total:
            return LATENESS_EDGES[min(place, len(LATENESS_EDGES) - 1)]
    return LATENESS_EDGES[-1]
