"""Claimed runs that have not begun: those that are ready, and those that are held.

A run is held until its instant comes, or until the store has been asked about its lease. The code that waits for the
store in between takes single runs out, and only those still here: a run that comes in meanwhile is never lost.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from operator import attrgetter

from msgspec import Struct

from horarium.clock import Instant, to_micros
from horarium.model import Job, Run
from horarium.operations.settling.holding import Holding

Claim = tuple[str, int]
"""A run's id and the token of its claim."""


class Ready(Struct, frozen=True, gc=False):
    """A claimed run that can be performed."""

    run: Run
    job: Job | None
    turn: tuple[Instant, Instant] | None = None
    """When it may begin, on the steady scale, if it is under a rate limit."""
    doubted: bool = False
    """Whether a cancel was asked, of some run, while the store was asked about this one: its answer may be older."""

    @property
    def claim(self) -> Claim:
        return self.run.id, self.run.token

    @property
    def patience_ends_at(self) -> Instant:
        """On the steady scale."""
        return patience_ends(lease_of(self.run))


Lease = tuple[Instant | None, float, float | None]
"""When it ends, how long it lasts, and how long the attempt may take, both in seconds."""

lease_of: Callable[[Run], Lease] = attrgetter("lease_expires_at", "lease_seconds", "execution_seconds")
_lease_of: Callable[[Ready], Lease] = attrgetter("run.lease_expires_at", "run.lease_seconds", "run.execution_seconds")


def patience_ends(lease: Lease) -> Instant:
    """When a third of a lease that was not renewed yet is gone, or of the time that the attempt may take: it has waited
    too long for a place."""
    ends, seconds, limit = lease
    return (ends or 0) - to_micros(seconds if limit is None else min(seconds, limit)) * 2 // 3


class Waiting:
    """Claimed runs that have not begun."""

    def __init__(self, holding: Holding | None = None) -> None:
        self.holding = holding
        self.line: deque[Ready] = deque()
        """Runs that can begin at once, in order."""
        self._held: dict[Claim, Ready] = {}
        self._patient_until: Instant = 0
        self.cancels = 0
        """How often a cancel was asked, of any run."""
        self.claiming_since: Instant | None = None
        """When the claim began whose runs are still to come."""

    def __len__(self) -> int:
        return len(self.line) + len(self._held)

    def __iter__(self) -> Iterator[Ready]:
        yield from self.line
        yield from self._held.values()

    def claims(self) -> Iterator[Claim]:
        return (ready.claim for ready in self)

    def add(self, *ready: Ready) -> None:
        """These can begin as soon as there is a place. (The runs of one claim mostly have the same lease.)"""
        leases = dict(zip(map(_lease_of, ready), ready, strict=True))
        ends = [each.patience_ends_at for each in leases.values()]
        if self.line:
            ends.append(self._patient_until)
        self._patient_until = min(ends, default=0)
        self.line.extend(ready)

    def hold(self, ready: Ready) -> None:
        """It can't begin before the store has been asked about it."""
        self._held[ready.claim] = ready

    def hold_all(self) -> bool:
        """A cancel was asked: nothing begins before the store has been asked about it. Whether anything waits."""
        self.cancels += 1
        while self.line:
            self.hold(self.line.popleft())
        return bool(self._held)

    def take_impatient(self, steady: Instant) -> list[Ready]:
        """Take out ready runs that have waited too long for a slot."""
        if not self.line or steady < self._patient_until:
            return []
        impatient = [ready for ready in self.line if ready.patience_ends_at <= steady]
        for ready in impatient:
            self.line.remove(ready)
        self._patient_until = min((ready.patience_ends_at for ready in self.line), default=0)
        return impatient

    def take_early(self, until: Instant) -> list[Ready]:
        """Take out held runs that fall due only after this."""
        early = [ready for ready in self._held.values() if ready.run.due_at > until]
        for ready in early:
            self.release(ready.claim)
        return early

    def due(self, now: Instant) -> list[Ready]:
        """The held runs that are due; they stay held."""
        return [ready for ready in self._held.values() if ready.run.due_at <= now]

    def release(self, claim: Claim) -> bool:
        """Hold it no longer. False: it is not held any more."""
        return self._held.pop(claim, None) is not None

    def next_due_at(self) -> Instant | None:
        """When the next that is held falls due."""
        return min((ready.run.due_at for ready in self._held.values()), default=None)

    def patience_ends_at(self) -> Instant | None:
        """When to look for ready runs that have waited too long: not after the first of them has."""
        return self._patient_until if self.line else None

    def clear(self) -> list[Ready]:
        """Take out everything."""
        rest = list(self)
        self.line.clear()
        self._held.clear()
        return rest
