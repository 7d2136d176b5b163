"""Runs added in a transaction of the caller's own: a store can do it or can't, says so, and both are tested."""

from __future__ import annotations

import pytest

from horarium.errors import Conflict
from horarium.model import Level
from horarium.model.records import Record, RecordFilter
from horarium.ports import RunFilter, Store, TransactionalStore
from horarium.testing.contract.base import Stores, StoreUnderTest, ids, take
from horarium.testing.values import NOW, a_run


class RolledBack(Exception):
    """Ends a transaction so that nothing of it stays."""


class TransactionContract(StoreUnderTest):
    """`ports.TransactionalStore`. Say by `transaction` whether your store is one."""

    async def test_a_store_adds_runs_in_a_transaction_of_the_caller_if_it_says_so_and_only_then(
        self, store: Store
    ) -> None:
        assert isinstance(store, TransactionalStore) == (self.transaction(store) is not None)

    async def test_runs_of_a_transaction_exist_once_it_commits(self, stores: Stores, store: Store) -> None:
        begun = self.transaction(store)
        if begun is None or not isinstance(store, TransactionalStore):
            return
        other, runs = await stores.another(), [a_run(1), a_run(2)]
        async with begun as connection:
            assert await store.add_runs_in(connection, runs) == [True, True]
            assert await store.add_runs_in(connection, [a_run(2), a_run(3)]) == [False, True]
            assert (await take(other)).runs == ()
        assert sorted(ids((await take(other)).runs)) == sorted(a_run(number).id for number in (1, 2, 3))

    async def test_the_first_run_of_a_queue_in_a_transaction_keeps_no_other_waiting(self, store: Store) -> None:
        begun, other = self.transaction(store), self.transaction(store)
        if begun is None or other is None or not isinstance(store, TransactionalStore):
            return
        runs = [a_run(number, queue="handler/new") for number in range(4)]
        async with begun as connection:
            assert await store.add_runs_in(connection, runs[:1]) == [True]
            assert await store.add_runs(runs[1:2]) == [True]
            async with other as connection_of_another:
                assert await store.add_runs_in(connection_of_another, runs[2:3]) == [True]
            assert await store.add_runs_in(connection, runs[3:]) == [True]
        where = RunFilter(queue="handler/new")
        assert [run.id for run in (await store.list_runs(where, None, 10)).items] == ids(runs)[::-1]
        assert [(one.queue, one.due) for one in (await store.stats(NOW)).queues] == [("handler/new", 4)]
        levels: list[Level] = [("handler/new", 0, False), ("handler/other", 0, False), ("handler/new", 0, False)]
        assert await store.first_due(levels) == [NOW, None, NOW]
        claimed = await take(store, queues=["handler/new"])
        assert sorted(ids(claimed.runs)) == ids(runs)

    async def test_a_key_that_an_open_transaction_holds_is_waited_for_a_little(self, store: Store) -> None:
        begun, other = self.transaction(store), self.transaction(store)
        if begun is None or other is None or not isinstance(store, TransactionalStore):
            return
        async with begun as connection:
            assert await store.add_runs_in(connection, [a_run(1, unique_key="k")]) == [True]
            with pytest.raises(Conflict, match=r"^unique_key: .* has not ended"):
                await store.add_runs([a_run(2, unique_key="k")])
            with pytest.raises(Conflict, match=r"^unique_key: .* has not ended"):
                async with other as connection_of_another:
                    await store.add_runs_in(connection_of_another, [a_run(3, unique_key="k")])
        assert await store.add_runs([a_run(2, unique_key="k")]) == [False]

    async def test_records_go_along_with_the_runs_of_a_transaction_that_are_added(self, store: Store) -> None:
        begun = self.transaction(store)
        if begun is None or not isinstance(store, TransactionalStore):
            return
        assert await store.add_runs([a_run(1)])
        along = {
            a_run(number).id: [
                Record(name=f"note/{number}{part}", body=b"{}", labels={"number": str(number), "part": part})
                for part in "ab"
            ]
            for number in (1, 2)
        }
        async with begun as connection:
            assert await store.add_runs_in(connection, [a_run(1), a_run(2), a_run(3)], along) == [False, True, True]
            assert (await store.list_records(RecordFilter("note/"), None, 10)).items == ()
        found = await store.list_records(RecordFilter("note/"), None, 10)
        assert [(record.name, record.version) for record in found.items] == [("note/2a", 1), ("note/2b", 1)]
        found = await store.list_records(RecordFilter("note/", labels={"part": "b"}), None, 10)
        assert [record.labels for record in found.items] == [{"number": "2", "part": "b"}]

    async def test_runs_of_a_transaction_that_is_rolled_back_never_were(self, store: Store) -> None:
        begun = self.transaction(store)
        if begun is None or not isinstance(store, TransactionalStore):
            return
        try:
            async with begun as connection:
                assert await store.add_runs_in(connection, [a_run(1)]) == [True]
                raise RolledBack
        except RolledBack:
            pass
        assert await store.get_runs([a_run(1).id]) == [None]
        assert await store.add_runs([a_run(1)]) == [True]
