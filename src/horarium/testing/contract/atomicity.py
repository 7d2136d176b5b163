"""Whole or not at all: callers that are cancelled, connections that fail, writes that are repeated."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from random import Random

import pytest
from msgspec.structs import replace

from horarium.clock import DAY
from horarium.errors import StoreUnavailable
from horarium.model import Job, Plan, Run, State
from horarium.ports import Beat, Pulse, RunFilter, Store
from horarium.testing.contract.base import Stores, StoreUnderTest, ids, job_of, run_of, take, take_one
from horarium.testing.contract.keeping import everything
from horarium.testing.faults import Fault, FaultyStore, by_chance, by_script
from horarium.testing.values import NOW, a_change, a_finished_run, a_job, a_run, completed

ATTEMPTS_MAX = 200
BATCH = 40


async def insist(call: Callable[[], Awaitable[object]]) -> None:
    """Repeat a call until it is answered, as every caller does."""
    for _ in range(ATTEMPTS_MAX):
        try:
            await call()
        except StoreUnavailable:
            continue
        return
    raise AssertionError(f"no answer in {ATTEMPTS_MAX} attempts")


async def cut_off(call: Awaitable[object], steps: int) -> None:
    """Begin a call, and cancel the caller after `steps` turns of the loop."""
    task = asyncio.ensure_future(call)
    for _ in range(steps):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])


class AtomicityContract(StoreUnderTest):
    # -- a cancelled caller

    @pytest.mark.parametrize("steps", range(5))
    async def test_a_cancelled_caller_leaves_a_plan_whole_or_absent(self, stores: Stores, steps: int) -> None:
        store, after = await stores.several(2)
        job = a_job(next_fire_at=NOW)
        await store.add_jobs([job])
        await store.add_runs([a_run(99, of=job)])
        plan = Plan(
            replace(job, next_fire_at=None),
            tuple(a_run(n, of=job) for n in range(BATCH)),
            (a_change(a_run(99, of=job), state=State.CANCELLED, finished_at=NOW),),
        )
        await cut_off(store.commit_plans([plan], NOW), steps)
        await store.close()
        written = await job_of(after, job) != job
        assert len((await take(after)).runs) == (BATCH if written else 1)

    @pytest.mark.parametrize("steps", range(5))
    async def test_a_cancelled_caller_leaves_a_claim_whole_or_absent(self, stores: Stores, steps: int) -> None:
        store, after = await stores.several(2)
        await store.add_runs([a_run(n, concurrency_key="k", concurrency_max=BATCH) for n in range(2 * BATCH)])
        await cut_off(take(store, worker="lost"), steps)
        await store.close()
        claimed = (await after.list_runs(RunFilter(states=frozenset({State.RUNNING})), None, 200)).items
        assert len(claimed) in (0, BATCH)
        assert all((run.worker, run.token) == ("lost", 1) for run in claimed)
        assert len((await take(after)).runs) == BATCH - len(claimed)
        lost, _ = await after.overdue_runs(NOW + DAY, 200, NOW + DAY)
        assert len(lost) == BATCH

    @pytest.mark.parametrize("steps", range(5))
    async def test_a_cancelled_caller_leaves_the_store_usable(self, stores: Stores, steps: int) -> None:
        store = await stores.another()
        runs = [a_run(n) for n in range(BATCH)]
        await cut_off(store.add_runs(runs), steps)
        await cut_off(take(store), steps)
        await cut_off(store.list_runs(RunFilter(), None, BATCH), steps)
        await store.add_runs(runs)
        assert all(run is not None for run in await store.get_runs(ids(runs)))
        await store.check()

    async def test_a_caller_that_gives_up_does_not_hinder_the_others(self, store: Store) -> None:
        calls = [asyncio.ensure_future(store.add_runs([a_run(n)])) for n in range(20)]
        await asyncio.sleep(0)
        for call in calls[::2]:
            call.cancel()
        await asyncio.wait(calls)
        assert [call.result() for call in calls[1::2]] == [[True]] * 10
        assert None not in await store.get_runs(ids([a_run(n) for n in range(1, 20, 2)]))

    # -- answers that get lost

    @pytest.mark.parametrize("fault", Fault)
    async def test_a_plan_repeated_after_a_fault_is_carried_out_once(self, store: Store, fault: Fault) -> None:
        job = a_job(next_fire_at=NOW)
        await store.add_jobs([job])
        faulty = FaultyStore(store, by_script(("commit_plans", fault)))
        plan = Plan(replace(job, next_fire_at=None, fires_count=1), (a_run(1, of=job), a_run(2, of=job)))
        await insist(lambda: faulty.commit_plans([plan], NOW))
        assert await job_of(store, job) == replace(plan.job, version=2)
        assert ids((await take(store)).runs) == ids(plan.runs)

    @pytest.mark.parametrize("fault", Fault)
    async def test_an_outcome_repeated_after_a_fault_is_written_once(self, store: Store, fault: Fault) -> None:
        claimed = await take_one(store, a_run(concurrency_key="k", concurrency_max=1))
        faulty = FaultyStore(store, by_script(("settle_runs", fault)))
        await insist(lambda: faulty.settle_runs([completed(claimed, held=True)], NOW))
        assert await run_of(store, claimed) == completed(claimed).run
        await store.add_runs([a_run(n, concurrency_key="k", concurrency_max=1) for n in (1, 2)])
        assert len((await take(store)).runs) == 1

    @pytest.mark.parametrize("fault", Fault)
    async def test_whatever_is_repeated_after_a_fault_happens_once(self, store: Store, fault: Fault) -> None:
        faulty = FaultyStore(store, by_script(("add_jobs", fault), ("add_runs", fault), ("heartbeat_runs", fault)))
        await insist(lambda: faulty.add_jobs([a_job()]))
        await insist(lambda: faulty.add_runs([a_run(1), a_run(2, unique_key="k")]))
        await take(store)
        await insist(lambda: faulty.heartbeat_runs([Beat(a_run(1).id, 1, b"1")], NOW + 1))
        assert faulty.faults == 3
        assert await store.get_jobs(["job"]) == [a_job()]
        first = await run_of(store, a_run(1))
        assert (first.token, first.progress, first.lease_expires_at) == (1, b"1", NOW + 1 + 30_000_000)

    async def test_a_claim_whose_answer_was_lost_is_found_by_the_rescuer(self, store: Store) -> None:
        await store.add_runs([a_run(1), a_run(2)])
        faulty = FaultyStore(store, by_script(("claim_runs", Fault.AFTER)))
        with pytest.raises(StoreUnavailable):
            await take(faulty)
        assert (await take(store)).runs == ()
        overdue, _ = await store.overdue_runs(NOW + DAY, 10, NOW + DAY)
        assert [run.token for run in overdue] == [1, 1]

    @pytest.mark.parametrize("seed", range(3))
    async def test_with_faults_everywhere_each_fire_time_still_ends_once(self, store: Store, seed: int) -> None:
        faulty = FaultyStore(store, by_chance(Random(seed), 0.3))
        jobs = [a_job(f"job-{n}", next_fire_at=NOW, concurrency=None) for n in range(10)]
        await insist(lambda: faulty.add_jobs(jobs))
        for fire in range(3):
            await insist(lambda fire=fire: plan_due(faulty, fire))  # type: ignore[misc]
        finished: set[str] = set()
        now = NOW
        for _ in range(ATTEMPTS_MAX):
            now += DAY
            try:
                await rescue(faulty, now)
                runs = (await take(faulty, 7, now=now)).runs
                await faulty.settle_runs([completed(run, held=True) for run in runs], now)
            except StoreUnavailable:
                continue
            finished.update(ids(runs))
        assert faulty.faults > 0
        (everyone,) = [(await store.list_runs(RunFilter(), None, 200)).items]
        assert {run.state for run in everyone} == {State.COMPLETED}
        assert len(everyone) == len({(run.job_id, run.fire_at) for run in everyone}) == 30
        assert [job.version for job in await store.get_jobs(["job-0", "job-9"]) if job is not None] == [4, 4]

    # -- faults of the backend itself

    async def test_a_write_that_fails_in_the_backend_is_whole_or_absent(self, stores: Stores) -> None:
        store, beside = await stores.several(2)
        job = a_job(next_fire_at=NOW)
        await store.add_jobs([job])
        runs = tuple(a_run(n, of=job) for n in range(BATCH))
        for number, fault in enumerate(self.faults(store)):
            before = await everything(beside)
            async with fault:
                try:
                    answer = await store.commit_plans([Plan(replace(job, priority=number + 1), runs)], NOW)
                except StoreUnavailable:
                    answer = []
            written = await job_of(beside, job) != job
            assert written or not answer
            found = await beside.get_runs(ids(runs))
            assert [run is not None for run in found] == [written] * BATCH
            assert written or await everything(beside) == before
            if written:
                return

    async def test_a_backend_that_fails_says_so_and_recovers(self, store: Store) -> None:
        for number, fault in enumerate(self.faults(store)):
            async with fault:
                for _ in range(3):
                    with suppress(StoreUnavailable):
                        await store.add_runs([a_run(number)])
            await store.check()
            await store.add_runs([a_run(number)])
            assert await run_of(store, a_run(number)) == a_run(number)

    # -- answered writes stay

    async def test_what_was_answered_is_there_after_closing(self, stores: Stores) -> None:
        store = await stores.another()
        job = a_job()
        claimed = await take_one(store, a_run(1, of=job))
        done = a_finished_run(2, of=job)
        await store.add_jobs([job])
        await store.add_runs([done])
        assert await store.heartbeat_runs([Beat(claimed.id, 1)], NOW + 1) == [Pulse(NOW + 1 + 30_000_000, False)]
        before = await everything(store)
        await store.close()
        assert await everything(await stores.another()) == before


async def plan_due(store: Store, fire: int) -> None:
    """Plan the fire time of this number for every job that has not planned it yet."""
    jobs, _ = await store.due_jobs(NOW + fire, 100)
    await store.commit_plans([_next(job, a_run(fire, of=job)) for job in jobs if job.fires_count == fire], NOW)


def _next(job: Job, run: Run) -> Plan:
    count = job.fires_count + 1
    return Plan(replace(job, fires_count=count, next_fire_at=NOW + count), (run,))


async def rescue(store: Store, now: int) -> None:
    overdue, _ = await store.overdue_runs(now, 100, now)
    await store.settle_runs(
        [a_change(run, held=False, state=State.PENDING, lease_expires_at=None) for run in overdue], now
    )
