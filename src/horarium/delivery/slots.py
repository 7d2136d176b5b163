"""How many requests are under way, over all and to one host, so that a host that hangs cannot hold up the others.

Whoever finds its host's share taken waits a little and then gives up; the run is put off and its place goes to another.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class _Share:
    """One host's slots, and how many hold or want one: at nought it is forgotten."""

    def __init__(self, size: int) -> None:
        self.slots = asyncio.Semaphore(size)
        self.users = 0


class Slots:
    """`total` slots, of which at most `per_host` go to one host."""

    def __init__(self, *, total: int, per_host: int) -> None:
        self._total = asyncio.Semaphore(total)
        self._per_host = per_host
        self._shares: dict[str, _Share] = {}

    @asynccontextmanager
    async def slot(self, host: str, patience_seconds: float) -> AsyncIterator[bool]:
        """Hold a slot for the host. False: none became free within `patience_seconds`, and none is held."""
        share = self._shares.setdefault(host, _Share(self._per_host))
        share.users += 1
        try:
            async with _held(share.slots, patience_seconds) as own:
                if not own:
                    yield False
                    return
                async with _held(self._total, patience_seconds) as free:
                    yield free
        finally:
            share.users -= 1
            if share.users == 0:
                del self._shares[host]


@asynccontextmanager
async def _held(slots: asyncio.Semaphore, patience_seconds: float) -> AsyncIterator[bool]:
    if not await _acquired(slots, patience_seconds):
        yield False
        return
    try:
        yield True
    finally:
        slots.release()


async def _acquired(slots: asyncio.Semaphore, patience_seconds: float) -> bool:
    if not slots.locked():
        return await slots.acquire()
    try:
        async with asyncio.timeout(patience_seconds):
            return await slots.acquire()
    except TimeoutError:
        return False
