"""A scheduler with an actor changes jobs and runs in that name; one without has no entries."""

from __future__ import annotations

import pytest

from horarium import Scheduler, every
from horarium.access.audit import AuditFilter, page
from horarium.stores.memory import MemoryDatabase, MemoryStore


@pytest.mark.parametrize("actor", ["deploy", None])
async def test_what_a_program_changes_is_audited_in_the_name_of_its_actor(actor: str | None) -> None:
    store = MemoryStore(database=MemoryDatabase())
    async with Scheduler(store, actor=actor) as scheduler:
        await scheduler.add_job("nightly", every("1h"), handler="report")
        await scheduler.pause_job("nightly", "moving")
        await scheduler.resume_job("nightly")
        run = await scheduler.trigger_job("nightly")
        await scheduler.cancel_run(run.id)
        await scheduler.retry_run(run.id)
        await scheduler.enqueue("report")
        await scheduler.delete_job("nightly")
        lines = (await page(store, AuditFilter(), None, 99)).items
    made = [
        "job.create",
        "job.delete",
        "job.pause",
        "job.resume",
        "job.trigger",
        "run.cancel",
        "run.create",
        "run.retry",
    ]
    assert sorted(line.action for line in lines) == (made if actor else [])
    assert {(line.actor, line.kind) for line in lines} == ({("deploy", "local")} if actor else set())
