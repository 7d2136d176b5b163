"""Lists from their first page to the last, and work on many things in a row that holds up nothing else."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

from horarium.ports import Page

T = TypeVar("T")

SLICE_SECONDS = 0.005
"""How long a batch is worked on without giving way to other tasks."""

BUSY_SECONDS = 0.001
"""Other tasks that took longer than this have more to do: batches leave them four fifths of the time."""
REST_SECONDS = 0.02


class Slices:
    """Work on many things in a row that gives way to other tasks every few milliseconds."""

    def __init__(self) -> None:
        self._clock = asyncio.get_running_loop().time
        self._ends = self._clock() + SLICE_SECONDS

    async def give_way(self) -> None:
        """Others have their turn, if this has gone on for long enough."""
        now = self._clock()
        if now > self._ends:
            worked = time.thread_time()
            await asyncio.sleep(0)
            # A thread that has the interpreter meanwhile is no task that a rest would help.
            if self._clock() > now + BUSY_SECONDS and time.thread_time() > worked + BUSY_SECONDS:
                await asyncio.sleep(REST_SECONDS)
            self._ends = self._clock() + SLICE_SECONDS


async def pages_of(read: Callable[[str | None], Awaitable[Page[T]]]) -> AsyncIterator[tuple[T, ...]]:
    """The items of each page of a list, to its end. `read`: the page that begins after a place."""
    after: str | None = None
    while True:
        page = await read(after)
        yield page.items
        if (after := page.next_after) is None:
            return


__all__ = ["Slices", "pages_of"]
