"""Planning is compare-and-set: a plan is carried out whole, on the version that was read, or leaves no trace."""

from __future__ import annotations

from msgspec.structs import replace

from horarium.clock import DAY, MINUTE, SECOND
from horarium.model import Disposition, Event, HandlerTarget, Plan, QueueTarget, State
from horarium.model.records import Record
from horarium.ports import BATCH_MAX, RunFilter, Store
from horarium.testing.contract.base import StoreUnderTest, ids, job_of, run_of, take, take_one
from horarium.testing.values import NOW, a_change, a_finished_run, a_job, a_run, completed


class PlanningContract(StoreUnderTest):
    async def test_a_plan_writes_the_job_its_runs_and_its_changes(self, store: Store) -> None:
        job = a_job(next_fire_at=NOW)
        await store.add_jobs([job])
        waiting = a_run(1, of=job)
        await store.add_runs([waiting])
        cancel = a_change(waiting, state=State.CANCELLED, finished_at=NOW, disposition=Disposition.CANCELLED)
        planned = replace(job, next_fire_at=NOW + MINUTE, planned_until=NOW, fires_count=1, updated_at=NOW)
        skipped = a_run(3, of=job, state=State.SKIPPED, finished_at=NOW, fires=9, last_fire_at=NOW)
        assert await store.commit_plans([Plan(planned, (a_run(2, of=job), skipped), (cancel,))], NOW) == [True]
        assert await store.get_jobs(["job"]) == [replace(planned, version=2)]
        assert await store.get_runs([waiting.id, a_run(2, of=job).id, skipped.id]) == [
            cancel.run,
            a_run(2, of=job),
            skipped,
        ]

    async def test_a_plan_may_change_every_part_of_the_definition(self, store: Store) -> None:
        job = a_job()
        await store.add_jobs([job])
        changed = replace(
            job, trigger={"type": "once"}, target=HandlerTarget("f"), labels={"a": "b"}, enabled=False, paused_at=NOW
        )
        assert await store.commit_plans([Plan(changed)], NOW) == [True]
        assert await job_of(store, job) == replace(changed, version=2)

    async def test_a_stale_version_leaves_no_trace(self, store: Store) -> None:
        job = a_job(next_fire_at=NOW)
        await store.add_jobs([job])
        held = await take_one(store, a_run(0, of=job))
        await store.commit_plans([Plan(replace(job, priority=1))], NOW)
        before = await job_of(store, job)
        loser = Plan(replace(job, priority=2), (a_run(1, of=job),), (completed(held),))
        assert await store.commit_plans([loser], NOW) == [False]
        assert await job_of(store, job) == before
        assert await store.get_runs([held.id, a_run(1, of=job).id]) == [held, None]
        assert await store.due_jobs(NOW, 10) == ([before], None)

    async def test_a_version_from_the_future_loses_too(self, store: Store) -> None:
        await store.add_jobs([a_job()])
        assert await store.commit_plans([Plan(a_job(version=2))], NOW) == [False]
        assert await job_of(store, a_job()) == a_job()

    async def test_a_plan_for_an_unknown_job_loses(self, store: Store) -> None:
        job = a_job()
        assert await store.commit_plans([Plan(job, (a_run(1, of=job),))], NOW) == [False]
        assert await store.get_jobs_by_id([job.id]) == [None]
        assert await store.get_runs([a_run(1, of=job).id]) == [None]

    async def test_a_plan_for_a_job_deleted_meanwhile_loses(self, store: Store) -> None:
        job = a_job()
        await store.add_jobs([job])
        await store.commit_plans([Plan(replace(job, deleted_at=NOW))], NOW)
        assert await store.commit_plans([Plan(job, (a_run(1, of=job),))], NOW) == [False]
        assert await store.get_jobs(["job"]) == [None]
        assert await store.get_runs([a_run(1, of=job).id]) == [None]

    async def test_in_one_batch_losers_do_not_hinder_winners(self, store: Store) -> None:
        jobs = [a_job(name, next_fire_at=NOW) for name in ("a", "b", "c")]
        await store.add_jobs(jobs)
        plans = [Plan(replace(job, next_fire_at=None), (a_run(1, of=job),)) for job in jobs]
        plans[1] = replace(plans[1], job=replace(plans[1].job, version=7))
        assert await store.commit_plans(plans, NOW) == [True, False, True]
        assert await store.due_jobs(NOW, 10) == ([jobs[1]], None)
        found = await store.get_runs([a_run(1, of=job).id for job in jobs])
        assert [run is not None for run in found] == [True, False, True]

    async def test_of_two_plans_for_one_job_in_a_batch_the_first_wins(self, store: Store) -> None:
        job = a_job()
        await store.add_jobs([job])
        plans = [Plan(replace(job, priority=number), (a_run(number, of=job),)) for number in (1, 2)]
        assert await store.commit_plans(plans, NOW) == [True, False]
        assert await job_of(store, job) == replace(job, priority=1, version=2)
        assert await store.get_runs([a_run(2, of=job).id]) == [None]

    async def test_a_plan_carried_out_again_changes_nothing(self, store: Store) -> None:
        job = a_job()
        await store.add_jobs([job])
        plan = Plan(job, (a_run(1, of=job),))
        assert await store.commit_plans([plan], NOW) == [True]
        assert await store.commit_plans([plan], NOW) == [False]
        assert (await job_of(store, job)).version == 2

    async def test_versions_go_up_one_by_one(self, store: Store) -> None:
        job = a_job()
        await store.add_jobs([job])
        for version in (1, 2, 3):
            assert await store.commit_plans([Plan(replace(job, version=version))], NOW) == [True]
        assert (await job_of(store, job)).version == 4

    async def test_a_plan_may_be_of_several_versions(self, store: Store) -> None:
        job, other = a_job(next_fire_at=NOW), a_job("other")
        await store.add_jobs([job, other])
        plans = [Plan(replace(job, priority=3), (a_run(1, of=job),), versions=3), Plan(replace(other, priority=1))]
        assert await store.commit_plans(plans, NOW) == [True, True]
        assert await store.get_jobs(["job", "other"]) == [
            replace(job, priority=3, version=4),
            replace(other, priority=1, version=2),
        ]
        stale = [Plan(replace(job, priority=9, version=version), versions=9) for version in (1, 2, 3)]
        assert [(await store.commit_plans([each], NOW))[0] for each in stale] == [False] * 3
        cancel = a_change(a_run(1, of=job), state=State.CANCELLED, finished_at=NOW, disposition=Disposition.CANCELLED)
        last = Plan(replace(job, priority=5, version=4), changes=(cancel,), versions=2)
        assert await store.commit_plans([last], NOW) == [True]
        assert await job_of(store, job) == replace(job, priority=5, version=6)

    async def test_a_fire_time_that_has_a_run_gets_no_other(self, store: Store) -> None:
        job = a_job()
        await store.add_jobs([job])
        first = a_run(1, of=job)
        await store.add_runs([first])
        again = a_run(1, of=job, id=a_run(7).id, priority=9)
        assert await store.commit_plans([Plan(job, (again, a_run(2, of=job)))], NOW) == [True]
        assert await store.get_runs([first.id, again.id, a_run(2, of=job).id]) == [first, None, a_run(2, of=job)]

    async def test_a_fire_time_whose_run_is_finished_gets_no_other(self, store: Store) -> None:
        job = a_job()
        await store.add_jobs([job])
        done = a_finished_run(1, of=job)
        await store.add_runs([done])
        again = a_run(1, of=job, id=a_run(7).id)
        assert await store.commit_plans([Plan(job, (again, a_run(1, of=job)))], NOW) == [True]
        assert await store.get_runs([done.id, again.id]) == [done, None]
        assert (await take(store)).runs == ()

    async def test_a_fire_time_twice_in_one_plan_gets_one_run(self, store: Store) -> None:
        job = a_job()
        await store.add_jobs([job])
        again = a_run(1, of=job, id=a_run(7).id)
        assert await store.commit_plans([Plan(job, (a_run(1, of=job), again))], NOW) == [True]
        assert await store.get_runs([a_run(1, of=job).id, again.id]) == [a_run(1, of=job), None]

    async def test_jobs_may_share_a_fire_time(self, store: Store) -> None:
        jobs = [a_job("a"), a_job("b")]
        await store.add_jobs(jobs)
        assert await store.commit_plans([Plan(job, (a_run(1, of=job),)) for job in jobs], NOW) == [True, True]
        assert len((await store.list_runs(RunFilter(), None, 10)).items) == 2

    async def test_a_run_whose_unique_key_is_taken_is_left_out_of_a_plan(self, store: Store) -> None:
        job = a_job()
        await store.add_jobs([job])
        await store.add_runs([a_run(0, unique_key="k")])
        runs = (a_run(1, of=job, unique_key="k"), a_run(2, of=job))
        assert await store.commit_plans([Plan(job, runs)], NOW) == [True]
        assert await store.get_runs([run.id for run in runs]) == [None, runs[1]]

    async def test_a_plan_may_make_a_run_that_is_cancelled_already(self, store: Store) -> None:
        job = a_job()
        await store.add_jobs([job])
        ended = a_run(
            1, of=job, state=State.CANCELLED, disposition=Disposition.CANCELLED, error="the next one came",
            finished_at=NOW, prune_at=NOW + MINUTE, payload=b"1", unique_key="k", serial=True, start_by=NOW + 1,
        )  # fmt: skip
        later = a_run(2, of=job, serial=True)
        record = Record(name="audit/1", body=b"{}")
        plan = Plan(job, (ended, later), along={ended.id: (record,)}, versions=2)
        assert await store.commit_plans([plan], NOW) == [True]
        assert await store.get_runs([ended.id, later.id]) == [ended, later]
        assert await store.get_run_by_key("k") == ended
        assert await store.unfinished_runs([job.id]) == {job.id: [later]}
        assert (await store.list_runs(RunFilter(states=frozenset({State.CANCELLED})), None, 9)).items == (ended,)
        assert [each is not None for each in await store.get_records(["audit/1"])] == [True]
        assert await store.overdue_runs(NOW + 1, 10, NOW + 1) == ([], None)
        assert ids((await take(store, 9)).runs) == ids([later])
        assert (await store.prune_runs(NOW + MINUTE - 1, 9), await store.prune_runs(NOW + MINUTE, 9)) == (0, 1)
        assert await store.get_runs([ended.id]) == [None]

    async def test_a_change_whose_run_has_moved_on_is_left_out_of_a_plan(self, store: Store) -> None:
        job = a_job()
        await store.add_jobs([job])
        pending = a_run(0, of=job)
        claimed = await take_one(store, pending)
        cancel = a_change(pending, state=State.CANCELLED, finished_at=NOW)
        assert await store.commit_plans([Plan(job, (a_run(1, of=job),), (cancel,))], NOW) == [True]
        assert await run_of(store, pending) == claimed
        assert await run_of(store, a_run(1, of=job)) == a_run(1, of=job)

    async def test_a_plan_may_have_a_row_forgotten_that_was_skipped(self, store: Store) -> None:
        job = a_job()
        await store.add_jobs([job])
        skipped = a_run(1, of=job, state=State.SKIPPED, finished_at=NOW, fires=9, last_fire_at=NOW, prune_at=NOW + DAY)
        await store.add_runs([skipped])
        going = a_change(skipped, prune_at=0)
        lost = Plan(replace(job, version=9), changes=(going,))
        assert await store.commit_plans([lost, Plan(job, changes=(going,))], NOW) == [False, True]
        assert await run_of(store, skipped) == going.run
        assert await store.prune_runs(0, 9) == 1
        assert await store.get_runs([skipped.id]) == [None]

    async def test_a_change_in_a_plan_looks_at_the_lease_at_its_now(self, store: Store) -> None:
        job = a_job()
        await store.add_jobs([job])
        claimed = await take_one(store, a_run(0, of=job, lease_seconds=10.0))
        expired = a_change(claimed, held=False, state=State.PENDING, lease_expires_at=None)
        assert await store.commit_plans([Plan(job, (), (expired,))], NOW + 10 * SECOND - 1) == [True]
        assert await run_of(store, claimed) == claimed
        again = Plan(replace(job, version=2), (), (expired,))
        assert await store.commit_plans([again], NOW + 10 * SECOND) == [True]
        assert await run_of(store, claimed) == expired.run

    # -- withdrawals

    async def test_a_withdrawn_run_is_as_though_never_planned(self, store: Store) -> None:
        job = a_job()
        await store.add_jobs([job])
        run = a_run(1, of=job, unique_key="k", start_by=NOW + 1)
        await store.add_runs([run, a_run(2, of=job)])
        assert await store.commit_plans([Plan(job, withdrawals=(run,))], NOW) == [True]
        assert await store.get_runs([run.id]) == [None]
        assert await store.get_run_by_key("k") is None
        assert await store.overdue_runs(NOW, 10, NOW) == ([], None)
        assert await store.unfinished_runs([job.id]) == {job.id: [a_run(2, of=job)]}
        assert (await store.list_runs(RunFilter(), None, 10)).items == (a_run(2, of=job),)
        assert ids((await take(store)).runs) == ids([a_run(2, of=job)])

    async def test_a_fire_time_withdrawn_can_be_planned_again_in_the_same_plan(self, store: Store) -> None:
        job = a_job()
        await store.add_jobs([job])
        run = a_run(1, of=job)
        await store.add_runs([run])
        again = replace(run, priority=9)
        assert await store.commit_plans([Plan(job, (again,), (), (run,))], NOW) == [True]
        assert await run_of(store, run) == again

    async def test_a_run_that_was_put_back_can_be_moved_to_another_queue_as_it_is(self, store: Store) -> None:
        job = a_job()
        await store.add_jobs([job])
        claimed = await take_one(store, a_run(1, of=job, unique_key="k", payload=b"[1]"))
        history = (Event(NOW, State.PENDING, "attempt 1 failed: once"),)
        back = a_change(
            claimed, state=State.PENDING, lease_expires_at=None, worker=None, started_at=None, history=history,
            error="once", progress=b"5", due_at=NOW - 1,
        )  # fmt: skip
        await store.settle_runs([back], NOW)
        moved = replace(back.run, queue="pull/elsewhere", history=(*history, Event(NOW, State.PENDING, "moved")))
        changed = replace(job, target=QueueTarget("elsewhere"))
        assert await store.commit_plans([Plan(changed, (moved,), (), (back.run,))], NOW) == [True]
        assert await store.get_run_by_key("k") == await run_of(store, moved) == moved
        assert (await take(store)).runs == ()
        (taken,) = (await take(store, queues=["pull/elsewhere"])).runs
        assert (taken.id, taken.token, taken.attempt, taken.history) == (moved.id, 2, 2, moved.history)

    async def test_runs_that_are_moved_to_where_they_wait_for_each_other_take_turns(self, store: Store) -> None:
        job = a_job()
        await store.add_jobs([job])
        free = [a_run(index, of=job) for index in range(4)]
        await store.add_runs(free)
        serial = [replace(run, queue="pull/there", serial=True) for run in free[:2]]
        limited = [
            replace(run, queue="pull/there", concurrency_key="k", concurrency_max=1, lease_seconds=7.0)
            for run in free[2:]
        ]
        assert await store.commit_plans([Plan(job, (*serial, *limited), (), tuple(free))], NOW) == [True]
        taken = (await take(store, queues=["pull/there"])).runs
        assert ids(taken) == ids([serial[0], limited[0]])
        assert taken[1].lease_expires_at == NOW + 7 * SECOND

    async def test_a_run_that_was_claimed_meanwhile_is_not_moved(self, store: Store) -> None:
        job = a_job()
        await store.add_jobs([job])
        read = a_run(1, of=job)
        claimed = await take_one(store, read)
        moved = replace(read, queue="pull/elsewhere")
        assert await store.commit_plans([Plan(job, (moved,), (), (read,))], NOW) == [True]
        assert await run_of(store, claimed) == claimed

    async def test_a_claimed_run_is_not_withdrawn(self, store: Store) -> None:
        job = a_job()
        await store.add_jobs([job])
        claimed = await take_one(store, a_run(1, of=job))
        assert await store.commit_plans([Plan(job, withdrawals=(a_run(1, of=job), claimed))], NOW) == [True]
        assert await run_of(store, claimed) == claimed

    async def test_a_run_claimed_and_put_back_is_not_withdrawn_under_its_old_token(self, store: Store) -> None:
        job = a_job()
        await store.add_jobs([job])
        claimed = await take_one(store, a_run(1, of=job))
        back = a_change(claimed, state=State.PENDING, lease_expires_at=None)
        await store.settle_runs([back], NOW)
        assert await store.commit_plans([Plan(job, withdrawals=(a_run(1, of=job),))], NOW) == [True]
        assert await run_of(store, claimed) == back.run

    async def test_a_run_that_is_unknown_or_finished_is_not_withdrawn(self, store: Store) -> None:
        job = a_job()
        await store.add_jobs([job])
        done = a_finished_run(1, of=job, token=0)
        await store.add_runs([done])
        withdrawals = (a_run(1, of=job), a_run(5, of=job))
        assert await store.commit_plans([Plan(job, withdrawals=withdrawals)], NOW) == [True]
        assert await run_of(store, done) == done

    async def test_a_plan_that_loses_withdraws_nothing(self, store: Store) -> None:
        job = a_job()
        await store.add_jobs([job])
        await store.add_runs([a_run(1, of=job)])
        stale = Plan(replace(job, version=9), withdrawals=(a_run(1, of=job),))
        assert await store.commit_plans([stale], NOW) == [False]
        assert await run_of(store, a_run(1, of=job)) == a_run(1, of=job)

    async def test_a_run_cancelled_by_the_same_plan_is_not_withdrawn(self, store: Store) -> None:
        job = a_job()
        await store.add_jobs([job])
        await store.add_runs([a_run(1, of=job)])
        cancel = a_change(a_run(1, of=job), state=State.CANCELLED, finished_at=NOW)
        assert await store.commit_plans([Plan(job, (), (cancel,), (a_run(1, of=job),))], NOW) == [True]
        assert await run_of(store, cancel.run) == cancel.run

    async def test_an_empty_batch_of_plans_is_answered(self, store: Store) -> None:
        assert await store.commit_plans([], NOW) == []

    async def test_a_full_batch_of_plans_is_carried_out(self, store: Store) -> None:
        jobs = [a_job(f"job-{number}", next_fire_at=NOW) for number in range(BATCH_MAX)]
        await store.add_jobs(jobs)
        plans = [Plan(replace(job, next_fire_at=NOW + DAY), (a_run(1, of=job),)) for job in jobs]
        assert await store.commit_plans(plans, NOW) == [True] * BATCH_MAX
        assert await store.due_jobs(NOW, 1) == ([], NOW + DAY)
        assert len((await take(store)).runs) == BATCH_MAX

    # -- moved runs, and records that come along with a run

    async def test_a_run_is_moved_only_if_it_was_there_to_be_withdrawn(self, store: Store) -> None:
        """One that ended and was pruned since it was read must not come back, nor must one that was claimed."""
        jobs = [a_job(name) for name in ("a", "b", "c")]
        await store.add_jobs(jobs)
        waiting, pruned, claimed = (a_run(number, of=job) for number, job in enumerate(jobs, 1))
        await store.add_runs([pruned])
        await store.settle_runs(
            [a_change(pruned, state=State.CANCELLED, finished_at=NOW, prune_at=NOW, disposition=Disposition.CANCELLED)],
            NOW,
        )
        assert await store.prune_runs(NOW, 10) == 1
        held = await take_one(store, claimed)
        await store.add_runs([waiting])
        plans = [
            Plan(job, runs=(replace(run, queue="pull/other"),), withdrawals=(run,))
            for job, run in zip(jobs, (waiting, pruned, claimed), strict=True)
        ]
        assert await store.commit_plans(plans, NOW) == [True, True, True]
        found = await store.get_runs([waiting.id, pruned.id, claimed.id])
        assert found == [replace(waiting, queue="pull/other"), None, held]

    async def test_other_runs_of_such_a_plan_are_added(self, store: Store) -> None:
        job = a_job()
        await store.add_jobs([job])
        gone, fresh, after = (a_run(number, of=job) for number in (1, 2, 3))
        assert await store.commit_plans([Plan(job, runs=(fresh, gone, after), withdrawals=(gone,))], NOW) == [True]
        assert await store.get_runs([gone.id, fresh.id, after.id]) == [None, fresh, after]

    async def test_a_record_is_written_only_with_the_run_of_the_plan_that_it_comes_with(self, store: Store) -> None:
        job = a_job()
        await store.add_jobs([job])
        there = a_run(1, of=job)
        await store.add_runs([there])
        keyed = a_run(2, of=job, unique_key="once")
        refused, made = a_run(3, of=job, unique_key="once"), a_run(4, of=job)
        along = {run.id: (Record(name=f"audit/{run.id}", body=b"{}"),) for run in (there, keyed, refused, made)}
        planned = Plan(job, runs=(there, keyed, refused, made), records=(Record(name="plan", body=b""),), along=along)
        assert await store.commit_plans([planned], NOW) == [True]
        assert await store.get_runs([run.id for run in (there, keyed, refused, made)]) == [there, keyed, None, made]
        names = [f"audit/{run.id}" for run in (there, keyed, refused, made)] + ["plan"]
        written = await store.get_records(names)
        assert [record is not None for record in written] == [False, True, False, True, True]

    async def test_what_comes_along_with_the_runs_of_a_plan_that_loses_is_not_written(self, store: Store) -> None:
        job = a_job()
        await store.add_jobs([job])
        run = a_run(1, of=job)
        lost = Plan(replace(job, version=7), runs=(run,), along={run.id: (Record(name="audit/1", body=b""),)})
        won = Plan(job, runs=(a_run(2, of=job),))
        assert await store.commit_plans([lost, won], NOW) == [False, True]
        assert await store.get_records(["audit/1"]) == [None]
        assert await store.get_runs([run.id, a_run(2, of=job).id]) == [None, a_run(2, of=job)]
