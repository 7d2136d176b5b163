"""The memory store keeps the contract, and its indexes agree with its rows."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import pytest

from horarium.ports import JobFilter, Store
from horarium.stores.memory import MemoryDatabase, MemoryStore
from horarium.stores.memory import store as memory
from horarium.stores.memory.indexes import ClaimedCounts, Identities, JobIndexes, Lanes, RunIndexes
from horarium.stores.memory.ordered import CHUNK_MAX, Ordered
from horarium.stores.memory.space import Beside, Space
from horarium.testing.contract import StoreContract
from horarium.testing.values import a_job


class CheckedStore(MemoryStore):
    """Compares its indexes, when it is closed, with those rebuilt from its rows alone."""

    async def close(self) -> None:
        fresh = Space()
        fresh.beside.nodes, fresh.health = self._space.beside.nodes, self._space.health
        for job in self._space.jobs.values():
            fresh.put_job(job)
        for run in self._space.runs.values():
            assert fresh.add_run(run)
        fresh.beside.add(self._space.beside.records.values())
        assert contents(self._space) == contents(fresh)


Part = Space | Beside | JobIndexes | Identities | RunIndexes | Lanes | ClaimedCounts


def contents(space: Part) -> dict[str, Any]:
    return {name: plain(value) for name, value in vars(space).items()}


def plain(value: Any) -> Any:
    if isinstance(value, Ordered):
        return list(value)
    if isinstance(value, Part):
        return contents(value)
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return value


async def test_a_list_that_looks_at_many_jobs_gives_way_and_loses_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "LOOKED_AT", 10)
    store = MemoryStore()
    await store.add_jobs([a_job(f"job-{number:03}", id=f"{number:03}", enabled=number > 95) for number in range(100)])
    turns = 0

    async def beside() -> None:
        nonlocal turns
        for _ in range(20):
            await asyncio.sleep(0)
            turns += 1

    task = asyncio.ensure_future(beside())
    page = await store.list_jobs(JobFilter(enabled=True), None, 50)
    assert turns >= 9
    assert [job.name for job in page.items] == ["job-096", "job-097", "job-098", "job-099"]
    assert page.next_after is None
    await task
    first = await store.list_jobs(JobFilter(name_prefix="job-0"), "job-05", 25)
    assert (first.items[0].name, first.next_after) == ("job-050", "job-074")
    rest = await store.list_jobs(JobFilter(name_prefix="job-07"), "a", 50)
    assert [job.name for job in rest.items] == [f"job-07{digit}" for digit in range(10)]


class TestMemoryStore(StoreContract):
    @pytest.fixture(autouse=True)
    def _database(self) -> None:
        self.database = MemoryDatabase()

    async def open_store(self, namespace: str) -> Store:
        store = CheckedStore(namespace, database=self.database)
        await store.open()
        return store


def test_an_ordered_collection_is_sorted_through_any_change() -> None:
    random = Random(3)
    ordered: Ordered[int] = Ordered()
    items: set[int] = set()
    for _ in range(8 * CHUNK_MAX):
        item = random.randrange(5 * CHUNK_MAX)
        if item in items:
            items.remove(item)
            ordered.remove(item)
        else:
            items.add(item)
            ordered.add(item)
    expected = sorted(items)
    assert (list(ordered), len(ordered), ordered.first()) == (expected, len(expected), expected[0])
    assert list(ordered.descending()) == expected[::-1]
    for bound in (-1, 0, expected[0], expected[99], expected[99] + 1, expected[-1], 9 * CHUNK_MAX):
        assert list(ordered.above(bound)) == [item for item in expected if item > bound]
        assert list(ordered.upto(bound)) == [item for item in expected if item <= bound]
        assert list(ordered.descending(bound)) == [item for item in expected[::-1] if item < bound]
        assert ordered.count_below(bound) == sum(item < bound for item in expected)
    for item in expected:
        ordered.remove(item)
    assert (list(ordered), ordered.first(), list(ordered.descending())) == ([], None, [])


def test_removing_what_is_not_there_is_an_error() -> None:
    ordered: Ordered[int] = Ordered()
    ordered.add(5)
    with pytest.raises(AssertionError, match="4 is not in the collection"):
        ordered.remove(4)


async def test_stores_without_a_common_database_share_nothing() -> None:
    one, two = MemoryStore(), MemoryStore()
    assert one.namespace == two.namespace
    assert await one.add_jobs([a_job()]) == [True]
    assert await two.add_jobs([a_job()]) == [True]
