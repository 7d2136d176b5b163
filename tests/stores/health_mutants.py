"""Stores that count the health of jobs wrongly."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from horarium.clock import Instant
from horarium.model import NO_HEALTH, Plan, RunChange
from horarium.model.health import health_after, merged
from horarium.stores.memory import MemoryStore


class CountsWhatWasRefused(MemoryStore):
    async def settle_runs(self, changes: Sequence[RunChange], now: Instant) -> list[bool]:
        written = await super().settle_runs(changes, now)
        lost = [change for change, did in zip(changes, written, strict=True) if not did]
        for job_id, health in health_after(lost).items():
            self._space.health[job_id] = merged(self._space.health.get(job_id, NO_HEALTH), health)
        return written


class CountsOneOfABatch(MemoryStore):
    async def settle_runs(self, changes: Sequence[RunChange], now: Instant) -> list[bool]:
        before = dict(self._space.health)
        written = await super().settle_runs(changes, now)
        for job_id, health in self._space.health.items():
            old = before.get(job_id, NO_HEALTH).failures_in_a_row
            one = min(health.failures_in_a_row, old + 1)
            self._space.health[job_id] = replace(health, failures_in_a_row=one)
        return written


class NeverRecovers(MemoryStore):
    async def settle_runs(self, changes: Sequence[RunChange], now: Instant) -> list[bool]:
        before = dict(self._space.health)
        written = await super().settle_runs(changes, now)
        for job_id, health in self._space.health.items():
            if health.failures_in_a_row == 0 and (old := before.get(job_id, NO_HEALTH)).failures_in_a_row:
                kept = replace(health, failures_in_a_row=old.failures_in_a_row, failing_since=old.failing_since)
                self._space.health[job_id] = kept
        return written


class CountsInTheVersion(MemoryStore):
    async def settle_runs(self, changes: Sequence[RunChange], now: Instant) -> list[bool]:
        written = await super().settle_runs(changes, now)
        for job_id in health_after(changes):
            if (job := self._space.jobs.get(job_id)) is not None:
                self._space.put_job(replace(job, version=job.version + 1))
        return written


class ForgetsWhatPlansEnd(MemoryStore):
    async def commit_plans(self, plans: Sequence[Plan], now: Instant) -> list[bool]:
        before = dict(self._space.health)
        won = await super().commit_plans(plans, now)
        self._space.health = before
        return won


class KeepsHealthForGood(MemoryStore):
    async def prune_runs(self, now: Instant, limit: int) -> int:
        before = dict(self._space.health)
        pruned = await super().prune_runs(now, limit)
        self._space.health = before
        return pruned
