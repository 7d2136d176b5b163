"""What the end of a run costs the store where nothing follows from it: the same calls as if nothing could."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from functools import partial
from typing import Any

import pytest

from horarium import RunContext, Scheduler, every
from horarium.model import Job, RunChange
from horarium.operations.following import Following
from horarium.stores.memory import MemoryStore
from tests.waiting import until

OF_A_RUN = ("add_runs", "get_runs", "list_runs", "get_jobs_by_id", "get_records", "put_records", "settle_runs")
"""Calls that a run might make; claims, plans and signs of life come and go with time."""
RUNS = 20


class Counting(MemoryStore):
    """Counts calls."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()
        self.follow_ups = 0

    def __getattribute__(self, name: str) -> Any:
        if name in OF_A_RUN:
            self.calls[name] += 1
        return super().__getattribute__(name)

    async def settle_runs(self, changes: Any, now: int) -> list[bool]:
        self.follow_ups += sum(len(change.follow_ups) + len(change.records) for change in changes)
        return await super().settle_runs(changes, now)


def is_over(store: Counting, run_id: str) -> bool:
    return store._space.runs[run_id].finished


async def calls_of_runs(on: Mapping[str, Any], fails: bool) -> tuple[Counter[str], int]:
    """The calls that runs make, one after the other, and what was written beside their ends."""
    store = Counting()
    scheduler = Scheduler(store)
    done = 0

    @scheduler.handler()
    async def work(run: RunContext) -> None:
        nonlocal done
        done += 1
        if fails:
            raise RuntimeError("no paper")

    async with scheduler:
        await scheduler.add_job("job", every("1000h"), handler="work", on=on, retry={"attempts_max": 1})
        await scheduler.start()
        before, totals = Counter[str](), Counter[str]()
        for number in range(RUNS):
            run = await scheduler.trigger_job("job")
            before = Counter(store.calls)

            await until(partial(is_over, store, run.id))
            await asyncio.sleep(0)
            totals += Counter(store.calls) - before
            assert done == number + 1
    return totals, store.follow_ups


@pytest.mark.parametrize("fails", [False, True])
async def test_the_end_of_a_run_without_on_is_one_call(fails: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    calls, beside = await calls_of_runs({}, fails)
    assert calls == {"settle_runs": RUNS}
    assert beside == 0

    async def as_they_are(
        self: Following, changes: Mapping[int, RunChange], jobs: Mapping[str, Job], now: int
    ) -> dict[int, RunChange]:
        return dict(changes)

    monkeypatch.setattr(Following, "ready", as_they_are)
    assert (await calls_of_runs({}, fails))[0] == calls, "as many as if nothing could follow"


async def test_what_follows_costs_calls_where_it_is_asked_for() -> None:
    """Or the other test would count nothing."""
    calls, beside = await calls_of_runs({"failed": [{"notify": "ops", "after": 3}]}, True)
    assert calls["settle_runs"] >= RUNS
    assert calls["list_runs"] > RUNS // 2
    assert beside == RUNS - 2
