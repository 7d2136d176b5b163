"""What holds a run back: a concurrency key without a free slot, and an earlier run of a serial job."""

from __future__ import annotations

from typing import Any

from horarium.clock import DAY, HOUR, SECOND
from horarium.model import Run, State
from horarium.ports import BATCH_MAX, Store
from horarium.testing.contract.base import StoreUnderTest, ids, run_of, take
from horarium.testing.values import NOW, a_change, a_finished_run, a_job, a_run, completed

JOB = a_job()


def keyed(number: int, maximum: int = 1, key: str = "k", **changes: Any) -> Run:
    return a_run(number, concurrency_key=key, concurrency_max=maximum, **changes)


def serial(number: int, **changes: Any) -> Run:
    return a_run(number, of=JOB, **{"serial": True, **changes})


class HoldingContract(StoreUnderTest):
    # -- concurrency

    async def test_no_more_runs_of_a_key_are_claimed_than_its_maximum(self, store: Store) -> None:
        runs = [keyed(number, 2) for number in range(4)]
        await store.add_runs(runs)
        assert ids((await take(store, 1)).runs) == ids(runs[:1])
        assert ids((await take(store)).runs) == ids(runs[1:2])
        assert (await take(store)).runs == ()

    async def test_a_held_back_run_takes_no_place_in_the_limit(self, store: Store) -> None:
        await store.add_runs([keyed(1), keyed(2), keyed(3), a_run(4)])
        assert ids((await take(store, 2)).runs) == ids([keyed(1), a_run(4)])

    async def test_keys_are_counted_apart(self, store: Store) -> None:
        runs = [keyed(1), keyed(2, key="K"), keyed(3), keyed(4, key="k ")]
        await store.add_runs(runs)
        assert ids((await take(store)).runs) == ids([runs[0], runs[1], runs[3]])

    async def test_a_key_is_counted_over_all_queues_and_jobs(self, store: Store) -> None:
        runs = [keyed(1, queue="a"), keyed(2, queue="b", job_id=JOB.id, job=JOB.name)]
        await store.add_runs(runs)
        assert ids((await take(store, queues=["a"])).runs) == ids(runs[:1])
        assert (await take(store, queues=["b"])).runs == ()

    async def test_each_run_is_measured_by_its_own_maximum(self, store: Store) -> None:
        narrow, wide = [keyed(n, 1) for n in (1, 2)], [keyed(n, 3) for n in (3, 4, 5)]
        await store.add_runs([*narrow, *wide])
        assert ids((await take(store)).runs) == ids([narrow[0], wide[0], wide[1]])

    async def test_within_a_key_the_claim_order_holds(self, store: Store) -> None:
        await store.add_runs([keyed(1), keyed(2, priority=5), keyed(3, due_at=NOW - 1)])
        assert ids((await take(store)).runs) == ids([keyed(2)])

    async def test_a_settled_run_gives_its_slot_back(self, store: Store) -> None:
        await store.add_runs([keyed(1), keyed(2)])
        (first,) = (await take(store)).runs
        assert await store.settle_runs([completed(first)], NOW) == [True]
        assert ids((await take(store)).runs) == ids([keyed(2)])

    async def test_a_run_put_back_gives_its_slot_back(self, store: Store) -> None:
        await store.add_runs([keyed(1), keyed(2)])
        (first,) = (await take(store)).runs
        await store.settle_runs([a_change(first, state=State.PENDING, due_at=NOW + DAY, lease_expires_at=None)], NOW)
        assert ids((await take(store)).runs) == ids([keyed(2)])

    async def test_a_cancelling_run_keeps_its_slot(self, store: Store) -> None:
        await store.add_runs([keyed(1), keyed(2)])
        (first,) = (await take(store)).runs
        await store.settle_runs([a_change(first, state=State.CANCELLING)], NOW)
        assert (await take(store)).runs == ()

    async def test_an_expired_lease_keeps_its_slot_until_it_is_rescued(self, store: Store) -> None:
        await store.add_runs([keyed(1, lease_seconds=1.0), keyed(2)])
        (first,) = (await take(store)).runs
        later = NOW + HOUR
        assert (await take(store, now=later)).runs == ()
        rescue = a_change(first, held=False, state=State.FAILED, finished_at=later, lease_expires_at=None)
        assert await store.settle_runs([rescue], later) == [True]
        assert ids((await take(store, now=later)).runs) == ids([keyed(2)])

    async def test_a_change_that_loses_gives_no_slot_back(self, store: Store) -> None:
        await store.add_runs([keyed(1), keyed(2)])
        (first,) = (await take(store)).runs
        stale = a_change(a_run(1, token=9, state=State.RUNNING), state=State.COMPLETED)
        assert await store.settle_runs([stale], NOW) == [False]
        assert (await take(store)).runs == ()
        assert await run_of(store, first) == first

    async def test_a_slot_is_given_back_once_only(self, store: Store) -> None:
        await store.add_runs([keyed(n, 2) for n in (1, 2, 3, 4)])
        first, _ = (await take(store)).runs
        assert await store.settle_runs([completed(first), completed(first)], NOW) == [True, False]
        assert ids((await take(store)).runs) == ids([keyed(3)])

    async def test_finished_and_pruned_runs_hold_no_slot(self, store: Store) -> None:
        done = a_finished_run(1, concurrency_key="k", concurrency_max=1, prune_at=NOW)
        await store.add_runs([done, keyed(2), keyed(3)])
        assert await store.prune_runs(NOW, 10) == 1
        assert ids((await take(store)).runs) == ids([keyed(2)])
        assert (await take(store)).runs == ()

    async def test_slots_are_never_lost_over_many_rounds(self, store: Store) -> None:
        await store.add_runs([keyed(number, 3) for number in range(30)])
        for _ in range(10):
            claimed = (await take(store)).runs
            assert len(claimed) == 3
            await store.settle_runs([completed(run) for run in claimed], NOW)
        assert (await take(store)).runs == ()

    # -- serial jobs

    async def test_serial_runs_are_claimed_one_at_a_time_in_order_of_fire_time(self, store: Store) -> None:
        runs = [serial(3, due_at=NOW - HOUR), serial(2, priority=5), serial(1)]
        await store.add_runs(runs)
        for expected in (serial(1), serial(2), serial(3)):
            (claimed,) = (await take(store)).runs
            assert claimed.id == expected.id
            assert (await take(store)).runs == ()
            await store.settle_runs([completed(claimed)], NOW)
        assert (await take(store)).runs == ()

    async def test_a_serial_run_waits_while_an_earlier_one_waits_for_its_retry(self, store: Store) -> None:
        await store.add_runs([serial(1), serial(2)])
        (first,) = (await take(store)).runs
        retry = a_change(first, state=State.PENDING, due_at=NOW + HOUR, lease_expires_at=None)
        await store.settle_runs([retry], NOW)
        held = await take(store)
        assert (held.runs, held.next_due_at) == ((), NOW + HOUR)
        assert ids((await take(store, now=NOW + HOUR)).runs) == ids([serial(1)])

    async def test_a_serial_run_waits_for_an_earlier_one_in_another_queue(self, store: Store) -> None:
        await store.add_runs([serial(1, queue="other", serial=False, due_at=NOW + DAY), serial(2)])
        assert (await take(store)).runs == ()

    async def test_a_serial_run_waits_for_any_claimed_run_of_its_job(self, store: Store) -> None:
        await store.add_runs([serial(1, due_at=NOW + 1), serial(2, serial=False)])
        (later,) = (await take(store)).runs
        assert later.id == serial(2).id
        assert (await take(store, now=NOW + 1)).runs == ()
        await store.settle_runs([completed(later)], NOW)
        assert ids((await take(store, now=NOW + 1)).runs) == ids([serial(1)])

    async def test_a_run_taken_in_the_same_claim_holds_a_serial_one_back(self, store: Store) -> None:
        await store.add_runs([serial(1), serial(2, serial=False, priority=5)])
        assert ids((await take(store)).runs) == ids([serial(2)])

    async def test_a_cancelling_run_holds_the_next_serial_one_back(self, store: Store) -> None:
        await store.add_runs([serial(1), serial(2)])
        (first,) = (await take(store)).runs
        await store.settle_runs([a_change(first, state=State.CANCELLING)], NOW)
        assert (await take(store, now=NOW + SECOND)).runs == ()

    async def test_an_earlier_run_that_ended_unclaimed_holds_nothing_back(self, store: Store) -> None:
        await store.add_runs([serial(1), serial(2), serial(0, state=State.SKIPPED, finished_at=NOW)])
        await store.settle_runs([a_change(serial(1), state=State.CANCELLED, finished_at=NOW)], NOW)
        assert ids((await take(store)).runs) == ids([serial(2)])

    async def test_a_later_run_holds_nothing_back(self, store: Store) -> None:
        await store.add_runs([serial(1), serial(2, due_at=NOW + DAY)])
        assert ids((await take(store)).runs) == ids([serial(1)])

    async def test_serial_runs_of_different_jobs_do_not_wait_for_each_other(self, store: Store) -> None:
        other = a_job("other")
        runs = [serial(1), a_run(2, of=other, serial=True), a_run(3, serial=True), a_run(4, serial=True)]
        await store.add_runs(runs)
        assert ids((await take(store)).runs) == ids(runs)

    async def test_a_run_that_is_not_serial_overtakes(self, store: Store) -> None:
        await store.add_runs([serial(1), serial(2), serial(3, serial=False)])
        assert ids((await take(store)).runs) == ids([serial(1), serial(3)])

    # -- however many are held back

    async def test_what_stands_behind_many_that_are_held_back_is_claimed_in_order(self, store: Store) -> None:
        """More than a claim looks at one by one: behind a full key, behind a job whose turn is taken, and both."""
        other = a_job("other")
        await store.add_runs([keyed(0), serial(1)])
        assert len((await take(store)).runs) == 2
        held = [keyed(n) for n in range(2, MANY)]
        held += [serial(n, due_at=NOW + 1) for n in range(MANY, 2 * MANY)]
        held += [serial(n, due_at=NOW + 1, concurrency_key="j", concurrency_max=9) for n in range(2 * MANY, 3 * MANY)]
        behind = [
            keyed(3 * MANY, 2, due_at=NOW + 2),
            *(keyed(3 * MANY + n, 3, "free", due_at=NOW + 3 + n) for n in range(1, 6)),
            a_run(3 * MANY + 6, of=other, serial=True, due_at=NOW + 4),
            a_run(3 * MANY + 7, of=other, serial=True, due_at=NOW + 5),
            a_run(3 * MANY + 8, serial=True, concurrency_key="l", concurrency_max=1, due_at=NOW + 6),
            a_run(3 * MANY + 9, due_at=NOW + 9),
        ]
        await add_in_parts(store, [*held, *behind])
        expected = ids([behind[0], behind[1], behind[6], behind[2], behind[3], behind[8], behind[9]])
        assert ids((await take(store, 4, now=NOW + 9)).runs) == expected[:4]
        assert ids((await take(store, now=NOW + 9)).runs) == expected[4:]
        assert (await take(store, now=NOW + 9)).runs == ()

    async def test_many_jobs_in_order_have_their_first_runs_claimed_in_order(self, store: Store) -> None:
        jobs = [a_job(f"job-{n}") for n in range(MANY)]
        firsts = [a_run(n, of=job, serial=True) for n, job in enumerate(jobs)]
        seconds = [a_run(MANY + n, of=job, serial=True, due_at=NOW - 1) for n, job in enumerate(jobs)]
        await add_in_parts(store, [*seconds, *firsts])
        assert ids((await take(store, 7)).runs) == ids(firsts[:7])
        assert ids((await take(store, BATCH_MAX)).runs) == ids(firsts[7:])
        assert (await take(store)).runs == ()


MANY = 260


async def add_in_parts(store: Store, runs: list[Run]) -> None:
    for start in range(0, len(runs), BATCH_MAX):
        part = runs[start : start + BATCH_MAX]
        assert await store.add_runs(part) == [True] * len(part)
