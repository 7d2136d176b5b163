"""A program asks what needs attention, and takes note of it."""

from __future__ import annotations

import pytest

from horarium import Scheduler, every
from horarium.access.audit import AuditFilter, page
from horarium.errors import InvalidRequest, NotFound
from horarium.stores.memory import MemoryDatabase, MemoryStore


async def test_a_failing_job_is_a_fault_until_somebody_takes_note_of_it() -> None:
    store = MemoryStore(database=MemoryDatabase())
    async with Scheduler(store, actor="deploy") as scheduler:

        @scheduler.handler("report")
        async def report() -> None:
            raise ValueError("the disk is full")

        assert await scheduler.attention() == []
        await scheduler.add_job("nightly", every("1h"), handler="report", retry={"attempts_max": 1})
        await scheduler.start()
        await scheduler.wait_for((await scheduler.trigger_job("nightly")).id)
        (fault,) = await scheduler.attention()
        assert (fault["cause"], fault["acknowledged"]) == ("failing/nightly", None)
        assert "the disk is full" in fault["text"]
        with pytest.raises(InvalidRequest):
            await scheduler.acknowledge_cause("failing/nightly", "")
        noted = (await scheduler.acknowledge_cause("failing/nightly", "known", actor="ann"))["acknowledged"]
        assert (noted["by"], noted["reason"]) == ("ann", "known")
        assert (await scheduler.attention())[0]["acknowledged"] == noted
        await scheduler.reopen_cause("failing/nightly")
        assert (await scheduler.attention())[0]["acknowledged"] is None
        with pytest.raises(NotFound):
            await scheduler.acknowledge_cause("failing/other", "known")
        lines = (await page(store, AuditFilter(), None, 99)).items
    assert [(line.actor, line.action) for line in lines if line.action.startswith("attention")] == [
        ("deploy", "attention.open"),
        ("ann", "attention.acknowledge"),
    ]
