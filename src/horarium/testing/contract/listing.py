"""Lists: filters, order, and cursors that stay true while rows come and go."""

from __future__ import annotations

from itertools import pairwise

from msgspec.structs import replace

from horarium.clock import DAY, HOUR, INSTANT_MAX, INSTANT_MIN, MINUTE, SECOND, Instant
from horarium.model import Job, Plan, Run, State, run_id, uuid7
from horarium.ports import PAGE_MAX, JobFilter, RunFilter, Store
from horarium.testing.contract.base import StoreUnderTest, ids, take
from horarium.testing.contract.jobs import delete, named
from horarium.testing.values import NOW, a_finished_run, a_job, a_run, completed

PAGES_MAX = 100


def a_fire(job: Job, fire_at: Instant, state: State) -> Run:
    """A run of this job, of this fire time."""
    return a_run(0, of=job, id=run_id(job.id, fire_at), fire_at=fire_at, state=state)


class ListingContract(StoreUnderTest):
    # -- jobs

    async def test_jobs_are_listed_by_name(self, store: Store) -> None:
        await store.add_jobs([a_job(name) for name in ("b", "a.1", "Z", "a", "a-1", "1", "a1", "a_1")])
        page = await store.list_jobs(JobFilter(), None, 10)
        assert named(*page.items) == sorted(named(*page.items))
        assert len(page.items) == 8
        assert page.next_after is None

    async def test_job_pages_join_without_gap_or_overlap(self, store: Store) -> None:
        jobs = [a_job(f"job-{number:02}") for number in range(7)]
        await store.add_jobs(jobs[::-1])
        for limit in (1, 2, 3, 7, PAGE_MAX):
            assert await all_jobs(store, JobFilter(), limit) == jobs

    async def test_the_last_full_page_of_jobs_says_that_it_is_the_last(self, store: Store) -> None:
        await store.add_jobs([a_job("a"), a_job("b")])
        assert (await store.list_jobs(JobFilter(), None, 1)).next_after is not None
        assert (await store.list_jobs(JobFilter(), None, 2)).next_after is None
        assert (await store.list_jobs(JobFilter(), "b", 2)) == await store.list_jobs(JobFilter(), "zzz", 2)

    async def test_a_job_cursor_needs_no_job_of_its_name(self, store: Store) -> None:
        await store.add_jobs([a_job("a"), a_job("c")])
        assert named(*(await store.list_jobs(JobFilter(), "b", 5)).items) == ["c"]
        assert named(*(await store.list_jobs(JobFilter(), "a", 5)).items) == ["c"]

    async def test_jobs_are_filtered_by_every_label(self, store: Store) -> None:
        both = a_job("both", labels={"team": "ü", "tier": "1"})
        one = a_job("one", labels={"team": "ü"})
        await store.add_jobs([both, one, a_job("none"), a_job("swapped", labels={"ü": "team", "1": "tier"})])
        assert await all_jobs(store, JobFilter(labels={"team": "ü"})) == [both, one]
        assert await all_jobs(store, JobFilter(labels={"team": "ü", "tier": "1"})) == [both]
        assert await all_jobs(store, JobFilter(labels={"tier": "2"})) == []
        assert await all_jobs(store, JobFilter(labels={"tier": ""})) == []

    async def test_labels_are_matched_whole_and_literally(self, store: Store) -> None:
        odd = {"a.b[0]\"'$": "x%_\\", "empty": "", "A": "1"}
        await store.add_jobs([a_job("odd", labels=odd)])
        for key, value in odd.items():
            assert named(*await all_jobs(store, JobFilter(labels={key: value}))) == ["odd"]
        for key, value in (("a", "1"), ("A", "01"), ("a.b[0]\"'$", "x"), ('a.b[0]"', "x%_\\"), ("empty", "%")):
            assert await all_jobs(store, JobFilter(labels={key: value})) == []

    async def test_jobs_are_filtered_by_whether_they_are_enabled(self, store: Store) -> None:
        on, off = a_job("on"), a_job("off", enabled=False)
        await store.add_jobs([on, off])
        assert await all_jobs(store, JobFilter(enabled=True)) == [on]
        assert await all_jobs(store, JobFilter(enabled=False)) == [off]
        assert await all_jobs(store, JobFilter(enabled=None)) == [off, on]

    async def test_jobs_are_filtered_by_whether_they_are_finished(self, store: Store) -> None:
        on, off = a_job("on"), a_job("off", enabled=False)
        done = a_job("done", finished_at=NOW, next_fire_at=None, labels={"a": "b"})
        both = a_job("both", finished_at=NOW, next_fire_at=None, enabled=False)
        quoted = a_job("quoted", labels={"x": '"finished_at":1}'}, enabled=False)
        await store.add_jobs([on, off, done, both, quoted])
        assert named(*await all_jobs(store, JobFilter(finished=True), 1)) == ["both", "done"]
        assert named(*await all_jobs(store, JobFilter(finished=False), 1)) == ["off", "on", "quoted"]
        assert named(*await all_jobs(store, JobFilter(enabled=True))) == ["on"]
        assert named(*await all_jobs(store, JobFilter(enabled=False))) == ["both", "done", "off", "quoted"]
        assert named(*await all_jobs(store, JobFilter(enabled=False, finished=False))) == ["off", "quoted"]
        assert named(*await all_jobs(store, JobFilter(enabled=False, finished=True))) == ["both", "done"]
        assert await all_jobs(store, JobFilter(enabled=True, finished=True)) == []
        assert named(*await all_jobs(store, JobFilter(labels={"a": "b"}, finished=True))) == ["done"]
        assert await all_jobs(store, JobFilter(labels={"a": "b"}, finished=False)) == []
        assert named(*await all_jobs(store, JobFilter(name_prefix="o", finished=False))) == ["off", "on"]
        assert named(*await all_jobs(store, JobFilter(name_prefix="b", finished=True))) == ["both"]

    async def test_a_job_may_become_finished_and_go_on_again(self, store: Store) -> None:
        job = a_job(next_fire_at=None)
        await store.add_jobs([job])
        assert (await store.stats(NOW)).jobs_enabled == 1
        await store.commit_plans([Plan(replace(job, finished_at=NOW))], NOW)
        (finished,) = await all_jobs(store, JobFilter(finished=True))
        assert (finished.finished_at, finished.enabled) == (NOW, True)
        assert (await store.stats(NOW)).jobs_enabled == 0
        await store.commit_plans([Plan(replace(finished, finished_at=None, next_fire_at=NOW))], NOW)
        assert await all_jobs(store, JobFilter(finished=True)) == []
        assert len(await all_jobs(store, JobFilter(finished=False))) == 1
        assert (await store.stats(NOW)).jobs_enabled == 1

    async def test_a_name_prefix_is_literal_and_minds_case(self, store: Store) -> None:
        await store.add_jobs([a_job(name) for name in ("a_b", "axb", "A_b", "a", "a_", "b:a_")])
        assert named(*await all_jobs(store, JobFilter(name_prefix="a_"))) == ["a_", "a_b"]
        assert named(*await all_jobs(store, JobFilter(name_prefix="A"))) == ["A_b"]
        assert await all_jobs(store, JobFilter(name_prefix="%")) == []
        assert len(await all_jobs(store, JobFilter(name_prefix=""))) == 6

    async def test_job_filters_hold_together_across_pages(self, store: Store) -> None:
        jobs = [a_job(f"job-{n:02}", enabled=n % 2 == 0, labels={"third": str(n % 3)}) for n in range(24)]
        await store.add_jobs(jobs)
        where = JobFilter(labels={"third": "0"}, enabled=True, name_prefix="job-1")
        assert named(*await all_jobs(store, where, 1)) == ["job-12", "job-18"]

    async def test_deleted_jobs_are_not_listed(self, store: Store) -> None:
        await delete(store, a_job("gone", labels={"a": "b"}))
        await store.add_jobs([a_job("here", labels={"a": "b"})])
        for where in (JobFilter(), JobFilter(labels={"a": "b"}), JobFilter(name_prefix=""), JobFilter(enabled=True)):
            assert named(*await all_jobs(store, where)) == ["here"]

    async def test_filters_see_a_job_as_it_was_last_written(self, store: Store) -> None:
        job = a_job(labels={"old": "1"})
        await store.add_jobs([job])
        await store.commit_plans([Plan(replace(job, labels={"new": "1"}, enabled=False))], NOW)
        assert await all_jobs(store, JobFilter(labels={"old": "1"})) == []
        assert await all_jobs(store, JobFilter(enabled=True)) == []
        assert len(await all_jobs(store, JobFilter(labels={"new": "1"}, enabled=False))) == 1

    # -- runs

    async def test_pages_of_a_jobs_runs_may_end_within_a_millisecond(self, store: Store) -> None:
        job = a_job("a")
        fires = [NOW + offset for offset in (-1, 0, 1, 2, 3, 500, 999, 1_000, 1_001, 2_000, 4_998, 4_999)]
        runs = [a_fire(job, at, State.COMPLETED if n % 3 else State.SKIPPED) for n, at in enumerate(fires)]
        await store.add_jobs([job])
        await store.add_runs(runs)
        newest = sorted(ids(runs), reverse=True)
        completed_ = sorted((run.id for run in runs if run.state is State.COMPLETED), reverse=True)
        for limit in (1, 2, 3, 4, 5, 11, 12):
            assert ids(await all_runs(store, RunFilter(job="a"), limit)) == newest
            where = RunFilter(job="a", states=frozenset({State.COMPLETED}))
            assert ids(await all_runs(store, where, limit)) == completed_

    async def test_runs_are_listed_newest_first(self, store: Store) -> None:
        runs = [a_run(n) for n in range(5)]
        await store.add_runs([runs[2], runs[0], runs[4], runs[1], runs[3]])
        page = await store.list_runs(RunFilter(), None, 10)
        assert page.items == tuple(runs[::-1])
        assert page.next_after is None

    async def test_run_pages_join_without_gap_or_overlap(self, store: Store) -> None:
        runs = [a_run(n, state=list(State)[n % 7]) for n in range(9)]
        await store.add_runs(runs)
        for limit in (1, 2, 3, 9, PAGE_MAX):
            assert await all_runs(store, RunFilter(), limit) == runs[::-1]

    async def test_the_last_full_page_of_runs_says_that_it_is_the_last(self, store: Store) -> None:
        await store.add_runs([a_run(1), a_run(2), a_run(3, queue="other")])
        where = RunFilter(queue="http")
        assert (await store.list_runs(where, None, 1)).next_after is not None
        assert (await store.list_runs(where, None, 2)).next_after is None

    async def test_a_run_cursor_needs_no_run_of_its_id(self, store: Store) -> None:
        await store.add_runs([a_run(1), a_run(3)])
        assert ids((await store.list_runs(RunFilter(), a_run(2).id, 5)).items) == ids([a_run(1)])
        assert ids((await store.list_runs(RunFilter(), a_run(3).id, 5)).items) == ids([a_run(1)])

    async def test_a_cursor_stays_true_while_runs_come_and_go(self, store: Store) -> None:
        runs = [a_finished_run(n, prune_at=NOW) for n in range(0, 20, 2)]
        await store.add_runs(runs)
        seen = await store.list_runs(RunFilter(), None, 4)
        await store.add_runs([a_run(99), a_run(17), a_run(5)])
        await store.prune_runs(NOW, 1)
        rest = await all_runs(store, RunFilter(), 3, seen.next_after)
        found = [*seen.items, *rest]
        assert ids(found) == sorted(set(ids(found)), reverse=True)
        survivors = [run for run in runs if run in await all_runs(store, RunFilter())]
        assert set(ids(survivors)) <= set(ids(found))
        assert a_run(5).id in ids(rest)

    async def test_runs_are_filtered_by_job_name(self, store: Store) -> None:
        one, two = a_job("one"), a_job("two")
        mine = [a_run(1, of=one), a_finished_run(2, of=one)]
        await store.add_runs([*mine, a_run(3, of=two), a_run(4)])
        assert await all_runs(store, RunFilter(job="one"), 1) == mine[::-1]
        assert await all_runs(store, RunFilter(job="on")) == []

    async def test_runs_are_filtered_by_any_of_several_states(self, store: Store) -> None:
        runs = [a_run(number, state=state) for number, state in enumerate([*State, *State])]
        await store.add_runs(runs)
        for states in ({State.PENDING}, {State.FAILED, State.RUNNING}, set(State)):
            expected = [run for run in runs[::-1] if run.state in states]
            assert await all_runs(store, RunFilter(states=frozenset(states)), 3) == expected

    async def test_filters_see_a_run_as_it_was_last_written(self, store: Store) -> None:
        await store.add_runs([a_run(1), a_run(2)])
        first, _ = (await take(store)).runs
        await store.settle_runs([completed(first)], NOW)
        for state, expected in ((State.PENDING, []), (State.RUNNING, [a_run(2)]), (State.COMPLETED, [a_run(1)])):
            assert ids(await all_runs(store, RunFilter(states=frozenset({state})))) == ids(expected)

    async def test_runs_are_filtered_by_fire_time_from_since_up_to_until(self, store: Store) -> None:
        # Within a millisecond the ids, which begin with it, don't tell.
        first, middle, last = (a_run(n, id=uuid7(NOW, bytes([n] * 10)), fire_at=NOW + n) for n in (1, 2, 3))
        await store.add_runs([first, middle, last])
        assert await all_runs(store, RunFilter(since=NOW + 2)) == [last, middle]
        assert await all_runs(store, RunFilter(until=NOW + 2)) == [first]
        assert await all_runs(store, RunFilter(since=NOW + 1, until=NOW + 3), 1) == [middle, first]
        assert await all_runs(store, RunFilter(since=NOW + 2, until=NOW + 2)) == []
        assert len(await all_runs(store, RunFilter(since=INSTANT_MIN, until=INSTANT_MAX))) == 3

    async def test_run_filters_hold_together_across_pages(self, store: Store) -> None:
        one, two = a_job("one"), a_job("two")
        runs = [
            a_run(n, of=(one, two)[n % 2], state=(State.PENDING, State.FAILED)[n // 2 % 2], queue="ab"[n // 4 % 2])
            for n in range(32)
        ]
        await store.add_runs(runs)
        where = RunFilter(
            job="one",
            states=frozenset({State.FAILED}),
            queue="b",
            since=runs[8].fire_at,
            until=runs[30].fire_at,
        )
        assert await all_runs(store, where, 1) == [runs[22], runs[14]]

    async def test_runs_are_filtered_by_fire_times_that_milliseconds_and_days_lie_between(self, store: Store) -> None:
        times = [INSTANT_MIN, -1, 0, NOW - DAY, NOW - 1, NOW, NOW + 999, NOW + 1_000, NOW + DAY, INSTANT_MAX]
        runs = [a_run(n, id=uuid7(at, bytes([n] * 10)), fire_at=at) for n, at in enumerate(times)]
        await store.add_runs(runs)
        for bound in times:
            since = [run for run in runs[::-1] if run.fire_at >= bound]
            assert await all_runs(store, RunFilter(since=bound), 3) == since
            assert await all_runs(store, RunFilter(until=bound), 3) == [run for run in runs[::-1] if run not in since]

    async def test_each_state_is_listed_in_a_queue_and_in_a_job(self, store: Store) -> None:
        one, two = a_job("one"), a_job("two")
        runs = [
            a_run(n, of=(one, two, None)[n % 3], state=state, queue="ab"[n % 2]) for n, state in enumerate([*State] * 4)
        ]
        await store.add_runs(runs)
        for state in State:
            of_state = [run for run in runs[::-1] if run.state is state]
            only = frozenset({state})
            for queue in "ab":
                where = RunFilter(states=only, queue=queue)
                assert await all_runs(store, where, 1) == [run for run in of_state if run.queue == queue]
            for job in ("one", "two"):
                where = RunFilter(states=only, job=job)
                assert await all_runs(store, where, 1) == [run for run in of_state if run.job == job]

    async def test_unfinished_runs_of_a_job_are_listed_by_id_even_within_a_millisecond(self, store: Store) -> None:
        job = a_job()
        ids_ = [uuid7(NOW, bytes([n] * 10)) for n in (5, 1, 4, 2, 3)]
        runs = [a_run(n, of=job, id=id_, fire_at=NOW + n) for n, id_ in enumerate(ids_)]
        await store.add_runs(runs)
        where = RunFilter(job=job.name, states=frozenset({State.PENDING}))
        assert ids(await all_runs(store, where, 2)) == sorted(ids_, reverse=True)

    # -- the newest of many jobs

    async def test_the_newest_runs_of_many_jobs_come_at_once(self, store: Store) -> None:
        jobs = [a_job(f"job-{number}") for number in range(3)]
        await store.add_jobs(jobs)
        runs = [a_fire(jobs[n % 2], NOW - n * MINUTE, [*State][n % len(State)]) for n in range(14)]
        await store.add_runs([*runs, a_run(90)])
        for limit in (1, 3, 50):
            found = await store.last_runs([*named(*jobs), "none", "job-0"], INSTANT_MIN, NOW + 1, limit)
            expected: dict[str, list[Run]] = {"job-2": [], "none": []}
            for job in jobs[:2]:
                of_job = [run for run in runs if run.job_id == job.id]
                expected[job.name] = sorted(of_job, key=lambda run: run.id, reverse=True)[:limit]
            assert found == expected
        assert await store.last_runs([], INSTANT_MIN, NOW, 5) == {}

    async def test_the_newest_runs_lie_within_the_fire_times_that_were_asked_for(self, store: Store) -> None:
        job = a_job("bounded")
        await store.add_jobs([job])
        states = (State.PENDING, State.COMPLETED)
        runs = [a_fire(job, NOW - n * SECOND, states[n % 2]) for n in range(8)]
        await store.add_runs(runs)
        found = await store.last_runs(["bounded"], NOW - 5 * SECOND, NOW - 2 * SECOND, 50)
        assert ids(found["bounded"]) == ids(runs[3:6])
        assert ids((await store.last_runs(["bounded"], NOW - 5 * SECOND, NOW, 2))["bounded"]) == ids(runs[1:3])

    async def test_a_name_that_was_given_again_stands_for_all_its_jobs(self, store: Store) -> None:
        first, second = a_job("again"), a_job("again", id=uuid7(NOW, b"the second"))
        await delete(store, first)
        await store.add_jobs([second])
        await store.add_runs([a_fire(first, NOW - HOUR, State.COMPLETED), a_fire(second, NOW, State.PENDING)])
        found = await store.last_runs(["again"], INSTANT_MIN, INSTANT_MAX, 5)
        assert [run.job_id for run in found["again"]] == [second.id, first.id]

    # -- unfinished

    async def test_unfinished_runs_come_by_fire_time_for_every_asked_job(self, store: Store) -> None:
        one, two = a_job("one"), a_job("two")
        runs = [a_run(n, of=one, due_at=NOW - n) for n in range(4)]
        await store.add_runs([*runs[::-1], a_finished_run(9, of=one), a_finished_run(1, of=two), a_run(8)])
        (claimed,) = (await take(store, 1)).runs
        assert claimed.id == runs[3].id
        found = await store.unfinished_runs([two.id, "unknown", one.id, one.id])
        assert found == {one.id: [*runs[:3], claimed], two.id: [], "unknown": []}
        assert await store.unfinished_runs([]) == {}

    async def test_a_run_is_unfinished_in_three_states(self, store: Store) -> None:
        job = a_job()
        runs = [a_run(n, of=job, state=state) for n, state in enumerate(State)]
        await store.add_runs(runs)
        assert await store.unfinished_runs([job.id]) == {job.id: runs[:3]}

    async def test_unfinished_runs_follow_the_job_and_not_its_name(self, store: Store) -> None:
        first = await delete(store, a_job())
        successor = a_job(id="successor")
        await store.add_jobs([successor])
        await store.add_runs([a_run(1, of=first), a_run(2, of=successor, due_at=NOW + DAY)])
        found = await store.unfinished_runs([first.id, successor.id])
        assert {job_id: ids(runs) for job_id, runs in found.items()} == {
            first.id: ids([a_run(1, of=first)]),
            successor.id: ids([a_run(2, of=successor)]),
        }


async def all_jobs(store: Store, where: JobFilter, limit: int = PAGE_MAX, after: str | None = None) -> list[Job]:
    """Every page joined. Checks that each is as full as it should be."""
    pages = [await store.list_jobs(where, after, limit)]
    while (after := pages[-1].next_after) is not None:
        assert len(pages) < PAGES_MAX, f"the list goes on after {PAGES_MAX} pages"
        pages.append(await store.list_jobs(where, after, limit))
    assert all(len(page.items) == limit for page, _ in pairwise(pages))
    return [job for page in pages for job in page.items]


async def all_runs(store: Store, where: RunFilter, limit: int = PAGE_MAX, after: str | None = None) -> list[Run]:
    """Every page joined. Checks that each is as full as it should be."""
    pages = [await store.list_runs(where, after, limit)]
    while (after := pages[-1].next_after) is not None:
        assert len(pages) < PAGES_MAX, f"the list goes on after {PAGES_MAX} pages"
        pages.append(await store.list_runs(where, after, limit))
    assert all(len(page.items) == limit for page, _ in pairwise(pages))
    return [run for page in pages for run in page.items]
