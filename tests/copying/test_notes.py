"""A copy into a store that a server has opened before: what its nodes noted there is no data."""

from __future__ import annotations

import pytest

from horarium.clock import DAY, SECOND
from horarium.errors import NotFound
from horarium.model.records import Record, RecordChange
from horarium.node.copying import Side, copy
from horarium.services.loop.believed import NOTED
from horarium.services.loop.steady import SteadyScale
from horarium.stores.memory import MemoryStore
from horarium.testing.clock import ManualClock
from horarium.testing.values import NOW, QUEUE, a_job, a_run


async def test_the_note_of_a_clock_belongs_to_the_nodes_of_a_store() -> None:
    clock = ManualClock(NOW + SECOND)
    source, target = MemoryStore(), MemoryStore()
    await source.add_jobs([a_job("nightly")])
    for store, body in ((source, b"1"), (target, b"2")):
        assert await store.put_records([RecordChange(Record(name=NOTED, body=body))]) == [True]
    report = await copy(Side(source, clock, "here"), Side(target, clock, "there"), lambda progress: None)
    assert report.ok, report.problems
    assert [record and record.body for record in await target.get_records([NOTED])] == [b"2"]


@pytest.mark.parametrize("ahead", [-DAY, DAY])
async def test_leases_end_in_the_copy_in_their_time(ahead: int) -> None:
    """The scale of the original may be far from the wall time at which a node of the copy would begin one."""
    clock = ManualClock(NOW)
    source, target = MemoryStore(), MemoryStore()
    clock.steady_offset += ahead
    await SteadyScale(source, clock).follow()
    await source.add_runs([a_run(lease_seconds=30.0)])
    (claimed,) = (await source.claim_runs([QUEUE], 1, "w", clock.now(), clock.now(), clock.steady())).runs
    clock.advance(10)
    report = await copy(Side(source, clock, "here"), Side(target, clock, "there"), lambda progress: None)
    assert report.ok, report.problems
    elsewhere = ManualClock(clock.now())
    await SteadyScale(target, elsewhere).follow()
    assert await target.overdue_runs(elsewhere.now(), 1, elsewhere.steady()) == ([], elsewhere.now() + 20 * SECOND)
    assert await target.get_runs([claimed.id]) == [claimed]


async def test_a_store_in_which_only_clocks_were_noted_is_empty() -> None:
    clock = ManualClock(NOW)
    source = MemoryStore()
    await SteadyScale(source, clock).follow()
    with pytest.raises(NotFound):
        await copy(Side(source, clock, "here"), Side(MemoryStore(), clock, "there"), lambda progress: None)
