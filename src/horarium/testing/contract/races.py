"""Races between instances over the same data: each thing happens once, in any interleaving.

Nothing here depends on which side wins. Every loop is bounded, so that a store that never finishes fails instead.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from itertools import chain

import pytest
from msgspec.structs import replace

from horarium.clock import DAY, SECOND
from horarium.model import CLAIMED, Job, Plan, Run, State
from horarium.ports import BATCH_MAX, Beat, RunFilter, Store
from horarium.testing.contract.base import Stores, StoreUnderTest, ids, job_of, run_of, take, take_one
from horarium.testing.values import NOW, a_change, a_job, a_run, completed

CLAIMERS = 8
RUNS = 200
ROUNDS_MAX = 400
ROUNDS_LISTED = 40


async def claim_all(store: Store, worker: str, limit: int = 7) -> list[Run]:
    """Claim until nothing is left."""
    claimed: list[Run] = []
    for _ in range(ROUNDS_MAX):
        batch = (await take(store, limit, worker=worker)).runs
        if not batch:
            return claimed
        claimed.extend(batch)
    raise AssertionError(f"{worker} still claims after {ROUNDS_MAX} rounds")


class RaceContract(StoreUnderTest):
    async def test_of_many_claimers_each_run_goes_to_one(self, stores: Stores) -> None:
        claimers = await stores.several(CLAIMERS)
        runs = [a_run(n, priority=n % 3) for n in range(RUNS)]
        await claimers[0].add_runs(runs)
        taken = await asyncio.gather(*(claim_all(store, f"worker-{n}") for n, store in enumerate(claimers)))
        assert sorted(ids(list(chain(*taken)))) == ids(runs)
        owners = {run.id: run.worker for run in chain(*taken)}
        stored = await claimers[0].get_runs(ids(runs))
        assert all(run is not None and (run.token, run.worker) == (1, owners[run.id]) for run in stored)

    async def test_claimers_of_one_instance_share_it_safely(self, store: Store) -> None:
        runs = [a_run(n) for n in range(RUNS)]
        await store.add_runs(runs)
        taken = await asyncio.gather(*(claim_all(store, f"worker-{n}") for n in range(CLAIMERS)))
        assert sorted(ids(list(chain(*taken)))) == ids(runs)

    async def test_claimers_together_never_exceed_a_concurrency_key(self, stores: Stores) -> None:
        claimers = await stores.several(CLAIMERS)
        runs = [a_run(n, concurrency_key="ab"[n % 2], concurrency_max=2 + n % 2) for n in range(60)]
        await claimers[0].add_runs(runs)
        maxima = {"a": 2, "b": 3}
        done: list[str] = []
        for _ in range(ROUNDS_MAX):
            batches = await asyncio.gather(*(take(store, 2, worker=f"w{n}") for n, store in enumerate(claimers)))
            taken = [run for batch in batches for run in batch.runs]
            held = Counter(run.concurrency_key or "" for run in taken)
            assert all(count <= maxima[key] for key, count in held.items())
            if not taken:
                break
            assert await claimers[0].settle_runs([completed(run) for run in taken], NOW) == [True] * len(taken)
            done.extend(ids(taken))
        assert sorted(done) == ids(runs)

    async def test_claimers_together_never_run_a_serial_job_twice_at_once(self, stores: Stores) -> None:
        claimers = await stores.several(CLAIMERS)
        jobs = [a_job("one"), a_job("two")]
        await claimers[0].add_runs([a_run(n, of=job, serial=True) for n in range(8) for job in jobs])
        order: dict[str, list[int]] = {job.id: [] for job in jobs}
        for _ in range(8):
            batches = await asyncio.gather(*(take(store) for store in claimers))
            taken = [run for batch in batches for run in batch.runs]
            assert sorted(run.job_id or "" for run in taken) == sorted(order)
            for run in taken:
                order[run.job_id or ""].append(run.fire_at)
            await claimers[0].settle_runs([completed(run) for run in taken], NOW)
        assert all(fired == sorted(fired) and len(fired) == 8 for fired in order.values())

    async def test_of_many_planners_one_wins(self, stores: Stores) -> None:
        planners = await stores.several(CLAIMERS)
        job = a_job(next_fire_at=NOW)
        await planners[0].add_jobs([job])
        plans = [
            Plan(replace(job, next_fire_at=NOW + DAY, priority=n), (a_run(1, of=job, priority=n), a_run(n + 2, of=job)))
            for n in range(CLAIMERS)
        ]
        answers = await asyncio.gather(
            *(store.commit_plans([plan], NOW) for store, plan in zip(planners, plans, strict=True))
        )
        won = [n for n, answer in enumerate(answers) if answer == [True]]
        assert len(won) == 1
        assert await job_of(planners[0], job) == replace(plans[won[0]].job, version=2)
        found = (await planners[0].list_runs(RunFilter(), None, 100)).items
        assert sorted(ids(found)) == sorted(ids(plans[won[0]].runs))

    async def test_planners_of_many_jobs_in_opposite_order_end_and_account_for_each_once(self, stores: Stores) -> None:
        planners = await stores.several(4)
        jobs = [a_job(f"job-{n}", next_fire_at=NOW) for n in range(50)]
        await planners[0].add_jobs(jobs)

        async def plan_all(store: Store, order: list[Job]) -> Counter[str]:
            plans = [Plan(replace(job, next_fire_at=None), (a_run(1, of=job),)) for job in order]
            answers = await store.commit_plans(plans, NOW)
            return Counter(job.name for job, won in zip(order, answers, strict=True) if won)

        orders = [jobs, jobs[::-1], jobs, jobs[::-1]]
        wins = await asyncio.gather(*(plan_all(store, order) for store, order in zip(planners, orders, strict=True)))
        assert sum(wins, Counter()) == Counter(job.name for job in jobs)
        assert len((await take(planners[0])).runs) == len(jobs)

    async def test_of_many_who_add_one_name_one_succeeds(self, stores: Stores) -> None:
        adders = await stores.several(CLAIMERS)
        answers = await asyncio.gather(*(store.add_jobs([a_job(id=f"id-{n}")]) for n, store in enumerate(adders)))
        won = [n for n, answer in enumerate(answers) if answer == [True]]
        assert len(won) == 1
        (job,) = await adders[0].get_jobs(["job"])
        assert job == a_job(id=f"id-{won[0]}")

    async def test_of_many_who_enqueue_one_unique_key_one_succeeds(self, stores: Stores) -> None:
        adders = await stores.several(CLAIMERS)
        answers = await asyncio.gather(*(s.add_runs([a_run(n, unique_key="k")]) for n, s in enumerate(adders)))
        won = [n for n, answer in enumerate(answers) if answer == [True]]
        assert len(won) == 1
        assert await adders[0].get_run_by_key("k") == a_run(won[0], unique_key="k")
        assert ids((await take(adders[0])).runs) == ids([a_run(won[0])])

    async def test_of_a_heartbeat_and_a_rescue_one_wins(self, stores: Stores) -> None:
        worker, rescuer = await stores.several(2)
        for number in range(10):
            claimed = await take_one(worker, a_run(number, lease_seconds=30.0))
            rescue = a_change(claimed, held=False, state=State.FAILED, finished_at=NOW, lease_expires_at=None)
            # Two nodes whose clocks disagree: the lease is valid for one and has expired for the other.
            (pulse,), (rescued,) = await asyncio.gather(
                worker.heartbeat_runs([Beat(claimed.id, claimed.token)], NOW + 29 * SECOND),
                rescuer.settle_runs([rescue], NOW + 31 * SECOND),
            )
            assert (pulse is None) is rescued
            assert (await run_of(worker, claimed)).state is (State.FAILED if rescued else State.RUNNING)

    async def test_of_a_settle_and_a_cancel_one_wins(self, stores: Stores) -> None:
        worker, operator = await stores.several(2)
        for number in range(10):
            claimed = await take_one(worker, a_run(number))
            cancel = a_change(claimed, state=State.CANCELLING)
            (settled,), (asked,) = await asyncio.gather(
                worker.settle_runs([completed(claimed)], NOW), operator.settle_runs([cancel], NOW)
            )
            assert settled is not asked
            assert await run_of(worker, claimed) == (completed(claimed) if settled else cancel).run

    async def test_of_a_claim_and_a_cancel_one_wins(self, stores: Stores) -> None:
        worker, operator = await stores.several(2)
        for number in range(10):
            run = a_run(number)
            await worker.add_runs([run])
            cancel = a_change(run, state=State.CANCELLED, finished_at=NOW)
            claimed, (cancelled,) = await asyncio.gather(take(worker), operator.settle_runs([cancel], NOW))
            assert cancelled is (claimed.runs == ())
            assert (await run_of(worker, run)).state is (State.CANCELLED if cancelled else State.RUNNING)

    async def test_of_a_claim_and_a_withdrawal_one_wins(self, stores: Stores) -> None:
        worker, planner = await stores.several(2)
        job = a_job()
        await planner.add_jobs([job])
        for number in range(10):
            run = a_run(number, of=job)
            await planner.add_runs([run])
            plan = Plan(replace(job, version=number + 1), withdrawals=(run,))
            claimed, carried_out = await asyncio.gather(take(worker), planner.commit_plans([plan], NOW))
            assert carried_out == [True]
            (found,) = await planner.get_runs([run.id])
            assert (found is None) is (claimed.runs == ())

    async def test_of_many_rescuers_one_rescues_each_run(self, stores: Stores) -> None:
        rescuers = await stores.several(CLAIMERS)
        await rescuers[0].add_runs([a_run(n) for n in range(50)])
        await take(rescuers[0])

        async def rescue(store: Store) -> int:
            overdue, _ = await store.overdue_runs(NOW + DAY, BATCH_MAX, NOW + DAY)
            changes = [a_change(run, held=False, state=State.PENDING, lease_expires_at=None) for run in overdue]
            return sum(await store.settle_runs(changes, NOW + DAY))

        assert sum(await asyncio.gather(*map(rescue, rescuers))) == 50
        assert len((await take(rescuers[0], now=NOW + DAY)).runs) == 50

    async def test_many_pruners_delete_each_run_once(self, stores: Stores) -> None:
        pruners = await stores.several(4)
        await pruners[0].add_runs([a_run(n, state=State.COMPLETED, prune_at=NOW) for n in range(100)])
        counts = await asyncio.gather(*(store.prune_runs(NOW, 40) for store in pruners))
        left = len((await pruners[0].list_runs(RunFilter(), None, 200)).items)
        assert sum(counts) + left == 100

    @pytest.mark.parametrize("states", [(), (State.PENDING, State.RUNNING, State.FAILED, State.COMPLETED)])
    async def test_a_list_has_each_run_once_while_runs_move_on(self, stores: Stores, states: tuple[State, ...]) -> None:
        worker, reader = await stores.several(2)
        runs = [a_run(n) for n in range(3 * ROUNDS_LISTED)]
        await worker.add_runs(runs)
        over = asyncio.Event()

        async def work() -> None:
            for _ in range(ROUNDS_LISTED):
                first, *others = (await take(worker, 5)).runs
                back = [a_change(run, state=State.PENDING, lease_expires_at=None) for run in others]
                end = a_change(first, state=State.FAILED, finished_at=NOW, lease_expires_at=None)
                assert all(await worker.settle_runs([end, *back], NOW))
            over.set()

        async def read() -> None:
            while not over.is_set():
                page = await reader.list_runs(RunFilter(states=frozenset(states)), None, len(runs))
                assert ids(page.items) == ids(runs[::-1])
                await asyncio.sleep(0)

        await asyncio.gather(work(), read(), read())

    async def test_everything_at_once_loses_nothing(self, stores: Stores) -> None:
        adder, one, two, watcher = await stores.several(4)
        adding = asyncio.Event()

        async def add() -> None:
            for number in range(0, RUNS, 10):
                assert all(await adder.add_runs([a_run(n) for n in range(number, number + 10)]))
            adding.set()

        async def work(store: Store, worker: str) -> list[str]:
            done: list[str] = []
            for _ in range(ROUNDS_MAX):
                last = adding.is_set()
                runs = (await take(store, 9, worker=worker)).runs
                assert await store.settle_runs([completed(run) for run in runs], NOW) == [True] * len(runs)
                done.extend(ids(runs))
                if last and not runs:
                    return done
                # Lets the others go on where a store answers without waiting.
                await asyncio.sleep(0)
            return done

        async def watch() -> None:
            for _ in range(ROUNDS_MAX):
                if adding.is_set():
                    return
                (queue,) = (await watcher.stats(NOW)).queues or (None,)
                assert queue is None or queue.due + queue.running <= RUNS
                await asyncio.sleep(0)

        _, first, second, _ = await asyncio.gather(add(), work(one, "one"), work(two, "two"), watch())
        rest = await claim_all(watcher, "last")
        assert sorted([*first, *second, *ids(rest)]) == ids([a_run(n) for n in range(RUNS)])
        where = RunFilter(states=frozenset(CLAIMED))
        assert ids((await watcher.list_runs(where, None, RUNS)).items) == sorted(ids(rest), reverse=True)
