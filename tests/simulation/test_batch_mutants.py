"""Worlds in which people work with batches hold every invariant, with a node that dies at any write of one; each rule
of batches is broken on purpose, and the simulator says which one it was."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from horarium.clock import Instant
from horarium.model import Run, RunChange, State
from horarium.model.batches import BATCH, BATCH_ENDS, Batch
from horarium.model.records import Record, RecordChange, RecordFilter
from horarium.operations.batches import Batches
from horarium.operations.settling.batching import Batching
from horarium.rules import batches as rules
from horarium.rules.batches import counted
from horarium.testing.simulate import simulate
from horarium.testing.simulate.batchbooks import BatchBooks
from horarium.testing.simulate.workload import SHARES
from tests.simulation.naming import said_of

pytestmark = pytest.mark.slow

SEEDS = (1, 2, *range(6, 19))
A_FEW = 6
Patch = Callable[[pytest.MonkeyPatch], None]
BATCHING = "horarium.operations.settling.batching"


@pytest.fixture(autouse=True)
def batched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("horarium.testing.simulate.people.SHARES", {**SHARES, "batches": 0.8})


def ends_say_nothing(patch: pytest.MonkeyPatch) -> None:
    """Of runs that are cancelled."""
    honest = rules.with_end

    def with_end(change: RunChange, now: Instant) -> RunChange:
        return change if change.run.state is State.CANCELLED else honest(change, now)

    patch.setattr(rules, "with_end", with_end)


def all_ends_have_one_name(patch: pytest.MonkeyPatch) -> None:
    honest = rules.with_end

    def with_end(change: RunChange, now: Instant) -> RunChange:
        after = honest(change, now)
        return after if after is change else replace(after, records=tuple(map(renamed, after.records)))

    def renamed(record: Record) -> Record:
        if not record.name.startswith(BATCH_ENDS):
            return record
        return replace(record, name=f"{BATCH_ENDS}{rules.ended_batch(record)}/an end")

    patch.setattr(rules, "with_end", with_end)


def judges(patch: pytest.MonkeyPatch, sees: Callable[[Batch], Batch]) -> None:
    """The batch is judged as though it were another."""
    honest = rules.judged

    def judged(batch: Batch, now: Instant, *, all_counted: bool) -> tuple[Batch, list[Run]]:
        after, runs = honest(sees(batch), now, all_counted=all_counted)
        return replace(after, total=batch.total, closed_at=batch.closed_at, retrying=batch.retrying), runs

    patch.setattr(f"{BATCHING}.judged", judged)


def finishes_open(patch: pytest.MonkeyPatch) -> None:
    judges(patch, lambda batch: replace(batch, closed_at=batch.closed_at or batch.created_at))


def finishes_with_one_to_come(patch: pytest.MonkeyPatch) -> None:
    judges(patch, lambda batch: replace(batch, total=_ended(batch)) if _ended(batch) == batch.total - 1 else batch)


def _ended(batch: Batch) -> int:
    return batch.completed + batch.failed + batch.cancelled


def finishes_while_it_retries(patch: pytest.MonkeyPatch) -> None:
    judges(patch, lambda batch: replace(batch, retrying=False))


def keeps_the_key_of_the_first_round(patch: pytest.MonkeyPatch) -> None:
    honest = rules._follow_up
    patch.setattr(rules, "_follow_up", lambda batch, *given: honest(replace(batch, round=1), *given))


def reopens(patch: pytest.MonkeyPatch, as_: Callable[[Batch, Batch], Batch]) -> None:
    honest = rules.reopened

    def reopened(batch: Batch, states: Any) -> Batch:
        return as_(batch, honest(batch, states))

    for module in (BATCHING, "horarium.operations.batches"):
        patch.setattr(f"{module}.reopened", reopened)


def stays_finished(patch: pytest.MonkeyPatch) -> None:
    reopens(patch, lambda before, after: replace(after, finished_at=before.finished_at))


def begins_no_round(patch: pytest.MonkeyPatch) -> None:
    reopens(patch, lambda before, after: replace(after, round=before.round))


def counts_what_is_done_again(patch: pytest.MonkeyPatch) -> None:
    reopens(patch, lambda before, after: replace(after, failed=before.failed, cancelled=before.cancelled))


def counts_apart(patch: pytest.MonkeyPatch) -> None:
    """An end is removed, and counted with another write."""
    honest = Batching.write

    async def write(self: Batching, batch: Batch, *given: Any, **more: Any) -> Batch | None:
        ends = await self._store.list_records(RecordFilter(f"{BATCH_ENDS}{batch.id}/"), None, 1)
        await self._store.put_records([RecordChange(end, end.version, deleted=True) for end in ends.items])
        return await honest(self, counted(batch, ends.items), *given, **more)

    patch.setattr(Batching, "write", write)


def writes_over_another(patch: pytest.MonkeyPatch) -> None:
    """The batch is written, though another node wrote it since."""
    honest = Batching.write

    async def write(self: Batching, batch: Batch, stored: Record | None, *given: Any, **more: Any) -> Batch | None:
        (present,) = await self._store.get_records([BATCH + batch.id])
        return await honest(self, batch, present, *given, **more)

    patch.setattr(Batching, "write", write)


def skips_pages(patch: pytest.MonkeyPatch) -> None:
    """Of a request about all runs the rest is taken as done."""
    honest = Batches.carry_on

    async def carry_on(self: Batches, record: Record) -> bool:
        done = replace(rules.decode_owed(record.body), page=1_000)
        return await honest(self, replace(record, body=msgspec.json.encode(done)))

    patch.setattr(Batches, "carry_on", carry_on)


def retries_for_ever(patch: pytest.MonkeyPatch) -> None:
    honest = Batching.write

    async def write(self: Batching, batch: Batch, stored: Record | None, *given: Any, **more: Any) -> Batch | None:
        before = stored is not None and rules.decode_batch(stored.body).retrying
        return await honest(self, replace(batch, retrying=before or batch.retrying), stored, *given, **more)

    patch.setattr(Batching, "write", write)


def has_no_place(patch: pytest.MonkeyPatch) -> None:
    """A run that is done again is in no page."""
    honest = rules.page_record

    def page_record(batch_id: str, page: int, ids: Iterable[str], version: int = 1) -> Record:
        return honest(batch_id, page, list(ids)[: None if version == 1 else -1], version)

    patch.setattr(f"{BATCHING}.page_record", page_record)


MUTANTS: dict[str, tuple[Patch, int, str]] = {
    "ends of cancelled runs say nothing": (ends_say_nothing, 16, "and counts"),
    "two ends have one name": (all_ends_have_one_name, 1, "and counts"),
    "an open batch finishes": (finishes_open, 1, "finished, and open"),
    "a batch finishes with one run to come": (finishes_with_one_to_come, 1, "of its runs have not ended"),
    "a batch finishes while it is done again": (finishes_while_it_retries, 47, "finished while its failed runs"),
    "a follow-up keeps the key of the first round": (keeps_the_key_of_the_first_round, 2, "ends were never counted"),
    "a batch that is done again stays finished": (stays_finished, 2, "round 2 after round 1"),
    "a batch that is done again begins no round": (begins_no_round, 2, "finished in round"),
    "runs that are done again stay counted": (counts_what_is_done_again, 1, "and counts"),
    "ends are removed before they are counted": (counts_apart, 0, "and counts"),
    "a batch is written over another write": (writes_over_another, 12, "and counts"),
    "pages of a request are skipped": (skips_pages, 12, "though a request was answered"),
    "a batch retries for ever": (retries_for_ever, 1, "never ceases"),
    "a run that is done again has no place": (has_no_place, 1, "its pages hold"),
}
"""How each breaks a rule, the seed that finds it, and what is said of it."""


@pytest.mark.parametrize("seeds", [SEEDS[:A_FEW], pytest.param(SEEDS[A_FEW:], marks=pytest.mark.proof)])
def test_worlds_with_batches_hold_every_invariant(monkeypatch: pytest.MonkeyPatch, seeds: Sequence[int]) -> None:
    finishes, honest = 0, BatchBooks.check

    def check(self: BatchBooks, now: Instant) -> None:
        nonlocal finishes
        honest(self, now)
        finishes += self.finishes

    monkeypatch.setattr(BatchBooks, "check", check)
    for seed in seeds:
        simulate(seed)
    assert finishes > 2 * len(seeds)


@pytest.mark.parametrize("name", MUTANTS)
def test_a_broken_batch_is_named(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    breaks, seed, said = MUTANTS[name]
    breaks(monkeypatch)
    assert said_of(seed, said)
