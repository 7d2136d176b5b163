"""A claim takes runs as it has read them: what was written meanwhile is read again, and what was not is not."""

from __future__ import annotations

from collections.abc import AsyncIterator
from secrets import token_hex
from typing import Any

import pytest
import pytest_asyncio
from msgspec.structs import replace

from horarium.model import Plan, Run, RunChange, State
from horarium.ports import JobFilter
from horarium.stores.mongo import MongoStore, queries
from horarium.stores.mongo.session import Document, Query, Session
from horarium.testing.values import NOW, QUEUE, a_job, a_run
from tests.servers.mongo import Mongo

pytestmark = pytest.mark.slow


@pytest_asyncio.fixture
async def store(mongo: Mongo) -> AsyncIterator[MongoStore]:
    store = MongoStore(mongo.url, token_hex(6))
    await store.open()
    yield store
    await store.close()


def write_after_the_first_look(store: MongoStore, monkeypatch: pytest.MonkeyPatch, change: Any) -> None:
    """Between a claim's first reading and its writing, `change` happens."""
    find, looks = Session.find, iter([True])

    async def find_and_change(session: Session, query: Query, *args: Any, **how: Any) -> list[Document]:
        found = await find(session, query, *args, **how)
        if query.index == "runs_in_lane" and next(looks, False):
            await change()
        return found

    monkeypatch.setattr(Session, "find", find_and_change)


def put_off(run: Run) -> RunChange:
    """Still pending, under the same token, due at another instant and with another error."""
    return RunChange(replace(run, due_at=NOW - 7, error="meanwhile"), run.token, State.PENDING)


@pytest.mark.parametrize("moved", [1, 2, 3])
async def test_a_run_that_was_written_meanwhile_is_claimed_as_it_then_is(
    store: MongoStore, monkeypatch: pytest.MonkeyPatch, moved: int
) -> None:
    runs = [a_run(number, due_at=NOW - 1) for number in range(3)]
    await store.add_runs(runs[:2])
    await store.add_runs(runs[2:])
    changes = [put_off(run) for run in runs[:moved]]
    write_after_the_first_look(store, monkeypatch, lambda: store.settle_runs(changes, NOW))
    claimed = (await store.claim_runs([QUEUE], 10, "w", NOW, NOW, NOW)).runs
    assert [run.error for run in claimed] == ["meanwhile"] * moved + [None] * (3 - moved)
    assert list(claimed) == await store.get_runs([run.id for run in claimed])


async def test_a_run_that_took_the_mark_of_another_candidate_is_read_again(
    store: MongoStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write of several runs may have reached only some of them when they were looked for."""
    runs = [a_run(number, due_at=NOW - 1) for number in range(2)]
    for run in runs:
        await store.add_runs([run])
    session = store._session
    assert session is not None

    async def reach_the_first() -> None:
        (other,) = await session.runs.find({"_id": session.key(runs[1].id)}).to_list()
        change = {"$set": {"mark": other["mark"], "error": b"meanwhile"}}
        await session.runs.update_one({"_id": session.key(runs[0].id)}, change)

    write_after_the_first_look(store, monkeypatch, reach_the_first)
    claimed = (await store.claim_runs([QUEUE], 10, "w", NOW, NOW, NOW)).runs
    assert sorted((run.id, run.error) for run in claimed) == [(runs[0].id, "meanwhile"), (runs[1].id, None)]


async def test_a_claim_that_nobody_disturbs_reads_once_and_writes_once(
    store: MongoStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = a_job("job")
    await store.add_jobs([job])
    await store.add_runs([a_run(number, of=job, due_at=NOW) for number in range(5)])
    find, collections = Session.find, []

    async def count(session: Session, query: Query, *args: Any, **how: Any) -> list[Document]:
        collections.append(query.collection)
        return await find(session, query, *args, **how)

    monkeypatch.setattr(Session, "find", count)
    claimed = await store.claim_runs([QUEUE], 5, "w", NOW, NOW, NOW)
    assert (len(claimed.runs), list(claimed.jobs)) == (5, [job.id])
    assert collections == ["horarium_runs", "horarium_jobs"]


async def test_a_claim_that_gets_nothing_behind_a_gate_commits_nothing(store: MongoStore) -> None:
    """A commit waits for the journal, even of a transaction that only reads."""
    await store.add_runs([a_run(number, concurrency_key="k", concurrency_max=1) for number in range(200)])
    assert len((await store.claim_runs([QUEUE], 5, "w", NOW, NOW, NOW)).runs) == 1
    session = store._session
    assert session is not None

    async def transactions() -> tuple[int, int]:
        said = (await session.database.command("serverStatus"))["transactions"]
        return said["totalCommitted"], said["totalAborted"]

    before = await transactions()
    claimed = await store.claim_runs([QUEUE], 5, "w", NOW, NOW, NOW)
    assert (claimed.runs, claimed.next_due_at) == ((), None)
    committed, aborted = await transactions()
    assert (committed, aborted) == (before[0], before[1] + 1)


@pytest.mark.parametrize(("name", "value"), [("STATEMENT_MAX", 3), ("STATEMENT_BYTES_MAX", 1)])
async def test_plans_are_written_in_parts_and_one_that_is_outdated_changes_nothing(
    store: MongoStore, monkeypatch: pytest.MonkeyPatch, name: str, value: int
) -> None:
    monkeypatch.setattr(queries, name, value)
    defined = [a_job(f"job-{number}", next_fire_at=NOW, version=number + 1) for number in range(7)]
    await store.add_jobs(defined)
    planned = [replace(job, next_fire_at=None, finished_at=NOW) for job in defined]
    plans = [Plan(job, (a_run(1, of=job),)) for job in planned]
    assert await store.commit_plans([plans[4]], NOW) == [True]
    assert await store.commit_plans(plans, NOW) == [number != 4 for number in range(7)]
    assert await store.get_jobs_by_id([job.id for job in defined]) == [
        replace(job, version=job.version + 1) for job in planned
    ]
    assert (await store.list_jobs(JobFilter(finished=False), None, 10)).items == ()
    assert len((await store.claim_runs([QUEUE], 10, "w", NOW + 10, NOW + 10, NOW + 10)).runs) == 7
