"""A store whose answers get lost: any store, wrapped, so that chosen calls raise StoreUnavailable.

A call fails either before it reached the store or after the store had carried it out; the caller can't tell which, as
with a real network. Chance is passed in, so that a seed gives the same faults again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from random import Random
from typing import ParamSpec, TypeVar

from horarium.clock import Instant
from horarium.errors import StoreUnavailable
from horarium.model import Health, Job, Level, Node, Plan, Run, RunChange, Whole
from horarium.model.records import Record, RecordChange, RecordFilter
from horarium.ports import NOTHING_ALONG, Along, Beat, Claimed, JobFilter, Page, Pulse, RunFilter, Stats, Store

P = ParamSpec("P")
T = TypeVar("T")


class Fault(StrEnum):
    """When a call fails: before anything happened, or after all of it did."""

    BEFORE = "before"
    AFTER = "after"


FaultPlan = Callable[[str], Fault | None]
"""Asked once for each call, with the method's name."""


def by_chance(random: Random, rate: float, calls: Iterable[str] | None = None) -> FaultPlan:
    """Let a share `rate` of the calls fail (of these methods; None: of all), before or after with equal chance."""
    chosen = None if calls is None else frozenset(calls)

    def plan(call: str) -> Fault | None:
        if chosen is not None and call not in chosen:
            return None
        if random.random() >= rate:
            return None
        return random.choice((Fault.BEFORE, Fault.AFTER))

    return plan


def by_script(*script: tuple[str, Fault]) -> FaultPlan:
    """Let calls fail in this order: each entry waits for the next call of its method, and is used up by it."""
    left = list(script)

    def plan(call: str) -> Fault | None:
        if left and left[0][0] == call:
            return left.pop(0)[1]
        return None

    return plan


class FaultyStore:
    """`store` as seen over a connection that fails as `plan` says. `faults` counts the calls that failed. `open` and
    `close` never fail."""

    def __init__(self, store: Store, plan: FaultPlan) -> None:
        self.store = store
        self.plan = plan
        self.faults = 0

    async def _through(self, call: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        name = getattr(call, "__name__", str(call))
        fault = self.plan(name)
        if fault is Fault.BEFORE:
            raise self._lost(name, fault)
        answer = await call(*args, **kwargs)
        if fault is Fault.AFTER:
            raise self._lost(name, fault)
        return answer

    def _lost(self, name: str, fault: Fault) -> StoreUnavailable:
        self.faults += 1
        return StoreUnavailable(f"injected fault: {name} failed {fault} it was carried out; call again")

    async def open(self) -> None:
        await self.store.open()

    async def close(self) -> None:
        await self.store.close()

    async def check(self) -> None:
        await self._through(self.store.check)

    async def add_jobs(self, jobs: Sequence[Job], along: Along = NOTHING_ALONG) -> list[bool]:
        return await self._through(self.store.add_jobs, jobs, along)

    async def get_jobs(self, names: Sequence[str]) -> list[Job | None]:
        return await self._through(self.store.get_jobs, names)

    async def get_jobs_by_id(self, ids: Sequence[str]) -> list[Job | None]:
        return await self._through(self.store.get_jobs_by_id, ids)

    async def list_jobs(self, where: JobFilter, after: str | None, limit: int) -> Page[Job]:
        return await self._through(self.store.list_jobs, where, after, limit)

    async def job_health(self, job_ids: Sequence[str]) -> dict[str, Health]:
        return await self._through(self.store.job_health, job_ids)

    async def failing_jobs(self, limit: int) -> dict[str, Health]:
        return await self._through(self.store.failing_jobs, limit)

    async def add_health(self, health: Mapping[str, Health]) -> None:
        return await self._through(self.store.add_health, health)

    async def due_jobs(
        self, until: Instant, limit: int, after: Instant | None = None
    ) -> tuple[list[Job], Instant | None]:
        if after is None:
            return await self._through(self.store.due_jobs, until, limit)
        return await self._through(self.store.due_jobs, until, limit, after)

    async def jobs_ahead(self, until: Instant, after: str | None, limit: int) -> Page[Job]:
        return await self._through(self.store.jobs_ahead, until, after, limit)

    async def jobs_trimmed(self, after: str | None, limit: int) -> Page[Job]:
        return await self._through(self.store.jobs_trimmed, after, limit)

    async def commit_plans(self, plans: Sequence[Plan], steady: Instant) -> list[bool]:
        return await self._through(self.store.commit_plans, plans, steady)

    async def write_whole(self, whole: Whole, steady: Instant) -> bool:
        return await self._through(self.store.write_whole, whole, steady)

    async def add_runs(self, runs: Sequence[Run], along: Along = NOTHING_ALONG) -> list[bool]:
        return await self._through(self.store.add_runs, runs, along)

    async def get_runs(self, ids: Sequence[str]) -> list[Run | None]:
        return await self._through(self.store.get_runs, ids)

    async def get_run_by_key(self, unique_key: str) -> Run | None:
        return await self._through(self.store.get_run_by_key, unique_key)

    async def unfinished_runs(self, job_ids: Sequence[str]) -> dict[str, list[Run]]:
        return await self._through(self.store.unfinished_runs, job_ids)

    async def list_runs(self, where: RunFilter, after: str | None, limit: int) -> Page[Run]:
        return await self._through(self.store.list_runs, where, after, limit)

    async def last_runs(self, jobs: Sequence[str], since: Instant, until: Instant, limit: int) -> dict[str, list[Run]]:
        return await self._through(self.store.last_runs, jobs, since, until, limit)

    async def claim_runs(
        self, queues: Sequence[str], limit: int, worker: str, now: Instant, until: Instant, steady: Instant
    ) -> Claimed:
        return await self._through(self.store.claim_runs, queues, limit, worker, now, until, steady)

    async def first_due(self, levels: Sequence[Level]) -> list[Instant | None]:
        return await self._through(self.store.first_due, levels)

    async def settle_runs(self, changes: Sequence[RunChange], steady: Instant) -> list[bool]:
        return await self._through(self.store.settle_runs, changes, steady)

    async def heartbeat_runs(self, beats: Sequence[Beat], steady: Instant) -> list[Pulse | None]:
        return await self._through(self.store.heartbeat_runs, beats, steady)

    async def overdue_runs(self, now: Instant, limit: int, steady: Instant) -> tuple[list[Run], Instant | None]:
        return await self._through(self.store.overdue_runs, now, limit, steady)

    async def prune_runs(self, now: Instant, limit: int) -> int:
        return await self._through(self.store.prune_runs, now, limit)

    async def trim_runs(self, job_id: str, keep: int, limit: int) -> int:
        return await self._through(self.store.trim_runs, job_id, keep, limit)

    async def get_records(self, names: Sequence[str]) -> list[Record | None]:
        return await self._through(self.store.get_records, names)

    async def list_records(self, where: RecordFilter, after: str | None, limit: int) -> Page[Record]:
        return await self._through(self.store.list_records, where, after, limit)

    async def put_records(self, changes: Sequence[RecordChange]) -> list[bool]:
        return await self._through(self.store.put_records, changes)

    async def prune_records(self, prefix: str, until: str, limit: int) -> int:
        return await self._through(self.store.prune_records, prefix, until, limit)

    async def beat_node(self, node: Node) -> None:
        await self._through(self.store.beat_node, node)

    async def list_nodes(self, since: Instant) -> list[Node]:
        return await self._through(self.store.list_nodes, since)

    async def stats(self, now: Instant) -> Stats:
        return await self._through(self.store.stats, now)
