"""Low-water marks: where a claim begins to look, so that it need not step over earlier claims.

A claimed run leaves an entry in the index until it is vacuumed, and a snapshot that is held open anywhere (a dump, a
report) prevents that: at a thousand runs a second a claim would soon step over a hundred thousand dead entries. So each
store remembers, of each level that it claims much from, an instant before which nothing waits: the level's front.

A run may be written before a front, later or at the same time. So a front is first published (table `fronts`): from
then on a writer marks what is due before it as late, and claims look for such runs apart. Then those who were writing
at that time must end. Only then it is looked whether anything waits before it; if not, claims begin there. Each of
these steps is taken once some hundred runs were claimed since the last one, so that they cost little beside the claims,
and nothing while little is claimed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from msgspec import Struct

from horarium.clock import Instant
from horarium.errors import StoreUnavailable
from horarium.stores.postgres.rows import QUEUE_COLUMN

if TYPE_CHECKING:
    from horarium.stores.postgres.session import Session

CLAIMED_BETWEEN = 500
"""Runs that are claimed between two steps."""
SECONDS_BETWEEN = 0.05
KNOWN_SECONDS = 60.0
"""After that long all is looked at again. Behind a pooler the server may be another one, and hold as waiting a run that
was claimed on the first, while no connection of ours is new."""
LOOKED_AT = 50
"""Rows of a claim that are asked how far it came, about."""
LEVELS_MAX = 1_000
"""Levels remembered."""

DUE_COLUMN, PRIORITY_COLUMN = 0, 16

Level = tuple[int, int]
"""A queue's number and a priority."""

Call = Callable[[Callable[["Session"], Awaitable[Any]]], Awaitable[Any]]
"""Does something with a session, in a transaction of its own."""


Place = TypeVar("Place")


class Offer(Struct, Generic[Place]):
    """Fronts that were published, and who may have been writing without knowing of them; None: not asked yet."""

    fronts: dict[Place, Instant]
    writers: frozenset[str] | None = None


class Fronts:
    """What one store knows of them, while its connections live."""

    def __init__(self) -> None:
        self._known: dict[Level, Instant] = {}
        self._offer: Offer[Level] | None = None
        self._claimed = 0
        self._next_at = 0.0
        self._connections = 0
        self._known_until = 0.0
        self._step: asyncio.Task[None] | None = None

    def remember(self, connections: int) -> None:
        """`connections`: how many the store has opened. Behind a new one there may be another server, which was behind
        the first when that went away: its state is not known here."""
        now = time.monotonic()
        if connections != self._connections or now >= self._known_until:
            self._known.clear()
            self._offer, self._connections, self._known_until = None, connections, now + KNOWN_SECONDS

    def of(self, queues: Collection[str], names: dict[int, str]) -> tuple[list[int], list[int], list[Instant]] | None:
        """The marks of these queues, as the statement is given them; None: nothing."""
        if not self._known:
            return None
        found = [(*level, front) for level, front in self._known.items() if names.get(level[0], "") in queues]
        if not found:
            return None
        numbers, priorities, instants = zip(*found, strict=True)
        return list(numbers), list(priorities), list(instants)

    def claimed(self, rows: Sequence[Any], now: Instant, call: Call) -> None:
        """Count them, and take the next step if it is time."""
        self._claimed += len(rows)
        if self._claimed < CLAIMED_BETWEEN or time.monotonic() < self._next_at:
            return
        if self._step is None or self._step.done():
            self._claimed, self._next_at = 0, time.monotonic() + SECONDS_BETWEEN
            self._step = asyncio.get_running_loop().create_task(self._advance(call, _reached(rows, now)))

    async def settled(self) -> None:
        """Wait until no step is under way."""
        if self._step is not None:
            await self._step

    async def _advance(self, call: Call, reached: dict[Level, Instant]) -> None:
        with suppress(StoreUnavailable):
            if self._offer is None:
                await self._publish(call, reached)
            else:
                await self._look(call, self._offer, reached)

    async def _publish(self, call: Call, reached: dict[Level, Instant]) -> None:
        fronts = {level: at for level, at in reached.items() if at > self._known.get(level, at - 1)}
        if fronts:
            await call(lambda session: session.change("offer_fronts", *_columns(fronts)))
            self._offer = Offer(fronts)

    async def _look(self, call: Call, offer: Offer[Level], reached: dict[Level, Instant]) -> None:
        """Whether those who were writing have ended, and then whether anything waits."""
        writing = frozenset(row[0] for row in await call(lambda session: session.rows("writers")))
        if offer.writers is None:
            offer.writers = writing
            return
        if offer.writers & writing or self._offer is not offer:
            return
        numbers, priorities, until = _columns(offer.fronts)
        since = [self._known.get(level, -1) for level in offer.fronts]
        rows = await call(lambda session: session.rows("fronts_clear", numbers, priorities, since, until))
        if self._offer is offer:
            if len(self._known) > LEVELS_MAX:
                self._known.clear()
            self._known.update((level, offer.fronts[level]) for level in map(tuple, rows))
            self._offer = None
            await self._publish(call, reached)


def _reached(rows: Sequence[Any], now: Instant) -> dict[Level, Instant]:
    """How far a claim came in each level: as some of its rows say, since any front will do that is further on."""
    furthest: dict[Level, Instant] = {}
    for row in rows[:: max(1, len(rows) // LOOKED_AT)]:
        level, due_at = (row[QUEUE_COLUMN], row[PRIORITY_COLUMN]), min(row[DUE_COLUMN], now)
        furthest[level] = max(due_at, furthest.get(level, due_at))
    return furthest


def _columns(fronts: dict[Level, Instant]) -> tuple[list[int], list[int], list[Instant]]:
    levels = list(fronts)
    return [queue for queue, _ in levels], [priority for _, priority in levels], list(fronts.values())
