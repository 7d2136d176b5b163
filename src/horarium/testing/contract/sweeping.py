"""Sweeps: the few jobs whose cursor lies ahead, or that keep a number of runs, found without reading all the others."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from msgspec.structs import replace

from horarium.clock import DAY, INSTANT_MAX, INSTANT_MIN
from horarium.model import Job, Plan
from horarium.policies import Retention
from horarium.ports import Page, Store
from horarium.testing.contract.base import StoreUnderTest
from horarium.testing.contract.jobs import delete
from horarium.testing.values import NOW, a_job

PAGES_MAX = 100


class SweepingContract(StoreUnderTest):
    # -- cursors that lie ahead

    async def test_jobs_ahead_are_those_planned_beyond_an_instant(self, store: Store) -> None:
        jobs = [a_job(f"job-{n}", planned_until=NOW + n) for n in range(4)]
        await store.add_jobs(jobs)
        assert await ahead(store, NOW + 1) == jobs[2:]
        assert await ahead(store, NOW + 3) == []
        assert await ahead(store, NOW - 1, limit=1) == jobs

    async def test_jobs_ahead_follow_every_write_of_a_job(self, store: Store) -> None:
        job = a_job(planned_until=NOW)
        await store.add_jobs([job])
        await store.commit_plans([Plan(replace(job, planned_until=NOW + DAY))], NOW)
        assert [found.version for found in await ahead(store, NOW)] == [2]
        await store.commit_plans([Plan(replace(job, version=2, planned_until=NOW))], NOW)
        assert await ahead(store, NOW) == []

    async def test_deleted_jobs_are_not_ahead(self, store: Store) -> None:
        await delete(store, a_job(planned_until=NOW + DAY, retention=Retention(runs_max=1)))
        assert await ahead(store, NOW) == []
        assert await trimmed(store) == []

    async def test_jobs_ahead_at_one_instant_come_one_page_after_another(self, store: Store) -> None:
        jobs = [a_job(f"job-{n}", planned_until=NOW + DAY) for n in range(7)]
        await store.add_jobs(jobs)
        for limit in (1, 2, 7):
            assert by_id(await ahead(store, NOW, limit)) == by_id(jobs)

    async def test_jobs_ahead_that_are_brought_back_between_pages_hide_none(self, store: Store) -> None:
        jobs = {job.id: job for job in (a_job(f"job-{n}", planned_until=NOW + DAY + n) for n in range(6))}
        await store.add_jobs(list(jobs.values()))
        page = await store.jobs_ahead(NOW, None, 2)
        seen = set()
        while page.items:
            for job in page.items:
                seen.add(job.id)
                assert await store.commit_plans([Plan(replace(job, planned_until=NOW))], NOW) == [True]
            page = await store.jobs_ahead(NOW, page.next_after, 2)
        assert seen == jobs.keys()

    async def test_extreme_cursors_are_ahead_of_what_they_are(self, store: Store) -> None:
        first, last = a_job("first", planned_until=INSTANT_MIN), a_job("last", planned_until=INSTANT_MAX)
        await store.add_jobs([first, last])
        assert await ahead(store, INSTANT_MIN) == [last]
        assert await ahead(store, INSTANT_MIN - 1) == [first, last]
        assert await ahead(store, INSTANT_MAX) == []

    # -- jobs that keep a number of runs

    async def test_jobs_trimmed_are_those_that_keep_a_number_of_runs(self, store: Store) -> None:
        some = [a_job(f"job-{n}", retention=Retention(runs_max=n)) for n in range(5)]
        await store.add_jobs([*some[::-1], a_job("all"), a_job("aged", retention=Retention(finished_seconds=1.0))])
        for limit in (1, 2, 5, 9):
            assert await trimmed(store, limit) == some

    async def test_jobs_trimmed_follow_every_write_of_a_job(self, store: Store) -> None:
        job = a_job()
        await store.add_jobs([job])
        await store.commit_plans([Plan(replace(job, retention=Retention(runs_max=3)))], NOW)
        assert [found.retention.runs_max for found in await trimmed(store)] == [3]
        await store.commit_plans([Plan(replace(job, version=2))], NOW)
        assert await trimmed(store) == []

    async def test_a_cursor_of_trimmed_jobs_needs_no_job_of_its_name(self, store: Store) -> None:
        jobs = [a_job(name, retention=Retention(runs_max=1)) for name in ("a", "c")]
        await store.add_jobs(jobs)
        assert list((await store.jobs_trimmed("b", 5)).items) == jobs[1:]


async def ahead(store: Store, until: int, limit: int = 10) -> list[Job]:
    """Every page joined."""
    return await _joined(lambda after: store.jobs_ahead(until, after, limit))


async def trimmed(store: Store, limit: int = 10) -> list[Job]:
    """Every page joined."""
    return await _joined(lambda after: store.jobs_trimmed(after, limit))


async def _joined(read: Callable[[str | None], Awaitable[Page[Job]]]) -> list[Job]:
    page = await read(None)
    jobs = list(page.items)
    for _ in range(PAGES_MAX):
        if page.next_after is None:
            return jobs
        page = await read(page.next_after)
        jobs += page.items
    raise AssertionError(f"the sweep goes on after {PAGES_MAX} pages")


def by_id(jobs: list[Job]) -> list[Job]:
    return sorted(jobs, key=lambda job: job.id)
