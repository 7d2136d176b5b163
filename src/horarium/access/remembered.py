"""A cache of the store's answers about credentials, by their digests."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from horarium.clock import Clock

T = TypeVar("T")

REMEMBERED_SECONDS = 4.0
"""A credential that was ended works on another node for at most this long."""
REMEMBERED_MAX = 2_000


class Remembered(Generic[T]):
    """Answers of the store for a few seconds. One that was read while any was forgotten is not kept: it may be that."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._kept: OrderedDict[str, tuple[float, T]] = OrderedDict()
        self._forgotten = 0

    async def find(self, digest: str, read: Callable[[str], Awaitable[T]]) -> T:
        """The answer about this digest, remembered or read now."""
        elapsed, forgotten = self._clock.monotonic(), self._forgotten
        known = self._kept.get(digest)
        if known is not None and elapsed - known[0] < REMEMBERED_SECONDS:
            return known[1]
        found = await read(digest)
        if forgotten == self._forgotten:
            self.keep(digest, found, elapsed)
        return found

    def keep(self, digest: str, found: T, elapsed: float) -> None:
        """This was so at that reading of the monotonic clock."""
        self._kept[digest] = elapsed, found
        self._kept.move_to_end(digest)
        if len(self._kept) > REMEMBERED_MAX:
            self._kept.popitem(last=False)

    def forget(self, digest: str) -> None:
        """It has changed."""
        self._forgotten += 1
        self._kept.pop(digest, None)
