"""Claimed runs that have not begun: those that are ready, and those that are held.

A run is held until its instant comes, or until the store has been asked about its lease. The code that waits for the
store in between takes single runs out, and only those still here: a run that comes in meanwhile is never lost.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from operator import attrgetter

from msgspec import Struct

from horarium.clock import Instant, to_micros
from horarium.model import Job, Run
from horarium.rules.settling import put_forward

Claim = tuple[str, int]
"""A run's id and the token of its claim."""


class Ready(Struct, frozen=True, gc=False):
    """A claimed run that can be performed."""

    run: Run
    job: Job | None

    @property
    def claim(self) -> Claim:
        return self.run.id, self.run.token

    @property
    def patience_ends_at(self) -> Instant:
        """When a third of its lease, or of the time that it may take, is gone: it has waited too long for a place."""
        run = self.run
        lasts, ends, begun = to_micros(run.lease_seconds), run.lease_expires_at or 0, run.started_at or 0
        # Put forward by a clock that had gone back before, its start may lie in the future.
        return ends - (min(lasts, ends - begun) if begun < ends else lasts) * 2 // 3


_lease_of = attrgetter("run.lease_expires_at", "run.started_at", "run.lease_seconds")


class Waiting:
    """Claimed runs that have not begun."""

    def __init__(self) -> None:
        self.line: deque[Ready] = deque()
        """Runs that can begin at once, in order."""
        self._held: dict[Claim, Ready] = {}
        self._patient_until: Instant = 0
        self.claiming_since: Instant | None = None
        """When the claim began whose runs are still to come."""

    def __len__(self) -> int:
        return len(self.line) + len(self._held)

    def __iter__(self) -> Iterator[Ready]:
        yield from self.line
        yield from self._held.values()

    def claims(self) -> Iterator[Claim]:
        """All of them."""
        return (ready.claim for ready in self)

    @property
    def ready(self) -> int:
        """How many can begin at once."""
        return len(self.line)

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
        """Nothing begins before the store has been asked about it. Whether anything waits."""
        while self.line:
            self.hold(self.line.popleft())
        return bool(self._held)

    def put_forward(self, step: int) -> list[Run]:
        """The wall clock stepped forward, and no time has passed: these leases go on as they were. Nothing begins
        before the store has been asked about it. The runs as they are now."""
        self.hold_all()
        self._held = {claim: Ready(put_forward(held.run, step), held.job) for claim, held in self._held.items()}
        return [ready.run for ready in self._held.values()]

    def take_impatient(self, now: Instant) -> list[Ready]:
        """Take out ready runs that have waited too long for a slot."""
        if not self.line or now < self._patient_until:
            return []
        impatient = [ready for ready in self.line if ready.patience_ends_at <= now]
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

    def next(self) -> Ready:
        """Take the first that is ready."""
        return self.line.popleft()

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
