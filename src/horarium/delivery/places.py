"""How many requests are under way, over all and to one host, so that a host that hangs cannot hold up the others.

A request whose host has no free place waits a little and then gives up: the run is put off, its slot goes to another.
Those that wait for a host's place take no place of the others. Places go to those that wait, in the order they came.
"""

from __future__ import annotations

import asyncio


class _Share:
    """The places of one host. `held`: requests that have one, or wait for one."""

    __slots__ = ("held", "places")

    def __init__(self, places: int) -> None:
        self.places = asyncio.Semaphore(places)
        self.held = 0


class HostPlaces:
    """`total` places, of which at most `per_host` go to one host."""

    def __init__(self, *, total: int, per_host: int) -> None:
        self._total = asyncio.Semaphore(total)
        self._per_host = per_host
        self._shares: dict[str, _Share] = {}

    async def take(self, host: str, patience_seconds: float) -> bool:
        """Take a place for the host, or wait for it; the caller that got one gives it back. False: none became free in
        time."""
        share = self._shares.get(host)
        if share is None:
            share = self._shares[host] = _Share(self._per_host)
        share.held += 1
        taken = False
        try:
            if await _take(share.places, patience_seconds):
                try:
                    taken = await _take(self._total, patience_seconds)
                finally:
                    if not taken:
                        share.places.release()
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

    def _leave(self, host: str, share: _Share) -> None:
        share.held -= 1
        if share.held == 0:
            del self._shares[host]


async def _take(places: asyncio.Semaphore, patience_seconds: float) -> bool:
    if not places.locked():
        return await places.acquire()
    try:
        async with asyncio.timeout(patience_seconds):
            return await places.acquire()
    except TimeoutError:
        return False
