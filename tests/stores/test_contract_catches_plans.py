"""Stores that carry plans out carelessly are caught by the test that is there for it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from horarium.clock import Instant
from horarium.model import Plan, Run, State
from horarium.model.records import Record
from horarium.stores.memory import MemoryStore
from tests.stores.test_contract_catches import Mutant, passes

pytestmark = pytest.mark.slow


class MovesWhatIsGone(MemoryStore):
    def _withdraw(self, read: Run) -> bool:
        super()._withdraw(read)
        return True


class RecordsRunsThatWereLeftOut(MemoryStore):
    async def commit_plans(self, plans: Sequence[Plan], now: Instant) -> list[bool]:
        return await super().commit_plans([replace(plan, along={}, records=_all_records(plan)) for plan in plans], now)


class LetsWaitWhatHasEnded(MemoryStore):
    async def commit_plans(self, plans: Sequence[Plan], now: Instant) -> list[bool]:
        return await super().commit_plans([replace(each, runs=tuple(map(_waiting, each.runs))) for each in plans], now)


def _waiting(run: Run) -> Run:
    return replace(run, state=State.PENDING, finished_at=None) if run.state is State.CANCELLED else run


def _all_records(plan: Plan) -> tuple[Record, ...]:
    return (*plan.records, *(record for records in plan.along.values() for record in records))


@pytest.mark.parametrize(
    ("mutant", "name"),
    [
        (MovesWhatIsGone, "test_a_run_is_moved_only_if_it_was_there_to_be_withdrawn"),
        (LetsWaitWhatHasEnded, "test_a_plan_may_make_a_run_that_is_cancelled_already"),
        (RecordsRunsThatWereLeftOut, "test_a_record_is_written_only_with_the_run_of_the_plan_that_it_comes_with"),
    ],
)
def test_the_test_that_is_there_for_it_catches(mutant: Mutant, name: str) -> None:
    assert passes(MemoryStore, name)
    assert not passes(mutant, name)
