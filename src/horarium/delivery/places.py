"""How many requests are under way, over all and to one host, so that a host that hangs cannot hold up the others.

A request whose host has no free place waits a little and then gives up: the run is put off, its slot goes to another.
Those that wait for a host's place take no place of the others. Places go to those that wait, in the order they came.
"""

from __future__ import annotations

import asyncio
from collections import deque


class _Places:
    """Places for `free` requests, and those that wait for one."""

    __slots__ = ("free", "held", "waiting")

    def __init__(self, free: int) -> None:
        self.free = free
        self.held = 0
        """By requests that have a place, or wait for one."""
        self.waiting: deque[asyncio.Future[None]] = deque()

    def take(self) -> bool:
        """Take a place, if one is free (then no caller waits)."""
        if self.free <= 0:
            return False
        self.free -= 1
        return True

    def give(self) -> None:
        """Give a place back: to the first that waits, if any does."""
        while self.waiting:
            first = self.waiting.popleft()
            if not first.done():
                first.set_result(None)
                return
        self.free += 1

    async def wait(self, patience_seconds: float) -> bool:
        """Wait for a place. False: none became free in time."""
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.waiting.append(place)
        try:
            async with asyncio.timeout(patience_seconds):
                await place
        except TimeoutError:
            if place.done() and not place.cancelled():
                self.give()
            return False
        except asyncio.CancelledError:
            if place.done() and not place.cancelled():
                self.give()
            raise
        return True


class HostPlaces:
    """`total` places, of which at most `per_host` go to one host."""

    def __init__(self, *, total: int, per_host: int) -> None:
        self._total = _Places(total)
        self._per_host = per_host
        self._shares: dict[str, _Places] = {}

    def take_free(self, host: str) -> bool:
        """Take a place for the host, if that needs no waiting; the caller that got one gives it back."""
        share = self._shares.get(host)
        if share is None:
            if not self._total.take():
                return False
            share = self._shares[host] = _Places(self._per_host)
            share.free -= 1
        elif not share.take():
            return False
        elif not self._total.take():
            share.give()
            return False
        share.held += 1
        return True

    async def take(self, host: str, patience_seconds: float) -> bool:
        """Take a place for the host, or wait for it; the caller that got one gives it back. False: none became free in
        time."""
        if self.take_free(host):
            return True
        share = self._shares.get(host)
        if share is None:
            share = self._shares[host] = _Places(self._per_host)
        share.held += 1
        taken = False
        try:
            taken = await self._waited(share, patience_seconds)
        finally:
            if not taken:
                self._leave(host, share)
        return taken

    def give(self, host: str) -> None:
        """Give back a place that was taken."""
        share = self._shares[host]
        self._total.give()
        share.give()
        self._leave(host, share)

    async def _waited(self, share: _Places, patience_seconds: float) -> bool:
        if not share.take() and not await share.wait(patience_seconds):
            return False
        acquired = False
        try:
            acquired = self._total.take() or await self._total.wait(patience_seconds)
        finally:
            if not acquired:
                share.give()
        return acquired

    def _leave(self, host: str, share: _Places) -> None:
        share.held -= 1
        if share.held == 0:
            del self._shares[host]
