"""Retention: pruning, trimming; nodes, counts, namespaces; opening and closing."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from horarium.clock import DAY, HOUR, INSTANT_MAX, INSTANT_MIN
from horarium.model import Job, Node, Plan, Run, State
from horarium.model.records import Record, RecordFilter
from horarium.ports import BATCH_MAX, QUEUES_MAX, Beat, JobFilter, QueueStats, RunFilter, Stats, Store
from horarium.testing.contract.base import Stores, StoreUnderTest, ids, take
from horarium.testing.contract.jobs import delete
from horarium.testing.values import NOW, a_change, a_finished_run, a_job, a_run, completed

JOB = a_job()


def a_node(name: str = "node", **changes: Any) -> Node:
    return replace(
        Node(name=name, roles=("api", "planner"), started_at=NOW, beat_at=NOW, places={"http": 4}), **changes
    )


async def kept(store: Store, runs: list[Run]) -> list[str]:
    return [run.id for run in await store.get_runs(ids(runs)) if run is not None]


class KeepingContract(StoreUnderTest):
    # -- prune

    async def test_a_finished_run_is_pruned_at_its_very_instant(self, store: Store) -> None:
        await store.add_runs([a_finished_run(1, prune_at=NOW)])
        assert await store.prune_runs(NOW - 1, 10) == 0
        assert await store.prune_runs(NOW, 10) == 1
        assert await store.prune_runs(NOW, 10) == 0
        assert await store.get_runs(ids([a_run(1)])) == [None]

    async def test_the_earliest_are_pruned_first_up_to_the_limit(self, store: Store) -> None:
        runs = [a_finished_run(n, prune_at=NOW - n) for n in range(4)]
        await store.add_runs(runs)
        assert await store.prune_runs(NOW, 0) == 0
        assert await store.prune_runs(NOW, 1) == 1
        assert await kept(store, runs) == ids(runs[:3])
        assert await store.prune_runs(NOW, 2) == 2
        assert await kept(store, runs) == ids(runs[:1])
        assert await store.prune_runs(NOW, BATCH_MAX) == 1

    async def test_unfinished_runs_and_those_kept_for_good_are_not_pruned(self, store: Store) -> None:
        runs = [a_run(n, state=state, prune_at=NOW) for n, state in enumerate(State)]
        forever = a_finished_run(20, prune_at=None)
        await store.add_runs([*runs, forever])
        assert await store.prune_runs(INSTANT_MAX, 100) == 4
        assert await kept(store, [*runs, forever]) == ids([*runs[:3], forever])

    async def test_a_settled_run_is_pruned_as_its_change_says(self, store: Store) -> None:
        await store.add_runs([a_run(1)])
        (claimed,) = (await take(store)).runs
        await store.settle_runs([replace(completed(claimed), run=replace(completed(claimed).run, prune_at=NOW))], NOW)
        assert await store.prune_runs(NOW, 10) == 1

    async def test_what_was_pruned_is_forgotten_everywhere(self, store: Store) -> None:
        run = a_finished_run(1, of=JOB, unique_key="k", prune_at=NOW)
        await store.add_jobs([JOB])
        await store.add_runs([run])
        assert await store.prune_runs(NOW, 10) == 1
        assert await store.get_run_by_key("k") is None
        assert (await store.list_runs(RunFilter(job="job"), None, 10)).items == ()
        assert await store.add_runs([a_run(1, of=JOB, unique_key="k")]) == [True]

    async def test_a_deleted_job_is_forgotten_once_its_last_run_is(self, store: Store) -> None:
        gone = await delete(store, JOB)
        await store.add_runs([a_finished_run(1, of=JOB, prune_at=NOW), a_finished_run(2, of=JOB, prune_at=NOW + 1)])
        assert await store.prune_runs(NOW, 10) == 1
        assert await store.get_jobs_by_id([JOB.id]) == [gone]
        assert await store.prune_runs(NOW + 1, 10) == 1
        assert await store.get_jobs_by_id([JOB.id]) == [None]

    async def test_a_deleted_job_without_runs_is_forgotten(self, store: Store) -> None:
        await delete(store, JOB)
        assert await store.prune_runs(NOW, 10) == 0
        assert await store.get_jobs_by_id([JOB.id]) == [None]

    async def test_a_deleted_job_with_an_unfinished_run_is_kept(self, store: Store) -> None:
        gone = await delete(store, JOB)
        await store.add_runs([a_run(1, of=JOB)])
        await store.prune_runs(INSTANT_MAX, 10)
        assert await store.get_jobs_by_id([JOB.id]) == [gone]
        assert (await take(store)).jobs == {JOB.id: gone}

    async def test_a_job_that_is_not_deleted_is_never_forgotten(self, store: Store) -> None:
        await store.add_jobs([JOB, a_job("off", enabled=False)])
        await store.prune_runs(INSTANT_MAX, 10)
        assert len((await store.list_jobs(JobFilter(), None, 10)).items) == 2

    async def test_forgetting_a_predecessor_leaves_the_job_of_its_name(self, store: Store) -> None:
        gone = await delete(store, JOB)
        successor = a_job(id="successor", next_fire_at=NOW)
        await store.add_jobs([successor])
        await store.prune_runs(NOW, 10)
        assert await store.get_jobs_by_id([gone.id, "successor"]) == [None, successor]
        assert await store.get_jobs(["job"]) == [successor]
        assert await store.due_jobs(NOW, 10) == ([successor], None)

    # -- trim

    async def test_the_oldest_finished_runs_are_trimmed(self, store: Store) -> None:
        runs = [a_finished_run(n, of=JOB, finished_at=NOW - n) for n in range(6)]
        await store.add_runs(runs[::-1])
        assert await store.trim_runs(JOB.id, 6, 10) == 0
        assert await store.trim_runs(JOB.id, 2, 0) == 0
        assert await store.trim_runs(JOB.id, 2, 3) == 3
        assert await kept(store, runs) == ids(runs[3:])
        assert await store.trim_runs(JOB.id, 2, 3) == 1
        assert await kept(store, runs) == ids(runs[4:])
        assert await store.trim_runs(JOB.id, 0, BATCH_MAX) == 2

    async def test_only_finished_runs_are_trimmed_and_only_they_count(self, store: Store) -> None:
        runs = [a_run(n, of=JOB, state=state) for n, state in enumerate(State)]
        await store.add_runs(runs)
        assert await store.trim_runs(JOB.id, 4, 10) == 0
        assert await store.trim_runs(JOB.id, 1, 10) == 3
        assert await kept(store, runs) == ids([*runs[:3], runs[-1]])

    async def test_runs_of_other_jobs_are_not_trimmed(self, store: Store) -> None:
        others = [a_finished_run(1, of=a_job("other")), a_finished_run(2), a_finished_run(3, job="job")]
        await store.add_runs([a_finished_run(1, of=JOB), *others])
        assert await store.trim_runs(JOB.id, 0, 10) == 1
        assert await store.trim_runs("unknown", 0, 10) == 0
        assert await kept(store, others) == ids(others)

    async def test_what_was_trimmed_is_not_pruned_again(self, store: Store) -> None:
        await store.add_runs([a_finished_run(1, of=JOB, prune_at=NOW)])
        assert await store.trim_runs(JOB.id, 0, 10) == 1
        assert await store.prune_runs(NOW, 10) == 0

    # -- nodes

    async def test_a_node_comes_back_equal(self, store: Store) -> None:
        node = a_node("nöde \U0001f5a5", roles=(), host="höst", pid=2**31, version="1.0", stopped_at=INSTANT_MAX)
        await store.beat_node(node)
        assert await store.list_nodes(INSTANT_MIN) == [node]

    async def test_a_node_beats_over_its_earlier_sign_of_life(self, store: Store) -> None:
        await store.beat_node(a_node(stopped_at=NOW))
        await store.beat_node(a_node(beat_at=NOW + 1, roles=("dispatcher",), stopped_at=None))
        assert await store.list_nodes(NOW) == [a_node(beat_at=NOW + 1, roles=("dispatcher",))]

    async def test_nodes_are_listed_by_name_from_the_asked_beat_on(self, store: Store) -> None:
        for name, beat_at in (("c", NOW), ("a", NOW + 1), ("B", NOW), ("old", NOW - 1)):
            await store.beat_node(a_node(name, beat_at=beat_at))
        assert [node.name for node in await store.list_nodes(NOW)] == ["B", "a", "c"]
        assert [node.name for node in await store.list_nodes(NOW + 1)] == ["a"]
        assert await store.list_nodes(NOW + 2) == []

    # -- counts

    async def test_an_empty_store_counts_nothing(self, store: Store) -> None:
        assert await store.stats(NOW) == Stats(0, 0, ())

    async def test_jobs_are_counted(self, store: Store) -> None:
        await store.add_jobs([a_job("on"), a_job("off", enabled=False), a_job("paused", paused_at=NOW)])
        await delete(store, a_job("gone"))
        stats = await store.stats(NOW)
        assert (stats.jobs, stats.jobs_enabled) == (3, 2)

    async def test_unfinished_runs_are_counted_by_queue(self, store: Store) -> None:
        await store.add_runs([a_run(n, queue="b", due_at=NOW - n) for n in range(3)])
        await store.add_runs([a_run(n, queue="b", due_at=NOW + n, priority=n) for n in (3, 4)])
        await store.add_runs([a_run(5, queue="a", due_at=NOW + HOUR), a_finished_run(6, queue="c")])
        await store.add_runs([a_run(7, queue="d", state=State.RUNNING), a_run(8, queue="d", state=State.CANCELLING)])
        expected = (
            QueueStats("a", due=0, scheduled=1, running=0, oldest_due_at=None),
            QueueStats("b", due=3, scheduled=2, running=0, oldest_due_at=NOW - 2),
            QueueStats("d", due=0, scheduled=0, running=2, oldest_due_at=None),
        )
        assert (await store.stats(NOW)).queues == expected

    async def test_of_too_many_queues_those_are_told_in_which_a_run_has_waited_longest(self, store: Store) -> None:
        runs = [a_run(n, queue=f"later-{n}", due_at=NOW + HOUR) for n in range(3)]
        runs += [a_run(n + 3, queue=f"queue-{n}", due_at=NOW - n) for n in range(QUEUES_MAX)]
        for start in range(0, len(runs), BATCH_MAX):
            await store.add_runs(runs[start : start + BATCH_MAX])
        stats = await store.stats(NOW)
        assert [one.queue for one in stats.queues] == sorted(run.queue for run in runs[3:])
        assert stats.queues_left_out == 3
        assert stats.queues[0] == QueueStats("queue-0", due=1, scheduled=0, running=0, oldest_due_at=NOW)

    async def test_counts_follow_a_run_through_its_life(self, store: Store) -> None:
        async def counts(now: int = NOW) -> list[tuple[int, int, int, int | None]]:
            queues = (await store.stats(now)).queues
            return [(queue.due, queue.scheduled, queue.running, queue.oldest_due_at) for queue in queues]

        await store.add_runs([a_run(1)])
        assert await counts(NOW - 1) == [(0, 1, 0, None)]
        assert await counts() == [(1, 0, 0, NOW)]
        (claimed,) = (await take(store)).runs
        assert await counts() == [(0, 0, 1, None)]
        retry = a_change(claimed, state=State.PENDING, due_at=NOW + DAY, lease_expires_at=None)
        await store.settle_runs([retry], NOW)
        assert await counts() == [(0, 1, 0, None)]
        await store.settle_runs([a_change(retry.run, state=State.FAILED, finished_at=NOW)], NOW)
        assert await counts() == []

    # -- namespaces

    async def test_namespaces_know_nothing_of_each_other(self, stores: Stores) -> None:
        here, there = await stores.another(), await stores.another(f"{stores.namespace}-2")
        job, run = a_job(next_fire_at=NOW), a_run(1, of=a_job(), unique_key="k", concurrency_key="c", concurrency_max=1)
        done = a_finished_run(2, of=job, prune_at=NOW)
        for store in (here, there):
            assert await store.add_jobs([job]) == [True]
            assert await store.add_runs([run, done]) == [True, True]
        await here.beat_node(a_node())
        before = await everything(there)
        (claimed,) = (await take(here)).runs
        assert await here.heartbeat_runs([Beat(claimed.id, 1)], NOW) != [None]
        assert await here.commit_plans([Plan(replace(job, deleted_at=NOW))], NOW) == [True]
        assert await here.settle_runs([completed(claimed)], NOW) == [True]
        assert await here.prune_runs(NOW, 10) == 1
        assert await here.trim_runs(job.id, 0, 10) == 1
        assert await everything(there) == before
        assert await there.list_nodes(INSTANT_MIN) == []
        assert ids((await take(there)).runs) == ids([run])

    async def test_a_namespace_may_have_any_name(self, stores: Stores) -> None:
        here, there = [await stores.another(f"${stores.namespace}/{end} {{ü}}%") for end in ("here", "there")]
        job, record = a_job(next_fire_at=NOW), Record(name="a/b", body=b"", labels={"a": "b"})
        await here.add_jobs([job], {job.id: [record]})
        await here.add_runs([a_run(1, of=job, unique_key="k", concurrency_key="c", concurrency_max=1)])
        await here.beat_node(a_node())
        (claimed,) = (await take(here)).runs
        failed = a_change(claimed, state=State.FAILED, finished_at=NOW, lease_expires_at=None, prune_at=NOW)
        assert await here.settle_runs([failed], NOW) == [True]
        assert (list(await here.failing_jobs(5)), await there.failing_jobs(5)) == ([job.id], {})
        assert (await here.list_records(RecordFilter(labels={"a": "b"}), None, 5)).items == (record,)
        assert [len(await store.list_nodes(INSTANT_MIN)) for store in (here, there)] == [1, 0]
        assert ((await here.stats(NOW)).jobs, (await there.stats(NOW)).jobs) == (1, 0)
        assert [await store.prune_runs(NOW, 5) for store in (there, here)] == [0, 1]

    # -- opening and closing

    async def test_a_store_may_be_closed_twice(self, stores: Stores) -> None:
        store = await stores.another()
        await store.close()
        await store.close()

    async def test_a_closed_instance_leaves_the_others_and_the_data(self, stores: Stores) -> None:
        one, two = await stores.several(2)
        await one.add_jobs([JOB])
        await one.close()
        assert await two.get_jobs(["job"]) == [JOB]
        assert await (await stores.another()).get_jobs(["job"]) == [JOB]

    async def test_opening_again_changes_nothing(self, stores: Stores) -> None:
        store = await stores.another()
        await store.add_jobs([JOB])
        await stores.another()
        assert await store.get_jobs(["job"]) == [JOB]

    async def test_a_healthy_store_passes_its_check(self, store: Store) -> None:
        await store.check()
        assert await store.stats(NOW) == Stats(0, 0, ())


async def everything(store: Store) -> tuple[list[Job], list[Run], tuple[list[Job], int | None], Stats]:
    """All that a store of few rows will tell."""
    jobs = await store.list_jobs(JobFilter(), None, BATCH_MAX)
    runs = await store.list_runs(RunFilter(), None, BATCH_MAX)
    return list(jobs.items), list(runs.items), await store.due_jobs(INSTANT_MAX, BATCH_MAX), await store.stats(NOW)
