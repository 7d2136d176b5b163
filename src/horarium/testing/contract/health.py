"""The health of jobs: each end is counted once, in the transaction that writes it, without touching the job."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from horarium.clock import SECOND, Instant
from horarium.model import NO_HEALTH, Disposition, Health, Job, LastRun, Plan, Run, RunChange, State
from horarium.ports import Store
from horarium.testing.contract.base import Stores, StoreUnderTest, job_of, take
from horarium.testing.values import NOW, a_change, a_job, a_run

MANY = 60
"""Enough for ends that are alike to be written together."""


def an_end(run: Run, state: State = State.COMPLETED, at: Instant = NOW, **changes: Any) -> RunChange:
    """The change that ends a run so, then."""
    error = "it broke" if state is State.FAILED else None
    given = {"error": error, "finished_at": at, "lease_expires_at": None, **changes}
    return a_change(run, state=state, **given)


async def claimed_of(store: Store, job: Job, count: int, first: int = 0) -> Sequence[Run]:
    """New runs of the job, claimed, by fire time."""
    await store.add_runs([a_run(first + number, of=job) for number in range(count)])
    return sorted((await take(store)).runs, key=lambda run: run.id)


async def health_of(store: Store, job: Job) -> Health:
    return (await store.job_health([job.id]))[job.id]


class HealthContract(StoreUnderTest):
    async def test_each_end_is_counted(self, store: Store) -> None:
        job, healthy = a_job("nightly"), a_job("other")
        await store.add_jobs([job, healthy])
        runs = await claimed_of(store, job, 4)
        assert await store.job_health([job.id, "none"]) == {job.id: NO_HEALTH, "none": NO_HEALTH}
        await store.settle_runs([an_end(runs[0], State.FAILED, NOW + 1, error="ü\ud800")], NOW)
        first = Health(LastRun(runs[0].id, State.FAILED, NOW + 1, "ü\ud800"), None, 1, NOW + 1)
        assert await health_of(store, job) == first
        await store.settle_runs([an_end(runs[1], State.FAILED, NOW + 2)], NOW)
        second = Health(LastRun(runs[1].id, State.FAILED, NOW + 2, "it broke"), None, 2, NOW + 1)
        assert await store.job_health([healthy.id, job.id]) == {healthy.id: NO_HEALTH, job.id: second}
        assert await store.failing_jobs(10) == {job.id: second}
        await store.settle_runs([an_end(runs[2], State.COMPLETED, NOW + 3)], NOW)
        assert await health_of(store, job) == Health(LastRun(runs[2].id, State.COMPLETED, NOW + 3), NOW + 3)
        assert await store.failing_jobs(10) == {}
        await store.settle_runs([an_end(runs[3], State.FAILED, NOW + 4)], NOW)
        last = LastRun(runs[3].id, State.FAILED, NOW + 4, "it broke")
        assert await health_of(store, job) == Health(last, NOW + 3, 1, NOW + 4)

    async def test_the_ends_of_a_batch_are_counted_as_one(self, store: Store) -> None:
        one, two = a_job("one"), a_job("two")
        await store.add_jobs([one, two])
        mine, others = await claimed_of(store, one, 4), await claimed_of(store, two, 2)
        ends = [
            an_end(mine[3], State.FAILED, NOW + 2),
            an_end(others[0], State.FAILED, NOW + 9),
            an_end(mine[0], State.FAILED, NOW + 7, error="the last"),
            an_end(mine[1], State.FAILED, NOW + 5),
            an_end(others[1], State.COMPLETED, NOW + 9),
            an_end(mine[2], State.COMPLETED, NOW + 4),
        ]
        assert await store.settle_runs(ends, NOW) == [True] * 6
        last = LastRun(mine[0].id, State.FAILED, NOW + 7, "the last")
        assert await health_of(store, one) == Health(last, NOW + 4, 2, NOW + 5)
        # In one instant the completed run is the last.
        assert await health_of(store, two) == Health(LastRun(others[1].id, State.COMPLETED, NOW + 9), NOW + 9)

    @pytest.mark.parametrize(
        ("state", "lost"),
        [(State.COMPLETED, None), (State.COMPLETED, 7), (State.FAILED, None), (State.FAILED, 7)],
    )
    async def test_of_many_that_end_alike_each_is_counted(self, store: Store, state: State, lost: int | None) -> None:
        jobs = [a_job("one"), a_job("two")]
        await store.add_jobs(jobs)
        await store.add_runs([a_run(number, of=jobs[number % 2]) for number in range(MANY)])
        await store.add_runs([a_run(MANY + number) for number in range(3)])
        runs = sorted((await take(store)).runs, key=lambda run: run.id)
        ends = [replace(an_end(run, state), as_claimed=True) for run in runs]
        if lost is not None:
            ends[lost] = replace(ends[lost], token=9, run=replace(ends[lost].run, token=9))
        written = await store.settle_runs(ends, NOW)
        assert written == [number != lost for number in range(MANY + 3)]
        for job in jobs:
            counted = [run for run, did in zip(runs, written, strict=True) if did and run.job_id == job.id]
            health = await health_of(store, job)
            last = LastRun(counted[-1].id, state, NOW, "it broke" if state is State.FAILED else None)
            failures = len(counted) if state is State.FAILED else 0
            success_at, since = (None, NOW) if failures else (NOW, None)
            assert health == Health(last, success_at, failures, since)

    async def test_a_cancelled_run_hides_no_failure(self, store: Store) -> None:
        job, other = a_job(), a_job("other")
        await store.add_jobs([job, other])
        runs, others = await claimed_of(store, job, 4), await claimed_of(store, other, 1)
        await store.settle_runs([an_end(runs[0], State.FAILED)], NOW)
        cancelled = [an_end(run, State.CANCELLED, NOW + 1, error="by mistake") for run in (runs[1], *others)]
        await store.settle_runs(cancelled, NOW)
        failing = Health(LastRun(runs[0].id, State.FAILED, NOW, "it broke"), None, 1, NOW)
        assert await store.job_health([job.id, other.id]) == {job.id: failing, other.id: NO_HEALTH}
        mixed = [an_end(runs[2], State.FAILED, NOW + 2), an_end(runs[3], State.CANCELLED, NOW + 3)]
        await store.settle_runs(mixed, NOW)
        last = LastRun(runs[2].id, State.FAILED, NOW + 2, "it broke")
        assert await health_of(store, job) == Health(last, None, 2, NOW)

    async def test_what_is_no_end_of_a_run_is_not_counted(self, store: Store) -> None:
        job = a_job()
        await store.add_jobs([job])
        again, skipped, withdrawn = await claimed_of(store, job, 3)
        not_ends = [
            a_change(again, state=State.PENDING, lease_expires_at=None, error="again"),
            an_end(skipped, State.SKIPPED),
            an_end(withdrawn, State.CANCELLED, disposition=Disposition.WITHDRAWN),
        ]
        assert await store.settle_runs(not_ends, NOW) == [True] * 3
        assert await health_of(store, job) == NO_HEALTH
        amended = a_change(not_ends[1].run, error="known later")
        assert await store.settle_runs([amended], NOW) == [True]
        assert await health_of(store, job) == NO_HEALTH

    async def test_what_was_refused_is_not_counted(self, store: Store) -> None:
        job = a_job()
        await store.add_jobs([job])
        (run,) = await claimed_of(store, job, 1)
        end = an_end(run, State.FAILED)
        assert await store.settle_runs([replace(end, token=9)], NOW) == [False]
        assert await health_of(store, job) == NO_HEALTH
        assert await store.settle_runs([end, end], NOW) == [True, False]
        assert await store.settle_runs([end], NOW) == [False]
        assert (await health_of(store, job)).failures_in_a_row == 1

    async def test_the_job_stays_as_it_is_and_keeps_its_health(self, store: Store) -> None:
        """A planner that plans it meanwhile loses nothing, and takes nothing back."""
        job = a_job()
        await store.add_jobs([job])
        (run,) = await claimed_of(store, job, 1)
        await store.settle_runs([an_end(run, State.FAILED)], NOW)
        assert await job_of(store, job) == job
        assert await store.commit_plans([Plan(replace(job, priority=3))], NOW) == [True]
        assert (await health_of(store, job)).failures_in_a_row == 1

    async def test_what_a_plan_ends_is_counted(self, store: Store) -> None:
        jobs = [a_job("one"), a_job("two")]
        await store.add_jobs(jobs)
        await store.add_runs([a_run(number, of=job) for number, job in enumerate(jobs)])
        runs = {run.job_id: run for run in (await take(store)).runs}
        plans = [Plan(job, changes=(an_end(runs[job.id], State.FAILED),)) for job in jobs]
        assert await store.commit_plans([plans[0], replace(plans[1], job=a_job("two", version=8))], NOW) == [
            True,
            False,
        ]
        assert (await health_of(store, jobs[0])).failures_in_a_row == 1
        assert await health_of(store, jobs[1]) == NO_HEALTH
        follow_up = a_run(5, unique_key="k")
        end = replace(an_end(runs[jobs[1].id], State.FAILED), follow_ups=(follow_up,))
        assert await store.settle_runs([end], NOW) == [True]
        assert set(await store.failing_jobs(10)) == {job.id for job in jobs}
        assert len(await store.failing_jobs(1)) == 1

    async def test_the_health_of_a_job_goes_with_it(self, store: Store) -> None:
        job = a_job()
        await store.add_jobs([job])
        (run,) = await claimed_of(store, job, 1)
        await store.settle_runs([an_end(run, State.FAILED, prune_at=NOW)], NOW)
        await store.prune_runs(NOW, 10)
        assert (await health_of(store, job)).failures_in_a_row == 1, "it outlives the run"
        await store.commit_plans([Plan(replace(job, deleted_at=NOW))], NOW)
        await store.prune_runs(NOW, 10)
        assert await health_of(store, job) == NO_HEALTH
        assert await store.failing_jobs(10) == {}

    async def test_copied_health_is_written_where_there_is_none(self, store: Store) -> None:
        one, two, three = jobs = [a_job("one"), a_job("two"), a_job("three")]
        await store.add_jobs(jobs)
        (run,) = await claimed_of(store, one, 1)
        await store.settle_runs([an_end(run)], NOW)
        copied = Health(LastRun("0", State.FAILED, NOW, "e"), NOW - 1, 2, NOW - SECOND)
        only_success = Health(LastRun("1", State.COMPLETED, NOW), NOW)
        await store.add_health({one.id: copied, two.id: copied, three.id: only_success})
        await store.add_health({two.id: only_success})
        assert (await health_of(store, one)).last_success_at == NOW
        assert await store.job_health([two.id, three.id]) == {two.id: copied, three.id: only_success}

    async def test_ends_that_race_are_all_counted(self, stores: Stores) -> None:
        writers = await stores.several(4)
        job = a_job()
        await writers[0].add_jobs([job])
        runs = await claimed_of(writers[0], job, 40)
        ends = [an_end(run, State.FAILED) for run in runs]
        batches = [(writers[number % 4], ends[number : number + 2]) for number in range(0, 40, 2)]
        written = await asyncio.gather(*(writer.settle_runs(batch, NOW) for writer, batch in batches))
        assert written == [[True, True]] * 20
        health = await health_of(writers[0], job)
        assert (health.failures_in_a_row, health.failing_since) == (40, NOW)
