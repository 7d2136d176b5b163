"""Runs that a broker has taken, and that no worker has reported yet: their leases are made to last until one does.

A claim gives a bus run the short lease of a worker, which is right while it is being published: if this node dies then,
the run is sent again. Once the broker has it, the run waits there, and silence means nothing until a worker has begun.
Most workers begin at once, so the longer lease is written only for those runs that still wait after a while.

A worker may begin on another node's account in between. So the runs are read first: a run that has begun is left alone.
One that begins after that is given a lease that ends later than the
one that was read, and the write asks for that one: the end of a lease tells one from the other.
"""

from __future__ import annotations

from collections.abc import Sequence

from horarium.clock import SECOND, Clock, Instant, to_wall
from horarium.model import Run, RunChange, State, awaits_worker
from horarium.ports import BATCH_MAX, Store
from horarium.rules.settling import handed_over
from horarium.services.loop.service import Service, Wake

SHORT_LEASE = 10 * SECOND
"""A lease that ends sooner than this is made longer at once."""


class HandingOver(Service):
    """Makes the leases of runs longer that wait at one broker."""

    def __init__(self, name: str, store: Store, clock: Clock) -> None:
        self.name = f"handing-over-{name}"
        self.wake = Wake()
        self._store = store
        self._clock = clock
        self._waiting: list[tuple[Instant, Run]] = []

    def add(self, run: Run, now: Instant) -> None:
        """The broker has taken this run, which is as it was claimed."""
        steady = self._clock.steady()
        left = (run.lease_expires_at or steady) - steady
        hurried = left < SHORT_LEASE or (run.start_by is not None and run.start_by < now + left)
        self._waiting.append((steady if hurried else steady + left // 3, run))
        if hurried or len(self._waiting) == 1:
            self.wake()

    async def step(self, now: Instant) -> Instant | None:
        steady = self._clock.steady()
        await self._write([run for at, run in self._waiting if at <= steady], now)
        return min((to_wall(self._clock, at) for at, _ in self._waiting), default=None)

    async def flush(self, now: Instant) -> None:
        """Write all of them: this node stops. Raises StoreUnavailable."""
        await self._write([run for _, run in self._waiting], now)

    async def _write(self, runs: Sequence[Run], now: Instant) -> None:
        for start in range(0, len(runs), BATCH_MAX):
            batch = runs[start : start + BATCH_MAX]
            refused = await self._write_batch(await self._still_waiting(batch), now)
            done = {id(run) for run in batch if run.id not in refused}
            self._waiting = [(at, run) for at, run in self._waiting if id(run) not in done]

    async def _still_waiting(self, runs: Sequence[Run]) -> list[Run]:
        """Those that wait under the lease of a claim of ours, as they are stored."""
        stored = await self._store.get_runs([run.id for run in runs])
        return [
            now
            for run, now in zip(runs, stored, strict=True)
            if now is not None and now.token == run.token and awaits_worker(now) and now.started_at is not None
        ]

    async def _write_batch(self, runs: Sequence[Run], now: Instant) -> set[str]:
        """The ids of those that have changed since they were read: a worker began. They are looked at once more."""
        steady = self._clock.steady()
        by_lease: dict[Instant, list[Run]] = {}
        for run in runs:
            by_lease.setdefault(run.lease_expires_at or steady, []).append(run)
        refused: set[str] = set()
        for lease_end, alike in by_lease.items():
            changes = [RunChange(handed_over(run, now, steady), run.token, State.RUNNING, held=False) for run in alike]
            written = await self._store.settle_runs(changes, lease_end)
            refused.update(run.id for run, done in zip(alike, written, strict=True) if not done)
        return refused
