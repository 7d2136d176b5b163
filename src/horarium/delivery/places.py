"""How many requests are under way, over all and to one host, so that a host that hangs cannot hold up the others.

A request whose host has no free place waits a little and then gives up: the run is put off, its slot goes to another.
"""

from __future__ import annotations

import asyncio


class _Share:
    """One host's places, and how many hold or want one: at nought it is forgotten."""

    def __init__(self, size: int) -> None:
        self.places = asyncio.Semaphore(size)
        self.users = 0


class HostPlaces:
    """`total` places, of which at most `per_host` go to one host."""

    def __init__(self, *, total: int, per_host: int) -> None:
        self._total = asyncio.Semaphore(total)
        self._per_host = per_host
        self._shares: dict[str, _Share] = {}

    async def take(self, host: str, patience_seconds: float) -> bool:
        """Take a place for the host; the caller that got one gives it back. False: none became free in time."""
        share = self._shares.get(host)
        if share is None:
            share = self._shares[host] = _Share(self._per_host)
        share.users += 1
        taken = False
        try:
            taken = await _acquired(share.places, patience_seconds) and await self._total_acquired(
                share, patience_seconds
            )
        finally:
            if not taken:
                self._leave(host, share)
        return taken

    def give(self, host: str) -> None:
        """Give back a place that was taken."""
        share = self._shares[host]
        self._total.release()
        share.places.release()
        self._leave(host, share)

    async def _total_acquired(self, share: _Share, patience_seconds: float) -> bool:
        acquired = False
        try:
            acquired = await _acquired(self._total, patience_seconds)
        finally:
            if not acquired:
                share.places.release()
        return acquired

    def _leave(self, host: str, share: _Share) -> None:
        share.users -= 1
        if share.users == 0:
            del self._shares[host]


async def _acquired(places: asyncio.Semaphore, patience_seconds: float) -> bool:
    if not places.locked():
        return await places.acquire()
    try:
        async with asyncio.timeout(patience_seconds):
            return await places.acquire()
    except TimeoutError:
        return False
