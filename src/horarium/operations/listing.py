"""Lists of fire times, made so that no request holds up the scheduler.

A list is made in pieces of a few milliseconds on the event loop, one list at a time beyond the first piece, and ends as
TooExpensive where the whole takes too much.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from horarium.clock import Instant
from horarium.errors import TooExpensive
from horarium.triggers.budget import FIRE_STEPS, LIST_STEPS, PLAN_STEPS, limited

PAUSE_SECONDS = 0.001
"""Between two pieces: long enough that every task that waits has a turn."""

SLICE_SECONDS = 0.005
"""How long a batch of definitions is read without giving way to other tasks."""

Ask = Callable[[Instant, int], list[Instant]]
"""The fire times after an instant, up to a number of them."""


class Listing:
    """The lists of one process."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()

    async def fires(self, ask: Ask, after: Instant, count: int) -> list[Instant]:
        """The first `count` fire times after an instant. Raises TooExpensive."""
        try:
            with limited(FIRE_STEPS):
                return ask(after, count)
        except TooExpensive:
            async with self._turn:
                return await self._in_pieces(ask, after, count)

    async def _in_pieces(self, ask: Ask, after: Instant, count: int) -> list[Instant]:
        found: list[Instant] = []
        piece, left = count, LIST_STEPS
        while len(found) < count:
            await asyncio.sleep(PAUSE_SECONDS)
            try:
                with limited(min(PLAN_STEPS if piece == 1 else FIRE_STEPS, left)) as budget:
                    more = ask(after, min(piece, count - len(found)))
            except TooExpensive:
                if piece == 1 or left <= budget.spent:
                    raise
                more, piece = [], max(1, piece // 8)
            else:
                if len(more) < min(piece, count - len(found)):
                    return found + more
                found += more
                after = found[-1] if found else after
            left -= budget.spent
        return found


class Slices:
    """Work on many things in a row that gives way to other tasks every few milliseconds."""

    def __init__(self) -> None:
        self._clock = asyncio.get_running_loop().time
        self._ends = self._clock() + SLICE_SECONDS

    async def give_way(self) -> None:
        """Others have their turn, if this has gone on for long enough."""
        if self._clock() > self._ends:
            await asyncio.sleep(0)
            self._ends = self._clock() + SLICE_SECONDS


__all__ = ["Listing", "Slices"]
