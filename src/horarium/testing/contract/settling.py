"""Settling, heartbeats and overdue runs: nothing is written under a token, state or lease that no longer holds."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from horarium.clock import DAY, HOUR, INSTANT_MAX, SECOND, to_micros
from horarium.model import Disposition, Event, Plan, State, lasting
from horarium.model.overrides import Override
from horarium.model.records import Record
from horarium.ports import Beat, Pulse, Store
from horarium.testing.contract.base import StoreUnderTest, ids, run_of, take, take_one
from horarium.testing.values import NOW, QUEUE, a_change, a_job, a_run, completed

LEASE = 30 * SECOND
MANY = 60
"""Enough for their ids to be encoded and decoded together."""
MANY_LONG = 128


class SettlingContract(StoreUnderTest):
    async def test_everything_that_may_change_is_written(self, store: Store) -> None:
        run = a_run(start_by=NOW + DAY, payload=b"1", unique_key="k", concurrency_key="c", concurrency_max=2)
        claimed = await take_one(store, run)
        change = a_change(
            claimed,
            state=State.CANCELLING,
            due_at=INSTANT_MAX,
            attempt=7,
            token=9,
            worker="other",
            lease_expires_at=NOW + 1,
            started_at=NOW - 1,
            finished_at=NOW + 2,
            progress=b'{"a":1}',
            error="ü\nline",
            result=b"[]",
            disposition=Disposition.NOT_STARTED,
            prune_at=NOW + 3,
            history=(Event(NOW, State.RUNNING, "ü", override=Override(NOW, NOW + 1, "ü", "why", NOW - 1)),),
            start_by=None,
        )
        assert await store.settle_runs([change], NOW) == [True]
        assert await run_of(store, run) == change.run

    async def test_what_was_set_can_be_unset(self, store: Store) -> None:
        claimed = await take_one(store, a_run(start_by=NOW + 1, progress=b"1", error="e", result=b"2"))
        cleared = a_change(
            claimed,
            state=State.PENDING,
            worker=None,
            lease_expires_at=None,
            started_at=None,
            progress=None,
            error=None,
            result=None,
            start_by=None,
        )
        assert await store.settle_runs([cleared], NOW) == [True]
        assert await run_of(store, claimed) == cleared.run

    @pytest.mark.parametrize("lost", [None, 7])
    async def test_of_many_that_end_alike_each_keeps_its_own(self, store: Store, lost: int | None) -> None:
        """Stores write common values of a batch once."""
        await store.add_runs([a_run(number, payload=b"%d" % number) for number in range(MANY)])
        claimed = (await take(store, limit=MANY)).runs
        changes = [
            a_change(
                run,
                held=True,
                state=State.FAILED,
                due_at=NOW + number,
                attempt=number % 3,
                worker="other",
                lease_expires_at=None,
                started_at=NOW - number,
                finished_at=NOW + 2,
                progress=b"1",
                error="ü",
                result=b"%d" % number if number % 2 else None,
                disposition=Disposition.NOT_STARTED,
                prune_at=NOW + number if number % 5 else None,
                history=(Event(NOW, State.RUNNING, "ü", override=Override(NOW, NOW + 1, "ü", "why", NOW - 1)),),
            )
            for number, run in enumerate(claimed)
        ]
        if lost is not None:
            changes[lost] = replace(changes[lost], token=9, run=replace(changes[lost].run, token=9))
        assert await store.settle_runs(changes, NOW) == [number != lost for number in range(MANY)]
        expected = [change.run for change in changes]
        if lost is not None:
            expected[lost] = claimed[lost]
        assert await store.get_runs(ids(claimed)) == expected

    @pytest.mark.parametrize("claims", [1, 2, MANY])
    async def test_of_many_that_end_as_claimed_each_is_written(self, store: Store, claims: int) -> None:
        await self._end_as_claimed(store, claims)

    @pytest.mark.parametrize(
        "change", [{"token": 9}, {"attempt": 4}, {"started_at": NOW - 7}, {"result": b"7"}], ids=str
    )
    async def test_of_many_that_end_as_claimed_one_may_differ(self, store: Store, change: dict[str, Any]) -> None:
        await self._end_as_claimed(store, 1, **change)

    async def _end_as_claimed(self, store: Store, claims: int, **differs: Any) -> None:
        """Common values of a claim need not be written for each run. One may still differ, or be lost."""
        await store.add_runs([a_run(number, due_at=NOW - number) for number in range(MANY)])
        several = [await take(store, limit=MANY // claims, now=NOW + number) for number in range(claims)]
        claimed = [run for claim in several for run in claim.runs]
        changes = [replace(completed(run, held=True), as_claimed=True) for run in claimed]
        odd = changes[7]
        changes[7] = replace(odd, token=differs.get("token", odd.token), run=replace(odd.run, **differs))
        lost = 7 if "token" in differs else None
        assert await store.settle_runs(changes, NOW) == [place != lost for place in range(MANY)]
        expected = [change.run for change in changes]
        if lost is not None:
            expected[lost] = claimed[lost]
        assert await store.get_runs(ids(claimed)) == expected

    @pytest.mark.parametrize("token", [0, 2])
    async def test_a_stale_token_cannot_settle(self, store: Store, token: int) -> None:
        claimed = await take_one(store, a_run())
        assert await store.settle_runs([replace(completed(claimed), token=token)], NOW) == [False]
        assert await run_of(store, claimed) == claimed

    async def test_the_token_of_an_earlier_claim_cannot_settle(self, store: Store) -> None:
        first = await take_one(store, a_run())
        await store.settle_runs([a_change(first, state=State.PENDING, lease_expires_at=None)], NOW)
        (second,) = (await take(store)).runs
        assert await store.settle_runs([completed(first), completed(second)], NOW) == [False, True]

    async def test_another_state_cannot_be_settled(self, store: Store) -> None:
        claimed = await take_one(store, a_run())
        for state in State:
            expected = replace(completed(claimed), state=state)
            if state is not State.RUNNING:
                assert await store.settle_runs([expected], NOW) == [False]
        assert await run_of(store, claimed) == claimed

    async def test_a_finished_run_is_not_settled_again(self, store: Store) -> None:
        claimed = await take_one(store, a_run())
        failed = a_change(claimed, state=State.FAILED, finished_at=NOW, lease_expires_at=None)
        assert await store.settle_runs([completed(claimed)], NOW) == [True]
        assert await store.settle_runs([failed, completed(claimed)], NOW) == [False, False]
        assert await run_of(store, claimed) == completed(claimed).run

    async def test_a_pending_run_can_be_cancelled(self, store: Store) -> None:
        await store.add_runs([a_run()])
        cancelled = a_change(a_run(), state=State.CANCELLED, finished_at=NOW)
        assert await store.settle_runs([cancelled], NOW) == [True]
        assert (await take(store)).runs == ()

    async def test_a_run_that_is_gone_cannot_be_settled(self, store: Store) -> None:
        assert await store.settle_runs([completed(a_run())], NOW) == [False]
        assert await store.get_runs(ids([a_run()])) == [None]

    async def test_in_one_batch_losers_do_not_hinder_winners(self, store: Store) -> None:
        await store.add_runs([a_run(n) for n in range(3)])
        changes = [completed(run) for run in (await take(store)).runs]
        changes[1] = replace(changes[1], token=5)
        assert await store.settle_runs(changes, NOW) == [True, False, True]

    async def test_changes_of_one_run_in_a_batch_follow_one_another(self, store: Store) -> None:
        claimed = await take_one(store, a_run())
        cancelling = a_change(claimed, state=State.CANCELLING)
        stopped = a_change(cancelling.run, state=State.CANCELLED, finished_at=NOW, lease_expires_at=None)
        assert await store.settle_runs([cancelling, completed(claimed), stopped], NOW) == [True, False, True]
        assert await run_of(store, claimed) == stopped.run

    @pytest.mark.parametrize("along", [(), (Record(name="audit/1", body=b""),)])
    async def test_many_long_histories_are_written_at_once(self, store: Store, along: tuple[Record, ...]) -> None:
        """Of runs that failed again and again, each time with the longest error."""
        await store.add_runs([a_run(n) for n in range(MANY_LONG)])
        ends = [
            a_change(run, state=State.FAILED, finished_at=NOW, history=(Event(NOW + n, run.state, "e" * 4_000),) * 40)
            for n, run in enumerate((await take(store)).runs)
        ]
        assert await store.settle_runs([replace(end, records=along) for end in ends], NOW) == [True] * MANY_LONG
        assert await run_of(store, ends[-1].run) == ends[-1].run

    async def test_an_empty_batch_of_changes_is_answered(self, store: Store) -> None:
        assert await store.settle_runs([], NOW) == []

    # -- what the lease must be

    async def test_a_lease_that_ends_now_is_not_held(self, store: Store) -> None:
        claimed = await take_one(store, a_run())
        assert claimed.lease_expires_at == NOW + LEASE
        assert await store.settle_runs([completed(claimed, held=True)], NOW + LEASE) == [False]
        assert await store.settle_runs([completed(claimed, held=True)], NOW + LEASE - 1) == [True]

    async def test_a_lease_is_expired_at_its_very_end_and_no_sooner(self, store: Store) -> None:
        claimed = await take_one(store, a_run())
        assert await store.settle_runs([completed(claimed, held=False)], NOW + LEASE - 1) == [False]
        assert await store.settle_runs([completed(claimed, held=False)], NOW + LEASE) == [True]

    async def test_a_lease_that_is_not_looked_at_does_not_matter(self, store: Store) -> None:
        claimed = await take_one(store, a_run())
        assert await store.settle_runs([completed(claimed)], NOW + DAY) == [True]

    async def test_a_run_without_a_lease_is_neither_held_nor_expired(self, store: Store) -> None:
        await store.add_runs([a_run()])
        for held in (True, False):
            change = a_change(a_run(), held=held, state=State.CANCELLED)
            assert await store.settle_runs([change], NOW) == [False]
        assert await run_of(store, a_run()) == a_run()

    # -- heartbeats

    async def test_a_heartbeat_extends_the_lease(self, store: Store) -> None:
        claimed = await take_one(store, a_run(lease_seconds=30.0))
        pulses = await store.heartbeat_runs([Beat(claimed.id, 1, b"0.5")], NOW + SECOND)
        assert pulses == [Pulse(NOW + SECOND + LEASE, False)]
        assert await run_of(store, claimed) == replace(claimed, lease_expires_at=NOW + SECOND + LEASE, progress=b"0.5")

    async def test_progress_is_kept_when_none_is_given(self, store: Store) -> None:
        claimed = await take_one(store, a_run())
        await store.heartbeat_runs([Beat(claimed.id, 1, b"1"), Beat(claimed.id, 1)], NOW)
        assert (await run_of(store, claimed)).progress == b"1"

    async def test_a_heartbeat_never_extends_beyond_the_execution_limit(self, store: Store) -> None:
        claimed = await take_one(store, a_run(execution_seconds=40.0))
        assert await store.heartbeat_runs([Beat(claimed.id, 1)], NOW + SECOND) == [Pulse(NOW + SECOND + LEASE, False)]
        assert await store.heartbeat_runs([Beat(claimed.id, 1)], NOW + LEASE) == [Pulse(NOW + 40 * SECOND, False)]
        assert await store.heartbeat_runs([Beat(claimed.id, 1)], NOW + 40 * SECOND) == [None]

    @pytest.mark.parametrize("seconds", [0.1, 1 / 3, 1.0000005, 2.5e-6, 3.5e-6, 86400.000001])
    async def test_fractions_of_a_second_round_as_lease_end_does(self, store: Store, seconds: float) -> None:
        whole = to_micros(seconds)
        claimed = await take_one(store, a_run(lease_seconds=seconds))
        assert claimed.lease_expires_at == NOW + whole
        assert await store.heartbeat_runs([Beat(claimed.id, 1)], NOW + 1) == [Pulse(NOW + 1 + whole, False)]

    @pytest.mark.parametrize("seconds", [0.1, 1 / 3, 2.5e-6, 3.5e-6])
    async def test_the_execution_limit_rounds_as_lease_end_does(self, store: Store, seconds: float) -> None:
        whole = to_micros(seconds)
        claimed = await take_one(store, a_run(execution_seconds=seconds))
        assert claimed.lease_expires_at == NOW + whole
        assert await store.heartbeat_runs([Beat(claimed.id, 1)], NOW + 1) == [Pulse(NOW + whole, False)]

    @pytest.mark.parametrize("after", [LEASE - 1, LEASE, DAY])
    async def test_a_lease_that_has_ended_goes_on_if_no_other_claim_was_made(self, store: Store, after: int) -> None:
        claimed = await take_one(store, a_run())
        beat = Beat(claimed.id, 1, b"1")
        assert await store.heartbeat_runs([beat], NOW + after) == [Pulse(NOW + after + LEASE, False)]
        assert await run_of(store, claimed) == replace(claimed, lease_expires_at=NOW + after + LEASE, progress=b"1")

    async def test_a_lease_is_not_extended_once_its_run_was_put_back_or_claimed_again(self, store: Store) -> None:
        claimed = await take_one(store, a_run())
        put_back = a_change(claimed, held=False, state=State.PENDING, lease_expires_at=None)
        assert await store.settle_runs([put_back], NOW + LEASE) == [True]
        assert await store.heartbeat_runs([Beat(claimed.id, 1, b"1")], NOW + LEASE) == [None]
        again = (await take(store, now=NOW + LEASE)).runs
        assert await store.heartbeat_runs([Beat(claimed.id, 1, b"1")], NOW + LEASE) == [None]
        assert [await run_of(store, claimed)] == list(again)

    async def test_an_outcome_counts_after_its_run_was_put_back_and_not_once_it_was_claimed(self, store: Store) -> None:
        for number in (1, 2):
            claimed = await take_one(store, a_run(number))
            put_back = a_change(claimed, held=False, state=State.PENDING, lease_expires_at=None)
            assert await store.settle_runs([put_back], NOW + LEASE) == [True]
            late = replace(completed(claimed), state=State.PENDING)
            if number == 2:
                await take(store, now=NOW + LEASE)
            assert await store.settle_runs([late], NOW + LEASE) == [number == 1]
            state = State.COMPLETED if number == 1 else State.RUNNING
            assert (await run_of(store, claimed)).state is state
            assert (await take(store, now=NOW + LEASE)).runs == ()

    @pytest.mark.parametrize("token", [0, 2])
    async def test_a_stale_token_cannot_beat(self, store: Store, token: int) -> None:
        claimed = await take_one(store, a_run())
        assert await store.heartbeat_runs([Beat(claimed.id, token, b"1")], NOW) == [None]
        assert await run_of(store, claimed) == claimed

    async def test_only_claimed_runs_have_a_heartbeat(self, store: Store) -> None:
        runs = [a_run(n, state=state, lease_expires_at=NOW + DAY) for n, state in enumerate(State)]
        await store.add_runs(runs)
        pulses = await store.heartbeat_runs([Beat(run.id, 0) for run in runs], NOW)
        alive = [run.state for run, pulse in zip(runs, pulses, strict=True) if pulse is not None]
        assert alive == [State.RUNNING, State.CANCELLING]
        assert await store.heartbeat_runs([Beat("none", 0)], NOW) == [None]

    async def test_a_cancelling_run_hears_of_it_and_its_lease_stays(self, store: Store) -> None:
        claimed = await take_one(store, a_run())
        cancelling = a_change(claimed, state=State.CANCELLING, lease_expires_at=NOW + 5 * SECOND)
        await store.settle_runs([cancelling], NOW)
        beat = Beat(claimed.id, 1, b"9")
        assert await store.heartbeat_runs([beat], NOW + SECOND) == [Pulse(NOW + 5 * SECOND, True)]
        assert await run_of(store, claimed) == replace(cancelling.run, progress=b"9")
        assert await store.heartbeat_runs([beat], NOW + 5 * SECOND) == [None]

    async def test_heartbeats_are_answered_in_order(self, store: Store) -> None:
        await store.add_runs([a_run(n, lease_seconds=float(n)) for n in (1, 2, 3)])
        beats = [Beat(run.id, 1) for run in (await take(store)).runs]
        beats[1] = replace(beats[1], token=8)
        expected = [Pulse(NOW + 3 * SECOND, False), None, Pulse(NOW + SECOND, False)]
        assert await store.heartbeat_runs(beats[::-1], NOW) == expected
        assert await store.heartbeat_runs([], NOW) == []

    async def test_a_heartbeat_extends_what_is_overdue(self, store: Store) -> None:
        claimed = await take_one(store, a_run())
        await store.heartbeat_runs([Beat(claimed.id, 1)], NOW + LEASE - 1)
        assert await store.overdue_runs(NOW + LEASE, 10, NOW + LEASE) == ([], NOW + 2 * LEASE - 1)

    # -- the steady scale

    @pytest.mark.parametrize("ahead", [-DAY, -1, 1, 7 * DAY])
    async def test_leases_and_deadlines_are_on_the_steady_scale(self, store: Store, ahead: int) -> None:
        steady = NOW + ahead
        runs = [
            a_run(1),
            a_run(2, execution_seconds=40.0),
            a_run(3, execution_seconds=5.0, serial=True),
            a_run(4, due_at=NOW + SECOND, execution_seconds=40.0, concurrency_key="k", concurrency_max=1),
        ]
        await store.add_runs(runs)
        claimed = (await store.claim_runs([QUEUE], 10, "w", NOW, NOW + SECOND, steady)).runs
        ends = {1: (LEASE, None), 2: (LEASE, 40 * SECOND), 3: (5 * SECOND,) * 2, 4: (SECOND + LEASE, 41 * SECOND)}
        for run, (number, (lease, deadline)) in zip(claimed, ends.items(), strict=True):
            assert run.id == a_run(number).id
            assert run.started_at == max(NOW, run.due_at)
            assert run.lease_expires_at == steady + lease
            assert run.deadline == (None if deadline is None else steady + deadline)
            assert await run_of(store, run) == run
        beats = [Beat(run.id, 1) for run in claimed]
        later = steady + 39 * SECOND
        pulses = await store.heartbeat_runs(beats, later)
        expected = [later + LEASE, steady + 40 * SECOND, None, steady + 41 * SECOND]
        assert [None if pulse is None else pulse.expires_at for pulse in pulses] == expected
        assert await store.overdue_runs(NOW, 10, steady) == ([], NOW + 5 * SECOND)
        overdue, next_at = await store.overdue_runs(NOW + 39 * SECOND, 10, later)
        assert (ids(overdue), next_at) == (ids([a_run(3)]), NOW + 40 * SECOND)

    @pytest.mark.parametrize("ahead", [-DAY, DAY])
    async def test_ends_of_leases_and_start_limits_are_in_one_order(self, store: Store, ahead: int) -> None:
        await store.add_runs([a_run(n, lease_seconds=float(n)) for n in (1, 3)])
        await store.claim_runs([QUEUE], 10, "w", NOW, NOW, NOW + ahead)
        await store.add_runs([a_run(2, start_by=NOW + 2 * SECOND), a_run(4, start_by=NOW + 4 * SECOND)])
        for passed, expected in enumerate([[], [1], [1, 2], [1, 2, 3], [1, 2, 3, 4]]):
            now = NOW + passed * SECOND
            overdue, next_at = await store.overdue_runs(now, 10, now + ahead)
            assert ids(overdue) == ids([a_run(number) for number in expected])
            assert next_at == (now + SECOND if passed < 4 else None)

    async def test_a_lease_may_be_given_as_a_duration(self, store: Store) -> None:
        steady = NOW + DAY
        for number in (1, 2):
            claimed = await take_one(store, a_run(number))
            change = a_change(claimed, state=State.CANCELLING, lease_expires_at=lasting(10.0))
            if number == 1:
                assert await store.settle_runs([change], steady) == [True]
            else:
                job = a_job()
                await store.add_jobs([job])
                assert await store.commit_plans([Plan(job, changes=(change,))], steady) == [True]
            stored = await run_of(store, claimed)
            assert stored == replace(change.run, lease_expires_at=steady + 10 * SECOND)

    async def test_a_change_writes_the_deadline(self, store: Store) -> None:
        claimed = await take_one(store, a_run(execution_seconds=40.0))
        later = a_change(claimed, deadline=NOW + 60 * SECOND, lease_expires_at=NOW + SECOND)
        assert await store.settle_runs([later], NOW) == [True]
        assert await run_of(store, claimed) == later.run
        put_back = a_change(later.run, state=State.PENDING, deadline=None, lease_expires_at=None)
        assert await store.settle_runs([put_back], NOW) == [True]
        assert await run_of(store, claimed) == put_back.run

    async def test_a_claimed_run_is_added_with_its_deadline(self, store: Store) -> None:
        run = a_run(state=State.RUNNING, token=1, attempt=1, lease_expires_at=NOW, deadline=NOW + SECOND)
        assert await store.add_runs([run]) == [True]
        assert await run_of(store, run) == run

    # -- overdue

    async def test_a_lease_is_overdue_at_its_very_end(self, store: Store) -> None:
        claimed = await take_one(store, a_run())
        assert await store.overdue_runs(NOW + LEASE - 1, 10, NOW + LEASE - 1) == ([], NOW + LEASE)
        assert await store.overdue_runs(NOW + LEASE, 10, NOW + LEASE) == ([claimed], None)

    async def test_a_pending_run_is_overdue_at_its_start_limit(self, store: Store) -> None:
        run = a_run(start_by=NOW)
        await store.add_runs([run, a_run(1)])
        assert await store.overdue_runs(NOW - 1, 10, NOW - 1) == ([], NOW)
        assert await store.overdue_runs(NOW, 10, NOW) == ([run], None)

    async def test_a_claimed_run_is_not_measured_by_its_start_limit(self, store: Store) -> None:
        await take_one(store, a_run(start_by=NOW + 1))
        assert await store.overdue_runs(NOW + 1, 10, NOW + 1) == ([], NOW + LEASE)

    async def test_overdue_runs_come_longest_first_whatever_kind(self, store: Store) -> None:
        await store.add_runs([a_run(n, lease_seconds=float(n)) for n in (3, 1, 2)])
        await take(store)
        late = a_run(4, start_by=NOW + 1_500_000)
        await store.add_runs([late, a_run(5, start_by=NOW + DAY)])
        expected = ids([a_run(1), late, a_run(2), a_run(3)])
        for limit in (0, 1, 3, 10):
            overdue, ahead = await store.overdue_runs(NOW + HOUR, limit, NOW + HOUR)
            assert ids(overdue) == expected[:limit]
            assert ahead == NOW + DAY

    async def test_overdue_runs_that_tie_come_by_id(self, store: Store) -> None:
        await store.add_runs([a_run(n, lease_seconds=1.0) for n in (3, 1)])
        await take(store)
        await store.add_runs([a_run(2, start_by=NOW + SECOND)])
        overdue, _ = await store.overdue_runs(NOW + SECOND, 10, NOW + SECOND)
        assert ids(overdue) == ids([a_run(1), a_run(2), a_run(3)])

    async def test_a_cancelling_run_is_overdue_when_its_grace_ends(self, store: Store) -> None:
        claimed = await take_one(store, a_run())
        cancelling = a_change(claimed, state=State.CANCELLING, lease_expires_at=NOW + SECOND)
        await store.settle_runs([cancelling], NOW)
        assert await store.overdue_runs(NOW + SECOND, 10, NOW + SECOND) == ([cancelling.run], None)

    async def test_finished_runs_are_never_overdue(self, store: Store) -> None:
        runs = [a_run(n, state=s, start_by=NOW, lease_expires_at=NOW) for n, s in enumerate(State)]
        await store.add_runs(runs)
        overdue, ahead = await store.overdue_runs(NOW, 10, NOW)
        assert sorted(run.state for run in overdue) == sorted([State.PENDING, State.RUNNING, State.CANCELLING])
        assert ahead is None

    async def test_a_rescued_run_is_no_longer_overdue(self, store: Store) -> None:
        claimed = await take_one(store, a_run())
        rescue = a_change(claimed, held=False, state=State.PENDING, lease_expires_at=None)
        assert await store.settle_runs([rescue, rescue], NOW + LEASE) == [True, False]
        assert await store.overdue_runs(NOW + LEASE, 10, NOW + LEASE) == ([], None)
