"""Memory stores with a wrong idea of when a lease is lost, or a claim was made."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from horarium.clock import Instant
from horarium.model import Level, Run, RunChange, State
from horarium.ports import Beat, Claimed, Pulse
from horarium.stores.memory import MemoryStore


class EndsWithTheLease(MemoryStore):
    def _heartbeat(self, beat: Beat, now: Instant) -> Pulse | None:
        run = self._space.runs.get(beat.run_id)
        ended = run is not None and run.lease_expires_at is not None and run.lease_expires_at <= now
        return None if ended else super()._heartbeat(beat, now)


class BeatsForTheDead(MemoryStore):
    def _heartbeat(self, beat: Beat, now: Instant) -> Pulse | None:
        run = self._space.runs.get(beat.run_id)
        if run is not None and run.state is State.PENDING and run.token == beat.token:
            self._space.put_run(replace(run, state=State.RUNNING, lease_expires_at=now + 1))
        return super()._heartbeat(beat, now)


class ClaimsByTheWallClock(MemoryStore):
    async def claim_runs(
        self, queues: Sequence[str], limit: int, worker: str, now: Instant, until: Instant, steady: Instant
    ) -> Claimed:
        return await super().claim_runs(queues, limit, worker, now, until, now)


class LooksForLeasesByTheWallClock(MemoryStore):
    async def overdue_runs(self, now: Instant, limit: int, steady: Instant) -> tuple[list[Run], Instant | None]:
        return await super().overdue_runs(now, limit, now)


class BeatsWithoutLimit(MemoryStore):
    def _heartbeat(self, beat: Beat, now: Instant) -> Pulse | None:
        run = self._space.runs.get(beat.run_id)
        if run is not None:
            self._space.put_run(replace(run, deadline=None))
        return super()._heartbeat(beat, now)


class IgnoresTheLease(MemoryStore):
    async def settle_runs(self, changes: Sequence[RunChange], now: Instant) -> list[bool]:
        return await super().settle_runs([replace(change, held=None) for change in changes], now)


class HoldsALeaseTooLong(MemoryStore):
    async def settle_runs(self, changes: Sequence[RunChange], now: Instant) -> list[bool]:
        return await super().settle_runs(changes, now - 1)


class ReplacesWhatRuns(MemoryStore):
    async def settle_runs(self, changes: Sequence[RunChange], now: Instant) -> list[bool]:
        stored = self._space.runs
        as_found = [
            replace(each, state=stored[each.run.id].state, token=stored[each.run.id].token)
            if each.replaces and each.run.id in stored
            else each
            for each in changes
        ]
        return await super().settle_runs(as_found, now)


class RescuesTooLate(MemoryStore):
    async def overdue_runs(self, now: Instant, limit: int, steady: Instant) -> tuple[list[Run], Instant | None]:
        return await super().overdue_runs(now - 1, limit, steady)


class KnowsNoPriorityOfWhatIsFirst(MemoryStore):
    async def first_due(self, levels: Sequence[Level]) -> list[Instant | None]:
        return await super().first_due([(queue, 0, gated) for queue, _, gated in levels])
