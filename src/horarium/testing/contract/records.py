"""Records: names and their order, labels, compare-and-set, and writes with a change or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from horarium.clock import INSTANT_MAX
from horarium.errors import StoreUnavailable
from horarium.model import Plan, State
from horarium.model.records import Record, RecordChange, RecordFilter, instant_key, key_instant
from horarium.ports import BATCH_MAX, Store
from horarium.testing.contract.atomicity import BATCH, cut_off, insist
from horarium.testing.contract.base import Stores, StoreUnderTest, take_one
from horarium.testing.faults import Fault, FaultyStore, by_script
from horarium.testing.values import NOW, a_change, a_job, a_run, completed


def a_record(name: str = "key/ci", body: bytes = b"{}", **labels: str) -> Record:
    return Record(name=name, body=body, labels=labels)


ODD_TEXTS = ("a\0b", "ü", "\U0001f600", "%_\\", "'\"", "{[(<", "\U0010ffff", "\ue000", " ", "a/b//c")


async def put(store: Store, *records: Record) -> None:
    """Insert these."""
    assert await store.put_records([RecordChange(record) for record in records]) == [True] * len(records)


async def names(store: Store, where: RecordFilter | None = None, limit: int = 100) -> list[str]:
    page = await store.list_records(where or RecordFilter(), None, limit)
    return [record.name for record in page.items]


class RecordContract(StoreUnderTest):
    # -- compare and set

    async def test_a_record_comes_back_as_it_was_put(self, store: Store) -> None:
        record = Record(name="key/ci", body=bytes(range(256)), labels={"actor": "ann", "": ""}, version=7)
        await put(store, record)
        assert await store.get_records(["key/none", "key/ci", "key/ci"]) == [None, record, record]

    @pytest.mark.parametrize("text", ODD_TEXTS)
    async def test_names_and_labels_may_be_any_text(self, store: Store, text: str) -> None:
        record = Record(name=f"key/{text}", body=b"", labels={text: text})
        await put(store, record, Record(name="other", body=b"", labels={f"{text}x": text}))
        assert await store.get_records([record.name]) == [record]
        assert await names(store, RecordFilter(labels={text: text})) == [record.name]
        assert await names(store, RecordFilter(prefix=f"key/{text}")) == [record.name]

    async def test_a_name_is_given_once(self, store: Store) -> None:
        first, second = a_record(body=b"1"), a_record(body=b"2")
        assert await store.put_records([RecordChange(first), RecordChange(second)]) == [True, False]
        assert await store.put_records([RecordChange(second)]) == [False]
        assert await store.get_records([first.name]) == [first]

    async def test_a_record_is_written_only_over_the_version_that_was_read(self, store: Store) -> None:
        first = a_record(body=b"1", colour="red")
        second = replace(first, body=b"2", labels={"colour": "blue"}, version=2)
        await put(store, first)
        assert await store.put_records([RecordChange(second, 2), RecordChange(second, 1)]) == [False, True]
        assert await store.put_records([RecordChange(first, 1)]) == [False]
        assert await store.get_records([first.name]) == [second]
        assert await names(store, RecordFilter(labels={"colour": "red"})) == []
        assert await names(store, RecordFilter(labels={"colour": "blue"})) == [first.name]

    async def test_a_record_is_removed_only_at_the_version_that_was_read(self, store: Store) -> None:
        record = a_record(colour="red")
        await put(store, record)
        assert await store.put_records([RecordChange(record, 2, deleted=True)]) == [False]
        assert await store.put_records([RecordChange(record, 1, deleted=True)]) == [True]
        assert await store.put_records([RecordChange(record, 1, deleted=True)]) == [False]
        assert await store.get_records([record.name]) == [None]
        assert await names(store) == await names(store, RecordFilter(labels={"colour": "red"})) == []

    async def test_changes_of_a_batch_follow_one_another(self, store: Store) -> None:
        first = a_record(body=b"1")
        second, third = replace(first, version=2), replace(first, body=b"3")
        batch = [
            RecordChange(first),
            RecordChange(second, 1),
            RecordChange(second, 1),
            RecordChange(second, 2, deleted=True),
            RecordChange(third),
        ]
        assert await store.put_records(batch) == [True, True, False, True, True]
        assert await store.get_records([first.name]) == [third]

    async def test_of_many_writers_one_gets_through(self, stores: Stores) -> None:
        nodes = await stores.several(4)
        await put(nodes[0], a_record())
        changes = [RecordChange(a_record(body=str(n).encode()), 1) for n in range(len(nodes))]
        changes = [replace(change, record=replace(change.record, version=2)) for change in changes]
        answers = await asyncio.gather(
            *(node.put_records([change]) for node, change in zip(nodes, changes, strict=True))
        )
        (winner,) = [change for change, (won,) in zip(changes, answers, strict=True) if won]
        assert await nodes[0].get_records(["key/ci"]) == [winner.record]

    async def test_a_full_batch_of_records(self, store: Store) -> None:
        records = [
            a_record(f"many/{number:04}", number=str(number), parity=str(number % 2)) for number in range(BATCH_MAX)
        ]
        await put(store, *records)
        assert await store.get_records([record.name for record in records]) == records
        assert len(await names(store, RecordFilter(labels={"parity": "1"}), BATCH_MAX)) == BATCH_MAX // 2
        assert await store.prune_records("many/", "1", BATCH_MAX) == BATCH_MAX

    # -- lists

    async def test_a_list_is_in_the_order_of_names_either_way(self, store: Store) -> None:
        given = ["b", "a/z", "a", "a/b", "a/é", "a/\U0001f600", "B", "a/b/c"]
        await put(store, *map(a_record, given))
        assert await names(store) == sorted(given)
        assert await names(store, RecordFilter(descending=True)) == sorted(given, reverse=True)
        assert await names(store, RecordFilter(prefix="a/")) == ["a/b", "a/b/c", "a/z", "a/é", "a/\U0001f600"]

    @pytest.mark.parametrize("labels", [{}, {"even": "yes"}])
    @pytest.mark.parametrize("descending", [False, True])
    async def test_bounds_and_pages_go_together(self, store: Store, labels: dict[str, str], descending: bool) -> None:
        records = [a_record(f"audit/{number}", even="yes" if number % 2 == 0 else "no") for number in range(9)]
        await put(store, a_record("audis", even="yes"), *records, a_record("audit0", even="yes"))
        where = RecordFilter("audit/", since="1", until="7", labels=labels, descending=descending)
        expected = [str(number) for number in range(1, 7) if not labels or number % 2 == 0]
        expected = [f"audit/{number}" for number in (reversed(expected) if descending else expected)]
        assert await names(store, where) == expected
        found: list[str] = []
        after: str | None = None
        while True:
            page = await store.list_records(where, after, 2)
            found += (record.name for record in page.items)
            if page.next_after is None:
                break
            after = page.next_after
        assert found == expected

    async def test_every_label_of_a_filter_must_match(self, store: Store) -> None:
        await put(
            store, a_record("1", who="ann", what="x"), a_record("2", who="ann", what="y"), a_record("3", who="bob")
        )
        assert await names(store, RecordFilter(labels={"who": "ann"})) == ["1", "2"]
        assert await names(store, RecordFilter(labels={"who": "ann", "what": "y"})) == ["2"]
        assert await names(store, RecordFilter(labels={"what": "y", "who": "bob"})) == []
        assert await names(store, RecordFilter(labels={"who": "an"})) == []

    async def test_a_span_of_time_is_a_pair_of_bounds(self, store: Store) -> None:
        instants = [0, 1, NOW, NOW + 1, INSTANT_MAX]
        await put(store, *(a_record(f"audit/{instant_key(at, str(at % 7))}") for at in reversed(instants)))
        found = [key_instant(name.removeprefix("audit/")) for name in await names(store, RecordFilter("audit/"))]
        assert found == instants
        span = RecordFilter("audit/", since=instant_key(1), until=instant_key(NOW + 1))
        assert [key_instant(name.removeprefix("audit/")) for name in await names(store, span)] == [1, NOW]

    # -- forgetting

    async def test_the_lowest_are_forgotten_first_up_to_the_limit(self, store: Store) -> None:
        records = [a_record(f"audit/{number}", all="yes") for number in range(5)]
        await put(store, a_record("a"), *records, a_record("z"))
        assert await store.prune_records("audit/", "3", 0) == 0
        assert await store.prune_records("audit/", "3", 2) == 2
        assert await names(store, RecordFilter(labels={"all": "yes"})) == ["audit/2", "audit/3", "audit/4"]
        assert await store.prune_records("audit/", "3", 10) == 1
        assert await store.prune_records("audit/", "3", 10) == 0
        assert await names(store) == ["a", "audit/3", "audit/4", "z"]

    async def test_namespaces_share_no_records(self, stores: Stores) -> None:
        here, there = await stores.another(), await stores.another(f"{stores.namespace}-other")
        await put(here, a_record(body=b"here", x="1"))
        await put(there, a_record(body=b"there", x="1"))
        assert [
            (await store.list_records(RecordFilter(labels={"x": "1"}), None, 9)).items for store in (here, there)
        ] == [
            (a_record(body=b"here", x="1"),),
            (a_record(body=b"there", x="1"),),
        ]
        assert await here.prune_records("", "\U0010ffff", 9) == 1
        assert await names(there) == ["key/ci"]

    # -- records that come along

    async def test_a_record_comes_along_with_what_is_inserted_only(self, store: Store) -> None:
        job, run = a_job(), a_run(1)
        along = {job.id: [a_record("1", x="y")], run.id: [a_record("2"), a_record("1", b"other")]}
        assert await store.add_jobs([job, job], along) == [True, False]
        assert await store.add_runs([run, run], along) == [True, False]
        assert await names(store) == ["1", "2"]
        again = {job.id: [a_record("3")], run.id: [a_record("4")]}
        assert await store.add_jobs([job, replace(job, id="x")], {**again, "x": [a_record("5")]}) == [False, False]
        assert await store.add_runs([run, a_run(2)], again) == [False, True]
        assert await names(store) == await names(store, RecordFilter()) == ["1", "2"]
        assert await store.get_records(["1"]) == [a_record("1", x="y")]

    async def test_a_plan_that_loses_leaves_no_record(self, store: Store) -> None:
        job = a_job()
        await store.add_jobs([job])
        plans = [Plan(job, (a_run(n, of=job),), records=(a_record(f"audit/{n}", n=str(n)),)) for n in range(2)]
        assert await store.commit_plans(plans, NOW) == [True, False]
        assert await names(store) == ["audit/0"]
        assert await names(store, RecordFilter(labels={"n": "1"})) == []

    async def test_a_record_whose_name_is_taken_stays_and_the_plan_is_carried_out(self, store: Store) -> None:
        """Of one that only adds a run, and of one that ends another run as well."""
        await store.add_jobs([job := a_job()])
        assert await store.put_records([RecordChange(a_record("audit/1"))]) == [True]
        taken, twice = a_record("audit/1", b"other", of="taken"), a_record("audit/2", b"again", of="twice")
        new = a_record("audit/2", of="new")
        run = a_run(1, of=job)
        assert await store.commit_plans([Plan(job, (run,), records=(taken, new, twice))], NOW) == [True]
        ends = a_change(run, state=State.CANCELLED, finished_at=NOW)
        later = Plan(replace(job, version=job.version + 1), (a_run(2, of=job),), (ends,), records=(taken, new))
        assert await store.commit_plans([later], NOW) == [True]
        assert await store.get_records(["audit/1", "audit/2"]) == [a_record("audit/1"), new]
        found = [await names(store, RecordFilter(labels={"of": of})) for of in ("taken", "twice", "new")]
        assert found == [[], [], ["audit/2"]]
        (stored, added) = await store.get_runs([run.id, a_run(2, of=job).id])
        assert stored is not None
        assert stored.state is State.CANCELLED
        assert added is not None

    async def test_a_change_that_loses_leaves_no_record(self, store: Store) -> None:
        claimed = await take_one(store, a_run(1))
        first = replace(completed(claimed), records=(a_record("audit/1"),))
        second = replace(completed(claimed), records=(a_record("audit/2"),))
        assert await store.settle_runs([first, second], NOW) == [True, False]
        record = replace(a_record(), version=2)
        changes = [
            RecordChange(a_record(), records=(a_record("audit/3", x="y"),)),
            RecordChange(a_record(), records=(a_record("audit/4", x="y"),)),
            RecordChange(record, 1, records=(a_record("audit/5"), a_record("audit/1", b"other"))),
            RecordChange(record, 2, deleted=True, records=(a_record("audit/6"),)),
        ]
        assert await store.put_records(changes) == [True, False, True, True]
        assert await names(store) == ["audit/1", "audit/3", "audit/5", "audit/6"]
        assert await store.get_records(["audit/1"]) == [a_record("audit/1")]

    async def test_of_many_nodes_one_change_and_its_record_get_through(self, stores: Stores) -> None:
        nodes = await stores.several(4)
        job = a_job()
        await nodes[0].add_jobs([job])
        for version in range(1, 6):
            plans = [
                Plan(replace(job, version=version, priority=number), records=(a_record(f"audit/{version}.{number}"),))
                for number in range(len(nodes))
            ]
            answers = await asyncio.gather(
                *(node.commit_plans([plan], NOW) for node, plan in zip(nodes, plans, strict=True))
            )
            (winner,) = [plan for plan, (won,) in zip(plans, answers, strict=True) if won]
            assert await names(nodes[0], RecordFilter(f"audit/{version}.")) == [winner.records[0].name]

    @pytest.mark.parametrize("fault", Fault)
    async def test_what_is_repeated_after_a_fault_leaves_its_record_once(self, store: Store, fault: Fault) -> None:
        calls = ("add_jobs", "commit_plans", "add_runs", "settle_runs", "put_records")
        faulty = FaultyStore(store, by_script(*((call, fault) for call in calls)))
        job, run = a_job(), a_run(1)
        plan = Plan(job, (run,), records=(a_record("2"),))
        change = a_change(run, state=State.CANCELLED, finished_at=NOW)
        await insist(lambda: faulty.add_jobs([job], {job.id: [a_record("1")]}))
        await insist(lambda: faulty.commit_plans([plan], NOW))
        await insist(lambda: faulty.add_runs([a_run(2)], {a_run(2).id: [a_record("3")]}))
        await insist(lambda: faulty.settle_runs([replace(change, records=(a_record("4"),))], NOW))
        await insist(lambda: faulty.put_records([RecordChange(a_record("5"), records=(a_record("6"),))]))
        assert faulty.faults == len(calls)
        assert await names(store) == ["1", "2", "3", "4", "5", "6"]

    @pytest.mark.parametrize("steps", range(5))
    async def test_a_cancelled_caller_leaves_a_change_with_its_record_or_neither(
        self, stores: Stores, steps: int
    ) -> None:
        store, after = await stores.several(2)
        runs = [a_run(n) for n in range(BATCH)]
        along = {run.id: [a_record(f"audit/{number:02}", x="y")] for number, run in enumerate(runs)}
        await cut_off(store.add_runs(runs, along), steps)
        await store.close()
        there = await after.get_runs([run.id for run in runs])
        written = [f"audit/{number:02}" for number, run in enumerate(there) if run is not None]
        assert await names(after) == await names(after, RecordFilter(labels={"x": "y"})) == written

    async def test_a_write_that_fails_in_the_backend_leaves_no_record_without_its_change(self, stores: Stores) -> None:
        store, beside = await stores.several(2)
        for number, fault in enumerate(self.faults(store)):
            jobs = [a_job(f"job-{number}-{n}") for n in range(BATCH)]
            along = {job.id: [a_record(f"audit/{job.name}", b"x" * 3_000)] for job in jobs}
            async with fault:
                try:
                    answer: Sequence[bool] = await store.add_jobs(jobs, along)
                except StoreUnavailable:
                    answer = []
            there = await beside.get_jobs([job.name for job in jobs])
            written = [f"audit/{job.name}" for job in there if job is not None]
            assert await names(beside, RecordFilter(f"audit/job-{number}-")) == sorted(written)
            assert len(written) in (0, BATCH)
            assert written or not answer
