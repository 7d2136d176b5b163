"""The MongoDB store keeps the contract, on a real server."""

from __future__ import annotations

import pytest

from horarium.ports import Store
from horarium.stores.mongo import MongoStore
from horarium.testing.contract import StoreContract
from horarium.testing.values import NOW, a_finished_run
from tests.servers.mongo import Mongo
from tests.stores import patience

pytestmark = pytest.mark.slow


class TestMongoStore(StoreContract):
    machine_examples = 30

    @pytest.fixture(autouse=True)
    def _url(self, mongo: Mongo) -> None:
        self.url = mongo.url

    async def open_store(self, namespace: str) -> Store:
        store = MongoStore(self.url + patience.MONGO, namespace)
        await store.open()
        return store


async def test_of_runs_that_are_kept_equally_long_the_oldest_are_forgotten_first(mongo: Mongo) -> None:
    store = MongoStore(mongo.url, "ties")
    await store.open()
    runs = [a_finished_run(number, prune_at=NOW) for number in (3, 1, 2, 0)]
    await store.add_runs(runs)
    for left in ([3, 1, 2], [3, 2], [3]):
        assert await store.prune_runs(NOW, 1) == 1
        assert [run for run in await store.get_runs([run.id for run in runs]) if run] == [
            run for run in runs if run.id in {a_finished_run(number).id for number in left}
        ]
    await store.close()
