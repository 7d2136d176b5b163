"""A run by hand reads no more of its job's unfinished runs than the overlap policy counts."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from horarium.model import Job, Run, State
from horarium.operations.facade import Operations
from horarium.policies import Overlap
from horarium.ports import Page, RunFilter
from horarium.stores.memory import MemoryStore
from horarium.stores.wakeups import LocalSignal
from horarium.testing import ManualClock
from horarium.testing.values import NOW, a_job, a_run

WAITING = 300


class Counting(MemoryStore):
    """Counts the unfinished runs that it hands out."""

    read = 0

    async def unfinished_runs(self, job_ids: Sequence[str]) -> dict[str, list[Run]]:
        found = await super().unfinished_runs(job_ids)
        self.read += sum(map(len, found.values()))
        return found

    async def list_runs(self, where: RunFilter, after: str | None, limit: int) -> Page[Run]:
        page = await super().list_runs(where, after, limit)
        self.read += len(page.items)
        return page


async def a_store(waiting: int, **changes: Any) -> tuple[Counting, Job]:
    store, job = Counting(), replace(a_job("job", next_fire_at=None, planned_until=NOW), **changes)
    await store.add_jobs([job])
    await store.add_runs([a_run(number, of=job) for number in range(waiting)])
    return store, job


def operations_on(store: MemoryStore) -> Operations:
    return Operations(store, ManualClock(NOW), LocalSignal(), os.urandom, lambda target: None)


@pytest.mark.parametrize(
    ("policy", "waiting", "read", "state"),
    [
        ({"overlap": Overlap.SKIP}, WAITING, 1, State.SKIPPED),
        ({"overlap": Overlap.SKIP}, 0, 0, State.PENDING),
        ({"overlap": Overlap.BUFFER_ONE}, 1, 1, State.PENDING),
        ({"overlap": Overlap.BUFFER_ONE}, WAITING, 2, State.SKIPPED),
        ({"overlap": Overlap.BUFFER_ALL}, WAITING, WAITING, State.PENDING),
        ({"overlap": Overlap.BUFFER_ALL}, 2_000, 1_000, State.SKIPPED),
        ({"buffer_max": 5}, 4, 4, State.PENDING),
        ({"buffer_max": 5}, WAITING, 5, State.SKIPPED),
    ],
)
async def test_a_trigger_reads_what_its_policy_counts(
    policy: dict[str, Any], waiting: int, read: int, state: State
) -> None:
    store, _ = await a_store(waiting, **policy)
    run = await operations_on(store).jobs.trigger_job("job")
    assert (run.state, store.read) == (state, read)
