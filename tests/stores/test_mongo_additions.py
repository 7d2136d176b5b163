"""What is added on MongoDB is not looked for first; where something is in the way, it is found all the same."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from msgspec.structs import replace

from horarium.model import Plan, RunChange, State
from horarium.model.records import Record
from horarium.stores.mongo import MongoStore
from horarium.stores.mongo.connect import commit
from horarium.stores.mongo.indexes import HEALTH
from horarium.stores.mongo.session import Session
from horarium.testing.values import NOW, QUEUE, a_change, a_job, a_run
from tests.servers.mongo import Mongo

pytestmark = pytest.mark.slow


@pytest_asyncio.fixture
async def store(mongo: Mongo) -> AsyncIterator[MongoStore]:
    store = MongoStore(mongo.url, secrets.token_hex(8))
    await store.open()
    # A transaction that begins right after collections were made may be refused: one that went through comes first.
    first = a_job("first")
    await store.add_jobs([first], {first.id: (Record(name="audit/0", body=b"{}"),)})
    await store.add_runs([a_run(100, of=first)])
    yield store
    await store.close()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """What the store asked its server, from now on. (The server counts what others ask, and itself.)"""
    counted: Counter[str] = Counter()
    find = Session.find

    async def counted_find(*given: Any, **options: Any) -> Any:
        counted["find"] += 1
        return await find(*given, **options)

    async def counted_commit(session: Any) -> None:
        counted["commit"] += 1
        await commit(session)

    monkeypatch.setattr(Session, "find", counted_find)
    monkeypatch.setattr("horarium.stores.mongo.session.commit", counted_commit)
    return counted


async def test_what_is_new_is_not_looked_for_first(store: MongoStore, asked: Counter[str]) -> None:
    """A plan and the end of a run read the runs that they change, and nothing else."""
    job, entry = a_job(), Record(name="audit/1", body=b"{}")
    assert await store.add_jobs([job], {job.id: (entry,)}) == [True]
    new = [a_run(1), a_run(2, of=job, unique_key="once")]
    along = {run.id: (replace(entry, name=f"audit/{run.id}"),) for run in new}
    assert await store.add_runs(new, along) == [True, True]
    planned = a_run(3, of=job)
    plan = Plan(job, runs=(planned,), along={planned.id: (replace(entry, name="audit/3"),)})
    assert await store.commit_plans([plan], NOW) == [True]
    assert asked == Counter(commit=3)
    ended = replace(new[0], state=State.CANCELLED, finished_at=NOW)
    follow_up = a_run(4, of=job, unique_key="follows")
    change = RunChange(ended, 0, State.PENDING, follow_ups=(follow_up,), records=(replace(entry, name="audit/4"),))
    assert await store.settle_runs([change], NOW) == [True]
    assert asked == Counter(commit=4, find=1)
    stored = await store.get_runs([new[0].id, follow_up.id])
    assert stored == [ended, follow_up]
    names = [entry.name, *(f"audit/{name}" for name in (new[0].id, new[1].id, "3", "4"))]
    assert None not in await store.get_records(names)


async def test_what_is_in_the_way_of_some_keeps_none_of_the_others(store: MongoStore) -> None:
    job, entry = a_job(), Record(name="audit/1", body=b"first")
    await store.add_jobs([job], {job.id: (entry,)})
    taken = a_run(1, of=job, unique_key="once")
    await store.add_runs([taken])
    runs = [a_run(2, of=job), taken, a_run(3, unique_key="once"), a_run(4)]
    along = {run.id: (replace(entry, body=b"second"),) for run in runs}
    assert await store.add_runs(runs, along) == [True, False, False, True]
    other = a_job("other")
    assert await store.add_jobs([job, other], {other.id: (replace(entry, name="audit/2"),)}) == [False, True]
    change = RunChange(replace(runs[3], state=State.CANCELLED, finished_at=NOW), 0, State.PENDING, follow_ups=(taken,))
    assert await store.settle_runs([change], NOW) == [True]
    found = await store.get_records(["audit/1", "audit/2"])
    assert [None if record is None else record.body for record in found] == [b"first", b"first"]


async def test_what_is_there_already_needs_no_commit(store: MongoStore, asked: Counter[str]) -> None:
    await store.add_runs([a_run(1, unique_key="once")])
    again = a_run(2, unique_key="once")
    assert await store.add_runs([again], {again.id: (Record(name="audit/2", body=b"{}"),)}) == [False]
    assert asked["commit"] == 0
    assert await store.get_records(["audit/2"]) == [None]


async def test_an_end_is_answered_though_the_health_of_its_job_could_not_be_written(
    store: MongoStore, caplog: pytest.LogCaptureFixture
) -> None:
    """They are two commands. Whoever settled must not be told that nothing was written."""
    job = a_job()
    await store.add_jobs([job])
    await store.add_runs([a_run(1, of=job), a_run(2, of=job)])
    runs = (await store.claim_runs([QUEUE], 2, "w", NOW, NOW, NOW)).runs
    ends = [a_change(run, state=State.FAILED, finished_at=NOW, lease_expires_at=None) for run in runs]
    database = store._open().database
    refusing: dict[str, Any] = {"validator": {"never": {"$exists": True}}}
    await database.command("collMod", HEALTH, **refusing)
    try:
        assert await store.settle_runs(ends[:1], NOW) == [True]
    finally:
        await database.command("collMod", HEALTH, validator={})
    assert "not counted in the health of 1 job" in caplog.text
    assert await store.settle_runs(ends[1:], NOW) == [True]
    assert (await store.job_health([job.id]))[job.id].failures_in_a_row == 1
