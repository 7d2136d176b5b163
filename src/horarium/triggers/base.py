"""A trigger is a pure, immutable value that yields fire times.

A concrete trigger gives `next_fire` (instants in, instants out), `spec` (its JSON form) and `words`. The rest follows
from these three here. A trigger never reads a clock, never remembers anything between calls that could change an
answer, and answers in time that does not depend on how far back its start lies.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from datetime import datetime
from typing import Any, ClassVar

from horarium.clock import INSTANT_MAX, Instant, to_datetime, to_instant
from horarium.triggers.budget import spend

FIRES_MAX = 1_000
"""How many fire times one call lists at most."""


class Trigger(ABC):
    """The rule that yields fire times; a pure value."""

    type: ClassVar[str]

    @abstractmethod
    def next_fire(self, after: Instant) -> Instant | None:
        """The first fire time strictly after `after`, or None where there is none up to the year 2200."""

    @abstractmethod
    def spec(self) -> dict[str, Any]:
        """The JSON form, with its `type`. `parse_trigger(t.spec()) == t`."""

    @abstractmethod
    def words(self) -> str:
        """The rule in plain English, e.g. `every Monday and Friday at 15:15, Europe/Berlin`."""

    def anchored(self, anchor: Instant) -> Trigger:
        """This trigger, counting from `anchor` if it names no start of its own.

        A job anchors its trigger once, when it is defined. `every("5m")` then fires five minutes after that and every
        five minutes on; most triggers need no anchor and return themselves.
        """
        return self

    def seeded(self, seed: str) -> Trigger:
        """This trigger, with its choices by hash (`H` in cron) made from `seed` if it names no seed of its own.

        A job passes its own name, so that many jobs with the same `H` spread out, and each keeps its times for good.
        """
        return self

    @property
    def after_end(self) -> int | None:
        """How long after the end of the last run it fires, in microseconds; None: it counts from no end. One that does
        is anchored again at each end, and yields the fire times of runs that take no time."""
        return None

    def next_after(self, instant: datetime) -> datetime | None:
        """The first fire time strictly after an aware datetime, as an aware UTC datetime, or None."""
        fire = self.next_fire(to_instant(instant))
        return None if fire is None else to_datetime(fire)

    def fires(self, after: datetime, count: int) -> list[datetime]:
        """The first `count` (0 to 1,000) fire times strictly after `after`."""
        if not 0 <= count <= FIRES_MAX:
            raise ValueError(f"count must be from 0 to {FIRES_MAX}, not {count}")
        return [to_datetime(fire) for fire in self.list_fires(to_instant(after), INSTANT_MAX, count)]

    def between(self, start: datetime, end: datetime) -> list[datetime]:
        """The fire times from `start` (included) to `end` (excluded), at most the first 1,000."""
        return [to_datetime(fire) for fire in self.list_fires(to_instant(start) - 1, to_instant(end) - 1, FIRES_MAX)]

    def list_fires(self, after: Instant, until: Instant, limit: int) -> list[Instant]:
        """The fire times in (after, until], at most the first `limit`."""
        found: list[Instant] = []
        while len(found) < limit:
            spend()
            fire = self.next_fire(after)
            if fire is None or fire > until:
                break
            found.append(fire)
            after = fire
        return found

    def count_fires(self, after: Instant, until: Instant, limit: int) -> int:
        """How many fire times lie in (after, until]; counting stops at `limit`. Overridden where arithmetic can."""
        return len(self.list_fires(after, until, limit))

    def last_fire(self, after: Instant, until: Instant) -> Instant | None:
        """The last fire time in (after, until], or None. About 40 calls of `next_fire`, however many lie between.

        `next_fire` never decreases, so the largest instant whose next fire time is still within `until` is found by
        halving; every probe that hits jumps on to the fire time that it found.
        """
        last = self.next_fire(after)
        if last is None or last > until:
            return None
        beyond = until
        while beyond - last > 0:
            probe = last + (beyond - last) // 2
            fire = self.next_fire(probe)
            if fire is not None and fire <= until:
                last = fire
            elif probe == last:
                break
            else:
                beyond = probe
        return last

    def __str__(self) -> str:
        return self.words()


__all__ = ["FIRES_MAX", "Trigger"]
