"""What every part of the contract uses: the stores under test, and short ways to call them."""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
import pytest_asyncio

from horarium.clock import Instant
from horarium.model import Job, Run
from horarium.ports import BATCH_MAX, Claimed, Store
from horarium.testing.values import NOW, QUEUE


class Stores:
    """Opens stores over one namespace (or another), and closes them when the test is over."""

    def __init__(self, open_store: Callable[[str], Awaitable[Store]], namespace: str) -> None:
        self._open_store = open_store
        self._opened: list[Store] = []
        self.namespace = namespace

    async def another(self, namespace: str | None = None) -> Store:
        """One more instance, open."""
        store = await self._open_store(namespace or self.namespace)
        self._opened.append(store)
        return store

    async def several(self, count: int) -> list[Store]:
        """Instances over the same data, as several nodes have them."""
        return [await self.another() for _ in range(count)]

    async def close(self) -> None:
        for store in self._opened:
            await store.close()


class StoreUnderTest(ABC):
    """Derive `StoreContract`, not this, and say how to open your store."""

    @abstractmethod
    async def open_store(self, namespace: str) -> Store:
        """A store of this namespace, opened. Two calls with one namespace must reach the same data, by instances that
        share as little as two processes would."""

    def faults(self, store: Store) -> Sequence[AbstractAsyncContextManager[None]]:
        """Real faults of this backend: inside each, calls of `store` fail in some way, half-way at best (a connection
        that is cut, a full disk, a lock). Left, `store` must work again. None by default."""
        return ()

    def transaction(self, store: Store) -> AbstractAsyncContextManager[Any] | None:
        """A connection of a caller's own to the store's database, in a transaction that commits when it is left and is
        rolled back when it is left by an exception. None, the default: the store is no `TransactionalStore`."""
        return None

    @pytest.fixture
    def namespace(self) -> str:
        # A server keeps its data between two test runs, so a name must be new each time.
        return f"contract-{secrets.token_hex(6)}"

    @pytest_asyncio.fixture
    async def stores(self, namespace: str) -> AsyncIterator[Stores]:
        stores = Stores(self.open_store, namespace)
        yield stores
        await stores.close()

    @pytest_asyncio.fixture
    async def store(self, stores: Stores) -> Store:
        return await stores.another()


async def take(
    store: Store,
    limit: int = BATCH_MAX,
    *,
    now: Instant = NOW,
    until: Instant | None = None,
    queues: Sequence[str] = (QUEUE,),
    worker: str = "worker-1",
) -> Claimed:
    """Claim, with what most tests want."""
    return await store.claim_runs(queues, limit, worker, now, now if until is None else until, now)


async def take_one(store: Store, run: Run, *, now: Instant = NOW) -> Run:
    """Add this run and claim it."""
    assert await store.add_runs([run]) == [True]
    (claimed,) = (await take(store, now=now, until=max(now, run.due_at), queues=[run.queue])).runs
    assert claimed.id == run.id
    return claimed


async def run_of(store: Store, run: Run | str) -> Run:
    """The stored run, which must exist."""
    (found,) = await store.get_runs([run if isinstance(run, str) else run.id])
    assert found is not None
    return found


async def job_of(store: Store, job: Job) -> Job:
    """The stored job, which must exist, by its id."""
    (found,) = await store.get_jobs_by_id([job.id])
    assert found is not None
    return found


def ids(runs: Sequence[Run]) -> list[str]:
    return [run.id for run in runs]
