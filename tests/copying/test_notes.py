"""A copy into a store that a server has opened before: what its nodes noted there is no data."""

from __future__ import annotations

from horarium.clock import SECOND
from horarium.model.records import Record, RecordChange
from horarium.node.copying import Side, copy
from horarium.services.loop.believed import NOTED
from horarium.stores.memory import MemoryStore
from horarium.testing.clock import ManualClock
from horarium.testing.values import NOW, a_job


async def test_the_note_of_a_clock_belongs_to_the_nodes_of_a_store() -> None:
    clock = ManualClock(NOW + SECOND)
    source, target = MemoryStore(), MemoryStore()
    await source.add_jobs([a_job("nightly")])
    for store, body in ((source, b"1"), (target, b"2")):
        assert await store.put_records([RecordChange(Record(name=NOTED, body=body))]) == [True]
    report = await copy(Side(source, clock, "here"), Side(target, clock, "there"), lambda progress: None)
    assert report.ok, report.problems
    assert [record and record.body for record in await target.get_records([NOTED])] == [b"2"]
