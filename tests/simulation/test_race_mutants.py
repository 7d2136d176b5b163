"""Races that were in the code once, or that lie near one that was: each is put back in, and most worlds see it."""

from __future__ import annotations

from msgspec.structs import replace

from horarium.clock import Instant
from horarium.services.dispatcher import Dispatcher
from horarium.services.waiting import Ready
from horarium.testing.simulate import Violation, simulate

SEEDS = range(100)


def found_in(seeds: range) -> list[int]:
    """The worlds that see it."""
    found = []
    for seed in seeds:
        try:
            simulate(seed)
        except Violation:
            found.append(seed)
    return found


async def forgets_what_came_meanwhile(self: Dispatcher, now: Instant) -> None:
    """As it was: what is held was written from what had been read before the store was asked."""
    waiting = self._performing.waiting
    due = waiting.due(now)
    if not due:
        return
    pulses = await self._leases.ask([ready.run for ready in due])
    for ready, pulse in zip(due, pulses, strict=True):
        if pulse is None:
            self._telemetry.lease_lost()
        elif pulse.cancel_requested:
            self._performing.release(ready.run, ready.job, "not begun: a cancel was asked")
        else:
            waiting.add(Ready(replace(ready.run, lease_expires_at=pulse.expires_at), ready.job))
    waiting._held = {claim: ready for claim, ready in waiting._held.items() if ready.run.due_at > now}
    self._performing.begin()
