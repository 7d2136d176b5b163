"""Claiming: who gets which run, in which order, the gates, and the instant of the next claim."""

from __future__ import annotations

from random import Random
from typing import Any

from msgspec.structs import replace

from horarium.clock import DAY, HOUR, INSTANT_MAX, INSTANT_MIN, MINUTE, SECOND
from horarium.model import PAYLOAD_BYTES_MAX, RESULT_BYTES_MAX, Cause, Disposition, Event, Run, RunPolicy, State
from horarium.model import HttpTarget as Http
from horarium.policies import Rate, Retry
from horarium.ports import BATCH_MAX, RunFilter, Store
from horarium.testing.contract.base import Stores, StoreUnderTest, ids, run_of, take, take_one
from horarium.testing.values import NOW, QUEUE, a_finished_run, a_job, a_run, completed

FULL_RUN = Run(
    id="0190a0a0-0000-7000-8000-00000000000f",
    queue="pull/schlange \U0001f40d",
    fire_at=INSTANT_MIN,
    due_at=INSTANT_MAX,
    created_at=INSTANT_MAX - 1,
    state=State.CANCELLING,
    priority=1000,
    job_id="0190a0a0-0000-7000-8000-000000000001",
    job="jöb",
    cause=Cause.BACKFILL,
    payload='{"nul":"a\\u0000b","uni":"ü\U0001f570","surrogate":"\\ud83d","num":1e400}'.encode(),
    policy=RunPolicy(
        retry=Retry(backoff_seconds=0.1),
        target=Http(url="https://example.org", body=[1.5, "\x00"]),
        labels={"team": "é"},
    ),
    unique_key="schlüssel 'quoted' \"twice\" \\",
    concurrency_key="schlüssel/\U0001f511%_",
    concurrency_max=100_000,
    serial=True,
    rates=(Rate(100, 0.1 + 59.9, 7, key="schlüssel/\U0001f511%_"), Rate(1, 3600.0, key="b")),
    fair="schlüssel/\U0001f511%_\x00",
    lease_seconds=0.1 + 0.2,
    execution_seconds=1e8 / 3,
    start_by=INSTANT_MAX,
    attempt=100,
    token=2**40,
    worker="wörker \U0001f477",
    lease_expires_at=INSTANT_MAX,
    deadline=INSTANT_MAX - 2,
    started_at=INSTANT_MIN,
    finished_at=1,
    progress=b'{"at":"\\u0000"}',
    error="line\nline\ttab ü \U0001f480",
    result=b"[1,2.50]",
    disposition=Disposition.MISSED,
    fires=2**40,
    last_fire_at=INSTANT_MAX,
    prune_at=INSTANT_MAX,
    history=(Event(INSTANT_MIN, State.PENDING, "ü"), Event(INSTANT_MAX, State.RUNNING, "")),
)


class ClaimingContract(StoreUnderTest):
    # -- what is due first

    async def test_what_is_due_first_is_told_of_each_level_in_the_order_asked(self, store: Store) -> None:
        await store.add_runs(
            [
                a_run(1, due_at=NOW + HOUR),
                a_run(2, due_at=NOW + 7),
                a_run(3, due_at=NOW - 5, priority=3),
                a_run(4, due_at=NOW - 9, queue="other"),
                a_run(5, due_at=NOW - 8, state=State.COMPLETED),
                a_run(6, due_at=NOW - 3, concurrency_key="k", concurrency_max=1),
            ]
        )
        assert await store.first_due([]) == []
        asked = [(QUEUE, 3, False), ("none", 0, False), (QUEUE, 0, True), ("other", 0, False), (QUEUE, 9, False)]
        found = await store.first_due(asked)
        # A store in which gated runs that may be taken wait among the others tells of those there.
        assert found[2] in (NOW - 3, None)
        assert [*found[:2], *found[3:]] == [NOW - 5, None, NOW - 9, None]

    async def test_what_was_claimed_is_not_due_first(self, store: Store) -> None:
        runs = [a_run(number, due_at=NOW - 9 + number) for number in range(3)]
        await store.add_runs(runs)
        assert await store.first_due([(QUEUE, 0, False)]) == [NOW - 9]
        await take(store, 2)
        assert await store.first_due([(QUEUE, 0, False)] * 2) == [NOW - 7] * 2
        await take(store)
        assert await store.first_due([(QUEUE, 0, False)]) == [None]

    async def test_runs_that_a_full_key_holds_back_are_due_first_among_the_gated(self, store: Store) -> None:
        gated = [a_run(n, due_at=NOW - 9 + n, concurrency_key="k", concurrency_max=1) for n in range(3)]
        await store.add_runs([*gated, a_run(7, due_at=NOW - 1)])
        await take(store, 1)
        assert await store.first_due([(QUEUE, 0, True), (QUEUE, 0, False)]) == [NOW - 8, NOW - 1]

    # -- adding and reading

    async def test_a_run_comes_back_equal_in_every_field(self, store: Store) -> None:
        assert await store.add_runs([FULL_RUN]) == [True]
        assert await store.get_runs([FULL_RUN.id]) == [FULL_RUN]

    async def test_a_run_of_every_state_comes_back_equal(self, store: Store) -> None:
        runs = [a_run(number, state=state) for number, state in enumerate(State)]
        assert await store.add_runs(runs) == [True] * len(runs)
        assert await store.get_runs(ids(runs)) == runs

    async def test_a_full_run_of_every_state_comes_back_equal_wherever_it_is_read(self, store: Store) -> None:
        fresh = a_run(unique_key="fresh")
        runs = [
            replace(
                FULL_RUN, id=f"0190a0a0-0000-7000-8000-0000000000{n:02x}", state=state, fire_at=n, unique_key=f"{n}"
            )
            for n, state in enumerate(State, start=0x20)
        ]
        assert await store.add_runs([*runs, fresh]) == [True] * (len(runs) + 1)
        assert await store.add_runs(runs) == [False] * len(runs)
        assert await store.get_runs(ids(runs)) == runs
        assert list((await store.list_runs(RunFilter(job=FULL_RUN.job), None, BATCH_MAX)).items) == runs[::-1]
        assert [await store.get_run_by_key(run.unique_key or "") for run in runs] == runs

    async def test_the_largest_payload_and_result_come_back_equal(self, store: Store) -> None:
        payload = b'"' + b"\\u0000" * ((PAYLOAD_BYTES_MAX - 2) // 6) + b'"'
        run = a_run(payload=payload.ljust(PAYLOAD_BYTES_MAX), result=b'"' + b"x" * (RESULT_BYTES_MAX - 2) + b'"')
        await store.add_runs([run])
        assert await store.get_runs([run.id]) == [run]
        assert (await take(store)).runs[0].payload == run.payload

    async def test_empty_bytes_are_not_none(self, store: Store) -> None:
        run = a_run(payload=b"", progress=b"", result=b"", error="", worker="")
        await store.add_runs([run])
        assert await store.get_runs([run.id]) == [run]

    async def test_runs_come_in_the_order_asked_with_none_for_the_unknown(self, store: Store) -> None:
        one, two = a_run(1), a_run(2)
        await store.add_runs([one, two])
        assert await store.get_runs([two.id, "none", one.id, two.id]) == [two, None, one, two]

    async def test_empty_batches_of_runs_are_answered(self, store: Store) -> None:
        assert await store.add_runs([]) == []
        assert await store.get_runs([]) == []

    async def test_a_taken_id_is_refused_and_the_rest_of_the_batch_is_not(self, store: Store) -> None:
        await store.add_runs([a_run(1)])
        assert await store.add_runs([a_run(0), a_run(1, priority=9), a_run(2)]) == [True, False, True]
        assert await store.get_runs(ids([a_run(1)])) == [a_run(1)]

    async def test_an_id_twice_in_one_batch_is_taken_by_the_first(self, store: Store) -> None:
        assert await store.add_runs([a_run(1), a_run(1, priority=9)]) == [True, False]
        assert await run_of(store, a_run(1)) == a_run(1)

    async def test_a_unique_key_is_held_by_one_run(self, store: Store) -> None:
        holder = a_run(1, unique_key="k")
        assert await store.add_runs([holder, a_run(2, unique_key="k"), a_run(3, unique_key="K")]) == [True, False, True]
        assert await store.add_runs([a_run(4, unique_key="k")]) == [False]
        assert await store.get_run_by_key("k") == holder
        assert await store.get_run_by_key("none") is None
        assert await store.get_runs(ids([a_run(2), a_run(4)])) == [None, None]

    async def test_a_finished_run_holds_its_unique_key(self, store: Store) -> None:
        done = a_finished_run(1, unique_key="k")
        await store.add_runs([done])
        assert await store.add_runs([a_run(2, unique_key="k")]) == [False]
        assert await store.get_run_by_key("k") == done

    async def test_a_job_has_one_run_for_a_fire_time(self, store: Store) -> None:
        job = a_job()
        done, twin = a_finished_run(1, of=job), a_run(1, of=job, id=a_run(9).id, unique_key="k")
        assert await store.add_runs([done, twin]) == [True, False]
        assert await store.add_runs([twin]) == [False]
        assert await store.get_runs([twin.id]) == [None]
        assert await store.get_run_by_key("k") is None

    async def test_one_off_runs_may_share_a_fire_time(self, store: Store) -> None:
        assert await store.add_runs([a_run(1, fire_at=NOW), a_run(2, fire_at=NOW)]) == [True, True]

    # -- what a claim does

    async def test_runs_claimed_together_keep_apart_what_few_of_them_have(self, store: Store) -> None:
        few = FULL_RUN
        fields: list[dict[str, Any]] = [
            {"fair": few.fair},
            {},
            {"rates": few.rates},
            {"policy": few.policy},
            {"fair": "b"},
            {"fires": 2},
            {},
        ]
        for first, order in ((0, fields), (100, fields[::-1])):
            runs = [a_run(first + number, **each) for number, each in enumerate(order)]
            assert await store.add_runs(runs) == [True] * len(runs)
            claimed = (await take(store, limit=len(runs))).runs
            assert ids(claimed) == ids(runs)
            for read in (claimed, await store.get_runs(ids(runs))):
                kept = [(run.fair, run.rates, run.policy, run.fires) for run in read if run is not None]
                assert kept == [(run.fair, run.rates, run.policy, run.fires) for run in runs]

    async def test_a_claimed_run_is_running_under_a_new_token(self, store: Store) -> None:
        run = a_run(token=4, attempt=2, due_at=NOW - DAY, lease_seconds=12.5, error="before", progress=b"1")
        await store.add_runs([run])
        expected = replace(
            run,
            state=State.RUNNING,
            token=5,
            attempt=3,
            worker="me",
            started_at=NOW,
            lease_expires_at=NOW + 12_500_000,
        )
        assert (await take(store, worker="me")).runs == (expected,)
        assert await run_of(store, run) == expected

    async def test_a_lease_never_outlives_the_execution_limit(self, store: Store) -> None:
        claimed = await take_one(store, a_run(lease_seconds=30.0, execution_seconds=1.5))
        assert claimed.lease_expires_at == NOW + 1_500_000

    async def test_a_run_claimed_ahead_starts_when_it_is_due(self, store: Store) -> None:
        run = a_run(due_at=NOW + SECOND, lease_seconds=10.0)
        await store.add_runs([run])
        (claimed,) = (await take(store, until=NOW + SECOND)).runs
        assert claimed.started_at == NOW + SECOND
        assert claimed.lease_expires_at == NOW + 11 * SECOND

    async def test_a_run_is_due_at_its_very_instant(self, store: Store) -> None:
        await store.add_runs([a_run(due_at=NOW)])
        assert (await take(store, now=NOW - 1)).runs == ()
        assert len((await take(store, now=NOW)).runs) == 1

    async def test_the_execution_window_ends_with_its_last_instant(self, store: Store) -> None:
        await store.add_runs([a_run(due_at=NOW + SECOND)])
        assert (await take(store, until=NOW + SECOND - 1)).runs == ()
        assert len((await take(store, until=NOW + SECOND)).runs) == 1

    async def test_a_claimed_run_is_not_claimed_again(self, store: Store) -> None:
        await store.add_runs([a_run()])
        assert len((await take(store)).runs) == 1
        assert (await take(store, now=NOW + DAY)).runs == ()

    async def test_only_pending_runs_are_claimed(self, store: Store) -> None:
        await store.add_runs([a_run(number, state=state) for number, state in enumerate(State)])
        assert ids((await take(store)).runs) == ids([a_run(0)])

    async def test_a_run_put_back_is_claimed_again_under_a_larger_token(self, store: Store) -> None:
        first = await take_one(store, a_run())
        back = replace(first, state=State.PENDING, worker=None, lease_expires_at=None)
        await store.settle_runs([replace(completed(first), run=back)], NOW)
        (second,) = (await take(store)).runs
        assert (second.token, second.attempt) == (2, 2)

    async def test_the_jobs_of_claimed_runs_come_along(self, store: Store) -> None:
        one, two = a_job("one"), a_job("two")
        await store.add_jobs([one, two, a_job("three")])
        await store.add_runs([a_run(1, of=one), a_run(2, of=one), a_run(3, of=two), a_run(4)])
        assert (await take(store)).jobs == {one.id: one, two.id: two}

    async def test_an_empty_claim_brings_no_jobs(self, store: Store) -> None:
        await store.add_jobs([a_job()])
        await store.add_runs([a_run(of=a_job(), due_at=NOW + 1)])
        claimed = await take(store)
        assert (claimed.runs, claimed.jobs) == ((), {})

    # -- limits and queues

    async def test_the_limit_of_a_claim_holds(self, store: Store) -> None:
        runs = [a_run(number) for number in range(5)]
        await store.add_runs(runs)
        assert (await take(store, 0)).runs == ()
        assert ids((await take(store, 1)).runs) == ids(runs[:1])
        assert ids((await take(store, 3)).runs) == ids(runs[1:4])
        assert ids((await take(store, BATCH_MAX)).runs) == ids(runs[4:])

    async def test_a_full_batch_is_added_claimed_and_settled(self, store: Store) -> None:
        runs = [a_run(number) for number in range(BATCH_MAX)]
        assert await store.add_runs(runs) == [True] * BATCH_MAX
        claimed = (await take(store)).runs
        assert ids(claimed) == ids(runs)
        assert await store.settle_runs([completed(run) for run in claimed], NOW) == [True] * BATCH_MAX

    async def test_only_the_asked_queues_are_served(self, store: Store) -> None:
        runs = [a_run(number, queue=queue) for number, queue in enumerate(("a", "b", "c", "a"))]
        await store.add_runs(runs)
        assert (await take(store, queues=[])).runs == ()
        assert (await take(store, queues=["none", "A"])).runs == ()
        assert ids((await take(store, queues=["c", "a", "a"])).runs) == ids([runs[0], runs[2], runs[3]])
        assert ids((await take(store, queues=["b"])).runs) == ids([runs[1]])

    # -- order

    async def test_the_highest_priority_goes_first_then_the_earliest_due_then_the_lowest_id(self, store: Store) -> None:
        low, late, tie, early, high = (
            a_run(1, priority=-1, due_at=NOW - HOUR),
            a_run(2, due_at=NOW),
            a_run(3, due_at=NOW),
            a_run(4, due_at=NOW - 1),
            a_run(5, priority=1, due_at=NOW),
        )
        await store.add_runs([low, tie, late, early, high])
        assert ids((await take(store)).runs) == ids([high, early, late, tie, low])

    async def test_claims_follow_the_sorted_order_whatever_the_batches(self, store: Store) -> None:
        random = Random(7)
        runs = [
            a_run(
                number,
                priority=random.randint(-2, 2),
                due_at=NOW - random.randint(0, 3),
                queue=random.choice("ab"),
            )
            for number in range(120)
        ]
        await store.add_runs(random.sample(runs, len(runs)))
        order: list[str] = []
        for _ in runs:
            order.extend(ids((await take(store, random.randint(1, 9), queues=["a", "b"])).runs))
        assert order == ids(sorted(runs, key=lambda run: (-run.priority, run.due_at, run.id)))

    async def test_a_run_that_is_not_due_does_not_stand_in_the_way(self, store: Store) -> None:
        await store.add_runs([a_run(1, priority=9, due_at=NOW + 1), a_run(2)])
        assert ids((await take(store, 1)).runs) == ids([a_run(2)])

    async def test_a_put_off_run_is_claimed_at_its_new_instant(self, store: Store) -> None:
        claimed = await take_one(store, a_run())
        later = replace(claimed, state=State.PENDING, due_at=NOW + MINUTE, lease_expires_at=None)
        await store.settle_runs([replace(completed(claimed), run=later)], NOW)
        missed = await take(store)
        assert (missed.runs, missed.next_due_at) == ((), NOW + MINUTE)
        assert len((await take(store, now=NOW + MINUTE)).runs) == 1

    # -- too late to start

    async def test_a_run_past_its_start_limit_is_not_claimed(self, store: Store) -> None:
        await store.add_runs([a_run(1, start_by=NOW), a_run(2, start_by=NOW + 1)])
        claimed = await take(store)
        assert ids(claimed.runs) == ids([a_run(2)])
        assert claimed.next_due_at is None

    # -- when the next one is due

    async def test_a_claim_tells_when_the_next_run_is_due(self, store: Store) -> None:
        await store.add_runs(
            [a_run(1), a_run(2, due_at=NOW + DAY), a_run(3, due_at=NOW + HOUR), a_run(4, due_at=NOW + 1, queue="other")]
        )
        assert (await take(store)).next_due_at == NOW + HOUR
        assert (await take(store)).next_due_at == NOW + HOUR
        assert (await take(store, queues=["other"])).next_due_at == NOW + 1
        assert (await take(store, queues=["http", "other"])).next_due_at == NOW + 1

    async def test_nothing_waiting_has_no_next_instant(self, store: Store) -> None:
        assert (await take(store)).next_due_at is None
        await store.add_runs([a_run()])
        await take(store)
        assert (await take(store)).next_due_at is None
        assert (await take(store, queues=[])).next_due_at is None

    async def test_a_run_left_by_the_limit_is_due_at_once(self, store: Store) -> None:
        await store.add_runs([a_run(1), a_run(2), a_run(3, due_at=NOW + DAY)])
        for limit in (0, 1):
            next_due_at = (await take(store, limit)).next_due_at
            assert next_due_at is not None
            assert next_due_at <= NOW

    async def test_a_due_run_that_is_held_back_is_not_waited_for(self, store: Store) -> None:
        await store.add_runs([a_run(n, concurrency_key="k", concurrency_max=1) for n in (1, 2)])
        await store.add_runs([a_run(3, due_at=NOW + DAY)])
        claimed = await take(store)
        assert ids(claimed.runs) == ids([a_run(1)])
        assert claimed.next_due_at == NOW + DAY

    async def test_several_instances_claim_from_one_store(self, stores: Stores) -> None:
        one, two = await stores.several(2)
        await one.add_runs([a_run(1), a_run(2)])
        assert ids((await take(two, 1)).runs) == ids([a_run(1)])
        assert ids((await take(one)).runs) == ids([a_run(2)])
