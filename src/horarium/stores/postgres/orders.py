"""Where a claim begins to look whether an earlier run of a job in order is unfinished.

A run of a job in order is held back by each unfinished one that fires before it. What the job's runs left in the index
by fire time stays there until it is vacuumed, which a snapshot that is held open anywhere prevents: a claim would step
over all that the job performed since. So a job in order of which much is claimed has a front, as levels have (see
`fronts`, where the hard thing is told): a fire time that is published first, so that a run which is added later and
fires before it is marked as late; once those who were writing then have ended, and nothing unfinished fires before it,
claims look from there on, and for what is late.

Unlike that of a level this front is written down where it was found clear. It stays so for as long as the job has
rows, on any server that has them, since a run never changes its job or its fire time; each node uses what any other
found; and a statement looks up just those that it needs, however many jobs there are.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from horarium.clock import Instant
from horarium.errors import StoreUnavailable
from horarium.stores.postgres.fronts import SECONDS_BETWEEN, Call, Offer
from horarium.stores.postgres.rows import OWNER_COLUMN

CLAIMED_MIN, CLAIMED_MAX = 16, 250
"""Runs of a job that are claimed before its front is moved. Each move leaves versions of the front's own row behind, so
after each a run more is waited for: then the square root of what went by is stepped over, of either kind."""
JOBS_MAX = 10_000
"""Jobs remembered."""

FIRE_COLUMN, SERIAL_COLUMN = 1, 21


class _Job:
    __slots__ = ("claimed", "moves", "reached")

    def __init__(self) -> None:
        self.claimed = self.moves = 0
        self.reached: Instant = -1


class Orders:
    """What one store claimed of jobs in order since their fronts were moved."""

    def __init__(self) -> None:
        self._jobs: dict[int, _Job] = {}
        self._ripe: dict[int, Instant] = {}
        self._offer: Offer[int] | None = None
        self._next_at = 0.0
        self._step: asyncio.Task[None] | None = None

    def claimed(self, rows: Sequence[Any]) -> None:
        """Count them."""
        for row in rows:
            if row[SERIAL_COLUMN] and (owner := row[OWNER_COLUMN]) is not None:
                self._count(owner, row[FIRE_COLUMN])

    def _count(self, owner: int, fire_at: Instant) -> None:
        job = self._jobs.get(owner)
        if job is None:
            if len(self._jobs) >= JOBS_MAX:
                self._jobs.clear()
            job = self._jobs[owner] = _Job()
        job.claimed += 1
        job.reached = max(job.reached, fire_at)
        if job.claimed >= min(CLAIMED_MIN + job.moves, CLAIMED_MAX):
            job.claimed, job.moves = 0, job.moves + 1
            self._ripe[owner] = job.reached

    def step(self, call: Call) -> None:
        """Begin the next step if it is time."""
        if (not self._ripe and self._offer is None) or time.monotonic() < self._next_at:
            return
        if self._step is None or self._step.done():
            self._next_at = time.monotonic() + SECONDS_BETWEEN
            self._step = asyncio.get_running_loop().create_task(self._advance(call))

    async def settled(self) -> None:
        """Wait until no step is under way."""
        if self._step is not None:
            await self._step

    async def _advance(self, call: Call) -> None:
        with suppress(StoreUnavailable):
            if self._offer is None or await self._cleared(call, self._offer):
                self._offer = None
                await self._publish(call)

    async def _publish(self, call: Call) -> None:
        fronts, self._ripe = self._ripe, {}
        if fronts:
            await call(lambda session: session.change("offer_order_fronts", *_columns(fronts)))
            self._offer = Offer(fronts)

    async def _cleared(self, call: Call, offer: Offer[int]) -> bool:
        """Whether those who were writing have ended, and then all was written down that is clear."""
        writing = frozenset(row[0] for row in await call(lambda session: session.rows("writers")))
        if offer.writers is None:
            offer.writers = writing
        if offer.writers & writing:
            return False
        await call(lambda session: session.change("clear_order_fronts", *_columns(offer.fronts)))
        return True


def _columns(fronts: dict[int, Instant]) -> tuple[list[int], list[Instant]]:
    owners = sorted(fronts)
    return owners, [fronts[owner] for owner in owners]
