"""Follow-ups: runs that a change of a run brings along, written with it or not at all, and never twice."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest
from msgspec.structs import replace

from horarium.errors import StoreUnavailable
from horarium.model import Plan, Run, RunChange, State
from horarium.model.records import Record
from horarium.ports import RunFilter, Store
from horarium.testing.contract.atomicity import BATCH, cut_off, insist
from horarium.testing.contract.base import Stores, StoreUnderTest, ids, run_of, take, take_one
from horarium.testing.faults import Fault, FaultyStore, by_script
from horarium.testing.values import NOW, a_change, a_job, a_run, completed

FOLLOWING = 500


def a_follow_up(of: Run, number: int = 0, action: str = "notify") -> Run:
    """What follows from the end of this run."""
    return a_run(FOLLOWING + number, queue="notify", unique_key=f"{of.id}/completed/{action}", payload=b"{}")


def ended(run: Run, *follow_ups: Run, held: bool | None = None) -> RunChange:
    """The change that completes a run, with what follows from it."""
    return replace(completed(run, held=held), follow_ups=follow_ups)


async def following(store: Store) -> list[str]:
    """The ids of all follow-ups, the oldest first."""
    return ids((await store.list_runs(RunFilter(queue="notify"), None, 200)).items)[::-1]


class FollowingContract(StoreUnderTest):
    async def test_an_end_and_what_follows_are_written_together(self, store: Store) -> None:
        claimed = await take_one(store, a_run(1))
        follow_up = a_follow_up(claimed)
        assert await store.settle_runs([ended(claimed, follow_up)], NOW) == [True]
        assert (await run_of(store, claimed)).state is State.COMPLETED
        assert await run_of(store, follow_up) == follow_up
        assert ids((await take(store, queues=["notify"])).runs) == [follow_up.id]

    async def test_a_change_that_is_refused_writes_no_follow_up(self, store: Store) -> None:
        claimed, pending = await take_one(store, a_run(1)), a_run(2)
        await store.add_runs([pending])
        refused = [
            replace(ended(claimed, a_follow_up(claimed, 1)), token=claimed.token + 1),
            replace(ended(claimed, a_follow_up(claimed, 2)), state=State.CANCELLING),
            ended(claimed, a_follow_up(claimed, 3), held=False),
            ended(pending, a_follow_up(pending, 4), held=True),
            ended(a_run(3), a_follow_up(a_run(3), 5)),
        ]
        for change in refused:
            assert await store.settle_runs([change], NOW) == [False]
        assert await store.settle_runs(refused, NOW) == [False] * len(refused)
        assert await following(store) == []

    async def test_an_end_that_is_told_twice_is_followed_once(self, store: Store) -> None:
        claimed = await take_one(store, a_run(1))
        first, second = a_follow_up(claimed, 1), a_follow_up(claimed, 2)
        assert await store.settle_runs([ended(claimed, first), ended(claimed, second)], NOW) == [True, False]
        assert await store.settle_runs([ended(claimed, second)], NOW) == [False]
        assert await following(store) == [first.id]

    async def test_a_follow_up_whose_key_is_held_is_left_out_and_the_change_is_made(self, store: Store) -> None:
        claimed = await take_one(store, a_run(1))
        held, free = a_follow_up(claimed, 1), a_follow_up(claimed, 2, "trigger")
        await store.add_runs([held])
        assert await store.settle_runs([ended(claimed, a_follow_up(claimed, 3), free)], NOW) == [True]
        assert await following(store) == [held.id, free.id]

    async def test_two_changes_of_a_batch_may_owe_the_same(self, store: Store) -> None:
        """A recovery that each of two runs would tell: written once, and with the second if the first is refused."""
        await store.add_runs([a_run(n) for n in range(4)])
        claimed = sorted((await take(store)).runs, key=lambda run: run.id)
        first, second = a_follow_up(claimed[0], 1), a_follow_up(claimed[0], 2)
        assert await store.settle_runs([ended(claimed[0], first), ended(claimed[1], second)], NOW) == [True, True]
        assert await following(store) == [first.id]
        third, fourth = a_follow_up(claimed[2], 3), a_follow_up(claimed[2], 4)
        refused = replace(ended(claimed[2], third), token=claimed[2].token + 1)
        assert await store.settle_runs([refused, ended(claimed[3], fourth)], NOW) == [False, True]
        assert await following(store) == [first.id, fourth.id]

    async def test_each_change_of_a_batch_brings_its_own(self, store: Store) -> None:
        runs = [a_run(n) for n in range(BATCH)]
        await store.add_runs(runs)
        claimed = (await take(store)).runs
        changes = [
            ended(run, a_follow_up(run, 2 * n), a_follow_up(run, 2 * n + 1, "trigger"))
            if n % 3
            else replace(ended(run, a_follow_up(run, 2 * n)), token=9)
            for n, run in enumerate(claimed)
        ]
        assert await store.settle_runs(changes, NOW) == [bool(n % 3) for n in range(BATCH)]
        owed = [run.id for n, change in enumerate(changes) if n % 3 for run in change.follow_ups]
        assert await following(store) == owed

    async def test_a_later_change_of_a_batch_may_be_of_what_followed(self, store: Store) -> None:
        claimed = await take_one(store, a_run(1))
        follow_up = a_follow_up(claimed)
        cancelled = a_change(follow_up, state=State.CANCELLED, finished_at=NOW)
        assert await store.settle_runs([ended(claimed, follow_up), cancelled], NOW) == [True, True]
        assert (await run_of(store, follow_up)).state is State.CANCELLED

    async def test_a_follow_up_may_be_a_run_of_another_job(self, store: Store) -> None:
        first, second = a_job("first"), a_job("second")
        await store.add_jobs([first, second])
        claimed = await take_one(store, a_run(1, of=first))
        follow_up = replace(a_run(2, of=second), unique_key="followed", payload=b"1")
        assert await store.settle_runs([ended(claimed, follow_up)], NOW) == [True]
        assert await store.unfinished_runs([second.id]) == {second.id: [follow_up]}
        assert await store.get_run_by_key("followed") == follow_up

    async def test_changes_of_a_plan_bring_along_what_follows(self, store: Store) -> None:
        job = a_job()
        await store.add_jobs([job])
        runs = [a_run(n, of=job) for n in range(2)]
        await store.add_runs(runs)
        cancelled = [
            replace(a_change(run, state=State.CANCELLED, finished_at=NOW), follow_ups=(a_follow_up(run, n),))
            for n, run in enumerate(runs)
        ]
        moved_on = replace(cancelled[1], token=9, follow_ups=(a_follow_up(runs[1], 8),))
        plan = Plan(job, changes=(cancelled[0], moved_on))
        assert await store.commit_plans([plan, replace(plan, changes=(cancelled[1],))], NOW) == [True, False]
        assert await following(store) == [a_follow_up(runs[0]).id]

    async def test_a_plan_may_add_runs_of_no_job(self, store: Store) -> None:
        job = a_job()
        await store.add_jobs([job])
        of_job, of_none = (
            a_run(1, of=job),
            replace(a_follow_up(a_run(1, of=job)), concurrency_key="c", concurrency_max=1),
        )
        again = replace(a_follow_up(a_run(1, of=job), 1), concurrency_key="c", concurrency_max=1)
        assert await store.commit_plans([Plan(job, (of_job, of_none, again))], NOW) == [True]
        assert await following(store) == [of_none.id]
        assert await store.get_runs([of_job.id, of_none.id, again.id]) == [of_job, of_none, None]
        assert ids((await take(store, queues=["notify"])).runs) == [of_none.id]

    async def test_of_several_who_end_a_run_one_is_followed(self, stores: Stores) -> None:
        nodes = await stores.several(4)
        for number in range(5):
            claimed = await take_one(nodes[0], a_run(number))
            changes = [ended(claimed, a_follow_up(claimed, 10 * number + n)) for n in range(len(nodes))]
            answers = await asyncio.gather(
                *(node.settle_runs([change], NOW) for node, change in zip(nodes, changes, strict=True))
            )
            (winner,) = [change for change, (won,) in zip(changes, answers, strict=True) if won]
            assert (await following(nodes[0]))[number:] == ids(winner.follow_ups)

    @pytest.mark.parametrize("fault", Fault)
    async def test_an_end_repeated_after_a_fault_is_followed_once(self, store: Store, fault: Fault) -> None:
        claimed = await take_one(store, a_run(1))
        faulty = FaultyStore(store, by_script(("settle_runs", fault)))
        change = replace(ended(claimed, a_follow_up(claimed)), records=(Record(name="ended", body=b""),))
        await insist(lambda: faulty.settle_runs([change], NOW))
        assert await following(store) == [a_follow_up(claimed).id]
        assert await store.get_records(["ended"]) == [change.records[0]]

    @pytest.mark.parametrize("steps", range(5))
    async def test_a_cancelled_caller_leaves_an_end_with_its_follow_up_or_neither(
        self, stores: Stores, steps: int
    ) -> None:
        store, after = await stores.several(2)
        await store.add_runs([a_run(n) for n in range(BATCH)])
        claimed = (await take(store)).runs
        await cut_off(store.settle_runs([ended(run, a_follow_up(run, n)) for n, run in enumerate(claimed)], NOW), steps)
        await store.close()
        there = await after.get_runs(ids(claimed))
        over = [n for n, run in enumerate(there) if run is not None and run.finished]
        assert await following(after) == [a_follow_up(claimed[n], n).id for n in over]

    async def test_a_write_that_fails_in_the_backend_leaves_no_end_without_its_follow_up(self, stores: Stores) -> None:
        store, beside = await stores.several(2)
        for number, fault in enumerate(self.faults(store)):
            first = number * 2 * BATCH
            await store.add_runs([a_run(first + n) for n in range(BATCH)])
            claimed = (await take(store)).runs
            changes = [ended(run, a_follow_up(run, first + n)) for n, run in enumerate(claimed)]
            async with fault:
                with suppress(StoreUnavailable):
                    await store.settle_runs(changes, NOW)
            there = await beside.get_runs(ids(claimed))
            over = [n for n, run in enumerate(there) if run is not None and run.finished]
            found = await beside.get_runs([change.follow_ups[0].id for change in changes])
            assert [n for n, run in enumerate(found) if run is not None] == over
