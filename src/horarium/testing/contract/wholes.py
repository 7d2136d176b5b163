"""Many writes of several kinds in one transaction: all of them, or none."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from horarium.errors import StoreUnavailable
from horarium.model import Job, Plan, Whole
from horarium.model.records import Record, RecordChange
from horarium.ports import BATCH_MAX, Store
from horarium.testing.contract.base import Stores, StoreUnderTest, ids, job_of, take
from horarium.testing.contract.keeping import everything
from horarium.testing.values import NOW, QUEUE, a_job, a_run

OLD = a_job("old", next_fire_at=NOW, labels={"team": "a"})
GONE = a_job("gone", next_fire_at=NOW)
NEW = a_job("new")
ENTRY = Record(name="audit/1", body=b"said")
ALONE, KEYED = a_run(8), a_run(9, unique_key="mine")
BESIDE = Record(name="audit/2", body=b"said too")


def a_whole(n: int = 0) -> Whole:
    """A change, an end, a new job, a new record and runs of no job."""
    return Whole(
        jobs=(NEW,),
        along={NEW.id: (ENTRY,), KEYED.id: (BESIDE,)},
        plans=(
            Plan(replace(OLD, priority=n + 1), (a_run(n, of=OLD),), records=(Record(name=f"version/{n}", body=b""),)),
            Plan(replace(GONE, deleted_at=NOW, next_fire_at=None)),
        ),
        records=(RecordChange(Record(name="calendar/c", body=b"%d" % n)),),
        runs=(ALONE, KEYED),
    )


class WholeContract(StoreUnderTest):
    async def test_a_whole_is_written(self, store: Store) -> None:
        await store.add_jobs([OLD, GONE])
        assert await store.write_whole(a_whole(), NOW)
        assert await store.get_jobs(["old", "gone", "new"]) == [replace(OLD, priority=1, version=2), None, NEW]
        assert ids([run for run in await store.get_runs([a_run(0, of=OLD).id]) if run is not None])
        assert await store.get_runs([ALONE.id, KEYED.id]) == [ALONE, KEYED]
        assert await store.get_run_by_key("mine") == KEYED
        assert None not in await store.get_records(["audit/1", "audit/2", "version/0", "calendar/c"])
        assert {run.id for run in (await take(store, queues=(QUEUE, OLD.queue))).runs} >= {ALONE.id, KEYED.id}

    async def test_runs_alone_are_a_whole(self, store: Store) -> None:
        assert await store.write_whole(Whole(runs=(ALONE,)), NOW)
        assert not await store.write_whole(Whole(runs=(ALONE, KEYED)), NOW)
        assert await store.get_runs([ALONE.id, KEYED.id]) == [ALONE, None]
        assert not await store.write_whole(Whole(runs=(KEYED, a_run(7, unique_key="mine"))), NOW)
        assert await store.get_runs([KEYED.id, a_run(7).id]) == [None, None]

    async def test_an_empty_whole_is_written(self, store: Store) -> None:
        assert await store.write_whole(Whole(), NOW)

    @pytest.mark.parametrize("lost", ["version", "name", "id", "record", "run", "key"])
    async def test_a_whole_of_which_one_part_is_refused_leaves_no_trace(self, store: Store, lost: str) -> None:
        await store.add_jobs([replace(OLD, version=2) if lost == "version" else OLD, GONE])
        match lost:
            case "name":
                await store.add_jobs([replace(a_job("another"), name="new")])
            case "id":
                await store.add_jobs([replace(NEW, name="other-name")])
            case "record":
                await store.put_records([RecordChange(Record(name="calendar/c", body=b"before"))])
            case "run":
                await store.add_runs([replace(ALONE, payload=b"1")])
            case "key":
                await store.add_runs([a_run(7, unique_key="mine")])
        before = await everything(store)
        assert not await store.write_whole(a_whole(), NOW)
        assert await everything(store) == before
        assert await store.get_records(["audit/1", "audit/2", "version/0"]) == [None, None, None]

    async def test_of_wholes_that_meet_one_is_written(self, stores: Stores) -> None:
        nodes = await stores.several(4)
        await nodes[0].add_jobs([OLD, GONE])
        answers = await asyncio.gather(*(node.write_whole(a_whole(n), NOW) for n, node in enumerate(nodes)))
        assert answers.count(True) == 1
        winner = answers.index(True)
        assert (await job_of(nodes[0], OLD)).priority == winner + 1
        (record,) = await nodes[0].get_records(["calendar/c"])
        assert record is not None
        assert record.body == b"%d" % winner

    async def test_a_whole_of_many_is_one_transaction(self, stores: Stores) -> None:
        store, other = await stores.several(2)
        half = BATCH_MAX // 2
        stored = [a_job(f"job-{n:04}", next_fire_at=NOW) for n in range(half)]
        await store.add_jobs(stored)
        plans = tuple(Plan(replace(job, priority=1)) for job in stored)
        new = tuple(a_job(f"new-{n:04}") for n in range(BATCH_MAX - half))
        await other.commit_plans([Plan(replace(stored[-1], priority=9))], NOW)
        assert not await store.write_whole(Whole(jobs=new, plans=plans), NOW)
        assert (await store.get_jobs([new[0].name]), (await job_of(store, stored[0])).priority) == ([None], 0)
        assert await store.write_whole(Whole(jobs=new, plans=plans[:-1]), NOW)
        assert (await job_of(store, stored[0])).priority == 1

    async def test_a_whole_that_fails_in_the_backend_is_whole_or_absent(self, stores: Stores) -> None:
        store, beside = await stores.several(2)
        await store.add_jobs([OLD, GONE])
        for fault in self.faults(store):
            before = await everything(beside)
            async with fault:
                try:
                    answer = await store.write_whole(a_whole(), NOW)
                except StoreUnavailable:
                    answer = False
            found: list[Job | None] = await beside.get_jobs(["new"])
            records = await beside.get_records(["audit/1", "audit/2", "version/0", "calendar/c"])
            written = found == [NEW]
            assert [record is not None for record in records] == [written] * 4
            assert await beside.get_runs([ALONE.id, KEYED.id]) == ([ALONE, KEYED] if written else [None, None])
            assert written or (not answer and await everything(beside) == before)
            if written:
                return
