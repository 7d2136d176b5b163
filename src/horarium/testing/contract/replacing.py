"""Waiting runs that are replaced: another payload, time or priority under the same id, or nothing at all."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from horarium.clock import SECOND
from horarium.model import Run, RunChange, State
from horarium.model.records import Record
from horarium.ports import Store
from horarium.testing.contract.base import StoreUnderTest, run_of, take, take_one
from horarium.testing.values import NOW, a_job, a_run

RACES = 20


def in_place(run: Run, **changes: object) -> RunChange:
    """The run with these changes, in place of what was read."""
    return RunChange(replace(run, **changes), run.token, State.PENDING, replaces=True)


class ReplacingContract(StoreUnderTest):
    async def test_a_waiting_run_is_replaced(self, store: Store) -> None:
        run = a_run(1, unique_key="k", payload=b"1", concurrency_key="c", concurrency_max=1)
        other = a_run(2, payload=b"9")
        await store.add_runs([run, other])
        changed = in_place(run, payload=b"2" * 3000, priority=5, due_at=NOW + SECOND, start_by=NOW + 9 * SECOND)
        told = Record(name="told/1", body=b"x")
        assert await store.settle_runs([replace(changed, records=(told,))], NOW) == [True]
        assert await run_of(store, run) == changed.run == await store.get_run_by_key("k")
        assert await store.get_records(["told/1"]) == [told]
        early = await take(store, limit=5)
        assert ([each.id for each in early.runs], early.next_due_at) == ([other.id], NOW + SECOND)
        (claimed,) = (await take(store, now=NOW + SECOND)).runs
        assert (claimed.id, claimed.payload, claimed.priority) == (run.id, changed.run.payload, 5)

    async def test_it_holds_its_unique_key_and_its_fire_time_still(self, store: Store) -> None:
        job = a_job()
        run, other = a_run(1, of=job, unique_key="k"), a_run(1, of=job, id=a_run(9).id)
        await store.add_runs([run])
        assert await store.settle_runs([in_place(run, payload=b"2")], NOW) == [True]
        assert await store.add_runs([other, a_run(2, unique_key="k")]) == [False, False]

    @pytest.mark.parametrize("moved", ["claimed", "token", "gone"])
    async def test_one_that_has_moved_on_stays(self, store: Store, moved: str) -> None:
        run, told = a_run(1, payload=b"1"), Record(name="told/1", body=b"x")
        change = replace(in_place(run, payload=b"2"), records=(told,))
        if moved == "claimed":
            await take_one(store, run)
        elif moved == "token":
            await store.add_runs([run])
            change = replace(change, token=1)
        before = await store.get_runs([run.id])
        assert await store.settle_runs([change], NOW) == [False]
        assert (await store.get_runs([run.id]), await store.get_records(["told/1"])) == (before, [None])

    async def test_each_of_many_is_judged_by_itself(self, store: Store) -> None:
        runs = [a_run(number, payload=b"1") for number in range(3)]
        await store.add_runs(runs[:2])
        answers = await store.settle_runs([in_place(run, payload=b"2") for run in [*runs, runs[0]]], NOW)
        assert answers == [True, True, False, True]

    async def test_a_claim_that_races_a_replacement_gets_one_of_both(self, store: Store) -> None:
        for number in range(RACES):
            run = a_run(number, payload=b"old")
            await store.add_runs([run])
            claimed, replaced = await asyncio.gather(
                take(store), store.settle_runs([in_place(run, payload=b"new")], NOW)
            )
            again = await take(store)
            (only,) = claimed.runs + again.runs
            assert (only.id, only.payload) == (run.id, b"new" if replaced[0] else b"old")
