"""Races that were in the code once, or lie near one that was: each is put back in, and the simulator sees it by itself.

The pattern is always the same: a collection is read, something is waited for, and the collection is written from what
had been read. What came in meanwhile is in nobody's hands.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from horarium.clock import Instant
from horarium.services.performing.collector import Collector
from horarium.services.performing.dispatcher import Dispatcher
from horarium.services.performing.waiting import Ready
from horarium.testing.simulate import Violation, simulate

pytestmark = pytest.mark.slow

SEEDS_MAX, LIKELY = 40, (2, 3, 4, 7)
FOUND_MIN = 4
"""In how many of these worlds it must be seen: one in ten. The likely ones are tried first."""


async def holds_what_was_read(self: Dispatcher, now: Instant) -> None:
    """As the dispatcher was: what is held was written from what had been read before the store was asked."""
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


async def clears_what_was_written(self: Collector, now: Instant) -> Instant | None:
    """A collector that takes all outcomes for written that are there when the write is over."""
    if self._ended:
        batch = list(self._ended)
        written = await self._write(batch)
        self._ended = [ended for ended, done in zip(batch, written, strict=True) if not done]
        await self._write_stale(list(self._ended))
        self._ended.clear()
    for flushed in self._flushed:
        if not flushed.done():
            flushed.set_result(None)
    self._flushed.clear()
    return None


@pytest.mark.parametrize(
    ("owner", "name", "mutant"),
    [(Dispatcher, "_ask_about_held", holds_what_was_read), (Collector, "step", clears_what_was_written)],
)
def test_what_came_in_during_a_wait_and_was_forgotten_is_seen(
    monkeypatch: pytest.MonkeyPatch, owner: type[Any], name: str, mutant: Callable[..., Any]
) -> None:
    monkeypatch.setattr(owner, name, mutant)
    found = 0
    for seed in sorted(range(SEEDS_MAX), key=lambda seed: seed not in LIKELY):
        found += _is_seen(seed)
        if found == FOUND_MIN:
            return
    pytest.fail(f"seen in {found} of {SEEDS_MAX} worlds")


def _is_seen(seed: int) -> bool:
    try:
        simulate(seed)
    except Violation:
        return True
    return False
