"""Broken stores are caught: each mutant of the memory store by the test that is there for it, most by the machine."""

from __future__ import annotations

import asyncio
import inspect
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from horarium.clock import Instant
from horarium.model import Job, Node, Plan, Run, RunChange, State
from horarium.model.records import Record, RecordChange, RecordFilter
from horarium.ports import NOTHING_ALONG, Along, Beat, Claimed, JobFilter, Page, Pulse, RunFilter, Stats, Store
from horarium.stores.memory import MemoryDatabase, MemoryStore
from horarium.testing.contract import StoreContract
from horarium.testing.contract.base import Stores
from tests.stores.beat_mutants import (
    BeatsForTheDead,
    BeatsWithoutLimit,
    ClaimsByTheWallClock,
    EndsWithTheLease,
    HoldsALeaseTooLong,
    IgnoresTheLease,
    KnowsNoPriorityOfWhatIsFirst,
    LooksForLeasesByTheWallClock,
    ReplacesWhatRuns,
    RescuesTooLate,
)
from tests.stores.health_mutants import (
    CountsInTheVersion,
    CountsOneOfABatch,
    CountsWhatWasRefused,
    ForgetsWhatPlansEnd,
    KeepsHealthForGood,
    NeverRecovers,
)
from tests.stores.hunting import hunt

pytestmark = pytest.mark.slow

EXAMPLES = 2_000
"""The hunt ends when all are caught: at the 45th or the 140th, as all modules that are loaded move what is made up."""
STEPS = 40


class IgnoresToken(MemoryStore):
    async def settle_runs(self, changes: Sequence[RunChange], now: Instant) -> list[bool]:
        stored = self._space.runs
        return await super().settle_runs([replace(c, token=stored[c.run.id].token) for c in changes], now)


class IgnoresState(MemoryStore):
    async def settle_runs(self, changes: Sequence[RunChange], now: Instant) -> list[bool]:
        stored = self._space.runs
        return await super().settle_runs([replace(c, state=stored[c.run.id].state) for c in changes], now)


class ForgetsProgressOfOutcomes(MemoryStore):
    async def settle_runs(self, changes: Sequence[RunChange], now: Instant) -> list[bool]:
        stored = self._space.runs
        kept = [replace(c, run=replace(c.run, progress=stored[c.run.id].progress)) for c in changes]
        return await super().settle_runs(kept, now)


class IgnoresVersion(MemoryStore):
    async def commit_plans(self, plans: Sequence[Plan], now: Instant) -> list[bool]:
        jobs = self._space.jobs
        return await super().commit_plans(
            [replace(p, job=replace(p.job, version=jobs[p.job.id].version)) for p in plans], now
        )


class LeavesTraces(MemoryStore):
    async def commit_plans(self, plans: Sequence[Plan], now: Instant) -> list[bool]:
        for plan in plans:
            await self.add_runs(plan.runs)
        return await super().commit_plans(plans, now)


class PlansRunsBeforeWithdrawals(MemoryStore):
    async def commit_plans(self, plans: Sequence[Plan], now: Instant) -> list[bool]:
        won = await super().commit_plans([replace(plan, withdrawals=()) for plan in plans], now)
        for plan, did in zip(plans, won, strict=True):
            for run in plan.withdrawals if did else ():
                self._withdraw(run)
        return won


class WithdrawsWhatRuns(MemoryStore):
    def _withdraw(self, read: Run) -> bool:
        run = self._space.runs.get(read.id)
        if run is not None:
            self._space.delete_run(run)
        return run is not None


class ForgetsFireTimesOfFinishedRuns(MemoryStore):
    async def commit_plans(self, plans: Sequence[Plan], now: Instant) -> list[bool]:
        for run in [run for run in self._space.runs.values() if run.finished]:
            self._space.identities.by_fire.pop((run.job_id or "", run.fire_at), None)
        return await super().commit_plans(plans, now)


class ClaimsTwice(MemoryStore):
    async def claim_runs(
        self, queues: Sequence[str], limit: int, worker: str, now: Instant, until: Instant, steady: Instant
    ) -> Claimed:
        claimed = await super().claim_runs(queues, limit, worker, now, until, steady)
        for run in claimed.runs[1:]:
            self._space.put_run(replace(run, state=State.PENDING))
        return claimed


class ChoosesThenWrites(MemoryStore):
    """Lets others in between choosing and writing."""

    async def claim_runs(
        self, queues: Sequence[str], limit: int, worker: str, now: Instant, until: Instant, steady: Instant
    ) -> Claimed:
        before = dict(self._space.runs)
        claimed = await super().claim_runs(queues, limit, worker, now, until, steady)
        for run in claimed.runs:
            self._space.put_run(before[run.id])
        await asyncio.sleep(0)
        for run in claimed.runs:
            self._space.put_run(run)
        return claimed


class WritesHalfWhenCancelled(MemoryStore):
    async def commit_plans(self, plans: Sequence[Plan], now: Instant) -> list[bool]:
        won = await super().commit_plans([replace(plan, runs=()) for plan in plans], now)
        await asyncio.sleep(0)
        await self.add_runs([run for plan, did in zip(plans, won, strict=True) if did for run in plan.runs])
        return won


class ClaimsInReverse(MemoryStore):
    async def claim_runs(
        self, queues: Sequence[str], limit: int, worker: str, now: Instant, until: Instant, steady: Instant
    ) -> Claimed:
        claimed = await super().claim_runs(queues, limit, worker, now, until, steady)
        return replace(claimed, runs=claimed.runs[::-1])


class ClaimsTooLate(MemoryStore):
    async def claim_runs(
        self, queues: Sequence[str], limit: int, worker: str, now: Instant, until: Instant, steady: Instant
    ) -> Claimed:
        return await super().claim_runs(queues, limit, worker, now, until - 1, steady)


class ClaimsPastTheStartLimit(MemoryStore):
    async def claim_runs(
        self, queues: Sequence[str], limit: int, worker: str, now: Instant, until: Instant, steady: Instant
    ) -> Claimed:
        for run in list(self._space.runs.values()):
            self._space.put_run(replace(run, start_by=None))
        return await super().claim_runs(queues, limit, worker, now, until, steady)


class KnowsNoNextInstant(MemoryStore):
    async def claim_runs(self, *given: Any) -> Claimed:
        return replace(await super().claim_runs(*given), next_due_at=None)


class LeavesJobsOut(MemoryStore):
    async def claim_runs(self, *given: Any) -> Claimed:
        return replace(await super().claim_runs(*given), jobs={})


class NeverCounts(Counter[str]):
    def __getitem__(self, key: str) -> int:
        return 0


class ForgetsConcurrency(MemoryStore):
    def __init__(self, namespace: str, database: MemoryDatabase) -> None:
        super().__init__(namespace, database)
        self._space.found_runs.claimed.under = NeverCounts()


class LosesSlots(MemoryStore):
    def __init__(self, namespace: str, database: MemoryDatabase) -> None:
        super().__init__(namespace, database)
        self._space.found_runs.claimed.under = NeverGivesBack()


class NeverGivesBack(Counter[str]):
    def __delitem__(self, key: object) -> None:
        """Keep it."""


class ForgetsWhatIsSerial(MemoryStore):
    def __init__(self, namespace: str, database: MemoryDatabase) -> None:
        super().__init__(namespace, database)
        self._space.found_runs.claimed.of_job = NeverCounts()


class BeatsUnderAnyToken(MemoryStore):
    def _heartbeat(self, beat: Beat, now: Instant) -> Pulse | None:
        run = self._space.runs.get(beat.run_id)
        return super()._heartbeat(beat if run is None else replace(beat, token=run.token), now)


class ExtendsWhatIsCancelling(MemoryStore):
    def _heartbeat(self, beat: Beat, now: Instant) -> Pulse | None:
        pulse = super()._heartbeat(beat, now)
        run = self._space.runs.get(beat.run_id)
        if pulse is None or run is None or not pulse.cancel_requested:
            return pulse
        self._space.put_run(replace(run, lease_expires_at=now + 30_000_000))
        return replace(pulse, expires_at=now + 30_000_000)


class PlansTooLate(MemoryStore):
    async def due_jobs(
        self, until: Instant, limit: int, after: Instant | None = None
    ) -> tuple[list[Job], Instant | None]:
        return await super().due_jobs(until - 1, limit, after)


class ListsTheCursorAgain(MemoryStore):
    async def list_runs(self, where: RunFilter, after: str | None, limit: int) -> Page[Run]:
        return await super().list_runs(where, None if after is None else after + "!", limit)


class NeverSaysItIsTheLastPage(MemoryStore):
    async def list_jobs(self, where: JobFilter, after: str | None, limit: int) -> Page[Job]:
        page = await super().list_jobs(where, after, limit)
        return replace(page, next_after=page.items[-1].name if page.items else None)


class MatchesAnyLabel(MemoryStore):
    async def list_jobs(self, where: JobFilter, after: str | None, limit: int) -> Page[Job]:
        return await super().list_jobs(replace(where, labels=dict(list(where.labels.items())[:1])), after, limit)


class PrunesWithoutLimit(MemoryStore):
    async def prune_runs(self, now: Instant, limit: int) -> int:
        return await super().prune_runs(now, 1_000)


class TrimsTheNewest(MemoryStore):
    async def trim_runs(self, job_id: str, keep: int, limit: int) -> int:
        newest = list(self._space.found_runs.finished.get(job_id, ()))[::-1]
        surplus = newest[: max(0, min(len(newest) - keep, limit))]
        for run_id in surplus:
            self._space.delete_run(self._space.runs[run_id])
        return len(surplus)


class SharesNamespaces(MemoryStore):
    def __init__(self, namespace: str, database: MemoryDatabase) -> None:
        super().__init__("the only one", database)


class KeepsDeletedNames(MemoryStore):
    async def add_jobs(self, jobs: Sequence[Job], along: Along = NOTHING_ALONG) -> list[bool]:
        kept = {self._space.jobs[job_id].name for job_id in self._space.found_jobs.deleted}
        return [job.name not in kept and self._add_job(job, along.get(job.id, ())) for job in jobs]


class CountsWhatIsFinished(MemoryStore):
    async def stats(self, now: Instant) -> Stats:
        return replace(await super().stats(now), jobs=len(self._space.jobs))


class RemembersTheFirstBeat(MemoryStore):
    async def beat_node(self, node: Node) -> None:
        self._space.beside.nodes.setdefault(node.name, node)


class FollowsWhatWasRefused(MemoryStore):
    async def settle_runs(self, changes: Sequence[RunChange], now: Instant) -> list[bool]:
        won = await super().settle_runs(changes, now)
        await self.add_runs([run for change in changes for run in change.follow_ups])
        return won


class FollowsLater(MemoryStore):
    async def settle_runs(self, changes: Sequence[RunChange], now: Instant) -> list[bool]:
        won = await super().settle_runs([replace(change, follow_ups=()) for change in changes], now)
        await asyncio.sleep(0)
        written = [change for change, did in zip(changes, won, strict=True) if did]
        await self.add_runs([run for change in written for run in change.follow_ups])
        return won


class PlansWithoutFollowUps(MemoryStore):
    async def commit_plans(self, plans: Sequence[Plan], now: Instant) -> list[bool]:
        bare = [replace(p, changes=tuple(replace(c, follow_ups=()) for c in p.changes)) for p in plans]
        return await super().commit_plans(bare, now)


class RecordsWhatWasRefused(MemoryStore):
    async def commit_plans(self, plans: Sequence[Plan], now: Instant) -> list[bool]:
        self._space.beside.add(record for plan in plans for record in plan.records)
        return await super().commit_plans(plans, now)


class WritesOverRecords(MemoryStore):
    async def put_records(self, changes: Sequence[RecordChange]) -> list[bool]:
        for record in (record for change in changes for record in change.records):
            self._space.beside.forget(record.name)
        return await super().put_records(changes)


class IgnoresRecordVersions(MemoryStore):
    def _put_record(self, change: RecordChange) -> bool:
        stored = self._space.beside.records.get(change.record.name)
        return super()._put_record(replace(change, expected=0 if stored is None else stored.version))


class ListsRecordsPastTheBound(MemoryStore):
    async def list_records(self, where: RecordFilter, after: str | None, limit: int) -> Page[Record]:
        return await super().list_records(replace(where, until=None), after, limit)


class PrunesAnyRecord(MemoryStore):
    async def prune_records(self, prefix: str, until: str, limit: int) -> int:
        return await super().prune_records("", prefix + until, limit)


Mutant = type[MemoryStore]

CAUGHT_BY: dict[Mutant, str] = {
    IgnoresToken: "test_a_stale_token_cannot_settle",
    IgnoresState: "test_another_state_cannot_be_settled",
    ClaimsByTheWallClock: "test_leases_and_deadlines_are_on_the_steady_scale",
    LooksForLeasesByTheWallClock: "test_ends_of_leases_and_start_limits_are_in_one_order",
    IgnoresTheLease: "test_a_lease_that_ends_now_is_not_held",
    HoldsALeaseTooLong: "test_a_lease_is_expired_at_its_very_end_and_no_sooner",
    CountsWhatWasRefused: "test_what_was_refused_is_not_counted",
    CountsOneOfABatch: "test_the_ends_of_a_batch_are_counted_as_one",
    NeverRecovers: "test_each_end_is_counted",
    CountsInTheVersion: "test_the_job_stays_as_it_is_and_keeps_its_health",
    ForgetsWhatPlansEnd: "test_what_a_plan_ends_is_counted",
    KeepsHealthForGood: "test_the_health_of_a_job_goes_with_it",
    ForgetsProgressOfOutcomes: "test_everything_that_may_change_is_written",
    IgnoresVersion: "test_a_stale_version_leaves_no_trace",
    LeavesTraces: "test_of_two_plans_for_one_job_in_a_batch_the_first_wins",
    PlansRunsBeforeWithdrawals: "test_a_fire_time_withdrawn_can_be_planned_again_in_the_same_plan",
    WithdrawsWhatRuns: "test_a_claimed_run_is_not_withdrawn",
    ForgetsFireTimesOfFinishedRuns: "test_a_fire_time_whose_run_is_finished_gets_no_other",
    KnowsNoPriorityOfWhatIsFirst: "test_what_is_due_first_is_told_of_each_level_in_the_order_asked",
    ClaimsTwice: "test_of_many_claimers_each_run_goes_to_one",
    ChoosesThenWrites: "test_of_many_claimers_each_run_goes_to_one",
    WritesHalfWhenCancelled: "test_a_cancelled_caller_leaves_a_plan_whole_or_absent",
    ClaimsInReverse: "test_claims_follow_the_sorted_order_whatever_the_batches",
    ClaimsTooLate: "test_a_run_is_due_at_its_very_instant",
    ClaimsPastTheStartLimit: "test_a_run_past_its_start_limit_is_not_claimed",
    KnowsNoNextInstant: "test_a_claim_tells_when_the_next_run_is_due",
    LeavesJobsOut: "test_the_jobs_of_claimed_runs_come_along",
    ForgetsConcurrency: "test_no_more_runs_of_a_key_are_claimed_than_its_maximum",
    LosesSlots: "test_slots_are_never_lost_over_many_rounds",
    ForgetsWhatIsSerial: "test_a_serial_run_waits_for_any_claimed_run_of_its_job",
    EndsWithTheLease: "test_a_lease_that_has_ended_goes_on_if_no_other_claim_was_made",
    BeatsForTheDead: "test_a_lease_is_not_extended_once_its_run_was_put_back_or_claimed_again",
    ReplacesWhatRuns: "test_one_that_has_moved_on_stays",
    BeatsUnderAnyToken: "test_a_stale_token_cannot_beat",
    BeatsWithoutLimit: "test_a_heartbeat_never_extends_beyond_the_execution_limit",
    ExtendsWhatIsCancelling: "test_a_cancelling_run_hears_of_it_and_its_lease_stays",
    RescuesTooLate: "test_a_lease_is_overdue_at_its_very_end",
    PlansTooLate: "test_a_job_is_due_at_its_very_instant",
    ListsTheCursorAgain: "test_run_pages_join_without_gap_or_overlap",
    NeverSaysItIsTheLastPage: "test_the_last_full_page_of_jobs_says_that_it_is_the_last",
    MatchesAnyLabel: "test_jobs_are_filtered_by_every_label",
    PrunesWithoutLimit: "test_the_earliest_are_pruned_first_up_to_the_limit",
    TrimsTheNewest: "test_the_oldest_finished_runs_are_trimmed",
    SharesNamespaces: "test_namespaces_know_nothing_of_each_other",
    KeepsDeletedNames: "test_the_name_of_a_deleted_job_is_free_again",
    CountsWhatIsFinished: "test_jobs_are_counted",
    RemembersTheFirstBeat: "test_a_node_beats_over_its_earlier_sign_of_life",
    FollowsWhatWasRefused: "test_a_change_that_is_refused_writes_no_follow_up",
    FollowsLater: "test_a_cancelled_caller_leaves_an_end_with_its_follow_up_or_neither",
    PlansWithoutFollowUps: "test_changes_of_a_plan_bring_along_what_follows",
    RecordsWhatWasRefused: "test_a_plan_that_loses_leaves_no_record",
    WritesOverRecords: "test_a_change_that_loses_leaves_no_record",
    IgnoresRecordVersions: "test_a_record_is_written_only_over_the_version_that_was_read",
    ListsRecordsPastTheBound: "test_a_span_of_time_is_a_pair_of_bounds",
    PrunesAnyRecord: "test_the_lowest_are_forgotten_first_up_to_the_limit",
}

UNSEEN_BY_THE_MACHINE = {
    ChoosesThenWrites,  # it makes one call at a time
    WritesHalfWhenCancelled,  # it cancels none
    FollowsLater,  # the same
    SharesNamespaces,  # it has but one
    MatchesAnyLabel,  # it filters by one label at the most
    *(CountsOneOfABatch, NeverRecovers, KeepsHealthForGood),  # it seldom does to one job all that shows them
    ReplacesWhatRuns,  # it replaces none
    LosesSlots,  # it finds it in most orders of the test run, not in all
    *(ListsRecordsPastTheBound, KnowsNoPriorityOfWhatIsFirst),  # the same
    *(HoldsALeaseTooLong, ForgetsWhatIsSerial, BeatsWithoutLimit, ExtendsWhatIsCancelling),  # at the 150th sequence
    PlansWithoutFollowUps,  # at the 500th
}


class Subject(StoreContract):
    """The contract on a mutant."""

    def __init__(self, mutant: Mutant) -> None:
        self.mutant = mutant
        self.database = MemoryDatabase()

    async def open_store(self, namespace: str) -> Store:
        return self.mutant(namespace, self.database)


def passes(mutant: Mutant, name: str) -> bool:
    """Whether a test of the contract passes on this store, with every one of its parameters."""
    test = getattr(StoreContract, name)
    (marks,) = [mark.args for mark in getattr(test, "pytestmark", ())] or [("", [None])]
    return all(_passes(mutant, test, {marks[0]: value} if marks[0] else {}) for value in marks[1])


def _passes(mutant: Mutant, test: Callable[..., Awaitable[None]], values: dict[str, Any]) -> bool:
    async def perform() -> None:
        subject = Subject(mutant)
        stores = Stores(subject.open_store, "mutant")
        given = {**values, "stores": stores}
        if "store" in (wanted := inspect.signature(test).parameters):
            given["store"] = await stores.another()
        await test(subject, **{name: value for name, value in given.items() if name in wanted})

    try:
        asyncio.run(perform())
    except Exception:
        return False
    return True


@pytest.mark.parametrize(("mutant", "name"), CAUGHT_BY.items())
def test_the_test_that_is_there_for_it_catches(mutant: Mutant, name: str) -> None:
    assert passes(MemoryStore, name)
    assert not passes(mutant, name)


@pytest.mark.proof
def test_the_machine_catches_all_that_it_can_see() -> None:
    assert not hunt([mutant for mutant in CAUGHT_BY if mutant not in UNSEEN_BY_THE_MACHINE], EXAMPLES, STEPS)


def test_the_machine_catches_no_store_that_is_sound() -> None:
    assert hunt([MemoryStore], 10, STEPS) == {MemoryStore}
