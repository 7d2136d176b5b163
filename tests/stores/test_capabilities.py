"""The contract sees a store that claims what it can't do, and one that can do what it does not say."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any

import pytest

from horarium.model import Run
from horarium.ports import Store
from horarium.stores.memory import MemoryStore
from horarium.testing.contract import StoreContract


class Claims(MemoryStore):
    """Adds the runs at once, whatever becomes of the caller's transaction."""

    async def add_runs_in(self, connection: Any, runs: Sequence[Run]) -> list[bool]:
        return await self.add_runs(runs)

    def add_runs_sql(self, runs: Sequence[Run], placeholders: str = "$1") -> tuple[str, tuple[Any, ...]]:
        return "", ()


class Undeclared(StoreContract):
    async def open_store(self, namespace: str) -> Store:
        return Claims(namespace)


class Declared(Undeclared):
    def transaction(self, store: Store) -> AbstractAsyncContextManager[Any]:
        return nullcontext()


class Missing(Declared):
    async def open_store(self, namespace: str) -> Store:
        return MemoryStore(namespace)


@pytest.mark.parametrize("contract", [Undeclared, Missing])
async def test_what_is_declared_and_what_is_there_must_agree(contract: type[StoreContract]) -> None:
    subject = contract()
    test = subject.test_a_store_adds_runs_in_a_transaction_of_the_caller_if_it_says_so_and_only_then
    with pytest.raises(AssertionError):
        await test(await subject.open_store("a"))


async def test_a_rollback_that_takes_nothing_back_is_caught() -> None:
    subject = Declared()
    with pytest.raises(AssertionError):
        await subject.test_runs_of_a_transaction_that_is_rolled_back_never_were(await subject.open_store("b"))
