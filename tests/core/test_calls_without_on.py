"""What the end of a run costs the store where nothing follows from it: one call for a batch."""

from __future__ import annotations

import os
from collections import Counter
from typing import Any

import pytest

from horarium.model import Failed, Outcome, RunChange, State, Succeeded
from horarium.operations.facade import Operations
from horarium.rules.settling import settle
from horarium.stores.memory import MemoryStore
from horarium.stores.wakeups import LocalSignal
from horarium.testing import ManualClock
from horarium.testing.values import NOW, a_job, a_run
from horarium.wire.definitions import read_definition

RUNS = 20


class Counting(MemoryStore):
    """Counts calls, and what is written beside the ends of runs."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()
        self.beside = 0

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if not name.startswith("_") and callable(found) and name != "calls":
            self.calls[name] += 1
        return found

    async def settle_runs(self, changes: Any, now: int) -> list[bool]:
        self.beside += sum(len(change.follow_ups) + len(change.records) for change in changes)
        return await super().settle_runs(changes, now)


async def settled(on: dict[str, Any], outcome: Outcome) -> Counting:
    """A store, after a collector has had runs of a job end, all in one batch."""
    definition = {"name": "job", "trigger": {"type": "interval", "every_seconds": 60}, "on": on,
                  "target": {"type": "queue", "queue": "q"}}  # fmt: skip
    job = a_job("job", on=read_definition(definition).on)
    store = Counting()
    operations = Operations(store, ManualClock(NOW), LocalSignal(), os.urandom, lambda target: None)
    begun = {"state": State.RUNNING, "token": 1, "attempt": 1, "worker": "w", "lease_expires_at": NOW + 10**9}
    runs = [a_run(number, of=job, started_at=NOW, **begun) for number in range(RUNS)]
    await store.add_jobs([job])
    await store.add_runs(runs)
    await operations.reconciler.joining.members.look()  # as a service does every second
    store.calls.clear()
    changes = [RunChange(settle(run, None, outcome, NOW), run.token, run.state) for run in runs]
    assert all(await operations.settling.write(changes, {job.id: job}, NOW))
    return store


@pytest.mark.parametrize("outcome", [Succeeded(), Failed("no paper", retryable=False)])
async def test_ends_without_on_are_one_call(outcome: Outcome) -> None:
    store = await settled({}, outcome)
    assert (store.calls, store.beside) == ({"settle_runs": 1}, 0)


async def test_what_follows_without_looking_back_is_written_in_the_same_call() -> None:
    store = await settled({"failed": [{"notify": "ops"}]}, Failed("no paper", retryable=False))
    assert (store.calls, store.beside) == ({"settle_runs": 1}, RUNS)


async def test_what_counts_in_a_row_costs_calls() -> None:
    """Or the others would count nothing."""
    store = await settled({"failed": [{"notify": "ops", "after": 3}]}, Failed("no paper", retryable=False))
    assert store.calls["list_runs"] >= RUNS
    assert store.beside == RUNS - 2
