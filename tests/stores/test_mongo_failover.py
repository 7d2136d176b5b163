"""The primary of three nodes is killed under load: another one takes over, and what was acknowledged is there."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from itertools import count

import pytest

from horarium.errors import StoreUnavailable
from horarium.model import Run, State
from horarium.stores.mongo import MongoStore
from horarium.testing.values import NOW, QUEUE, a_run, completed
from tests.servers.mongo import MongoSet
from tests.waiting import PATIENCE, until

pytestmark = pytest.mark.slow

SHORT = "&socketTimeoutMS=3000&serverSelectionTimeoutMS=3000&connectTimeoutMS=1000&heartbeatFrequencyMS=500"
BATCH = 20
WAIT_SECONDS = PATIENCE


@pytest.fixture
def nodes() -> Iterator[MongoSet]:
    servers = MongoSet()
    try:
        servers.start()
        yield servers
    finally:
        servers.stop()


class Load:
    """Adds, claims and completes, through every outage, and remembers what was acknowledged."""

    def __init__(self, store: MongoStore) -> None:
        self._store = store
        self.added: list[str] = []
        self.claimed: list[Run] = []
        self.completed: list[str] = []
        self.outages = 0

    async def run(self) -> None:
        for number in count():
            with suppress(StoreUnavailable):
                await self._add([a_run(number * BATCH + place) for place in range(BATCH)])
                await self._perform()
                continue
            self.outages += 1

    async def _add(self, runs: list[Run]) -> None:
        await self._store.add_runs(runs)
        self.added += [run.id for run in runs]

    async def _perform(self) -> None:
        runs = (await self._store.claim_runs([QUEUE], BATCH, "w", NOW, NOW, NOW)).runs
        self.claimed += runs
        settled = await self._store.settle_runs([completed(run, held=True) for run in runs], NOW)
        self.completed += [run.id for run, done in zip(runs, settled, strict=True) if done]

    async def until_completed(self, more: int) -> None:
        """Until so many more were completed."""
        goal = len(self.completed) + more
        await until(lambda: len(self.completed) >= goal)


async def test_nothing_acknowledged_is_lost_when_the_primary_dies(nodes: MongoSet) -> None:
    store = MongoStore(nodes.url + SHORT, "failover")
    await store.open()
    load = Load(store)
    working = asyncio.create_task(load.run())
    await load.until_completed(200)
    await asyncio.to_thread(nodes.nodes[0].kill)
    await load.until_completed(200)
    assert await primary(store) in {node.port for node in nodes.nodes[1:]}
    await asyncio.to_thread(nodes.nodes[0].start)
    await load.until_completed(200)
    working.cancel()
    with suppress(asyncio.CancelledError):
        await working
    await store.close()
    await check(nodes, load)


async def primary(store: MongoStore) -> int:
    """The port of the node that takes writes."""
    assert store._session is not None
    hello = await store._session.client.admin.command("hello")
    return int(hello["me"].rpartition(":")[2])


async def check(nodes: MongoSet, load: Load) -> None:
    """What was added is there, what was completed is completed, and no token was given out twice. The first node takes
    over again once it has caught up: for a moment a new primary does not know of all that a majority has, and a read
    finds what it knows of."""
    store = MongoStore(nodes.url, "failover")
    await store.open()

    async def are_there(ids: list[str], states: frozenset[State]) -> bool:
        return all(run is not None and run.state in states for run in await store.get_runs(ids))

    for ids, states in ((load.added, frozenset(State)), (load.completed, frozenset({State.COMPLETED}))):
        for start in range(0, len(ids), 1_000):
            some = ids[start : start + 1_000]
            await until(lambda some=some, states=states: are_there(some, states))  # type: ignore[misc]
    tokens = [(run.id, run.token) for run in load.claimed]
    assert len(tokens) == len(set(tokens))
    await store.close()
